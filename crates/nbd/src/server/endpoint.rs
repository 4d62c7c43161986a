//! Where a server can be reached, and the URI by which clients find it there, as they take it on their command lines.
//! Source: `doc/uri.md` of the NBD project.

use std::{fmt, net::SocketAddr, os::unix::ffi::OsStrExt as _, path::PathBuf};

use crate::escaped::Escaped;

/// Where a server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An absolute path.
    Unix(PathBuf),
    /// An address and the port in use.
    Tcp(SocketAddr),
}

/// How clients speak to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Nbd,
    /// Over TLS.
    Nbds,
}

impl Endpoint {
    /// The address, of one in the network.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(address) => Some(*address),
        }
    }

    /// The URI by which clients find the export here: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`,
    /// percent-encoded.
    pub fn uri(&self, scheme: Scheme, export_name: &str) -> String {
        let name = Escaped(export_name.as_bytes());
        let scheme = match scheme {
            Scheme::Nbd => "nbd",
            Scheme::Nbds => "nbds",
        };
        match self {
            Self::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", Escaped(path.as_os_str().as_bytes())),
            Self::Tcp(address) => format!("{scheme}://{address}/{name}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Scheme::{Nbd, Nbds};

    #[test]
    fn unix_sockets_and_tcp_addresses() {
        let unix = Endpoint::Unix("/run/my array/a&b.sock".into());
        assert_eq!(unix.uri(Nbd, "disk 1"), "nbd+unix:///disk%201?socket=/run/my%20array/a%26b.sock");
        assert_eq!(unix.uri(Nbds, ""), "nbds+unix:///?socket=/run/my%20array/a%26b.sock");
        let tcp = Endpoint::Tcp("127.0.0.1:10809".parse().unwrap());
        assert_eq!(tcp.uri(Nbd, "größe"), "nbd://127.0.0.1:10809/gr%C3%B6%C3%9Fe");
        let six = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(six.uri(Nbds, "a"), "nbds://[::1]:10809/a");
    }
}
