//! NBD URIs, as clients take them on their command lines. Source: `doc/uri.md` of the NBD project.

use std::fmt::{self, Write as _};

use crate::server::Endpoint;

/// `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`.
pub(crate) fn uri(endpoint: &Endpoint, export_name: &str) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let name = Escaped(export_name.as_bytes());
    match endpoint {
        Endpoint::Unix(path) => format!("nbd+unix:///{name}?socket={}", Escaped(path.as_os_str().as_bytes())),
        Endpoint::Tcp(address) => format!("nbd://{address}/{name}"),
    }
}

/// Percent-encodes all but the unreserved characters and `/`, which both a path and a query may hold as they are.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    f.write_char(byte.into())?;
                }
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_and_tcp_addresses() {
        let unix = Endpoint::Unix("/run/my array/a&b.sock".into());
        assert_eq!(uri(&unix, "disk 1"), "nbd+unix:///disk%201?socket=/run/my%20array/a%26b.sock");
        assert_eq!(uri(&unix, ""), "nbd+unix:///?socket=/run/my%20array/a%26b.sock");
        let tcp = Endpoint::Tcp("127.0.0.1:10809".parse().unwrap());
        assert_eq!(uri(&tcp, "größe"), "nbd://127.0.0.1:10809/gr%C3%B6%C3%9Fe");
        let six = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&six, "a"), "nbd://[::1]:10809/a");
    }
}
