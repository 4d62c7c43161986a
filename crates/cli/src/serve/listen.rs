//! Where `--listen` listens: an address or a name of this machine, with or without a port, or a port alone.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::security::SecurityArgs;

/// The port that is registered for NBD, which clients take unless told otherwise.
const NBD_PORT: u16 = 10809;

/// Where to serve.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EndpointArgs {
    /// Unix socket for clients of this user [default: uraid.sock beside the first member]
    ///
    /// With --listen there is none unless this option names one; then clients reach the array on both.
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// TCP address for clients; repeatable
    ///
    /// A port alone listens on 127.0.0.1, a host alone on port 10809. All addresses of a name are listened on. Write
    /// IPv6 addresses in brackets: `[::1]:10809`. `[::]:10809` lets every host connect. Addresses that other hosts
    /// reach need --tls require or --insecure.
    #[arg(long, value_parser = ListenAt::parse, value_name = "HOST:PORT", allow_negative_numbers = true)]
    pub(crate) listen: Vec<ListenAt>,
    /// Name of the export [default: the array's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) export: Option<String>,
    #[command(flatten)]
    pub(crate) security: SecurityArgs,
}

/// A host and a port, of which the host is not looked up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAt {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl ListenAt {
    /// Reads `10809`, `storage.lan`, `storage.lan:10809`, `192.0.2.1:10809` or `[::1]:10809`. A port alone is on the
    /// loopback, as clients need not prove who they are.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not where a server can listen; write for example 10809 (this machine only), \
                 storage.lan:10809, 192.0.2.1:10809 or [::1]:10809"
            )
        };
        if let Ok(port) = text.parse() {
            return Ok(Self { host: Host::Address(Ipv4Addr::LOCALHOST.into()), port });
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(format!("an IPv6 address stands in brackets: write [{text}] or [{text}]:{NBD_PORT}"));
        }
        if let Some(port) = text.strip_prefix(':').or(text.strip_prefix("*:")) {
            return Err(format!(
                "to let every host connect, write [::]:{port}, or 0.0.0.0:{port} for IPv4 alone; without a host, \
                 {port} is for this machine only"
            ));
        }
        let (host, port) = match text.rsplit_once(':') {
            // These colons belong to an address in brackets.
            Some(_) if text.ends_with(']') => (text, NBD_PORT),
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, NBD_PORT),
        };
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match in_brackets {
            Some(address) => Host::Address(address.parse::<Ipv6Addr>().map_err(|_| wrong())?.into()),
            None => match host.parse() {
                Ok(address) => Host::Address(IpAddr::V4(address)),
                Err(_) if is_name(host) => Host::Name(host.to_owned()),
                Err(_) => return Err(wrong()),
            },
        };
        Ok(Self { host, port })
    }

    /// As [`ListenAt::parse`], where no port is meant unless it is said; none: it says no place with a port.
    pub(super) fn parse_with_port(text: &str) -> Option<Self> {
        let (_, port) = text.rsplit_once(':').unwrap_or(("", text));
        port.parse::<u16>().ok().and_then(|_| Self::parse(text).ok())
    }

    /// All addresses that are meant, each once: at least one.
    ///
    /// # Errors
    /// When the name is not known.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_by(|name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    fn addresses_by(&self, look_up: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
        let name = match &self.host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, self.port)]),
            Host::Name(name) => name,
        };
        let advice = || {
            format!(
                "no address of '{name}' is known: correct it, give an address in its place, or add the name to \
                 /etc/hosts or the name server"
            )
        };
        let found = look_up(name, self.port).with_context(advice)?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        ensure!(!addresses.is_empty(), advice());
        Ok(addresses)
    }
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => write!(f, "{}", SocketAddr::new(*address, self.port)),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Whether a text can be a host's name. Digits and dots alone are an address with a mistake.
fn is_name(text: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '-' | '.' | '_');
    text.chars().all(is_part) && text.chars().any(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_may_be_left_out() {
        for (text, meant) in [
            ("10809", "127.0.0.1:10809"),
            ("0", "127.0.0.1:0"),
            ("storage.lan:1234", "storage.lan:1234"),
            ("localhost", "localhost:10809"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("0.0.0.0", "0.0.0.0:10809"),
            ("[::1]:1234", "[::1]:1234"),
            ("[::]", "[::]:10809"),
        ] {
            assert_eq!(ListenAt::parse(text).map(|at| at.to_string()), Ok(meant.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_to_write() {
        for (text, advice) in [
            ("::1", "[::1]:10809"),
            ("fe80::1", "[fe80::1]"),
            (":10809", "[::]:10809"),
            ("*:10809", "0.0.0.0:10809"),
            ("70000", "storage.lan:10809"),
            ("storage.lan:nbd", "storage.lan:10809"),
            ("1.2.3:10809", "192.0.2.1:10809"),
            ("[storage.lan]:10809", "[::1]:10809"),
            ("a b:10809", "storage.lan:10809"),
            ("nbd://storage.lan:10809", "storage.lan:10809"),
            ("", "storage.lan:10809"),
        ] {
            let error = ListenAt::parse(text).unwrap_err();
            assert!(error.contains(advice), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_stands_for_all_of_its_addresses() {
        let at = ListenAt::parse("storage.lan:7").unwrap();
        let [four, six] = ["192.0.2.1:7", "[2001:db8::1]:7"].map(|address| address.parse::<SocketAddr>().unwrap());
        let found = at.addresses_by(|name, port| {
            assert_eq!((name, port), ("storage.lan", 7));
            Ok(vec![six, four, six])
        });
        assert_eq!(found.unwrap(), [six, four]);
        for none in [|| Ok(Vec::new()), || Err(io::Error::other("no such name"))] {
            let error = format!("{:#}", at.addresses_by(|_, _| none()).unwrap_err());
            assert!(error.contains("'storage.lan'") && error.contains("/etc/hosts"), "{error}");
        }
    }
}
