//! Goes through the states of workloads, each different one once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use uraid_layout::MemberSet;

use super::check::{Given, Outcome, admit, check, recover};
use super::expect::Expect;
use super::run::{Boundary, boundaries};
use super::shape::Shape;
use super::states::{Choice, Limit, States, mix};
use super::tape::Tape;
use super::workload::{Order, Workload};
use super::{Counts, Failure, Finding};
use crate::dst::audit::tolerated;
use crate::image::Image;
use crate::member::Member;
use crate::members::Members;

/// How thorough an enumeration is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of a boundary with more choices than this only some are gone through.
    pub choices_max: u128,
    /// Of one state in so many the recovery is cut off at every boundary.
    pub nested_every: u64,
    /// The same for a recovery's boundaries.
    pub nested_choices_max: u128,
    /// Nothing more is begun from then on.
    pub until: Option<Instant>,
    /// Nothing more is begun after so many states.
    pub states_max: u64,
    /// Arrays are opened though they say that they can't be trusted, and what is wrong then is counted.
    pub forced: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            choices_max: 1 << 8,
            nested_every: 1 << 11,
            nested_choices_max: 1 << 5,
            until: None,
            states_max: u64::MAX,
            forced: false,
        }
    }
}

/// An enumeration that several threads work on.
#[derive(Debug)]
pub struct Enumeration<'a> {
    shapes: &'a [Shape],
    options: Options,
    seen: Vec<Mutex<HashSet<u64, BuildHasherDefault<Same>>>>,
    states: AtomicU64,
}

/// A hasher of what is a hash already.
#[derive(Debug, Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

const SHARDS: u64 = 64;

/// A boundary of a workload, or of the recovery of one of its states.
struct Place<'a> {
    shape: &'a Shape,
    index: usize,
    expect: &'a Expect,
    states: States,
    /// What is on the members that are lost, when they come back.
    current: Vec<Option<Image>>,
    missing: MemberSet,
    depth: u32,
}

