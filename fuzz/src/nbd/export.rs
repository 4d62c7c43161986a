//! Exports that note each command and answer it as they like: what a client is told can be compared with that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use uraid_nbd::{BlockSizes, Command, ExportInfo, Extent, NbdError, Payload, ReplySlot, Span};

/// Most memory that the server may have for requests, and for those of one connection; the largest request is a quarter
/// of it.
pub(super) const BYTES_MAX: u64 = 96 << 10;

/// A kind of export.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) size: u64,
    pub(super) block_min: u32,
    pub(super) block_preferred: u32,
    pub(super) block_max: u32,
    pub(super) read_only: bool,
    pub(super) rotational: bool,
    pub(super) trim: bool,
    pub(super) fast_zero: bool,
    /// Whether it lacks memory for some requests, and fails others.
    is_poor: bool,
    finish: Finish,
}

/// When commands are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// Before `submit` returns.
    AtOnce,
    /// In `kick`, the last one first.
    Reversed,
    /// In another task.
    Later,
}

const PLAIN: Kind = Kind {
    name: "",
    description: "",
    size: 100_003,
    block_min: 1,
    block_preferred: 4096,
    block_max: 24 << 10,
    read_only: false,
    rotational: false,
    trim: true,
    fast_zero: true,
    is_poor: false,
    finish: Finish::AtOnce,
};

/// What is served: bytes; blocks; what can only be read; what fails now and then; and as much as 64 bits can say.
pub(super) const KINDS: [Kind; 5] = [
    PLAIN,
    Kind {
        name: "disk",
        description: "of blocks",
        size: 128 << 10,
        block_min: 512,
        block_max: 16 << 10,
        finish: Finish::Reversed,
        ..PLAIN
    },
    Kind { name: "read-only", size: 1 << 16, read_only: true, rotational: true, ..PLAIN },
    Kind { name: "poor", trim: false, fast_zero: false, is_poor: true, finish: Finish::Later, ..PLAIN },
    Kind { size: u64::MAX - 4095, block_min: 4096, ..PLAIN },
];

/// Something that has reached the export.
#[derive(Debug)]
pub(super) enum Noted {
    /// There was no memory for so many bytes.
    NoMemory(u32),
    /// A command, with a write's data or those that a read has brought, and what became of it.
    Command(Command<Vec<u8>>, Result<Vec<Extent>, NbdError>),
}

/// An export of one kind.
pub(super) struct Export {
    kind: &'static Kind,
    noted: RefCell<Vec<Noted>>,
    held: Rc<RefCell<Vec<Held>>>,
    bytes_live: Rc<Cell<u64>>,
}

type Held = (ReplySlot<Buffer>, Result<Payload<Buffer>, NbdError>);

/// Memory of a request, which is counted.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    bytes_live: Rc<Cell<u64>>,
}

impl Export {
    pub(super) fn new(kind: &'static Kind) -> Self {
        Self { kind, noted: RefCell::default(), held: Rc::default(), bytes_live: Rc::default() }
    }

    /// Whether all commands were answered and all memory is given back.
    pub(super) fn is_at_rest(&self) -> bool {
        self.held.borrow().is_empty() && self.bytes_live.get() == 0
    }

    /// What has come since the last call.
    pub(super) fn take_noted(&self) -> Vec<Noted> {
        self.noted.take()
    }

    /// Fails unless the server may hand out such a command.
    fn insist<B>(&self, command: &Command<B>) {
        let kind = self.kind;
        let (span, changes) = match *command {
            Command::Flush => return,
            Command::Read { span, .. } | Command::Cache { span } | Command::BlockStatus { span, .. } => (span, false),
            Command::Write { span, .. } | Command::Trim { span, .. } | Command::WriteZeroes { span, .. } => {
                (span, true)
            }
        };
        let Span { offset_bytes, length_bytes } = span;
        let end = offset_bytes.checked_add(length_bytes);
        assert!(length_bytes > 0 && end.is_some_and(|end| end <= kind.size), "{span:?} is not of the export");
        let block = u64::from(kind.block_min);
        assert!(offset_bytes.is_multiple_of(block) && length_bytes.is_multiple_of(block), "{span:?} is no blocks");
        assert!(!(changes && kind.read_only), "nothing that changes a read-only export reaches it");
        let is_known = match command {
            Command::Trim { .. } => kind.trim,
            Command::WriteZeroes { fast, .. } => kind.fast_zero || !fast,
            _ => true,
        };
        assert!(is_known, "what the export can't do does not reach it");
    }

