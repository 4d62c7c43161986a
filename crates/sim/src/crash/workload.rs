//! What is done to an array before the crash: one command or two, or one beside a change of who is there, everything
//! about them spelt out in the workload's name.

use std::fmt;
use std::ops::Range;

use uraid_io::format::BLOCK;
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Lba, MemberIndex, MemberSet, Sectors};

use super::shape::Shape;
use crate::dst::audit::tolerated;

/// A command that changes content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// What and where.
    pub kind: OpKind,
    /// Whether it is to be durable when it is replied to.
    pub fua: bool,
}

/// What a command changes, in the first parity stripe. Where there are checksums it is whole blocks: read block for
/// sector then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// One sector of a unit: the first of it.
    Sector(u64),
    /// Two sectors of the first unit.
    Two,
    /// The last sector of the first unit and the first one of the second.
    Across,
    /// All of the first unit and a sector of the second: two units in one column.
    Units,
    /// The parity stripe.
    Stripe,
    /// A sector of zeros.
    Zero,
    /// A parity stripe of zeros, which may be punched out.
    ZeroStripe,
    /// The whole array: both parity stripes.
    All,
}

/// What happens between two commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Between {
    /// Nothing: both are under way together.
    Beside,
    /// The second waits for the first one's reply.
    Wait,
    /// A flush, waited for.
    Flush,
    /// A flush that is under way beside the second.
    FlushBeside,
    /// The second comes when the first has begun.
    Midway,
}

/// What happens after the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum After {
    /// Nothing; a cache writes out by and by.
    Nothing,
    /// A flush.
    Flush,
    /// The array is closed.
    Close,
}

/// The engine's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cache {
    /// None.
    None,
    /// Written through.
    Through,
    /// Written back.
    Back,
}

/// In which order the members end what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The oldest first.
    Fifo,
    /// The newest first.
    Lifo,
}

/// A workload of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    /// Which array, by its index.
    pub shape: usize,
    /// Members that are missing from the start.
    pub missing: MemberSet,
    /// The cache.
    pub cache: Cache,
    /// The order of completions.
    pub order: Order,
    /// Writes before, of sectors in turn, each twice where there are many; they are flushed, and their own crashes are
    /// not looked at: they make the log go around.
    pub prelude: u64,
    /// One or two commands.
    pub ops: Vec<Op>,
    /// What is between them.
    pub between: Between,
    /// What is after them.
    pub after: After,
    /// Who comes meanwhile.
    pub change: Option<Change>,
    /// What else goes wrong before the power does.
    pub failing: Option<Failing>,
}

/// A member comes, and gets its content, while the array is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// How it comes.
    pub kind: ChangeKind,
    /// Where.
    pub slot: MemberIndex,
    /// After how many steps of the members the command comes; none: it comes first, and the change when it was replied
    /// to.
    pub steps: Option<u32>,
}

/// How a member comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A new one joins where one is missing.
    Join,
    /// The missing one returns, after the array has gone on without it.
    Return,
    /// A new one takes the place of one that it is copied from.
    Copy,
}

/// A member that fails while the commands are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failing {
    /// Which one.
    pub member: MemberIndex,
    /// At which of its writes and flushes, counted from 0.
    pub index: usize,
    /// Whether every later one fails, too.
    pub lasts: bool,
}

impl OpKind {
    const ALL: [Self; 8] = [
        Self::Sector(0),
        Self::Sector(1),
        Self::Two,
        Self::Across,
        Self::Units,
        Self::Stripe,
        Self::Zero,
        Self::ZeroStripe,
    ];

    /// The sectors that change.
    #[must_use]
    pub fn range(self, shape: &Shape) -> (Lba, Sectors) {
        let (chunk, stripe, one) = (shape.geometry.chunk().0, shape.geometry.stripe_sectors(), least(shape).0);
        match self {
            Self::Sector(unit) => (Lba(unit * chunk), Sectors(one)),
            Self::Two => (Lba(0), Sectors(2 * one)),
            Self::Across => (Lba(chunk - one), Sectors(2 * one)),
            Self::Units => (Lba(0), Sectors(chunk + one)),
            Self::Stripe | Self::ZeroStripe => (Lba(0), stripe),
            Self::Zero => (Lba(0), Sectors(one)),
            Self::All => (Lba(0), shape.geometry.capacity()),
        }
    }

