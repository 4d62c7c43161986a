//! Goes through the states of workloads, each different one once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use uraid_io::format::superblock::LogIndex;
use uraid_layout::{MemberIndex, MemberSet};

use super::check::{Given, Outcome, admit, check, finish, recover};
use super::expect::Expect;
use super::run::{Boundary, boundaries};
use super::shape::Shape;
use super::states::{Grain, Limit, States, hash_of, mix};
use super::tape::Tape;
use super::workload::{ChangeKind, Order, Workload};
use super::{Counts, Failure, Finding};
use crate::dst::audit::tolerated;
use crate::image::Image;
use crate::member::{Member, superblock_of};
use crate::members::Members;

/// How thorough an enumeration is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of a boundary with more choices than this only some are gone through.
    pub choices_max: u128,
    /// Which of many choices, of a crash while a workload runs.
    pub grain: Grain,
    /// Of one state in so many that a running array left the recovery is cut off at every boundary.
    pub nested_every: u64,
    /// The same for a recovery's boundaries.
    pub nested_choices_max: u128,
    /// Nothing more is begun from then on.
    pub until: Option<Instant>,
    /// Nothing more is begun after so many states.
    pub states_max: u64,
    /// Arrays are opened though they say that they can't be trusted, and what is wrong then is counted.
    pub forced: bool,
    /// At every boundary the program is killed, too, and the power goes while the array is opened from what the kernel
    /// still holds.
    pub kills: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            choices_max: 1 << 8,
            grain: Grain::Pairs,
            nested_every: 1 << 11,
            nested_choices_max: 1 << 5,
            until: None,
            states_max: u64::MAX,
            forced: false,
            kills: false,
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
struct CrashPoint<'a> {
    shape: &'a Shape,
    index: usize,
    expect: &'a Expect,
    states: States,
    /// What is on the members that are lost, when they come back.
    current: Vec<Option<Image>>,
    missing: MemberSet,
    /// Who was missing when the workload began.
    absent: MemberSet,
    /// Members that are missing and may be back after the crash, with what they hold then.
    away: Vec<(MemberSet, Vec<Option<Image>>)>,
    /// Who has failed by then, or is about to.
    failing: MemberSet,
    /// Who has come, or may come: the slot, or the seat of a member that takes another one's place.
    joining: MemberSet,
    /// Who is there.
    present: MemberSet,
    depth: u32,
}

/// Whom a crash leaves.
struct Way<'a> {
    given: Given,
    /// Of these, who was away, and what they all hold then.
    back: MemberSet,
    images: Option<&'a Vec<Option<Image>>>,
}

