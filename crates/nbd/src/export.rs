//! What the server needs from the thing it serves.
//!
//! An [`Export`] lives on one thread with its connections: nothing here is `Send`. Commands reach it already checked
//! against its
//! [`ExportInfo`]: inside the export, aligned, not empty, not larger than the maximum, and no write if it is read-only.

use crate::{Error, ReplySlot, proto::STRING_BYTES_MAX, transmission::WRITE_BYTES_MAX};

/// Something that a server can serve.
pub trait Export: 'static {
    /// The memory of one read's or write's data; its slices are exactly as long as was asked of [`Export::buffer`].
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// What clients are told about the export. It must not change while the server runs.
    fn info(&self) -> ExportInfo;

    /// Memory for the data of one request, or `None` when there is no more: the request is answered with
    /// [`crate::NbdError::NoMemory`]. `length_bytes` is at most the export's maximum, and all that clients hold at a
    /// time is within [`crate::Limits::bytes_in_flight_all_max`].
    fn buffer(&self, length_bytes: u32) -> Option<Self::Buffer>;

    /// Starts a command. The slot is answered once: at any later time, in any order, or before this returns.
    /// The connection may be gone by then, which the slot takes care of.
    fn submit(&self, command: Command<Self::Buffer>, reply: ReplySlot<Self::Buffer>);

    /// Called once after the commands that one turn of a connection submitted.
    fn kick(&self);
}

/// What clients are told about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The canonical name. Clients may also ask for the default export, whose name is empty.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Size of the export.
    pub size_bytes: u64,
    /// Granularity of requests.
    pub block_sizes: BlockSizes,
    /// Whether commands that would change the export are refused.
    pub read_only: bool,
    /// Whether a flush on one connection covers the writes of all.
    pub multi_conn: bool,
    /// Whether [`Command::Trim`] is understood.
    pub trim: bool,
    /// Whether [`Command::WriteZeroes`] with `fast` is understood, if only to refuse it at once.
    pub fast_zero: bool,
}

/// Granularity of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this: a power of two up to 65536.
    pub minimum_bytes: u32,
    /// Aligned requests of at least this size are efficient: a power of two, at least 512 and the minimum.
    pub preferred_bytes: u32,
    /// The most data that one request or reply may carry: at least the preferred size, at most 64 MiB.
    pub maximum_bytes: u32,
}

impl Default for BlockSizes {
    /// What a client may assume when nothing is said: 1, 4 KiB, 32 MiB.
    fn default() -> Self {
        Self { minimum_bytes: 1, preferred_bytes: 4096, maximum_bytes: 32 << 20 }
    }
}

impl ExportInfo {
    /// An export without a name, of default block sizes, that may be written and can do everything.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            size_bytes,
            block_sizes: BlockSizes::default(),
            read_only: false,
            multi_conn: true,
            trim: true,
            fast_zero: true,
        }
    }

    /// Checks that the protocol can express this.
    ///
    /// # Errors
    /// [`Error::InvalidExport`] naming the first rule that is broken.
    pub fn validate(&self) -> Result<(), Error> {
        let sizes = self.block_sizes;
        let minimum_ok = sizes.minimum_bytes.is_power_of_two() && sizes.minimum_bytes <= 65536;
        let preferred_ok =
            sizes.preferred_bytes.is_power_of_two() && sizes.preferred_bytes >= sizes.minimum_bytes.max(512);
        let rules = [
            (minimum_ok, "the minimum block size must be a power of two up to 65536"),
            (preferred_ok, "the preferred block size must be a power of two, at least 512 and the minimum block size"),
            (
                sizes.maximum_bytes >= sizes.preferred_bytes,
                "the maximum payload must be at least the preferred block size",
            ),
            (sizes.maximum_bytes <= WRITE_BYTES_MAX, "the maximum payload must be at most 64 MiB"),
            (self.name.len() <= STRING_BYTES_MAX, "the name must have at most 4096 bytes"),
            (self.description.len() <= STRING_BYTES_MAX, "the description must have at most 4096 bytes"),
            (!self.name.contains('\0'), "the name must not contain NUL"),
            (!self.description.contains('\0'), "the description must not contain NUL"),
        ];
        if let Some((_, reason)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(Error::InvalidExport { reason });
        }
        if !self.size_bytes.is_multiple_of(sizes.minimum_bytes.into()) {
            return Err(Error::InvalidExport { reason: "the size must be a multiple of the minimum block size" });
        }
        Ok(())
    }
}