    /// Whether zeros are written.
    #[must_use]
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Zero | Self::ZeroStripe)
    }

    /// Whether the array has the sectors in its first parity stripe.
    fn suits(self, shape: &Shape) -> bool {
        let (lba, len) = self.range(shape);
        lba.0 + len.0 <= shape.geometry.stripe_sectors().0
    }
}

/// What commands of an array are multiples of.
pub(super) fn least(shape: &Shape) -> Sectors {
    if shape.integrity == Integrity::None { Sectors(1) } else { BLOCK }
}

/// Every workload of some arrays, by number: first those of one command, then those of two, then those of one command
/// and a change of who is there, each in an order that mixes them well. None is made before it is asked for.
#[derive(Debug)]
pub struct Workloads<'a> {
    shapes: &'a [Shape],
    /// By family, how many workloads each shape has.
    counts: [Vec<usize>; 3],
}

const PAIRS: usize = 1;
const CHANGES: usize = 2;

/// Far from a fraction of any of the counts, and prime.
const STRIDE: usize = 982_451_653;

const ORDERS: [Order; 2] = [Order::Fifo, Order::Lifo];
const PRELUDES: [u64; 2] = [0, 4];
const BETWEEN: [Between; 4] = [Between::Beside, Between::Wait, Between::Flush, Between::FlushBeside];
const AFTERS: [After; 3] = [After::Nothing, After::Flush, After::Close];

/// Steps of the members before the command: beside the change, while it waits and is recorded, while content is made,
/// and late in that.
const STEPS: [Option<u32>; 5] = [None, Some(0), Some(8), Some(20), Some(36)];

