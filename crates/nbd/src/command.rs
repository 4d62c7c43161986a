//! Clients' commands, and what comes of them.

/// A piece of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Distance from the start of the export.
    pub offset_bytes: u64,
    /// Length, never 0. That of a read or a write is at most the export's maximum.
    pub length_bytes: u64,
}

impl Span {
    /// The first byte after the piece.
    pub fn end_bytes(self) -> u64 {
        self.offset_bytes + self.length_bytes
    }

    /// The length of the data of a read or a write.
    ///
    /// # Panics
    /// If the span is one that no read and no write may have.
    pub fn data_bytes(self) -> u32 {
        u32::try_from(self.length_bytes).expect("a request's data are bounded")
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
    /// The bytes are no longer needed. The span may be as large as the export.
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
    /// Which parts are holes or zeroes: [`Payload::Extents`]. The span may be as large as the export.
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
            other => (other.with_buffer(|| ()), None),
        }
    }

    /// The same command with what `data` makes in place of a read's or write's buffer.
    pub fn with_buffer<C>(self, data: impl FnOnce() -> C) -> Command<C> {
        match self {
            Self::Read { span, .. } => Command::Read { span, buffer: data() },
            Self::Write { span, fua, .. } => Command::Write { span, buffer: data(), fua },
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
    pub length_bytes: u64,
    /// Not allocated: writing there may find no room.
    pub hole: bool,
    /// Known to read as zeroes.
    pub zero: bool,
}
