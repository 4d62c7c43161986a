//! Log devices that come, go and take each other's place while the array is used, and what is left of that when the
//! power goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uraid_io::disk::{Image, log_place, places};
use uraid_io::engine::{Command, Deadlines, EngineError, Reply};
use uraid_io::format::log_device::LogHeader;
use uraid_io::format::superblock::{LogChange, LogChangeError, LogDevices, LogIndex, LogSet};
use uraid_layout::{Bytes, Lba};
use uuid::Uuid;

use crate::log_devices::{
    LogEngine, Made, Model, SHARES, block_of, device, engine_of, journaled, log, on_record, put, read_all, settle,
    shapes, work,
};
use crate::reshape::Power;
use crate::support::{Members, RAID5, Random, Shape, buf, noise, size, small};

/// Room for all log devices that there can be, and one more.
const PLACES: usize = 64 + 5;

/// How many runs of logs there were.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Has a log device say who it is, where no share is.
fn named(mut image: Image, device: Uuid) -> Image {
    image.write(0, device.as_bytes());
    image
}

/// A device that held something.
fn used(made: &Made) -> Image {
    let bytes = size(LogHeader::size_min(made.share, made.shape.members));
    noise(99, (bytes / 512) as u64).into()
}

/// The same array, with log devices that say who they are.
fn told(mut made: Made) -> Made {
    for (number, bytes) in (0..).zip(made.images.iter_mut().skip(64)) {
        *bytes = bytes.take().map(|bytes| named(bytes, device(number)));
    }
    made.images.resize(PLACES, None);
    made
}

/// Members and log devices at their places, as the members say. Those of other devices are the second.
fn arranged(mut images: Members) -> (Members, Vec<Image>) {
    let mut left: Vec<Image> = images.split_off(64).into_iter().flatten().collect();
    let mut find = |uuid: Uuid| {
        let index = left.iter().position(|bytes| bytes[..16] == *uuid.as_bytes())?;
        Some(left.swap_remove(index))
    };
    let devices = on_record(&images).devices.iter().map(|device| find(device.uuid)).collect();
    let mut images = places(images, devices);
    images.resize(PLACES, None);
    (images, left)
}

/// Asks for a change; a device that comes has these bytes.
fn ask(engine: &mut LogEngine<'_>, change: LogChange, image: &Image, token: u64) {
    let seat = log_place(engine.superblock().logs.as_ref().expect("it has log devices").next());
    if let LogChange::Add { device } | LogChange::Replace { device, .. } = change {
        engine.disk_mut().replace(seat, named(image.clone(), device));
    }
    // Nobody else has this number, whichever test it is.
    let run = 1 << 64 | u128::from(RUNS.fetch_add(1, Ordering::Relaxed));
    engine.submit(token, Command::ChangeLogs { change, generation: Uuid::from_u128(run) });
}

fn changed(engine: &mut LogEngine<'_>, change: LogChange, image: &Image) -> Result<(), EngineError> {
    ask(engine, change, image, 1);
    let mut replies = settle(engine);
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies.pop().expect("a reply").result.map(drop)
}

fn give_up(engine: &mut LogEngine<'_>, log: LogIndex) -> Result<(), EngineError> {
    engine.submit(0, Command::Fail { member: log_place(log) });
    settle(engine).pop().expect("a reply").result.map(drop)
}

fn active(engine: &LogEngine<'_>) -> LogSet {
    engine.superblock().logs.as_ref().expect("it has log devices").active()
}

/// An array without the log devices in `hidden`.
fn without(images: &Members, hidden: LogSet) -> Members {
    let mut there = images.clone();
    hidden.iter().for_each(|log| there[log_place(log).index()] = None);
    there
}

/// Some content durable, in the journal or in place; then a change that is cut off after so many operations: what is
/// left, whether it was said to be made, and whether it was cut off at all.
fn cut_off(
    made: &Made,
    (change, fails): (LogChange, Option<LogIndex>),
    new: &Image,
    left: usize,
) -> (Members, bool, bool) {
    let mut power = Power::new(made.images.clone(), usize::MAX);
    power.late = Some(Random(left as u64));
    let (mut engine, _pool) = engine_of(&mut power, &made.images, LogSet::EMPTY);
    for (fill, lba) in (1..).zip([0, 32, 64]) {
        assert!(put(&mut engine, lba, fill)[0].result.is_ok());
    }
    if let Some(log) = fails {
        give_up(&mut engine, log).expect("given up");
    }
    assert!(put(&mut engine, 0, 7)[0].result.is_ok());
    engine.submit(0, Command::Write { lba: Lba(96), buf: buf(&[9; 4096]), fua: false });
    assert!(settle(&mut engine)[0].result.is_ok());
    engine.disk_mut().left = left;
    ask(&mut engine, change, new, 1);
    let is_made = settle(&mut engine).iter().any(|reply| reply.result.is_ok());
    let is_cut = engine.disk().left == 0;
    drop(engine);
    (power.cut(&mut Random(left as u64)), is_made, is_cut)
}

