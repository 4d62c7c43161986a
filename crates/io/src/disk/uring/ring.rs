//! Making a ring: the flags that this kernel has, and the event descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, Probe, opcode};
use rustix::event::{EventfdFlags, eventfd};

use super::super::PLACES;
use crate::error::Error;

/// The oldest kernel that is supported, as major and minor version.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// The operations that the disk uses.
const OPCODES: [u8; 8] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fallocate::CODE,
    opcode::Fsync::CODE,
    opcode::SendMsg::CODE,
    opcode::RecvMsg::CODE,
];

/// Lets so many of the kernel's threads work for the ring at once, so that operations which hang on one member do not
/// keep the others' from being begun. A kernel before 5.15 has its own limit.
pub(super) fn allow_workers(ring: &IoUring, count: usize) {
    let mut most = [u32::try_from(count).unwrap_or(u32::MAX), 0];
    if let Err(error) = ring.submitter().register_iowq_max_workers(&mut most) {
        tracing::debug!(%error, "the kernel's limit of threads for operations stays");
    }
}

/// A ring of `depth` entries, a power of two, and the eventfd that it signals.
pub(super) fn build(depth: u32) -> Result<(IoUring, OwnedFd), Error> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_too_old(&release) {
        return Err(Error::OldKernel { release });
    }
    let ring = with_best_flags(depth).map_err(|source| Error::NoUring { source })?;
    let ring_error = |action| move |source| Error::Ring { action, source };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(ring_error("list its operations"))?;
    if !OPCODES.iter().all(|&code| probe.is_supported(code)) {
        return Err(Error::OldKernel { release });
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let event = event.map_err(|errno| ring_error("make an event descriptor")(errno.into()))?;
    ring.submitter().register_eventfd(event.as_raw_fd()).map_err(ring_error("register its event descriptor"))?;
    Ok((ring, event))
}

/// Fine when the kernel is only busy or was interrupted: the caller comes again.
pub(super) fn transient(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
        Some(_) | None => Err(error),
    }
}

/// Wakes whoever waits for the event descriptor.
pub(super) fn signal(event: &OwnedFd) {
    if let Err(errno) = rustix::io::write(event, &1_u64.to_ne_bytes()) {
        // A full counter is a readable one.
        tracing::debug!(%errno, "the event descriptor was not written");
    }
}

fn with_best_flags(depth: u32) -> io::Result<IoUring> {
    // Completions interrupt nobody: they are delivered when this thread enters the kernel next (Linux 5.19).
    // Room for the completions of so many operations, twice, and of connections.
    let completions = 2 * depth + 2 * PLACES as u32;
    let builder = || {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions);
        builder
    };
    let cooperative = builder().setup_coop_taskrun().setup_taskrun_flag().build(depth);
    match cooperative {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder().build(depth),
        made => made,
    }
}

/// Whether a kernel release such as `5.10.0-28-amd64` is below the oldest supported; false when it can't be read.
fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) < OLDEST_KERNEL,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_below_5_15_are_too_old() {
        for (release, expected) in [
            ("5.10.0-28-amd64", true),
            ("4.19.0", true),
            ("5.14", true),
            ("5.15.0", false),
            ("5.15-rc1", false),
            ("6.1.0-18-amd64", false),
            ("unknown", false),
        ] {
            assert_eq!(is_too_old(release), expected, "{release}");
        }
    }
}
