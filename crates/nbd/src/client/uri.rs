//! The URIs of exports. Source: `doc/uri.md` of the NBD project, and RFC 3986.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use super::certificates::usual_directory;
use crate::{escaped::Escaped, proto::STRING_BYTES_MAX};

/// The port that IANA has assigned.
const PORT: u16 = 10809;

/// The longest path of a Unix socket, without its last NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where an export is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Uri {
    /// Where its server is.
    pub address: Address,
    /// Its name there. The empty one is that of the server's default.
    pub export: String,
    /// How the connection is encrypted, if it is.
    pub tls: Option<Tls>,
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// In the network: a name or an address, without brackets; and the port.
    Tcp(String, u16),
    /// On this machine: the path of a socket.
    Unix(PathBuf),
}

/// How a connection is encrypted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name that the server's certificate has, if that is not the host's; of a socket on this machine the host is
    /// `localhost`.
    pub hostname: Option<String>,
    /// The directory of certificates.
    pub certificates: Option<PathBuf>,
}

impl Tls {
    /// The directory of certificates: libnbd's where the URI names none.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.certificates.clone().unwrap_or_else(usual_directory)
    }
}

/// Why something is no URI of an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{uri}: {what}")]
pub struct UriError {
    /// What was given.
    pub uri: String,
    /// What is wrong with it, and what to do.
    pub what: &'static str,
}

/// The schemes, and whether they have TLS and Unix sockets.
const SCHEMES: [(&str, bool, bool); 4] =
    [("nbd:", false, false), ("nbds:", true, false), ("nbd+unix:", false, true), ("nbds+unix:", true, true)];

impl Uri {
    /// Whether a text is meant as a URI of an export: it begins with one of the schemes, and two slashes.
    #[must_use]
    pub fn is_meant(text: &[u8]) -> bool {
        let is_this = |scheme: &str| {
            let (start, rest) = text.split_at_checked(scheme.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(scheme.as_bytes()) && rest.starts_with(b"//")
        };
        SCHEMES.iter().any(|(scheme, ..)| is_this(scheme))
    }

    /// Parses a URI.
    ///
    /// # Errors
    /// When it is none, or has something that can't be honoured.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        parse(text).map_err(|what| UriError { uri: text.into(), what })
    }
}

fn parse(text: &str) -> Result<Uri, &'static str> {
    let scheme = SCHEMES.iter().find_map(|(scheme, tls, unix)| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some((rest, *tls, *unix))
    });
    let Some((rest, has_tls, is_unix)) = scheme else {
        return Err("begins with none of nbd://, nbds://, nbd+unix://, nbds+unix://");
    };
    let rest = rest.strip_prefix("//").ok_or("has no // behind the scheme")?;
    if rest.contains('#') {
        return Err("has a fragment (#): write %23 if that is part of a name");
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.find('/') {
        Some(slash) => (&rest[..slash], &rest[slash + 1..]),
        None => (rest, ""),
    };
    let export = String::from_utf8(decode(path)?).map_err(|_| "has an export name that is not UTF-8")?;
    if export.len() > STRING_BYTES_MAX || export.contains('\0') {
        return Err("has an export name that is too long, or has a NUL in it");
    }
    let (mut socket, mut tls) = (None, has_tls.then(Tls::default));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or("has a parameter without a value")?;
        let value = decode(value)?;
        if value.is_empty() {
            return Err("has a parameter with an empty value");
        }
        match (key, &mut tls) {
            ("socket", _) if is_unix && socket.is_none() => socket = Some(value),
            ("socket", _) => return Err("has a socket that it may not have: only the schemes with +unix have one"),
            ("tls-hostname", Some(Tls { hostname: hostname @ None, .. })) => {
                *hostname = Some(String::from_utf8(value).map_err(|_| "has a hostname that is not UTF-8")?);
            }
            ("tls-certificates", Some(Tls { certificates: certificates @ None, .. })) => {
                *certificates = Some(OsString::from_vec(value).into());
            }
            ("tls-verify-peer", Some(_)) if value == b"1" => {}
            ("tls-type", Some(_)) if value == b"x509" => {}
            ("tls-verify-peer" | "tls-type", Some(_)) => {
                return Err("asks for TLS that proves nothing: servers are known by their certificates (x509) alone");
            }
            (key, None) if key.starts_with("tls-") => {
                return Err("has parameters of TLS: use one of the schemes nbds and nbds+unix");
            }
            _ => {
                return Err(
                    "has a parameter that is not known or comes twice: socket, tls-certificates, tls-hostname \
                            are",
                );
            }
        }
    }
    let address = match (is_unix, socket) {
        (true, Some(socket)) => {
            if socket.is_empty() || socket.len() > SOCKET_PATH_BYTES_MAX || socket.contains(&0) {
                return Err("has a socket's path that is empty, has a NUL in it, or more than 107 bytes");
            }
            if !authority.is_empty() {
                return Err("has a host, and a socket on this machine: write nbd+unix:///NAME?socket=PATH");
            }
            Address::Unix(OsString::from_vec(socket).into())
        }
        (true, None) => return Err("names no socket: add ?socket=PATH"),
        (false, _) => tcp(authority)?,
    };
    Ok(Uri { address, export, tls })
}