/// Wherever an exchange is cut off, what was flushed before is there with any one of the log devices that the members
/// call active.
#[test]
fn an_exchange_can_be_cut_off_anywhere() {
    let device = device(9);
    let cases = [
        (LogChange::Add { device }, None),
        (LogChange::Replace { log: log(0), device }, None),
        (LogChange::Replace { log: log(1), device }, Some(log(1))),
        (LogChange::Remove { log: log(0) }, Some(log(0))),
    ];
    for (share, (change, fails)) in SHARES.into_iter().flat_map(|share| cases.map(|case| (share, case))) {
        let made = told(Made::new(Shape { chunk: 8 << 10, ..small(RAID5, 3) }, share, 2));
        let (new, mut tables) = (used(&made), Vec::new());
        let mut expected = [0, 1].map(crate::log_devices::device).to_vec();
        match change {
            LogChange::Add { device } => expected.push(device),
            LogChange::Replace { log, device } => expected[usize::from(log.0)] = device,
            LogChange::Remove { log } => {
                let _ = expected.swap_remove(usize::from(log.0));
            }
        }
        for cut in 0.. {
            let context = format!("{change:?} of shares of {share}, cut off after {cut} operations");
            let (images, is_made, is_cut) = cut_off(&made, (change, fails), &new, cut);
            let table = on_record(&images);
            let is_new = table.devices.iter().map(|device| device.uuid).eq(expected.iter().copied());
            assert!(is_new || !is_made && table.devices.len() == 2, "{context}: {table:?}");
            tables.push(is_new);
            let (images, _) = arranged(images);
            for alone in table.active().iter() {
                let hidden = table.all().minus(LogSet::EMPTY.with(alone));
                let there = without(&images, hidden);
                let mut power = Power::new(there.clone(), usize::MAX);
                let (mut engine, _pool) = engine_of(&mut power, &there, hidden);
                let found = read_all(&mut engine);
                let block = |lba: u64| found[size(Bytes(lba * 512))];
                assert_eq!([0, 32, 64].map(block), [7, 2, 3], "{context}, with log device {alone} alone");
                assert!([0, 9].contains(&block(96)), "{context}");
                // It goes on from there.
                assert!(put(&mut engine, 128, 5)[0].result.is_ok(), "{context}");
                assert_eq!(block_of(&mut engine, 128), 5, "{context}");
            }
            if !is_cut {
                assert!(is_made, "{context}");
                break;
            }
        }
        assert!(tables.contains(&false) && tables.contains(&true), "{change:?}");
    }
}

/// What a device has of the time when it was the array's before, and what the others have of that time, is not done
/// again over what was written since it came.
#[test]
fn a_device_that_was_used_before_brings_nothing_back() {
    for (share, cut) in SHARES.into_iter().flat_map(|share| (0..40).map(move |cut| (share, cut))) {
        let made = told(Made::new(Shape { chunk: 8 << 10, ..small(RAID5, 3) }, share, 2));
        let mut power = Power::new(made.images.clone(), usize::MAX);
        let (mut engine, _pool) = engine_of(&mut power, &made.images, LogSet::EMPTY);
        for fill in 1..9 {
            assert!([0, 32].iter().all(|&lba| put(&mut engine, lba, fill)[0].result.is_ok()));
        }
        give_up(&mut engine, log(1)).expect("given up");
        let former = engine.disk().inner.member(log_place(log(1))).expect("there").clone();
        changed(&mut engine, LogChange::Replace { log: log(1), device: device(9) }, &former).expect("exchanged");
        assert_eq!(active(&engine).len(), 2);
        engine.disk_mut().left = cut;
        let is_durable = [0, 32].map(|lba| put(&mut engine, lba, 20).iter().any(|reply| reply.result.is_ok()));
        drop(engine);
        let (images, _) = arranged(power.cut(&mut Random(1)));
        for hidden in [LogSet::EMPTY, LogSet::EMPTY.with(log(0)), LogSet::EMPTY.with(log(1))] {
            let there = without(&images, hidden);
            let mut power = Power::new(there.clone(), usize::MAX);
            let (mut engine, _pool) = engine_of(&mut power, &there, hidden);
            let found = [0, 32].map(|lba| block_of(&mut engine, lba));
            let is_right = |(found, is_durable): (u8, bool)| found == 20 || found == 8 && !is_durable;
            let context = format!("{share}, cut off after {cut}, without {hidden}: {found:?}");
            assert!(found.into_iter().zip(is_durable).all(is_right), "{context}");
        }
    }
}

