//! What a client and a server have agreed on, and what the server says of the export.

use super::error::Error;
use crate::{BlockSizes, Headers, proto::TransmissionFlags as Flags};

/// The smallest size that is preferred by anybody.
const PREFERRED_MIN: u32 = 512;

/// The most that one request carries, whatever the server takes: what every server takes.
const DATA_BYTES_MAX: u32 = 32 << 20;

/// What a handshake settled. The server's word for it: nobody has tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    pub(super) size_bytes: u64,
    pub(super) flags: Flags,
    pub(super) block_sizes: BlockSizes,
    pub(super) headers: Headers,
}

impl Agreed {
    /// An export as the server describes it; `block_sizes` are minimum, preferred and maximum, where it says them.
    ///
    /// # Errors
    /// [`Error::Export`] for what breaks the rules of the protocol document.
    pub(super) fn new(
        size_bytes: u64,
        flags: u16,
        block_sizes: Option<[u32; 3]>,
        headers: Headers,
    ) -> Result<Self, Error> {
        let flags = Flags::from_bits(flags);
        let default = BlockSizes::default();
        let [minimum_bytes, preferred_bytes, maximum_bytes] =
            block_sizes.unwrap_or([default.minimum_bytes, default.preferred_bytes, default.maximum_bytes]);
        let is_minimum = minimum_bytes.is_power_of_two() && minimum_bytes <= 64 << 10;
        let rules = [
            (flags.contains(Flags::HAS_FLAGS), "its flags lack the one that all have"),
            (i64::try_from(size_bytes).is_ok(), "it is larger than any disk can be"),
            (is_minimum, "its smallest block is no power of two up to 64 KiB"),
            (
                preferred_bytes.is_power_of_two() && preferred_bytes >= minimum_bytes.max(PREFERRED_MIN),
                "the block size that it prefers is no power of two from 512 and the smallest on",
            ),
            (
                maximum_bytes >= minimum_bytes
                    && (maximum_bytes == u32::MAX || maximum_bytes % minimum_bytes.max(1) == 0),
                "its largest request is no multiple of its smallest block",
            ),
        ];
        if let Some((_, what)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(Error::Export { what });
        }
        let maximum_bytes = maximum_bytes.min(DATA_BYTES_MAX);
        let block_sizes = BlockSizes { minimum_bytes, preferred_bytes, maximum_bytes };
        Ok(Self { size_bytes, flags, block_sizes, headers })
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Granularity of requests. The maximum, which is that of reads and writes, is at most 32 MiB.
    #[must_use]
    pub fn block_sizes(&self) -> BlockSizes {
        self.block_sizes
    }

    /// How requests and replies begin.
    #[must_use]
    pub fn headers(&self) -> Headers {
        self.headers
    }

    /// The most bytes that one trim or zeroing covers.
    #[must_use]
    pub fn range_bytes_max(&self) -> u64 {
        match self.headers {
            Headers::Simple | Headers::Structured => u64::from(u32::MAX / (64 << 10) * (64 << 10)),
            Headers::Extended => self.size_bytes,
        }
    }

    /// Whether nothing can be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(Flags::READ_ONLY)
    }

    /// Whether there is a request that makes what was written durable.
    #[must_use]
    pub fn can_flush(&self) -> bool {
        self.flags.contains(Flags::SEND_FLUSH)
    }

    /// Whether a write can be durable when it is answered.
    #[must_use]
    pub fn can_fua(&self) -> bool {
        self.flags.contains(Flags::SEND_FUA)
    }

    /// Whether space can be given back.
    #[must_use]
    pub fn can_trim(&self) -> bool {
        self.flags.contains(Flags::SEND_TRIM)
    }

    /// Whether ranges can be made zeros without sending these.
    #[must_use]
    pub fn can_zero(&self) -> bool {
        self.flags.contains(Flags::SEND_WRITE_ZEROES)
    }

    /// Whether zeroing that would take as long as writing can be refused at once.
    #[must_use]
    pub fn can_zero_fast(&self) -> bool {
        self.can_zero() && self.flags.contains(Flags::SEND_FAST_ZERO)
    }

    /// Whether a flush on one connection covers what was answered on others.
    #[must_use]
    pub fn can_multi_conn(&self) -> bool {
        self.flags.contains(Flags::CAN_MULTI_CONN)
    }

    /// Whether the export is on disks that rotate.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.flags.contains(Flags::ROTATIONAL)
    }
}
