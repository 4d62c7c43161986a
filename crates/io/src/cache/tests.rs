//! The cache without an engine: whatever is done in whatever order, its counts are those of its pages, what it shows is
//! what was acknowledged, and what it says of the members is true.
//!
//! A sector's content is one number over and over, so that the parity of sectors is the sum of their numbers.

use std::collections::HashMap;

use uraid_layout::field::Factor;
use uraid_layout::plan::Slice;
use uraid_layout::stripe::Role;
use uraid_layout::{Cell, DataUnit, Level, Placement, Rotation, Spec};

use super::page::PAGE_SECTORS;
use super::*;
use crate::format::log::record::LogSequence;

mod journal;

/// Recounts everything from the pages, and holds it against what is to be written out.
fn assert_consistent(cache: &Cache) {
    let Cache { store, policy, .. } = cache;
    for slot in store.checked() {
        let stripe = store.stripes.at(slot);
        let context = format!("{stripe:?}");
        let is_data = |place: u64| place < store.shape.data_pages;
        for (place, page) in store.pages_of(slot) {
            let layers = [&page.dirty, &page.flying, &page.clean];
            assert!(layers.into_iter().flatten().all(|layer| !layer.mask.is_empty()), "{context}");
            assert!(layers.into_iter().flatten().all(|layer| layer.memory.len() == PAGE_BYTES), "{context}");
            assert!(is_data(place) || page.dirty.is_none(), "parity is never dirty: {context}");
        }
        let data_flies = store.pages_of(slot).any(|(place, page)| is_data(place) && page.flying.is_some());
        let nothing_flies = store.pages_of(slot).all(|(_, page)| page.flying.is_none());
        assert!(data_flies || nothing_flies, "parity flies alone: {context}");
        assert!(data_flies || !stripe.is_whole, "{context}");
        assert_eq!(stripe.since.is_some(), stripe.dirty > 0 && !stripe.is_stuck, "listed or stuck: {context}");
        assert!(stripe.dirty > 0 || !(stripe.is_stuck || stripe.alone.is_some()), "nothing is left to fail: {context}");
        policy.assert_known(stripe, store.shape.sectors_of(stripe.id));
    }
    for stripe in policy.unwritten.stripes() {
        let slot = store.stripes.find(stripe).expect("what could not be written is in memory");
        let is_left = store.pages_of(slot).any(|(_, page)| page.is_pinned());
        assert!(is_left, "it was written, or something else in its place: {stripe:?}");
    }
    assert_eq!(cache.unwritten().is_some(), policy.unwritten.stripes().next().is_some());
}

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// What a write brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    version: u64,
    bits: u64,
}

/// What is known of a sector.
#[derive(Clone, Debug)]
struct Sector {
    /// What a read may see.
    newest: Vec<Value>,
    /// The version that was acknowledged last.
    acknowledged: u64,
    /// What the members may hold.
    members: Vec<Value>,
}

/// A job between the begin of its writes and their end.
struct Flight {
    contents: Contents,
    stripes: Range<u64>,
    values: Vec<(u64, Value)>,
}

struct Drill {
    cache: Cache,
    geometry: Geometry,
    random: Random,
    pool: Pool,
    sectors: Vec<Sector>,
    /// By stripe, group and column; where the members' parity is known.
    parity: HashMap<(u64, u16, u64), u64>,
    flights: Vec<Flight>,
    /// Runs that were picked and wait for their locks.
    picked: Vec<Range<u64>>,
    /// Flushes that wait, with what was acknowledged when they were asked for.
    flushes: Vec<(Mark, Vec<u64>)>,
    next: u64,
    zeroes: Buf,
    /// Memory in use elsewhere.
    held: Vec<Buf>,
    context: String,
}

impl Drop for Drill {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} after {} writes", self.context, self.next);
        }
    }
}