impl CrashPoint<'_> {
    /// A hash of what some members hold.
    fn hash_of(&self, members: MemberSet, images: &[Option<Image>]) -> u64 {
        members.iter().fold(0, |hash, member| {
            let image = images.get(member.index()).and_then(Option::as_ref);
            hash ^ mix(hash_of(self.shape, member, image) ^ u64::from(member.0))
        })
    }

    /// The slot of which the array that goes on has the old member, while the one that it was copied to has said that
    /// it is its.
    fn switched(&self, images: &[Option<Image>], accepted: MemberSet) -> MemberSet {
        if self.joining.minus(self.shape.geometry.all_members()).is_empty() {
            return MemberSet::EMPTY;
        }
        let owner = |image: Option<&Image>| Some(superblock_of(image?).ok()?.member);
        let is_switched = |slot: &MemberIndex| {
            let copy = owner(self.current[slot.index()].as_ref());
            copy.is_some() && copy != owner(images[slot.index()].as_ref())
        };
        accepted.iter().filter(is_switched).collect()
    }
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
        let joining = workload.change.map_or(MemberSet::EMPTY, |change| {
            let seat = MemberIndex(shape.geometry.spec().members);
            MemberSet::EMPTY.with(if change.kind == ChangeKind::Copy { seat } else { change.slot })
        });
        for (at, Boundary { event, members, expect }) in boundaries.iter().enumerate() {
            if self.is_over() {
                counts.workloads = 0;
                break;
            }
            counts.boundaries += 1;
            let place = CrashPoint {
                shape,
                index: workload.shape,
                expect,
                states: States::new(shape, members),
                current: current(members),
                missing: workload.missing.minus(joining),
                absent: workload.missing,
                // Whoever was away before has what there was then.
                away: vec![(workload.missing, current(&shape.members))],
                failing: failing(shape, workload),
                joining,
                present: members.present(),
                depth: 0,
            };
            let named = |(choice, lost, finding)| failure(format!("boundary {at}, {event}"), choice, lost, finding);
            self.visit(&place, &mut counts).map_err(named)?;
            if self.options.kills {
                self.kill(&place, members, &mut counts)
                    .map_err(|finding| named(("a kill left everything".into(), MemberSet::EMPTY, finding)))?;
            }
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

    fn visit(&self, place: &CrashPoint<'_>, counts: &mut Counts) -> Result<(), (String, MemberSet, Finding)> {
        let all = place.shape.geometry.all_members();
        let CrashPoint { missing, failing, joining, .. } = *place;
        let came = joining.minus(joining.minus(place.present));
        let logs = log_slots(place.shape, place.present);
        let present = all.minus(missing).minus(joining).union(came).union(logs);
        // Each log device is lost in turn.
        let lost_logs = [MemberSet::EMPTY].into_iter().chain(logs.iter().map(|log| MemberSet::EMPTY.with(log)));
        let lost_logs: Vec<MemberSet> = lost_logs.collect();
        let forced = self.options.forced;
        let mut ways: Vec<Way<'_>> = Vec::new();
        let unsure = [failing, came, failing.union(came)].into_iter().filter(|set| !set.is_empty());
        let mut unsure: Vec<MemberSet> = [MemberSet::EMPTY].into_iter().chain(unsure).collect();
        unsure.dedup();
        for lost in tolerated(&place.shape.geometry, missing.union(failing).union(joining.minus(joining.minus(all)))) {
            let unsure = unsure.iter().flat_map(|&more| lost_logs.iter().map(move |&logs| more.union(logs)));
            for lost in unsure.map(|more| lost.union(more)) {
                let left = present.minus(lost);
                let returned = failing.union(joining).minus(all.minus(left));
                ways.push(Way {
                    given: Given { left, returned, joining, forced },
                    back: MemberSet::EMPTY,
                    images: None,
                });
            }
        }
        for (back, images) in place.away.iter().filter(|(back, _)| !back.is_empty()) {
            let returned = back.union(failing).union(joining);
            let given = Given { left: present.union(*back), returned, joining, forced };
            ways.push(Way { given, back: *back, images: Some(images) });
        }
        for Way { given, back, images } in ways {
            let left = given.left;
            // The same state is another where who may come back holds other content: who was away, or has just come.
            let come = place.hash_of(joining.minus(left), &place.current);
            let variant = place.hash_of(back, images.unwrap_or(&place.current)) ^ come;
            let Options { choices_max, nested_choices_max, .. } = self.options;
            let limit = match place.depth {
                0 => Limit { choices_max, grain: self.options.grain },
                _ if self.options.grain == Grain::Areas => Limit { choices_max, grain: Grain::Areas },
                _ => Limit { choices_max: nested_choices_max, grain: Grain::Singles },
            };
            place.states.visit(left.minus(back), limit, |choice, hash| {
                counts.generated += 1;
                let bits = left.iter().fold(0_u64, |bits, member| bits | 1 << member.0);
                // Nor is it the same where members may be done without.
                let excused = place.failing.iter().fold(variant, |bits, member| bits ^ 2 << member.0);
                let place_hash = mix(bits << 8 ^ place.index as u64) ^ excused.wrapping_mul(0x9E37_79B9);
                let key = mix(hash ^ mix(place.expect.hash ^ place_hash));
                let is_new = self.is_new(key);
                // A crash in a recovery may have left the state before; that its own recovery is cut off does not hang
                // on it.
                let is_picked = place.depth == 0 && (key / SHARDS).is_multiple_of(self.options.nested_every);
                let is_cut_off = is_picked && self.is_new(mix(key));
                if !is_new && !is_cut_off {
                    return Ok(());
                }
                counts.states += u64::from(is_new);
                self.states.fetch_add(u64::from(is_new), Ordering::Relaxed);
                counts.nested += u64::from(is_new && place.depth > 0);
                let mut found = place.states.images(choice, left.minus(back));
                found.resize(found.len().max(images.map_or(0, Vec::len)), None);
                back.iter()
                    .for_each(|member| found[member.index()] = images.and_then(|all| all[member.index()].clone()));
                self.check(place, found, given, is_cut_off, counts).map_err(|finding| {
                    let choice = place.states.describe(choice, left.minus(back));
                    (choice, all.union(logs).minus(place.missing).minus(left), finding)
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
        place: &CrashPoint<'_>,
        images: Vec<Option<Image>>,
        given: Given,
        is_cut_off: bool,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let CrashPoint { shape, expect, .. } = *place;
        let outcome = match check(shape, &images, expect, given) {
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
        if was_recovered && is_cut_off {
            let members = Members::of(images.into_iter().map(|image| image.map(Member::of)).collect());
            self.cut_off(place, &members, given, counts)?;
        }
        Ok(())
    }

    /// Has the members come back that the crash took, now that the array went on without them.
    fn bring_back(
        &self,
        place: &CrashPoint<'_>,
        mut images: Vec<Option<Image>>,
        accepted: MemberSet,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let gone = place.shape.geometry.all_members().minus(accepted);
        let lost = |slot: &MemberIndex| images.get(slot.index()).is_none_or(Option::is_none);
        let logs: MemberSet = log_slots(place.shape, place.present).iter().filter(lost).collect();
        let returned = gone.minus(place.missing).minus(place.failing).minus(place.joining).union(logs);
        let switched = place.switched(&images, accepted);
        if returned.union(switched).is_empty() {
            return Ok(());
        }
        for member in returned.iter() {
            images[member.index()] = place.current[member.index()].clone();
        }
        // Whoever returns may be the only one to say that a copy has taken a place. Nothing was written since that the
        // copy lacks, or the array has marked its members before, and who returns is the stale one. So the old member
        // may be set aside then, where the copy stays away; where it returns, one of both has the slot, and who was
        // missing when it came may be on its record as failed, which nobody contradicts who has not been written since.
        let left = accepted.union(returned);
        let given = Given { left, returned: returned.union(switched), joining: MemberSet::EMPTY, forced: false };
        self.check_returned(place, &images, given, counts)?;
        if !logs.is_empty() {
            // Alone it is no good, if anything was done without it.
            let mut alone = images.clone();
            log_slots(place.shape, place.present).minus(logs).iter().for_each(|log| alone[log.index()] = None);
            self.check_returned(place, &alone, given, counts)?;
        }
        if switched.is_empty() {
            return Ok(());
        }
        images.extend(switched.iter().map(|slot| place.current[slot.index()].clone()));
        self.check_returned(place, &images, Given { returned: returned.union(place.absent), ..given }, counts)
    }

    fn check_returned(
        &self,
        place: &CrashPoint<'_>,
        images: &[Option<Image>],
        given: Given,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        match check(place.shape, images, place.expect, given)? {
            Outcome::Refused => counts.refused += 1,
            Outcome::Open { was_recovered, .. } => counts.recoveries += u64::from(was_recovered),
        }
        Ok(())
    }

    /// Kills the program, which leaves everything that it wrote with the kernel or nothing of what is under way, and
    /// cuts off what comes then.
    fn kill(&self, place: &CrashPoint<'_>, members: &Members, counts: &mut Counts) -> Result<(), Finding> {
        for takes_effect in [true, false] {
            let mut killed = members.clone();
            for slot in members.present().iter() {
                killed.get_mut(slot).expect("it is present").kill(|_| takes_effect);
            }
            let left = killed.present();
            let joining = place.joining;
            let given = Given { left, returned: place.failing.union(joining), joining, forced: false };
            self.cut_off(place, &killed, given, counts)?;
        }
        Ok(())
    }

    /// Cuts the opening of an array off at each of its boundaries.
    fn cut_off(
        &self,
        place: &CrashPoint<'_>,
        members: &Members,
        given: Given,
        counts: &mut Counts,
    ) -> Result<(), Finding> {
        let Some(admitted) = admit(place.shape, &current(members), given)? else { return Ok(()) };
        let missing = admitted.verdict.missing();
        // Whoever was killed has not lost what it did not flush.
        let seated = admitted.sources.iter().map(|source| source.and_then(|source| members.get(source)).cloned());
        let logs = log_slots(place.shape, members.present());
        let behind =
            (seated.len()..members.len()).map(|slot| MemberIndex(u8::try_from(slot).expect("members are few")));
        let behind = behind.map(|slot| members.get(slot).filter(|_| logs.contains(slot)).cloned());
        let all = seated.chain(behind.filter(|_| place.shape.logs > 0)).collect();
        let tape = Tape::new(Members::of(all), Order::Fifo).with_logs(place.shape.log_slot(LogIndex(0)));
        tape.record();
        let (_, engine) = recover(tape.clone(), &admitted.verdict, &admitted.candidates)?;
        finish(engine)?;
        // Whom the first crash took may be back after the second.
        let lost = missing.minus(place.missing);
        let mut away = vec![(lost, place.current.clone()), (lost, place.states.images(&place.states.nothing(), lost))];
        // So may the copy of a member that it was to take the place of.
        let unused = |seat: &MemberIndex| !admitted.sources.contains(&Some(*seat));
        let copy = place.joining.minus(place.shape.geometry.all_members()).iter().filter(unused).collect();
        away.push((copy, place.current.clone()));
        away.push((log_slots(place.shape, place.present).minus(logs), place.current.clone()));
        for (event, members) in tape.take() {
            if self.is_over() {
                break;
            }
            counts.boundaries += 1;
            let states = States::new(place.shape, &members);
            let (current, away, failing) = (current(&members), away.clone(), place.failing.minus(missing));
            let present = members.present();
            let inner = CrashPoint { states, current, missing, away, failing, present, depth: 1, ..*place };
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

/// The log devices of an array among these.
fn log_slots(shape: &Shape, present: MemberSet) -> MemberSet {
    let logs = shape.log_slots();
    logs.minus(logs.minus(present))
}

/// The members that fail in a workload.
fn failing(shape: &Shape, workload: &Workload) -> MemberSet {
    let failing: MemberSet = workload.failing.iter().map(|failing| failing.member).collect();
    failing.minus(shape.log_slots())
}

fn current(members: &Members) -> Vec<Option<Image>> {
    let mut images = vec![None; members.len()];
    members.iter().for_each(|(slot, member)| images[slot.index()] = Some(member.current().clone()));
    images
}