impl<'a> Enumeration<'a> {
    /// An enumeration that has seen nothing.
    #[must_use]
    pub fn new(shapes: &'a [Shape], options: Options) -> Self {
        let seen = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shapes, options, seen, states: AtomicU64::new(0) }
    }

    /// Goes through a workload.
    ///
    /// # Errors
    /// The first state that is not as it must be.
    pub fn run(&self, workload: &Workload) -> Result<Counts, Box<Failure>> {
        let shape = &self.shapes[workload.shape];
        let mut counts = Counts { workloads: 1, ..Counts::default() };
        let failure = |boundary: String, choice: String, lost, finding| {
            Box::new(Failure { workload: workload.name(self.shapes), boundary, choice, lost, finding })
        };
        let boundaries = boundaries(shape, workload)
            .map_err(|finding| failure("no time".into(), String::new(), MemberSet::EMPTY, finding))?;
        for (at, Boundary { event, members, expect }) in boundaries.iter().enumerate() {
            if self.is_over() {
                counts.workloads = 0;
                break;
            }
            counts.boundaries += 1;
            let place = Place {
                shape,
                index: workload.shape,
                expect,
                states: States::new(shape, members),
                current: current(members),
                missing: workload.missing,
                depth: 0,
            };
            self.visit(&place, &mut counts)
                .map_err(|(choice, lost, finding)| failure(format!("boundary {at}, {event}"), choice, lost, finding))?;
        }
        Ok(counts)
    }

    /// How many different states were checked so far.
    #[must_use]
    pub fn states(&self) -> u64 {
        self.states.load(Ordering::Relaxed)
    }

    /// Whether it has been enough.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.states() >= self.options.states_max || self.options.until.is_some_and(|until| Instant::now() >= until)
    }

    fn visit(&self, place: &Place<'_>, counts: &mut Counts) -> Result<(), (String, MemberSet, Finding)> {
        let all = place.shape.geometry.all_members();
        let mut ways: Vec<Given> = tolerated(&place.shape.geometry, place.missing)
            .into_iter()
            .map(|lost| Given {
                left: all.minus(place.missing).minus(lost),
                returned: MemberSet::EMPTY,
                forced: self.options.forced,
            })
            .collect();
        if !place.missing.is_empty() && place.depth == 0 {
            // Whoever was away before is back after the crash.
            ways.push(Given { left: all, returned: place.missing, forced: self.options.forced });
        }
        for given in ways {
            let left = given.left;
            let Options { choices_max, nested_choices_max, .. } = self.options;
            let limit = match place.depth {
                0 => Limit { choices_max, has_pairs: true },
                _ => Limit { choices_max: nested_choices_max, has_pairs: false },
            };
            place.states.visit(left.minus(given.returned), limit, |choice, hash| {
                counts.generated += 1;
                let bits = left.iter().fold(0_u64, |bits, member| bits | 1 << member.0);
                let key = mix(hash ^ mix(place.expect.hash ^ mix(bits << 8 ^ place.index as u64)));
                if !self.is_new(key) {
                    return Ok(());
                }
                counts.states += 1;
                self.states.fetch_add(1, Ordering::Relaxed);
                counts.nested += u64::from(place.depth > 0);
                self.check(place, choice, given, key, counts).map_err(|finding| {
                    let choice = place.states.describe(choice, left.minus(given.returned));
                    (choice, all.minus(place.missing).minus(left), finding)
                })
            })?;
        }
        Ok(())
    }

    fn is_new(&self, key: u64) -> bool {
        let shard = usize::try_from(key % SHARDS).expect("a small number");
        self.seen[shard].lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    fn check(
        &self,
        place: &Place<'_>,
        choice: &Choice,
        given: Given,
        key: u64,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let Place { shape, expect, .. } = *place;
        let mut images = place.states.images(choice, given.left);
        for member in given.returned.iter() {
            images[member.index()] = shape.members.get(member).map(|member| member.current().clone());
        }
        let outcome = match check(shape, images.clone(), expect, given) {
            Err(finding) if self.options.forced && finding.is_corruption() => {
                counts.corrupt += 1;
                return Ok(());
            }
            outcome => outcome?,
        };
        let Outcome::Open { images: after, accepted, was_recovered } = outcome else {
            counts.refused += 1;
            return Ok(());
        };
        counts.recoveries += u64::from(was_recovered);
        self.bring_back(place, after, accepted, counts)?;
        if was_recovered && place.depth == 0 && (key / SHARDS).is_multiple_of(self.options.nested_every) {
            self.cut_off(place, images, given, counts)?;
        }
        Ok(())
    }

    /// Has the members come back that the crash took, now that the array went on without them.
    fn bring_back(
        &self,
        place: &Place<'_>,
        mut images: Vec<Option<Image>>,
        accepted: MemberSet,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let returned = place.shape.geometry.all_members().minus(accepted).minus(place.missing);
        if returned.is_empty() {
            return Ok(());
        }
        for member in returned.iter() {
            images[member.index()] = place.current[member.index()].clone();
        }
        let given = Given { left: accepted.union(returned), returned, forced: false };
        match check(place.shape, images, place.expect, given)? {
            Outcome::Refused => counts.refused += 1,
            Outcome::Open { was_recovered, .. } => counts.recoveries += u64::from(was_recovered),
        }
        Ok(())
    }

    /// Cuts a recovery off at each of its boundaries.
    fn cut_off(
        &self,
        place: &Place<'_>,
        images: Vec<Option<Image>>,
        given: Given,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let Some((candidates, verdict)) = admit(place.shape, &images, given)? else { return Ok(()) };
        let missing = verdict.missing();
        let members = Members::of(images.into_iter().map(|image| image.map(Member::of)).collect());
        let tape = Tape::new(members.only(place.shape.geometry.all_members().minus(missing)), Order::Fifo);
        tape.record();
        recover(tape.clone(), &verdict, &candidates)?;
        for (event, members) in tape.take() {
            if self.is_over() {
                break;
            }
            counts.boundaries += 1;
            let states = States::new(place.shape, &members);
            let inner = Place { states, current: current(&members), missing, depth: 1, ..*place };
            self.visit(&inner, counts).map_err(|(choice, lost, finding)| Finding::Nested {
                event: event.to_string(),
                choice,
                lost,
                finding: Box::new(finding),
            })?;
        }
        Ok(())
    }
}

fn current(members: &Members) -> Vec<Option<Image>> {
    let mut images = vec![None; members.len()];
    members.iter().for_each(|(slot, member)| images[slot.index()] = Some(member.current().clone()));
    images
}