impl<'a> Workloads<'a> {
    /// The workloads of the shapes that are wanted.
    #[must_use]
    pub fn new(shapes: &'a [Shape], is_wanted: impl Fn(&Shape) -> bool) -> Self {
        let count = |shape: &Shape, family: usize| {
            let bases = caches(shape).len() * ORDERS.len() * PRELUDES.len() * AFTERS.len();
            let (sets, ops) = (tolerated(&shape.geometry, MemberSet::EMPTY).len(), ops(shape).len());
            let count = match family {
                PAIRS => bases * sets * BETWEEN.len() * ops * ops,
                CHANGES => bases * changes(shape).len() * ops,
                _ => bases * sets * ops,
            };
            if is_wanted(shape) { count } else { 0 }
        };
        let counts = [0, PAIRS, CHANGES].map(|family| shapes.iter().map(|shape| count(shape, family)).collect());
        Self { shapes, counts }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.iter().flatten().sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are of one command.
    #[must_use]
    pub fn singles(&self) -> usize {
        self.counts[0].iter().sum()
    }

    /// The numbers of those with a change of who is there.
    #[must_use]
    pub fn changes(&self) -> Range<usize> {
        self.len() - self.counts[CHANGES].iter().sum::<usize>()..self.len()
    }

    /// The array of one of them, and whether who is there changes; without making it.
    #[must_use]
    pub fn place(&self, number: usize) -> Option<(usize, bool)> {
        self.find(number).map(|(family, shape, _)| (shape, family == CHANGES))
    }

    /// The family of one of them, its shape, and its number among those of both.
    fn find(&self, mut number: usize) -> Option<(usize, usize, usize)> {
        let family = self.counts.iter().position(|counts| {
            let total: usize = counts.iter().sum();
            let is_it = number < total;
            number -= if is_it { 0 } else { total };
            is_it
        })?;
        let counts = &self.counts[family];
        let total: usize = counts.iter().sum();
        let mut rest = (number as u128 * STRIDE as u128 % total as u128) as usize;
        let shape = counts.iter().position(|&count| {
            let is_it = rest < count;
            rest -= if is_it { 0 } else { count };
            is_it
        })?;
        Some((family, shape, rest))
    }

    /// One of them, below [`Workloads::len`].
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Workload> {
        let (family, shape, mut rest) = self.find(number)?;
        let mut digit = |base: usize| {
            let digit = rest % base;
            rest /= base;
            digit
        };
        let (choices, caches) = (ops(&self.shapes[shape]), caches(&self.shapes[shape]));
        let (missing, change) = if family == CHANGES {
            let changes = changes(&self.shapes[shape]);
            let (missing, change) = changes[digit(changes.len())];
            (missing, Some(change))
        } else {
            let sets = tolerated(&self.shapes[shape].geometry, MemberSet::EMPTY);
            (sets[digit(sets.len())], None)
        };
        let commands = if family == PAIRS { 2 } else { 1 };
        Some(Workload {
            shape,
            missing,
            cache: caches[digit(caches.len())],
            order: ORDERS[digit(ORDERS.len())],
            prelude: PRELUDES[digit(PRELUDES.len())],
            after: AFTERS[digit(AFTERS.len())],
            between: if family == PAIRS { BETWEEN[digit(BETWEEN.len())] } else { Between::Wait },
            ops: (0..commands).map(|_| choices[digit(choices.len())]).collect(),
            change,
            failing: None,
        })
    }
}

/// The ways in which a member comes, with who is missing before.
fn changes(shape: &Shape) -> Vec<(MemberSet, Change)> {
    let all = shape.geometry.all_members();
    let of = |kind, missing: MemberSet, slots: MemberSet, steps: &[Option<u32>]| {
        let at = |slot| steps.iter().map(move |&steps| (missing, Change { kind, slot, steps })).collect::<Vec<_>>();
        slots.iter().flat_map(at).collect::<Vec<_>>()
    };
    let mut changes = of(ChangeKind::Copy, MemberSet::EMPTY, all, &STEPS);
    for missing in tolerated(&shape.geometry, MemberSet::EMPTY).into_iter().filter(|missing| !missing.is_empty()) {
        changes.extend(of(ChangeKind::Join, missing, missing, &STEPS));
        // Nobody has what a member lacks on record where the array has gone on without anything being kept.
        if shape.consistency != Consistency::None {
            changes.extend(of(ChangeKind::Return, missing, missing, &STEPS[..1]));
        }
    }
    changes
}

/// The journal has what a cache holds back.
fn caches(shape: &Shape) -> &'static [Cache] {
    if shape.has_journal { &[Cache::Back] } else { &[Cache::None, Cache::Through, Cache::Back] }
}

fn ops(shape: &Shape) -> Vec<Op> {
    let kinds = OpKind::ALL.into_iter().filter(|kind| kind.suits(shape));
    kinds.flat_map(|kind| [false, true].map(|fua| Op { kind, fua })).collect()
}

impl Workload {
    /// A name that no other workload has.
    #[must_use]
    pub fn name(&self, shapes: &[Shape]) -> String {
        let Self { shape, missing, cache, order, prelude, ops, between, after, change, failing } = self;
        let ops: Vec<String> = ops.iter().map(Op::to_string).collect();
        let without: String = missing.iter().map(|member| format!("-{member}")).collect();
        let failing = failing.map_or_else(String::new, |Failing { member, index, lasts }| {
            format!("/member{member}-fails-at-{index}{}", if lasts { "-and-on" } else { "" })
        });
        let change = change.map_or_else(String::new, |Change { kind, slot, steps }| match steps {
            None => format!("/then-{kind:?}-{slot}"),
            Some(steps) => format!("/{steps}-after-{kind:?}-{slot}"),
        });
        let name = format!(
            "{}/all{without}/{cache:?}/{order:?}/{prelude}/{}/{after:?}{change}{failing}",
            shapes[*shape],
            ops.join(&format!("+{between:?}+"))
        );
        name.to_lowercase()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fua = if self.fua { "!" } else { "" };
        match self.kind {
            OpKind::Sector(unit) => write!(f, "sector{unit}{fua}"),
            kind => write!(f, "{kind:?}{fua}"),
        }
    }
}