/// A device that hangs is exchanged though it still has what it was given; so is the only one, while it works.
#[test]
fn whoever_hangs_is_exchanged_and_so_is_the_only_one() {
    let made = told(journaled());
    let mut power = Power::new(made.images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &made.images, LogSet::EMPTY);
    let second = Some(Duration::from_secs(1));
    engine.set_deadlines(Deadlines { read: second, write: second, hedges: false });
    assert!(put(&mut engine, 0, 1)[0].result.is_ok());
    engine.disk_mut().hung = Some(log_place(log(0)));
    assert!(put(&mut engine, 8, 2).is_empty());
    let mut replies: Vec<Reply<u64>> = Vec::new();
    for _ in 0..40 {
        engine.tick();
        replies.extend(settle(&mut engine));
    }
    assert!(replies.len() == 1 && replies[0].result.is_ok(), "{replies:?}");
    changed(&mut engine, LogChange::Replace { log: log(0), device: device(8) }, &used(&made)).expect("exchanged");
    assert!(put(&mut engine, 16, 3)[0].result.is_ok());
    assert_eq!((engine.troubles().failed_logs, engine.troubles().stalled_logs), (LogSet::EMPTY, LogSet::EMPTY));
    // What hangs has left the others behind.
    assert_eq!(engine.disk().hung, Some(log_place(LogIndex(2))));
    assert!(engine.counters().log_device(log(0)).log_records > 0);
    give_up(&mut engine, log(1)).expect("given up");
    changed(&mut engine, LogChange::Remove { log: log(1) }, &Image::zeroed(0)).expect("forgotten");
    changed(&mut engine, LogChange::Replace { log: log(0), device: device(9) }, &used(&made)).expect("exchanged");
    assert!(put(&mut engine, 24, 4)[0].result.is_ok());
    drop(engine);
    let (images, left) = arranged(power.cut(&mut Random(1)));
    assert_eq!((on_record(&images).devices.len(), left.len()), (1, 2));
    let mut power = Power::new(images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &images, LogSet::EMPTY);
    assert_eq!([0, 8, 16, 24].map(|lba| block_of(&mut engine, lba)), [1, 2, 3, 4]);
}

#[test]
fn what_can_not_be_is_refused_and_nothing_is_written() {
    let made = told(journaled());
    let mut power = Power::new(made.images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &made.images, LogSet::EMPTY);
    let device = device(9);
    let [one, five] = [1, 5].map(LogIndex);
    let refused = |engine: &mut LogEngine<'_>, change, expected| {
        let before = engine.disk().done;
        let error = changed(engine, change, &used(&made)).expect_err("refused");
        assert!(matches!(error, EngineError::LogDevices(error) if error == expected), "{error}");
        assert_eq!(engine.disk().done, before);
    };
    refused(&mut engine, LogChange::Remove { log: one }, LogChangeError::InUse { log: one });
    refused(&mut engine, LogChange::Remove { log: five }, LogChangeError::NoSuch { log: five });
    refused(&mut engine, LogChange::Replace { log: five, device }, LogChangeError::NoSuch { log: five });
    give_up(&mut engine, one).expect("given up");
    let again = give_up(&mut engine, one).expect_err("it has failed");
    assert!(matches!(again, EngineError::LogDevices(LogChangeError::HasFailed { log }) if log == one), "{again}");
    let last = give_up(&mut engine, log(0)).expect_err("it is the last");
    assert!(matches!(last, EngineError::LogDevices(LogChangeError::Last { log }) if log == LogIndex(0)), "{last}");
    for number in 10..12 {
        changed(&mut engine, LogChange::Add { device: crate::log_devices::device(number) }, &used(&made))
            .expect("come");
    }
    refused(&mut engine, LogChange::Add { device }, LogChangeError::TooMany);
    // One may take another one's place nevertheless.
    changed(&mut engine, LogChange::Replace { log: one, device }, &used(&made)).expect("exchanged");
    assert_eq!(active(&engine).len(), 4);
    assert!(put(&mut engine, 0, 1)[0].result.is_ok());
    drop(engine);
    let plain = Made::new(Shape { log: 256 << 10, ..small(RAID5, 3) }, SHARES[0], 0);
    let mut power = Power::new(plain.images.clone(), usize::MAX);
    let (mut engine, _pool) = engine_of(&mut power, &plain.images, LogSet::EMPTY);
    engine.submit(0, Command::ChangeLogs { change: LogChange::Add { device }, generation: Uuid::from_u128(1) });
    let error = settle(&mut engine).pop().expect("a reply").result.expect_err("refused");
    assert!(matches!(error, EngineError::LogDevices(LogChangeError::OnMembers)), "{error}");
}

