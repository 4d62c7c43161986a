//! What a crash at a boundary may leave: every choice of what is not flushed.
//!
//! A sector of the log or of a superblock is chosen by itself. In the data areas the columns of a unit that one write
//! wrote are chosen together: nothing ever mixes columns, so that what becomes of one says what becomes of each.

use std::collections::BTreeMap;

use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::shape::Shape;
use crate::image::{Image, Sector};
use crate::member::WriteId;
use crate::members::Members;

/// What is chosen together.
#[derive(Debug)]
struct Variable {
    member: MemberIndex,
    /// Before the log, in it or before the data, in the data, or behind.
    area: u8,
    /// What each sector holds with each option but the first, which is what is durable anyway.
    options: Vec<Vec<(Bytes, Sector)>>,
    /// What each option changes of the state's hash; the first nothing.
    deltas: Vec<u64>,
}

/// Everything that a crash may leave.
#[derive(Debug)]
pub(super) struct States {
    durable: Vec<Option<Image>>,
    hashes: Vec<u64>,
    variables: Vec<Variable>,
}

/// How many of them are gone through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// All, where there are no more than this.
    pub(super) choices_max: u128,
    /// Otherwise how fine they are.
    pub(super) grain: Grain,
}

/// Which of many choices are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Those that differ from nothing or everything in up to two places, and every prefix and suffix.
    Pairs,
    /// In one place.
    Singles,
    /// On each member everything or nothing of each area, however many or few choices there are.
    Areas,
}

/// The area of a variable that is in the log.
const LOG_AREA: u8 = 1;

/// Areas of members of which each choice is gone through.
const AREAS_MAX: usize = 9;

/// One of them: the option of each variable.
pub(super) type Choice = Vec<u8>;

/// A write's version of a unit's or a sector's content, by sector.
type Grouped<'a> = BTreeMap<(MemberIndex, u64, Vec<WriteId>), Vec<Versions<'a>>>;

/// A sector: where it is, what is durable, and what each write brings.
type Versions<'a> = (Bytes, &'a Sector, Vec<&'a Sector>);

impl States {
    pub(super) fn new(shape: &Shape, members: &Members) -> Self {
        Self::by_units(shape, members, shape.areas.data.offset)
    }

    /// The same; what one write wrote of a chunk's length is chosen together in the log, too, where that is not a log
    /// but has content that is being saved.
    pub(super) fn of_stopped(shape: &Shape, members: &Members) -> Self {
        Self::by_units(shape, members, shape.areas.log.offset)
    }

    /// Units are chosen together from there on.
    fn by_units(shape: &Shape, members: &Members, start: Bytes) -> Self {
        let slots = (0..members.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("at most 64 members")));
        let durable: Vec<Option<Image>> =
            slots.clone().map(|slot| members.get(slot).map(|member| member.durable().clone())).collect();
        let hashes = slots.map(|slot| hash_of(shape, slot, durable[slot.index()].as_ref())).collect();
        let variables = variables(shape, members, start);
        Self { durable, hashes, variables }
    }

    /// How many choices there are when only these members are left.
    pub(super) fn count(&self, left: MemberSet) -> u128 {
        let counts = self.variables.iter().filter(|variable| left.contains(variable.member));
        counts.fold(1, |count: u128, variable| count.saturating_mul(variable.deltas.len() as u128))
    }

    /// Visits every choice among what is on the members that are left, with a hash of what it comes to; of more than
    /// the limit those that differ little from nothing and from everything: by one variable or two, and every prefix of
    /// them and suffix.
    pub(super) fn visit<E>(
        &self,
        left: MemberSet,
        limit: Limit,
        mut each: impl FnMut(&Choice, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let open: Vec<usize> =
            (0..self.variables.len()).filter(|&index| left.contains(self.variables[index].member)).collect();
        let base = left.iter().fold(0, |hash, member| hash ^ self.hashes[member.index()]);
        let mut visit = |choice: &Choice| {
            let deltas = open.iter().map(|&index| self.variables[index].deltas[usize::from(choice[index])]);
            each(choice, mix(deltas.fold(base, |hash, delta| hash ^ delta)))
        };
        let mut choice = vec![0; self.variables.len()];
        if limit.grain == Grain::Areas {
            return self.visit_areas(&open, &mut visit);
        }
        if self.count(left) <= limit.choices_max {
            loop {
                visit(&choice)?;
                // Counts up, each digit with its own base.
                let is_full = |&&index: &&usize| usize::from(choice[index]) + 1 == self.variables[index].deltas.len();
                let full: Vec<usize> = open.iter().take_while(is_full).copied().collect();
                let Some(&next) = open.get(full.len()) else { return Ok(()) };
                full.into_iter().for_each(|index| choice[index] = 0);
                choice[next] += 1;
            }
        }
        self.visit_few(&open, limit.grain == Grain::Pairs, &mut visit)
    }

    fn visit_areas<E>(&self, open: &[usize], visit: &mut impl FnMut(&Choice) -> Result<(), E>) -> Result<(), E> {
        let mut areas: BTreeMap<(MemberIndex, u8), Vec<usize>> = BTreeMap::new();
        for &index in open {
            // A superblock's copies at both ends of a member are one.
            let Variable { member, area, .. } = self.variables[index];
            areas.entry((member, area % 3)).or_default().push(index);
        }
        for bits in 0_u32..1 << areas.len().min(AREAS_MAX) {
            let mut choice = vec![0; self.variables.len()];
            for (_, indices) in areas.values().enumerate().filter(|(at, _)| bits >> at & 1 != 0) {
                for &index in indices {
                    choice[index] = u8::try_from(self.variables[index].deltas.len() - 1).expect("few versions");
                }
            }
            visit(&choice)?;
        }
        Ok(())
    }

    fn visit_few<E>(
        &self,
        open: &[usize],
        has_pairs: bool,
        visit: &mut impl FnMut(&Choice) -> Result<(), E>,
    ) -> Result<(), E> {
        let last = |index: usize| u8::try_from(self.variables[index].deltas.len() - 1).expect("few versions");
        let none = vec![0; self.variables.len()];
        let mut all = none.clone();
        open.iter().for_each(|&index| all[index] = last(index));
        for from in [&none, &all] {
            visit(from)?;
            for (at, &first) in open.iter().enumerate() {
                for option in 0..=last(first) {
                    let mut choice = from.clone();
                    choice[first] = option;
                    visit(&choice)?;
                    for &second in open[at + 1..].iter().filter(|_| has_pairs) {
                        let mut choice = choice.clone();
                        choice[second] = if from == &none { last(second) } else { 0 };
                        visit(&choice)?;
                    }
                }
            }
        }
        for end in 0..=open.len() {
            let [mut prefix, mut suffix] = [none.clone(), all.clone()];
            open[..end].iter().for_each(|&index| (prefix[index], suffix[index]) = (last(index), 0));
            visit(&prefix)?;
            visit(&suffix)?;
        }
        Ok(())
    }

    /// The choice of nothing but what is durable.
    pub(super) fn nothing(&self) -> Choice {
        vec![0; self.variables.len()]
    }

    /// What a choice leaves on the members that are left.
    pub(super) fn images(&self, choice: &Choice, left: MemberSet) -> Vec<Option<Image>> {
        let mut images: Vec<Option<Image>> = (0u8..)
            .zip(&self.durable)
            .map(|(slot, image)| image.clone().filter(|_| left.contains(MemberIndex(slot))))
            .collect();
        for (variable, &option) in self.variables.iter().zip(choice).filter(|&(_, &option)| option > 0) {
            let Some(image) = &mut images[variable.member.index()] else { continue };
            variable.options[usize::from(option) - 1].iter().for_each(|(offset, sector)| image.set(*offset, sector));
        }
        images
    }

    /// What a choice takes over of what was not flushed, for people.
    pub(super) fn describe(&self, choice: &Choice, left: MemberSet) -> String {
        let mut text: Vec<String> = Vec::new();
        for (variable, &option) in
            self.variables.iter().zip(choice).filter(|(variable, _)| left.contains(variable.member))
        {
            let (place, count) = (&variable.options[0], variable.options[0].len());
            let what = if option == 0 { "old".into() } else { format!("new ({option} of {})", variable.options.len()) };
            text.push(format!("member {} byte {} ({count} sectors): {what}", variable.member, place[0].0));
        }
        text.join("\n    ")
    }
}