/// Host and port of `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn tcp(authority: &str) -> Result<Address, &'static str> {
    if authority.contains('@') {
        return Err("has a user, whom nobody would ask for a name: certificates tell who a client is");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("has no ] behind the address")?;
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| "has no IPv6 address between [ and ]")?;
            match port.strip_prefix(':') {
                Some(port) => (address.to_string(), port),
                None if port.is_empty() => (address.to_string(), ""),
                None => return Err("has something behind the address that is no port"),
            }
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            let host = String::from_utf8(decode(host)?).map_err(|_| "has a host that is not UTF-8")?;
            if port.contains(':') {
                return Err("has an IPv6 address without brackets: write [ADDRESS]");
            }
            (host, port)
        }
    };
    if host.is_empty() || host.contains('\0') {
        return Err("has no host: write nbd://HOST/NAME, or nbd+unix:///NAME?socket=PATH for a socket on this machine");
    }
    let port = match port {
        "" => PORT,
        port if port.bytes().all(|digit| digit.is_ascii_digit()) => {
            port.parse().ok().filter(|&port| port > 0).ok_or("has no port from 1 to 65535")?
        }
        _ => return Err("has no port from 1 to 65535"),
    };
    Ok(Address::Tcp(host, port))
}

/// The bytes of percent-encoded text.
fn decode(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err("has a % that no two hex digits follow") };
        decoded.push((high << 4 | low) as u8);
        rest = &rest[2..];
    }
    Ok(decoded)
}

