//! On a clock of their own: nobody waits.

use super::*;
use crate::Span;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const fn span(length_bytes: u64) -> Span {
    Span { offset_bytes: 0, length_bytes }
}

const fn read(length_bytes: u64) -> Command<()> {
    Command::Read { span: span(length_bytes), buffer: () }
}

const TRIM: Command<()> = Command::Trim { span: span(MIB), fua: false };

/// Limits, and the time.
struct World {
    rates: Arc<Rates>,
    now: Instant,
}

impl World {
    fn new(operations_per_second: Option<u64>, bytes_per_second: Option<u64>) -> Self {
        let world = Self { rates: Arc::default(), now: Instant::now() };
        world.set(operations_per_second, bytes_per_second);
        world
    }

    fn set(&self, operations_per_second: Option<u64>, bytes_per_second: Option<u64>) {
        self.rates.set_at(RateLimits { operations_per_second, bytes_per_second }, self.now);
    }

    /// How many milliseconds requests take, one after the other, that begin when their turns have come.
    fn ms(&mut self, commands: impl IntoIterator<Item = Command<()>>) -> u128 {
        let (mut pacer, began) = (Pacer::new(Arc::clone(&self.rates)), self.now);
        for command in commands {
            while let Some(at) = pacer.begin(&command, self.now) {
                assert!(at > self.now && at <= self.now + LOOK);
                self.now = at;
            }
        }
        (self.now - began).as_millis()
    }
}

#[test]
fn operations_and_bytes_take_their_time() {
    // The change left the bucket empty: the first is free, and others come when it has filled again.
    assert_eq!(World::new(Some(10), None).ms(vec![read(1); 31]), 3000);
    assert_eq!(World::new(Some(10), None).ms(vec![TRIM; 11]), 1000);
    assert_eq!(World::new(Some(1), None).ms(vec![Command::Cache { span: span(1) }; 11]), 10_000);
    // Four slices each, of which the last is not waited for afterwards.
    let quarters = [read(256 * KIB), Command::Write { span: span(256 * KIB), buffer: (), fua: true }];
    assert_eq!(World::new(None, Some(MIB)).ms(quarters.repeat(4)), 2000 - 1000 / 16 - 1);
    // Whichever is reached first.
    assert_eq!(World::new(Some(100), Some(MIB)).ms(vec![read(KIB); 201]), 2000);
    assert_eq!(World::new(Some(100), Some(64 * KIB)).ms(vec![read(32 * KIB); 5]), 2000);
    // What has no data is not delayed by bytes.
    assert_eq!(World::new(None, Some(KIB)).ms(vec![TRIM; 100]), 0);
}

#[test]
fn what_was_not_used_for_a_second_is_there_at_once() {
    let mut world = World::new(Some(10), None);
    world.now += Duration::from_secs(3600);
    assert_eq!(world.ms(vec![read(1); 11]), 0);
    assert_eq!(world.rates.delayed(), 0);
    assert_eq!(world.ms(vec![read(1); 10]), 1000);
    assert_eq!(world.rates.delayed(), 10);
}

#[test]
fn nothing_waits_without_a_limit_and_flushes_never_do() {
    let cx = &mut Context::from_waker(std::task::Waker::noop());
    let free = Pacer::new(Arc::default()).poll_begin(&read(MIB), cx);
    let slow = World::new(Some(1), Some(1));
    let mut pacer = Pacer::new(Arc::clone(&slow.rates));
    assert!(free && (0..1000).all(|_| pacer.poll_begin(&Command::Flush, cx)));
    assert_eq!(slow.rates.delayed(), 0);
    assert_eq!(World::new(None, None).ms(vec![read(MIB); 1000]), 0);
}

#[test]
fn limits_that_change_hold_for_those_who_wait() {
    let mut world = World::new(Some(1), Some(1));
    let mut pacer = Pacer::new(Arc::clone(&world.rates));
    assert!(pacer.begin(&read(MIB), world.now).is_some(), "a megabyte takes eleven days");
    world.now += LOOK;
    assert!(pacer.begin(&read(MIB), world.now).is_some());
    world.set(Some(1), Some(64 * MIB));
    assert_eq!(pacer.begin(&read(MIB), world.now), None);
    world.set(None, Some(1));
    assert!(pacer.begin(&read(MIB), world.now).is_some());
    world.set(None, None);
    assert!(pacer.begin(&read(MIB), world.now).is_none());
}

/// Connections with large requests, and one with small ones: that gets a turn between any two of theirs.
#[test]
fn large_requests_do_not_keep_small_ones_out() {
    let mut world = World::new(None, Some(MIB));
    // When each asks next; the last is small.
    let mut clients: Vec<_> = (0..4).map(|_| (world.now, Pacer::new(Arc::clone(&world.rates)), 0_u32)).collect();
    while clients[3].2 < 100 {
        let (next, (at, pacer, begun)) = clients.iter_mut().enumerate().min_by_key(|(_, client)| client.0).unwrap();
        world.now = *at;
        let command = if next == 3 { read(4 * KIB) } else { read(32 * MIB) };
        match pacer.begin(&command, world.now) {
            Some(later) => *at = later,
            // What it does with that takes it a moment.
            None => (*at, *begun) = (*at + Duration::from_micros(1), *begun + 1),
        }
    }
    let took = (world.now - world.rates.zero).as_millis();
    // A small one waits for three slices of a sixteenth of a second each.
    assert!((10_000..25_000).contains(&took), "{took} ms");
}

/// However much is asked for, and however little allowed, numbers have room for it.
#[test]
fn the_slowest_rate_is_no_trouble() {
    let mut world = World::new(Some(1), Some(1));
    for _ in 0..100_000 {
        assert!(world.rates.take(u64::MAX, u64::MAX, world.now).due >= world.now);
    }
    world.set(Some(u64::MAX), Some(u64::MAX));
    assert_eq!(world.ms(vec![read(MIB); 3]), 0);
    assert_eq!(world.ms(vec![read(u64::MAX); 3]), 3000);
}