/// A piece of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Distance from the start of the export.
    pub offset_bytes: u64,
    /// Length, never 0.
    pub length_bytes: u32,
}

impl Span {
    /// The first byte after the piece.
    pub fn end_bytes(self) -> u64 {
        self.offset_bytes + u64::from(self.length_bytes)
    }
}

/// A client's command. `B` holds a read's or write's data; the codec, which knows no data, uses `()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<B> {
    /// Fill the buffer and return it: [`Payload::Data`].
    Read {
        /// From where.
        span: Span,
        /// To where, as long as the span.
        buffer: B,
    },
    /// Store the buffer's bytes.
    Write {
        /// To where.
        span: Span,
        /// From where, as long as the span.
        buffer: B,
        /// Not done before it is on stable storage.
        fua: bool,
    },
    /// Every write that was answered before must be on stable storage.
    Flush,
    /// The bytes are no longer needed.
    Trim {
        /// Which.
        span: Span,
        /// Not done before it is on stable storage.
        fua: bool,
    },
    /// The bytes must read as zeroes. The span may be as large as the export.
    WriteZeroes {
        /// Which.
        span: Span,
        /// Not done before it is on stable storage.
        fua: bool,
        /// The span must stay allocated.
        no_hole: bool,
        /// Refuse with [`crate::NbdError::NotSupported`] at once if zeroing would take as long as writing.
        fast: bool,
    },
    /// A hint that the bytes are about to be read.
    Cache {
        /// Which.
        span: Span,
    },
    /// Which parts are holes or zeroes: [`Payload::Extents`].
    BlockStatus {
        /// Of what.
        span: Span,
        /// One extent is enough.
        one: bool,
    },
}

impl<B> Command<B> {
    /// The command without a read's or write's buffer, and that.
    pub fn split(self) -> (Command<()>, Option<B>) {
        match self {
            Self::Read { span, buffer } => (Command::Read { span, buffer: () }, Some(buffer)),
            Self::Write { span, buffer, fua } => (Command::Write { span, buffer: (), fua }, Some(buffer)),
            other => (other.with_buffer(|_| ()), None),
        }
    }

    /// The same command with `data(length_bytes)` in place of a read's or write's buffer.
    pub fn with_buffer<C>(self, data: impl FnOnce(u32) -> C) -> Command<C> {
        match self {
            Self::Read { span, .. } => Command::Read { span, buffer: data(span.length_bytes) },
            Self::Write { span, fua, .. } => Command::Write { span, buffer: data(span.length_bytes), fua },
            Self::Flush => Command::Flush,
            Self::Trim { span, fua } => Command::Trim { span, fua },
            Self::WriteZeroes { span, fua, no_hole, fast } => Command::WriteZeroes { span, fua, no_hole, fast },
            Self::Cache { span } => Command::Cache { span },
            Self::BlockStatus { span, one } => Command::BlockStatus { span, one },
        }
    }
}

/// The result of a command that succeeded.
#[derive(Debug)]
pub enum Payload<B> {
    /// Of every command but the two below.
    None,
    /// For [`Command::Read`]: its buffer, filled.
    Data(B),
    /// For [`Command::BlockStatus`]: at least one extent, none of them empty, consecutive from the span's start.
    /// They may end before the span does, or go beyond it.
    Extents(Vec<Extent>),
}

/// Bytes with one status, in the sense of `base:allocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How many, never 0.
    pub length_bytes: u32,
    /// Not allocated: writing there may find no room.
    pub hole: bool,
    /// Known to read as zeroes.
    pub zero: bool,
}