    /// What this kind does with its command of such a number.
    fn execute(&self, command: Command<Buffer>, number: u64) -> (Noted, Result<Payload<Buffer>, NbdError>) {
        let fails = self.kind.is_poor && number % 7 == 5;
        let slow = matches!(command, Command::WriteZeroes { fast: true, .. }) && number % 2 == 1;
        let failure = if fails { Some(NbdError::Io) } else { slow.then_some(NbdError::NotSupported) };
        let (plain, buffer) = command.split();
        match (plain, buffer) {
            (_, buffer) if failure.is_some() => {
                let bytes = buffer.map(|buffer| buffer.bytes.clone()).unwrap_or_default();
                let error = failure.unwrap_or(NbdError::Io);
                (Noted::Command(plain.with_buffer(|| bytes), Err(error)), Err(error))
            }
            (Command::Read { span, .. }, Some(mut buffer)) => {
                buffer.bytes.iter_mut().zip(0u64..).for_each(|(byte, at)| {
                    *byte = (at.wrapping_add(span.offset_bytes).wrapping_mul(31) ^ number.wrapping_mul(59)) as u8;
                });
                let bytes = buffer.bytes.clone();
                (Noted::Command(plain.with_buffer(|| bytes), Ok(Vec::new())), Ok(Payload::Data(buffer)))
            }
            (Command::BlockStatus { span, .. }, _) => {
                let extents = self.extents(span, number);
                let noted = Noted::Command(plain.with_buffer(Vec::new), Ok(extents.clone()));
                (noted, Ok(Payload::Extents(extents)))
            }
            (_, buffer) => {
                let bytes = buffer.map(|buffer| buffer.bytes.clone()).unwrap_or_default();
                (Noted::Command(plain.with_buffer(|| bytes), Ok(Vec::new())), Ok(Payload::None))
            }
        }
    }

    /// Up to five extents, which may end before the span does, with it, or behind it.
    fn extents(&self, span: Span, number: u64) -> Vec<Extent> {
        let block = u64::from(self.kind.block_min);
        let part = (span.length_bytes / block / (1 + number % 5)).max(1) * block;
        let extent = |index: u64| Extent {
            length_bytes: part,
            hole: (number + index).is_multiple_of(2),
            zero: (number + index).is_multiple_of(3),
        };
        (0..1 + number % 5).map(extent).collect()
    }
}

impl uraid_nbd::Export for Export {
    type Buffer = Buffer;

    fn info(&self) -> ExportInfo {
        let kind = self.kind;
        ExportInfo {
            name: kind.name.to_owned(),
            description: kind.description.to_owned(),
            block_sizes: BlockSizes {
                minimum_bytes: kind.block_min,
                preferred_bytes: kind.block_preferred,
                maximum_bytes: kind.block_max,
            },
            read_only: kind.read_only,
            rotational: kind.rotational,
            trim: kind.trim,
            fast_zero: kind.fast_zero,
            ..ExportInfo::new(kind.size)
        }
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buffer> {
        assert!(length_bytes <= self.kind.block_max, "no request is larger than the export's maximum");
        if self.kind.is_poor && length_bytes % 5 == 3 {
            self.noted.borrow_mut().push(Noted::NoMemory(length_bytes));
            return None;
        }
        self.bytes_live.update(|live| live + u64::from(length_bytes));
        assert!(self.bytes_live.get() <= BYTES_MAX, "the memory of all requests is bounded");
        Some(Buffer { bytes: vec![0xee; length_bytes as usize], bytes_live: Rc::clone(&self.bytes_live) })
    }

    fn submit(&self, command: Command<Buffer>, reply: ReplySlot<Buffer>) {
        self.insist(&command);
        let number = self.noted.borrow().len() as u64;
        let (noted, outcome) = self.execute(command, number);
        self.noted.borrow_mut().push(noted);
        if self.kind.finish == Finish::AtOnce {
            reply.done(outcome);
        } else {
            self.held.borrow_mut().push((reply, outcome));
        }
    }

    fn kick(&self) {
        match self.kind.finish {
            Finish::AtOnce => {}
            Finish::Reversed => {
                self.held.borrow_mut().reverse();
                answer(&self.held);
            }
            Finish::Later => {
                let held = Rc::clone(&self.held);
                tokio::task::spawn_local(async move { answer(&held) });
            }
        }
    }
}

fn answer(held: &RefCell<Vec<Held>>) {
    for (reply, outcome) in held.take() {
        reply.done(outcome);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.bytes_live.update(|live| live - self.bytes.len() as u64);
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