/// The shortest form in which the URI is told apart from any other. It holds no secret: URIs have none.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let name = Escaped(self.export.as_bytes());
        let mut separator = '?';
        match &self.address {
            Address::Unix(path) => {
                write!(f, "{scheme}+unix:///{name}?socket={}", Escaped(path.as_os_str().as_bytes()))?;
                separator = '&';
            }
            Address::Tcp(host, port) => {
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]")?;
                } else {
                    let host = Escaped(host.as_bytes()).to_string().replace('/', "%2F");
                    write!(f, "{scheme}://{host}")?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{name}")?;
            }
        }
        if let Some(Tls { hostname, certificates }) = &self.tls {
            let certificates = certificates.as_ref().map(|path| path.as_os_str().as_bytes());
            let parameters =
                [("tls-hostname", hostname.as_ref().map(String::as_bytes)), ("tls-certificates", certificates)];
            for (key, value) in parameters {
                if let Some(value) = value {
                    write!(f, "{separator}{key}={}", Escaped(value))?;
                    separator = '&';
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { address: Address::Tcp(host.into(), port), export: export.into(), tls: None }
    }

    fn unix(path: &str, export: &str) -> Uri {
        Uri { address: Address::Unix(path.into()), export: export.into(), tls: None }
    }

    #[test]
    fn the_documents_examples() {
        for (uri, expected) in [
            ("nbd://example.com:10809/export", tcp("example.com", 10809, "export")),
            ("nbd+unix:///export?socket=nbd.sock", unix("nbd.sock", "export")),
            ("nbd://example.com/disk", tcp("example.com", 10809, "disk")),
            ("nbd+unix:///disk?socket=sock", unix("sock", "disk")),
            ("nbd://example.com/", tcp("example.com", 10809, "")),
            ("nbd://example.com", tcp("example.com", 10809, "")),
            ("NBD://example.com/disk", tcp("example.com", 10809, "disk")),
            ("nbd://example.com//disk", tcp("example.com", 10809, "/disk")),
            ("nbd://example.com/hello%20world", tcp("example.com", 10809, "hello world")),
            ("nbd://[::1]:1/a/b", tcp("::1", 1, "a/b")),
            ("nbd://[fe80:0:0::1]", tcp("fe80::1", 10809, "")),
        ] {
            assert_eq!(Uri::parse(uri), Ok(expected), "{uri}");
        }
    }

    #[test]
    fn tls_has_its_schemes_and_parameters() {
        let uri = Uri::parse("nbds+unix:///?socket=/a%20b&tls-hostname=x&tls-certificates=/c&tls-verify-peer=1");
        let tls = Tls { hostname: Some("x".into()), certificates: Some("/c".into()) };
        assert_eq!(uri, Ok(Uri { tls: Some(tls), ..unix("/a b", "") }));
        assert_eq!(Uri::parse("nbds://h?tls-type=x509").unwrap().tls, Some(Tls::default()));
    }

    #[test]
    fn what_can_not_be_honoured_is_refused_by_name() {
        for (uri, expected) in [
            ("http://a/", "begins with none"),
            ("nbd:/a", "no //"),
            ("nbd:///x", "no host"),
            ("nbd://a/x#1", "fragment"),
            ("nbd://u@a/x", "user"),
            ("nbd://a:0/", "port"),
            ("nbd://a:65536/", "port"),
            ("nbd://a:+1/", "port"),
            ("nbd://::1/", "brackets"),
            ("nbd://[::1/", "]"),
            ("nbd://[a]/", "IPv6"),
            ("nbd://[::1]1/", "behind the address"),
            ("nbd://a/%", "hex"),
            ("nbd://a/%4", "hex"),
            ("nbd://a/%4x", "hex"),
            ("nbd://a/%00", "NUL"),
            ("nbd://a/%ff", "UTF-8"),
            ("nbd://a/?socket=/x", "+unix"),
            ("nbd+unix:///x", "no socket"),
            ("nbd+unix:///x?socket=", "empty"),
            ("nbds://a/?tls-certificates=", "empty"),
            ("nbds://a/?tls-hostname=", "empty"),
            ("nbd+unix:///x?socket=%00a", "NUL"),
            ("nbd+unix:///x?socket=/a&socket=/b", "socket"),
            ("nbd+unix://h/x?socket=/a", "host"),
            ("nbd://a/?tls-certificates=/x", "nbds"),
            ("nbds://a/?tls-type=psk", "proves nothing"),
            ("nbds://a/?tls-verify-peer=0", "proves nothing"),
            ("nbd://a/?x=1", "not known"),
            ("nbd://a/?x", "without a value"),
        ] {
            let error = Uri::parse(uri).expect_err(uri);
            assert!(error.what.contains(expected), "{error}");
        }
        let long = format!("nbd://a/{}", "x".repeat(4097));
        assert!(Uri::parse(&long).is_err());
        assert!(Uri::parse(&format!("nbd+unix:///?socket=/{}", "x".repeat(107))).is_err());
    }

    #[test]
    fn paths_are_not_meant_as_uris() {
        for (text, expected) in [
            ("nbd://a", true),
            ("nbds+unix://", true),
            ("Nbd+Unix:///?socket=/a", true),
            ("nbd:/a", false),
            ("/dev/nbd0", false),
            ("nbd", false),
            ("./nbd://a", false),
            ("https://a", false),
        ] {
            assert_eq!(Uri::is_meant(text.as_bytes()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_what_is_meant(
            host in "[a-z0-9.]{1,8}|é[&=/%]|::[1-9]",
            port in 1u16..,
            export in "\\PC{0,12}",
            socket in prop::option::of("/\\PC{0,12}"),
            tls in prop::option::of((prop::option::of("\\PC{1,6}"), prop::option::of("/\\PC{0,6}"))),
        ) {
            let address = socket.map_or(Address::Tcp(host, port), |socket| Address::Unix(socket.into()));
            let certificates = |path: String| PathBuf::from(path);
            let tls = tls.map(|(hostname, path)| Tls { hostname, certificates: path.map(certificates) });
            let uri = Uri { address, export, tls };
            let shown = uri.to_string();
            prop_assert!(Uri::is_meant(shown.as_bytes()));
            prop_assert_eq!(Uri::parse(&shown), Ok(uri));
        }
    }
}
