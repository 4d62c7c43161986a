//! Who is at the other end of a connection.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this machine, where the system says which.
    Local(Option<i32>),
    /// Somebody in the network.
    Remote(SocketAddr),
}

/// Whose connections are counted together: an IPv4 address, or the 2^64 IPv6 addresses that one host may choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Host(IpAddr);

impl Peer {
    /// Whose connections it is counted with; nobody's on this machine.
    pub(super) fn host(self) -> Option<Host> {
        match self {
            Self::Local(_) => None,
            Self::Remote(address) => Some(match address.ip().to_canonical() {
                IpAddr::V6(ip) => Host(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
                ip => Host(ip),
            }),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(Some(pid)) => write!(f, "process {pid}"),
            Self::Local(None) => f.write_str("a process of this machine"),
            Self::Remote(address) => write!(f, "{address}"),
        }
    }
}