/// A change that can be, of so many devices of which these failed.
fn drawn(random: &mut Random, logs: &LogDevices, number: u8) -> LogChange {
    let device = Uuid::from_bytes([number; 16]);
    let log = LogIndex(u8::try_from(random.below(logs.devices.len() as u64)).expect("few"));
    let failed = logs.failed().iter().next();
    match (random.below(3), failed) {
        (0, Some(log)) => LogChange::Remove { log },
        (1, _) if logs.devices.len() < 4 => LogChange::Add { device },
        _ => LogChange::Replace { log, device },
    }
}

/// Lives of an array whose log devices are exchanged under writes and flushes, each of which ends with the power.
fn live(seed: u64) {
    let mut random = Random(seed);
    let shape = shapes()[size(Bytes(random.below(5)))];
    let share = SHARES[size(Bytes(random.below(2)))];
    let mut made = told(Made::new(shape, share, 1 + u8::try_from(random.below(3)).expect("few")));
    let capacity = made.shape.geometry().capacity();
    let mut model = Model::new(capacity);
    if random.below(4) == 0 {
        made.images[size(Bytes(random.below(made.shape.members.into())))] = None;
    }
    let has_sums = made.images[..usize::from(made.shape.members)].iter().all(Option::is_some);
    let (mut number, mut former) = (1, used(&made));
    for life in 0..5 {
        let context = format!("seed {seed}, life {life}, {:?}", made.shape);
        let (images, left) = arranged(std::mem::take(&mut made.images));
        former = left.into_iter().next().unwrap_or(former);
        let table = on_record(&images);
        let active = table.active();
        let alone = active.iter().nth(size(Bytes(random.below(active.len() as u64)))).expect("one is active");
        let hidden = if random.below(2) == 0 { LogSet::EMPTY } else { active.minus(LogSet::EMPTY.with(alone)) };
        let there = without(&images, hidden.union(table.failed()));
        let mut power = Power::new(there.clone(), usize::MAX);
        power.late = Some(Random(random.below(u64::MAX)));
        let (mut engine, _pool) = engine_of(&mut power, &there, hidden);
        engine.log_sums(has_sums);
        model.look(&read_all(&mut engine), &context);
        if random.below(5) > 0 {
            engine.disk_mut().left = size(Bytes(random.below(1200)));
        }
        for _ in 0..4 {
            if engine.disk().left > 0 {
                work(&mut engine, &mut model, &mut random, 8);
            }
            if engine.disk().left == 0 {
                break;
            }
            let logs = engine.superblock().logs.clone().expect("it has log devices");
            if logs.active().len() > 1 && random.below(3) == 0 {
                let member = log_place(logs.active().iter().next().expect("some are"));
                engine.submit(0, Command::Fail { member });
                drop(settle(&mut engine));
                continue;
            }
            number += 1;
            // What comes before, meanwhile and afterwards.
            let fua = random.below(2) == 0;
            let lba = random.below(capacity.0 / 16 - 1) * 16;
            let (first, bytes) = model.begin(lba, 8);
            engine.submit(10, Command::Write { lba: Lba(lba), buf: buf(&bytes), fua });
            ask(&mut engine, drawn(&mut random, &logs, number), &former, 11);
            let (_, bytes) = model.begin(lba + 8, 8);
            engine.submit(12, Command::Write { lba: Lba(lba + 8), buf: buf(&bytes), fua: false });
            engine.submit(13, Command::Flush);
            let replies = settle(&mut engine);
            let is_done = |token| replies.iter().any(|reply| reply.token == token && reply.result.is_ok());
            if fua && is_done(10) {
                model.durable(first);
            }
            assert!(engine.disk().left == 0 || (10..14).all(is_done), "{context}: {replies:?}");
        }
        drop(engine);
        let mut survived = power.cut(&mut random);
        for (place, bytes) in images.into_iter().enumerate() {
            // Whoever was not there is back as it was.
            if there[place].is_none() && bytes.is_some() {
                survived.push(bytes);
            }
        }
        made.images = survived;
    }
}

#[test]
fn what_was_flushed_is_there_however_log_devices_come_and_go() {
    let only = std::env::var("URAID_LOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let rounds = std::env::var("URAID_LOG_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40);
    let (first, end) = only.map_or((0, rounds), |seed: u64| (seed, seed + 1));
    (first..end).for_each(live);
}