fn variables(shape: &Shape, members: &Members, start: Bytes) -> Vec<Variable> {
    let chunk = shape.geometry.chunk().bytes().0;
    let data = shape.areas.data.offset.0;
    let end = data + shape.geometry.used_sectors().bytes().0;
    let mut grouped = Grouped::new();
    for (slot, member) in members.iter() {
        for (offset, durable, versions) in member.versions() {
            let is_unit = (start.0..end).contains(&offset.0) && !shape.log_slots().contains(slot);
            let unit = if is_unit { start.0 + (offset.0 - start.0) / chunk * chunk } else { offset.0 };
            let (writes, contents) = versions.unzip();
            grouped.entry((slot, unit, writes)).or_default().push((offset, durable, contents));
        }
    }
    let variable = |((member, _, writes), sectors): ((MemberIndex, u64, Vec<WriteId>), Vec<Versions<'_>>)| {
        let starts = [shape.areas.log.offset.0, data, end];
        let area = starts.into_iter().filter(|start| sectors[0].0.0 >= *start).count();
        let area = if shape.log_slots().contains(member) { LOG_AREA } else { u8::try_from(area).expect("few areas") };
        let mut variable = Variable { member, area, options: Vec::new(), deltas: vec![0] };
        for version in 0..writes.len() {
            let delta = sectors
                .iter()
                .fold(0, |hash, (offset, durable, contents)| hash ^ delta(member, *offset, durable, contents[version]));
            if !variable.deltas.contains(&delta) {
                variable.deltas.push(delta);
                variable
                    .options
                    .push(sectors.iter().map(|(offset, _, contents)| (*offset, *contents[version])).collect());
            }
        }
        (!variable.options.is_empty()).then_some(variable)
    };
    grouped.into_iter().filter_map(variable).collect()
}

/// A hash of what a member holds; 0 where it holds what it did before anything happened, or nothing.
pub(super) fn hash_of(shape: &Shape, slot: MemberIndex, image: Option<&Image>) -> u64 {
    let Some(image) = image else { return 0 };
    let base = shape.base(slot);
    let deltas = image.differences(base).map(|at| delta(slot, at, base.sector(at), image.sector(at)));
    deltas.fold(0, |hash, delta| hash ^ delta)
}

/// What replacing a sector's content changes of a state's hash.
fn delta(member: MemberIndex, offset: Bytes, old: &Sector, new: &Sector) -> u64 {
    if old == new { 0 } else { hash(member, offset, old) ^ hash(member, offset, new) }
}

fn hash(member: MemberIndex, offset: Bytes, sector: &Sector) -> u64 {
    let (words, _) = sector.as_chunks();
    let start = mix(offset.0 << 8 | u64::from(member.0));
    mix(words.iter().fold(start, |hash, word| {
        (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }))
}

/// Spreads a number's bits (splitmix64).
pub(super) fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
