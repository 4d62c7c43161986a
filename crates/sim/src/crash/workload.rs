//! What is done to an array before the crash: one command or two, everything about them spelt out in the workload's name.

use std::fmt;

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

/// What a command changes, in the first parity stripe.
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
    /// Writes before, of sectors in turn, each twice where there are many; they are flushed, and their own crashes are not looked at: they make
    /// the log go around.
    pub prelude: u64,
    /// One or two commands.
    pub ops: Vec<Op>,
    /// What is between them.
    pub between: Between,
    /// What is after them.
    pub after: After,
    /// What else goes wrong before the power does.
    pub failing: Option<Failing>,
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
        let (chunk, stripe) = (shape.geometry.chunk().0, shape.geometry.stripe_sectors());
        match self {
            Self::Sector(unit) => (Lba(unit * chunk), Sectors(1)),
            Self::Two => (Lba(0), Sectors(2)),
            Self::Across => (Lba(chunk - 1), Sectors(2)),
            Self::Units => (Lba(0), Sectors(chunk + 1)),
            Self::Stripe | Self::ZeroStripe => (Lba(0), stripe),
            Self::Zero => (Lba(0), Sectors(1)),
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

/// Every workload of some arrays, by number: first those of one command, then those of two, each in an order that mixes them well. None is made
/// before it is asked for.
#[derive(Debug)]
pub struct Workloads<'a> {
    shapes: &'a [Shape],
    /// By number of commands, how many workloads each shape has.
    counts: [Vec<usize>; 2],
}

/// Far from a fraction of any of the counts, and prime.
const STRIDE: usize = 982_451_653;

const CACHES: [Cache; 3] = [Cache::None, Cache::Through, Cache::Back];
const ORDERS: [Order; 2] = [Order::Fifo, Order::Lifo];
const PRELUDES: [u64; 2] = [0, 4];
const BETWEEN: [Between; 4] = [Between::Beside, Between::Wait, Between::Flush, Between::FlushBeside];
const AFTERS: [After; 3] = [After::Nothing, After::Flush, After::Close];

impl<'a> Workloads<'a> {
    /// The workloads of the shapes that are wanted.
    #[must_use]
    pub fn new(shapes: &'a [Shape], is_wanted: impl Fn(&Shape) -> bool) -> Self {
        let bases = CACHES.len() * ORDERS.len() * PRELUDES.len() * AFTERS.len();
        let count = |shape: &Shape, commands: u32| {
            let ways = if commands == 1 { 1 } else { BETWEEN.len() };
            let sets = tolerated(&shape.geometry, MemberSet::EMPTY).len();
            if is_wanted(shape) { bases * sets * ways * ops(shape).len().pow(commands) } else { 0 }
        };
        let counts = [1, 2].map(|commands| shapes.iter().map(|shape| count(shape, commands)).collect());
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

    /// One of them, below [`Workloads::len`].
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Workload> {
        let singles = self.singles();
        let commands = usize::from(number >= singles) + 1;
        let counts = &self.counts[commands - 1];
        let total: usize = counts.iter().sum();
        let number = if commands == 1 { number } else { number - singles };
        if number >= total {
            return None;
        }
        let mut rest = (number as u128 * STRIDE as u128 % total as u128) as usize;
        let shape = counts.iter().position(|&count| {
            let is_it = rest < count;
            rest -= if is_it { 0 } else { count };
            is_it
        })?;
        let mut digit = |base: usize| {
            let digit = rest % base;
            rest /= base;
            digit
        };
        let sets = tolerated(&self.shapes[shape].geometry, MemberSet::EMPTY);
        let choices = ops(&self.shapes[shape]);
        Some(Workload {
            shape,
            missing: sets[digit(sets.len())],
            cache: CACHES[digit(CACHES.len())],
            order: ORDERS[digit(ORDERS.len())],
            prelude: PRELUDES[digit(PRELUDES.len())],
            after: AFTERS[digit(AFTERS.len())],
            between: if commands == 1 { Between::Wait } else { BETWEEN[digit(BETWEEN.len())] },
            ops: (0..commands).map(|_| choices[digit(choices.len())]).collect(),
            failing: None,
        })
    }
}

fn ops(shape: &Shape) -> Vec<Op> {
    let kinds = OpKind::ALL.into_iter().filter(|kind| kind.suits(shape));
    kinds.flat_map(|kind| [false, true].map(|fua| Op { kind, fua })).collect()
}

impl Workload {
    /// A name that no other workload has.
    #[must_use]
    pub fn name(&self, shapes: &[Shape]) -> String {
        let Self { shape, missing, cache, order, prelude, ops, between, after, failing } = self;
        let ops: Vec<String> = ops.iter().map(Op::to_string).collect();
        let without: String = missing.iter().map(|member| format!("-{member}")).collect();
        let failing = failing.map_or_else(String::new, |Failing { member, index, lasts }| {
            format!("/member{member}-fails-at-{index}{}", if lasts { "-and-on" } else { "" })
        });
        let name = format!(
            "{}/all{without}/{cache:?}/{order:?}/{prelude}/{}/{after:?}{failing}",
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
