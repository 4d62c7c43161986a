//! What a handshake settled.

use crate::{ExportInfo, Headers, proto::TransmissionFlags};

/// A session as another process is told of it.
pub(crate) const SESSION_BYTES: usize = 20;

/// What a handshake settled: how requests are to be understood, and how replies must look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub(super) size_bytes: u64,
    pub(super) minimum_bytes: u32,
    pub(super) maximum_bytes: u32,
    pub(super) flags: TransmissionFlags,
    pub(super) headers: Headers,
    pub(super) allocation: bool,
}

impl Session {
    /// A session on the export. `allocation` says that the client selected the context `base:allocation`.
    pub fn new(export: &ExportInfo, headers: Headers, allocation: bool) -> Self {
        Self {
            size_bytes: export.size_bytes,
            minimum_bytes: export.block_sizes.minimum_bytes,
            maximum_bytes: export.block_sizes.maximum_bytes,
            flags: transmission_flags(export, headers, allocation),
            headers,
            allocation,
        }
    }

    /// Whether what the client was told of an export is true of this one.
    pub(crate) fn fits(&self, export: &ExportInfo) -> bool {
        let same = Self::new(export, self.headers, self.allocation);
        let is_granted = self.size_bytes <= same.size_bytes
            && self.minimum_bytes >= same.minimum_bytes
            && self.maximum_bytes <= same.maximum_bytes;
        is_granted && self.flags.promises() == same.flags.promises()
    }

    /// The session for another process.
    pub(crate) fn to_bytes(self) -> [u8; SESSION_BYTES] {
        let Self { size_bytes, minimum_bytes, maximum_bytes, flags, headers, allocation } = self;
        let mut bytes = [0; SESSION_BYTES];
        bytes[..8].copy_from_slice(&size_bytes.to_be_bytes());
        bytes[8..12].copy_from_slice(&minimum_bytes.to_be_bytes());
        bytes[12..16].copy_from_slice(&maximum_bytes.to_be_bytes());
        bytes[16..18].copy_from_slice(&flags.bits().to_be_bytes());
        bytes[18] = match headers {
            Headers::Simple => 0,
            Headers::Structured => 1,
            Headers::Extended => 2,
        };
        bytes[19] = allocation.into();
        bytes
    }

    /// The session of another process; `None` if there is none like that.
    pub(crate) fn from_bytes(bytes: [u8; SESSION_BYTES]) -> Option<Self> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, i0, i1, i2, i3, x0, x1, x2, x3, f0, f1, headers, allocation] = bytes;
        let headers = match headers {
            0 => Headers::Simple,
            1 => Headers::Structured,
            2 => Headers::Extended,
            _ => return None,
        };
        let minimum_bytes = u32::from_be_bytes([i0, i1, i2, i3]);
        (minimum_bytes > 0 && allocation <= 1).then_some(Self {
            size_bytes: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            minimum_bytes,
            maximum_bytes: u32::from_be_bytes([x0, x1, x2, x3]),
            flags: TransmissionFlags::from_bits(u16::from_be_bytes([f0, f1])),
            headers,
            allocation: allocation == 1,
        })
    }

    /// What the client was told that the export can do.
    pub(crate) fn flags(&self) -> TransmissionFlags {
        self.flags
    }
}

/// What the export can do for a client with such headers, which has selected `base:allocation` or not.
fn transmission_flags(export: &ExportInfo, headers: Headers, allocation: bool) -> TransmissionFlags {
    use TransmissionFlags as F;
    let mut flags = F::HAS_FLAGS | F::SEND_FLUSH | F::SEND_FUA | F::SEND_CACHE;
    let writable = !export.read_only;
    let optional = [
        (export.read_only, F::READ_ONLY),
        (export.rotational, F::ROTATIONAL),
        (writable, F::SEND_WRITE_ZEROES),
        (writable && export.trim, F::SEND_TRIM),
        (writable && export.fast_zero, F::SEND_FAST_ZERO),
        (headers != Headers::Simple, F::SEND_DF),
        (export.multi_conn, F::CAN_MULTI_CONN),
        (headers == Headers::Extended && allocation, F::BLOCK_STATUS_PAYLOAD),
    ];
    for (_, flag) in optional.into_iter().filter(|(set, _)| *set) {
        flags = flags | flag;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_the_same_in_another_process() {
        for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
            for allocation in [false, true] {
                let session = Session::new(&ExportInfo::new(0x0123_4567_89ab_cdef), headers, allocation);
                assert_eq!(Session::from_bytes(session.to_bytes()), Some(session));
            }
        }
        let bytes = Session::new(&ExportInfo::new(1), Headers::Simple, false).to_bytes();
        for (at, value) in [(11, 0), (18, 3), (19, 2)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Session::from_bytes(wrong), None, "byte {at}");
        }
    }

    #[test]
    fn a_session_fits_an_export_that_keeps_what_it_was_told() {
        let export = ExportInfo::new(1 << 20);
        let session = Session::new(&export, Headers::Structured, true);
        let fits = |change: fn(&mut ExportInfo)| {
            let mut other = export.clone();
            change(&mut other);
            session.fits(&other)
        };
        assert!(fits(|_| {}));
        assert!(fits(|export| export.size_bytes += 512), "it may have grown");
        assert!(fits(|export| export.rotational = true), "it may be of other disks");
        assert!(!fits(|export| export.size_bytes -= 1));
        assert!(!fits(|export| export.read_only = true));
        assert!(!fits(|export| export.trim = false));
        assert!(!fits(|export| export.multi_conn = false));
        assert!(!fits(|export| export.block_sizes.minimum_bytes = 512));
        assert!(!fits(|export| export.block_sizes.maximum_bytes = 1 << 20));
    }
}
