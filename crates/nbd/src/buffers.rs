//! The kernel's buffers of sockets.

use std::os::fd::AsFd;

use rustix::{io::Errno, net::sockopt};

/// Room in the kernel: a Unix socket holds back its sender by the sender's own buffer.
const SEND_BUFFER_BYTES: usize = 2 << 20;

/// Has more fit into what is sent and not yet received. Root may exceed the system's limit; others get as much as it
/// allows.
pub(crate) fn enlarge_send_buffer(stream: &impl AsFd) -> Result<(), Errno> {
    sockopt::set_socket_send_buffer_size_force(stream, SEND_BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER_BYTES))
}