impl Drill {
    fn new(spec: Spec, pages: u64, seed: u64) -> Self {
        let geometry = Geometry::new(spec).expect("a test's geometry");
        let limit = Bytes(pages * PAGE_BYTES as u64);
        let mut random = Random(seed);
        let pool = Pool::new(Bytes(limit.0 + random.below(3) * 64 * PAGE_BYTES as u64));
        let zero = Value { version: 0, bits: 0 };
        let sector = Sector { newest: vec![zero], acknowledged: 0, members: vec![zero] };
        let mut drill = Self {
            cache: Cache::new(&geometry, pool.clone(), limit),
            context: format!("{spec:?} with {pages} pages, seed {seed}"),
            sectors: vec![sector; usize::try_from(geometry.capacity().0).expect("small")],
            geometry,
            random,
            pool,
            parity: HashMap::new(),
            flights: Vec::new(),
            picked: Vec::new(),
            flushes: Vec::new(),
            next: 0,
            zeroes: Buf::zeroed(Bytes(PAGE_BYTES as u64)),
            held: Vec::new(),
        };
        let all = (0..drill.geometry.capacity().0).collect::<Vec<u64>>();
        drill.settle_parity(&all);
        drill
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..8 => self.write(),
            8..10 => self.read(),
            10 | 11 => self.write_through(),
            12 | 13 => self.take_any(),
            14 => self.pick(),
            15 => self.destage_picked(),
            16..20 => self.settle_any(),
            20 => self.flush(),
            21 => match self.random.below(3) {
                0 => self.cache.note_activity(),
                _ => self.cache.tick(),
            },
            22 => match self.random.below(3) {
                0 => self.held.clear(),
                1 => self.held.extend(self.pool.try_alloc(Bytes(1 << 14))),
                _ => self.look(),
            },
            _ => {
                let stripe = self.random.below(self.geometry.stripes().0);
                if !self.is_locked(stripe..stripe + 1) {
                    self.cache.forget_clean(StripeId(stripe));
                }
            }
        }
        assert_consistent(&self.cache);
        self.assert_true();
    }

    /// Writes out what is left, as an engine does that nobody disturbs.
    fn finish(&mut self) {
        self.held.clear();
        for turn in 0..3 {
            while !self.flights.is_empty() {
                self.settle(0, true);
            }
            for _ in 0..self.picked.len() {
                self.destage_picked();
                self.settle(0, true);
            }
            if turn == 0 {
                self.flush();
            }
            while let Some((stripes, _)) = self.cache.next_run() {
                self.take(stripes);
                self.settle(self.flights.len() - 1, true);
            }
        }
        assert!(self.flushes.is_empty(), "a flush waits for nothing");
        assert!(!self.cache.is_dirty() && !self.cache.is_stuck() && self.cache.pinned() == Bytes(0), "it is drained");
        assert_consistent(&self.cache);
        self.assert_true();
        for Sector { newest, members, .. } in &self.sectors {
            // More than one only where a write failed that nobody was told of.
            assert!(members.iter().all(|value| newest.contains(value)), "{newest:?} is not written out: {members:?}");
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let capacity = self.geometry.capacity().0;
        let lba = self.random.below(capacity);
        let longest =
            [3, 8, 24, 2 * self.geometry.stripe_sectors().0][usize::try_from(self.random.below(4)).expect("small")];
        let (lba, longest) =
            if self.random.one_in(3) { (lba / 8 * 8, longest.next_multiple_of(8)) } else { (lba, longest) };
        let len = (1 + self.random.below(longest)).min(capacity - lba);
        (lba, len)
    }

    /// New content for a range, in memory of the pool's or not, with something before it.
    fn content(&mut self, lba: u64, len: u64) -> (Buf, usize, Vec<(u64, Value)>) {
        self.next += 1;
        let version = self.next;
        let values: Vec<(u64, Value)> = (lba..lba + len)
            .map(|at| (at, Value { version, bits: (version << 20 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15) }))
            .collect();
        let before = usize::try_from(self.random.below(9)).expect("small") * 512;
        let bytes = Bytes(before as u64 + len * 512);
        let own = if self.random.one_in(3) { None } else { self.pool.try_alloc(bytes) };
        let mut buf = own.unwrap_or_else(|| Buf::zeroed(bytes));
        for (&(_, value), sector) in values.iter().zip(buf.as_mut()[before..].chunks_exact_mut(512)) {
            fill(sector, value.bits);
        }
        (buf, before, values)
    }

    fn write(&mut self) {
        let (lba, len) = self.range();
        let (buf, before, values) = self.content(lba, len);
        let pinned = self.cache.pinned().0;
        if self.cache.write(Lba(lba), &buf, before..buf.len()) {
            let (now, limit) = (self.cache.pinned().0, self.cache.limit.0);
            assert!(now == pinned || now <= limit / 16 * 14, "{now} bytes are pinned of {limit}");
            for (lba, value) in values {
                let sector = &mut self.sectors[index(lba)];
                sector.newest = vec![value];
                sector.acknowledged = value.version;
            }
        }
    }

    fn read(&mut self) {
        let (lba, len) = self.range();
        let mut buf = Buf::zeroed(Bytes((len + 2) * 512));
        let mut missing = Vec::new();
        self.cache.read(Lba(lba), Sectors(len), &mut buf, Bytes(1024), &mut missing);
        let mut is_missing = vec![false; index(len)];
        for extent in &missing {
            assert_eq!(extent.lba.0 - lba, extent.content.start.0, "a read's list counts from its part");
            is_missing[index(extent.content.start.0)..][..index(extent.content.len.0)].fill(true);
        }
        for ((at, bytes), is_missing) in (lba..).zip(buf.as_ref()[1024..].chunks_exact(512)).zip(is_missing) {
            let Sector { newest, members, .. } = &self.sectors[index(at)];
            if is_missing {
                assert!(members.iter().all(|value| newest.contains(value)), "sector {at}: {newest:?} but {members:?}");
            } else {
                let bits = bits_of(bytes);
                assert!(newest.iter().any(|value| value.bits == bits), "sector {at}: {newest:?} but {bits:x}");
            }
        }
    }

    fn is_locked(&self, stripes: Range<u64>) -> bool {
        self.flights.iter().any(|flight| flight.stripes.start < stripes.end && stripes.start < flight.stripes.end)
    }

    fn write_through(&mut self) {
        let (lba, len) = self.range();
        let stripe_sectors = self.geometry.stripe_sectors().0;
        let stripes = lba / stripe_sectors..(lba + len - 1) / stripe_sectors + 1;
        if self.is_locked(stripes.clone()) {
            return;
        }
        let (buf, before, mut values) = self.content(lba, len);
        let mut contents = Contents::default();
        let is_zero = self.random.one_in(4);
        let source = if is_zero { Source::Zeroes(&self.zeroes) } else { Source::Request(&buf, before) };
        if is_zero {
            values.iter_mut().for_each(|(_, value)| value.bits = 0);
        }
        let keeps = self.random.below(3) > 0;
        self.cache.take_over(&self.geometry, (Lba(lba), Sectors(len)), source, keeps, &mut contents);
        for &(lba, value) in &values {
            self.sectors[index(lba)].newest.push(value);
        }
        self.fly(Flight { contents, stripes, values });
    }

    fn take_any(&mut self) {
        let first = self.random.below(self.geometry.stripes().0);
        let end = (first + 1 + self.random.below(3)).min(self.geometry.stripes().0);
        if !self.is_locked(first..end) {
            self.take(first..end);
        }
    }

    fn pick(&mut self) {
        if let Some((stripes, dirty)) = self.cache.next_run() {
            let table = &self.cache.store.stripes;
            let is_dirty = |stripe| table.find(StripeId(stripe)).map_or(0, |slot| table.at(slot).dirty);
            assert!(dirty.0 > 0 && stripes.clone().all(|stripe| is_dirty(stripe) > 0), "a run is dirty");
            let has_failed = stripes.clone().any(|stripe| self.is_alone(stripe));
            assert!(stripes.end - stripes.start == 1 || !has_failed, "what failed goes alone");
            self.picked.push(stripes);
        }
    }

    fn destage_picked(&mut self) {
        let Some(next) = self.picked.first().cloned().filter(|stripes| !self.is_locked(stripes.clone())) else {
            return;
        };
        self.picked.remove(0);
        if self.random.one_in(8) {
            self.cache.abandon(next);
            self.wake_flushes();
        } else {
            self.take(next);
        }
    }

    fn is_alone(&self, stripe: u64) -> bool {
        let slot = self.cache.store.stripes.find(StripeId(stripe));
        slot.is_some_and(|slot| self.cache.store.stripes.at(slot).alone.is_some())
    }

    /// Takes what is dirty, all of it and nothing else; of a stripe that failed before it is a column, or all.
    fn take(&mut self, stripes: Range<u64>) {
        let mut contents = Contents::default();
        let alone: Vec<u64> = stripes.clone().filter(|&stripe| self.is_alone(stripe)).collect();
        let stripe_sectors = self.geometry.stripe_sectors().0;
        let sectors = stripes.start * stripe_sectors..(stripes.end * stripe_sectors).min(self.geometry.capacity().0);
        self.cache.take(&self.geometry, stripes.clone(), &mut contents);
        self.assert_cached(&contents);
        let mut values = Vec::new();
        for extent in contents.extents() {
            for (lba, bits) in (extent.lba.0..).zip(sectors_of(&contents, extent.content)) {
                let newest = &self.sectors[index(lba)].newest;
                let value = newest.iter().rfind(|value| value.bits == bits);
                values.push((lba, *value.unwrap_or_else(|| panic!("sector {lba}: {newest:?} but {bits:x}"))));
            }
        }
        assert!(values.windows(2).all(|pair| pair[0].0 < pair[1].0), "what is to be written ascends");
        let is_left = |lba: &u64| values.binary_search_by_key(lba, |&(lba, _)| lba).is_err();
        for lba in sectors.filter(is_left).filter(|lba| !alone.contains(&(lba / stripe_sectors))) {
            let Sector { newest, members, .. } = &self.sectors[index(lba)];
            assert!(
                members.iter().all(|value| newest.contains(value)),
                "sector {lba} stays behind: {newest:?}, {members:?}"
            );
        }
        self.fly(Flight { contents, stripes, values });
    }

    /// The members are being written: they may hold either content.
    fn fly(&mut self, flight: Flight) {
        for &(lba, value) in &flight.values {
            self.sectors[index(lba)].members.push(value);
        }
        let mut sums = HashMap::new();
        for &(lba, value) in &flight.values {
            let (stripe, unit, column) = self.geometry.split(Lba(lba));
            for &group in self.geometry.map(stripe).groups_of(unit) {
                self.parity.remove(&(stripe.0, group.0, column.0));
                let sum = sums.entry((stripe.0, group.0, column.0)).or_insert_with(Vec::new);
                sum.push((lba, value.bits));
            }
        }
        let mut columns: Vec<_> = sums.into_iter().filter_map(|(at, news)| Some((at, self.sum(at, &news)?))).collect();
        columns.sort_unstable();
        let skips = self.random.one_in(4);
        for run in columns.chunk_by(|&((s1, g1, c1), _), &((s2, g2, c2), _)| (s1, g1, c1 + 1) == (s2, g2, c2)) {
            let mut bytes = vec![0; run.len() * 512];
            bytes.chunks_exact_mut(512).zip(run).for_each(|(sector, &(_, bits))| fill(sector, bits));
            let ((stripe, group, column), _) = run[0];
            if !skips {
                self.cache.put_parity(&flight.contents, StripeId(stripe), GroupId(group), Sectors(column), &bytes);
            }
        }
        self.flights.push(flight);
    }

    /// A group's parity in a column, with some sectors' new content; none where the members' is not known.
    fn sum(&self, (stripe, group, column): (u64, u16, u64), news: &[(u64, u64)]) -> Option<u64> {
        let map = self.geometry.map(StripeId(stripe));
        let units = map.group(GroupId(group)).data_terms().map(|(cell, factor)| match map.role(cell) {
            Role::Data(unit) => (unit, factor),
            Role::Parity(_) => unreachable!("a group's data is data"),
        });
        let chunk = self.geometry.chunk().0;
        let mut units = units.filter(|&(unit, _)| self.geometry.exists(StripeId(stripe), unit));
        units.try_fold(0, |sum, (unit, factor)| {
            let lba = stripe * self.geometry.stripe_sectors().0 + u64::from(unit.0) * chunk + column;
            let bits = match (news.iter().find(|&&(new, _)| new == lba), &self.sectors[index(lba)].members[..]) {
                (Some(&(_, bits)), _) => bits,
                (None, [value]) => value.bits,
                _ => return None,
            };
            Some(sum ^ u64::from_le_bytes(bits.to_le_bytes().map(|byte| Factor(byte).times(factor).0)))
        })
    }

    fn settle_any(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let flight = self.random.below(self.flights.len() as u64);
        let is_written = !self.random.one_in(6);
        self.settle(index(flight), is_written);
    }

    fn settle(&mut self, flight: usize, is_written: bool) {
        if flight >= self.flights.len() {
            return;
        }
        let Flight { mut contents, values, .. } = self.flights.remove(flight);
        if is_written {
            for &(lba, value) in &values {
                let sector = &mut self.sectors[index(lba)];
                sector.members = vec![value];
                if sector.newest.contains(&value) {
                    sector.newest = vec![value];
                    sector.acknowledged = value.version;
                }
            }
            self.settle_parity(&values.iter().map(|&(lba, _)| lba).collect::<Vec<u64>>());
        }
        self.cache.settle(&self.geometry, &mut contents, is_written);
        self.wake_flushes();
    }

    /// The members' parity agrees with their data where that is known.
    fn settle_parity(&mut self, lbas: &[u64]) {
        for &lba in lbas {
            let (stripe, unit, column) = self.geometry.split(Lba(lba));
            for &group in self.geometry.map(stripe).groups_of(unit) {
                let at = (stripe.0, group.0, column.0);
                if let Some(sum) = self.sum(at, &[]) {
                    self.parity.insert(at, sum);
                }
            }
        }
    }

    fn flush(&mut self) {
        let mark = self.cache.drain();
        self.flushes.push((mark, self.sectors.iter().map(|sector| sector.acknowledged).collect()));
        self.wake_flushes();
    }

    /// A flush that waits no more, and is not told of a failure, has everything on the members that was acknowledged
    /// before it.
    fn wake_flushes(&mut self) {
        let Self { cache, flushes, sectors, .. } = self;
        flushes.retain(|(mark, acknowledged)| {
            let is_drained = cache.is_drained(*mark);
            if is_drained && !cache.is_stuck() {
                for (lba, (sector, &version)) in sectors.iter().zip(acknowledged).enumerate() {
                    let is_durable = sector.members.iter().all(|value| value.version >= version);
                    assert!(
                        is_durable,
                        "sector {lba} of version {version} was flushed; the members have {:?}",
                        sector.members
                    );
                }
            }
            !is_drained
        });
    }

    /// What a write-through finds.
    fn look(&mut self) {
        let (lba, len) = self.range();
        let stripe_sectors = self.geometry.stripe_sectors().0;
        if self.is_locked(lba / stripe_sectors..(lba + len - 1) / stripe_sectors + 1) {
            return;
        }
        let mut contents = Contents::default();
        self.cache.look(&self.geometry, Lba(lba), Sectors(len), &mut contents);
        self.assert_cached(&contents);
    }

    /// What is said to be on the members is.
    fn assert_cached(&self, contents: &Contents) {
        let stripes: Vec<StripeId> = contents.cached().iter().map(|cached| cached.stripe).collect();
        assert!(stripes.is_sorted(), "{stripes:?}");
        for cached in contents.cached() {
            for (column, bits) in (cached.start.0..).zip(sectors_of(contents, cached.content)) {
                assert_eq!(
                    self.on_members(cached.stripe, cached.cell, column),
                    Some(bits),
                    "{cached:?}, column {column}"
                );
            }
        }
    }

    /// What the members hold in a column of a cell, where it is known.
    fn on_members(&self, stripe: StripeId, cell: Cell, column: u64) -> Option<u64> {
        match self.geometry.map(stripe).role(cell) {
            Role::Parity(group) => self.parity.get(&(stripe.0, group.0, column)).copied(),
            Role::Data(unit) => {
                let lba =
                    stripe.0 * self.geometry.stripe_sectors().0 + u64::from(unit.0) * self.geometry.chunk().0 + column;
                match self.sectors[index(lba)].members[..] {
                    [value] => Some(value.bits),
                    _ => None,
                }
            }
        }
    }

    /// Every clean page that nothing hides is what the members hold.
    fn assert_true(&self) {
        for slot in self.cache.store.stripes.checked() {
            let stripe = self.cache.store.stripes.at(slot);
            let map = self.geometry.map(stripe.id);
            for (place, page) in self.cache.store.pages_of(slot) {
                let Some(clean) = page.clean.as_ref().filter(|_| page.flying.is_none()) else { continue };
                let chunk_pages = self.geometry.chunk().0 / PAGE_SECTORS;
                let (row, first) = (place / chunk_pages, place % chunk_pages * PAGE_SECTORS);
                let row = u16::try_from(row).expect("small");
                let units = u16::try_from(map.data().len()).expect("small");
                let cell = if row < units { map.cell(DataUnit(row)) } else { map.group(GroupId(row - units)).parity };
                for sector in clean.mask.runs().flatten() {
                    let bits = bits_of(&clean.memory.bytes()[bytes_of(&(sector..sector + 1))]);
                    let members = self.on_members(stripe.id, cell, first + sector);
                    assert_eq!(members, Some(bits), "{stripe:?}, place {place}, sector {sector}");
                }
            }
        }
    }
}

fn fill(sector: &mut [u8], bits: u64) {
    sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&bits.to_le_bytes()));
}

/// The number that a sector consists of.
fn bits_of(sector: &[u8]) -> u64 {
    let bits = u64::from_le_bytes(sector[..8].try_into().expect("a sector has more"));
    assert!(sector.chunks_exact(8).all(|word| word == bits.to_le_bytes()), "a sector of two writes");
    bits
}

fn sectors_of(contents: &Contents, slice: Slice) -> impl Iterator<Item = u64> {
    contents.pieces(slice).flat_map(|(page, range)| page.bytes()[range].chunks_exact(512).map(bits_of))
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn specs() -> Vec<Spec> {
    let spec = |level, members, chunk, chunks| Spec {
        level,
        members,
        chunk: Bytes(chunk),
        member_size: Sectors(chunk * chunks / 512),
    };
    let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    vec![
        spec(Level::Raid0, 4, 4096, 6),
        spec(Level::Raid1, 2, 12 << 10, 4),
        spec(Level::Raid10 { copies: 2 }, 5, 12 << 10, 7),
        spec(raid5, 3, 4096, 8),
        spec(raid5, 5, 12 << 10, 5),
        spec(raid5, 4, 64 << 10, 2),
        spec(Level::Raid6 { rotation: Rotation::RightAsymmetric }, 5, 8192, 6),
        spec(Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7, 4096, 12),
    ]
}

#[test]
fn whatever_is_done_in_whatever_order() {
    for spec in specs() {
        for pages in [16, 40, 100, 2000] {
            for seed in 0..6 {
                let mut drill = Drill::new(spec, pages, seed);
                for _ in 0..400 {
                    drill.step();
                }
                drill.finish();
            }
        }
    }
}

/// Of a run one stripe can't be written: the others are when each goes alone, and only that one is a flush told of,
/// before the next tries it again.
#[test]
fn what_failed_together_is_tried_once_more_alone() {
    let geometry = Geometry::new(specs()[3]).expect("a test's geometry");
    let limit = Bytes(64 * PAGE_BYTES as u64);
    let mut cache = Cache::new(&geometry, Pool::new(limit), limit);
    let stripe = geometry.stripe_sectors().0;
    let page = Buf::zeroed(Bytes(PAGE_BYTES as u64));
    for index in 0..3 {
        assert!(cache.write(Lba(index * stripe), &page, 0..PAGE_BYTES), "there is room");
    }
    let mark = cache.drain();
    let destage = |cache: &mut Cache, is_written: fn(&Range<u64>) -> bool| {
        let mut runs = Vec::new();
        while let Some((run, _)) = cache.next_run() {
            let mut contents = Contents::default();
            cache.take(&geometry, run.clone(), &mut contents);
            cache.settle(&geometry, &mut contents, is_written(&run));
            assert_consistent(cache);
            runs.push(run);
        }
        runs
    };
    let runs = destage(&mut cache, |run| !run.contains(&1));
    let (first, mut alone) = (runs[0].clone(), runs[1..].to_vec());
    alone.sort_by_key(|run| run.start);
    assert_eq!((first, alone), (0..3, vec![0..1, 1..2, 2..3]));
    assert!(cache.is_drained(mark) && cache.is_stuck(), "one stripe waits for a flush");

    let mark = cache.drain();
    assert!(!cache.is_drained(mark), "it is tried again");
    let again = destage(&mut cache, |_| true);
    assert!(matches!(&again[..], [run] if *run == (1..2)), "{again:?}");
    assert!(cache.is_drained(mark) && !cache.is_stuck());
}

/// What fails alone is tried column by column: only the columns that fail wait for the next flush.
#[test]
fn what_fails_alone_is_tried_column_by_column() {
    let spec = Spec { chunk: Bytes(3 * PAGE_BYTES as u64), ..specs()[3] };
    let geometry = Geometry::new(spec).expect("a test's geometry");
    let limit = Bytes(64 * PAGE_BYTES as u64);
    let mut cache = Cache::new(&geometry, Pool::new(limit), limit);
    let chunk = Buf::zeroed(spec.chunk);
    let column_of = |lba: Lba| lba.0 % geometry.chunk().0 / PAGE_SECTORS;
    let destage = |cache: &mut Cache, mark: Mark, failing: &[u64]| {
        let mut tries = Vec::new();
        while let Some((run, _)) = cache.next_run() {
            assert!(!cache.is_drained(mark), "something is still to be tried");
            let mut contents = Contents::default();
            cache.take(&geometry, run, &mut contents);
            let pages = |extent: &Extent| {
                (0..extent.content.len.0).step_by(8).map(|at| column_of(Lba(extent.lba.0 + at))).collect()
            };
            let columns: Vec<u64> =
                contents.extents().iter().flat_map(|extent| -> Vec<u64> { pages(extent) }).collect();
            cache.settle(&geometry, &mut contents, !columns.iter().any(|column| failing.contains(column)));
            assert_consistent(cache);
            tries.push(columns);
        }
        tries.retain(|columns| !columns.is_empty());
        tries
    };
    for (failing, left) in [(&[1][..], vec![vec![1]]), (&[2], vec![vec![2]]), (&[0, 2], vec![vec![0], vec![2]])] {
        assert!(cache.write(Lba(0), &chunk, 0..chunk.len()), "there is room");
        let mark = cache.drain();
        let tries = destage(&mut cache, mark, failing);
        assert_eq!(tries, [vec![0, 1, 2], vec![0], vec![1], vec![2]], "{failing:?}");
        assert!(cache.is_drained(mark) && cache.is_stuck(), "{failing:?}: a flush is told of the rest");
        let mark = cache.drain();
        assert_eq!(destage(&mut cache, mark, &[]), left, "{failing:?}");
        assert!(cache.is_drained(mark) && !cache.is_stuck(), "{failing:?}");
    }
}

/// What flew when a flush began, and does not arrive, is to go into the journal for it, though another flush has looked
/// for such pages meanwhile.
#[test]
fn what_flew_in_vain_when_a_flush_began_is_fresh_for_it() {
    let geometry = Geometry::new(specs()[3]).expect("a test's geometry");
    let limit = Bytes(64 * PAGE_BYTES as u64);
    let mut cache = Cache::new(&geometry, Pool::new(limit), limit);
    cache.journal_mut().turn_on();
    assert!(cache.write(Lba(0), &Buf::zeroed(Bytes(PAGE_BYTES as u64)), 0..PAGE_BYTES), "there is room");
    let mut contents = Contents::default();
    cache.take(&geometry, 0..1, &mut contents);
    let mark = cache.journal().mark();
    assert_eq!(cache.journal().left(mark), FlushLeft::Wait);
    let mut going = Vec::new();
    cache.journal_mut().take(1, Wanted::Fresh, &mut going);
    assert!(going.is_empty(), "it flies");
    cache.settle(&geometry, &mut contents, false);
    assert_eq!(cache.journal().left(mark), FlushLeft::Journal);
    assert_consistent(&cache);
}
