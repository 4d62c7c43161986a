//! Who may connect, and how: TLS, users of this machine, hosts.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use uraid_nbd::{Fingerprint, Tls, TlsClients};

use crate::misuse::Misuse;
use crate::values::UID_MAX;

/// Who may connect, and how.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SecurityArgs {
    /// Whether TLS is required
    #[arg(long, value_enum, default_value_t, value_name = "WHETHER")]
    tls: TlsName,
    /// Directory with server-cert.pem and server-key.pem
    ///
    /// The names are those of libnbd, nbdkit and QEMU. To verify clients it also has ca-cert.pem and, if certificates
    /// were revoked, ca-crl.pem. The files are read when the server starts, at `uraid set --reload-certificates`, and
    /// by a server of several arrays at SIGHUP.
    #[arg(long, value_name = "DIR", help_heading = "Who may connect", hide_short_help = true)]
    tls_certificates: Option<PathBuf>,
    /// Refuse clients without a certificate that ca-cert.pem has signed
    #[arg(long, help_heading = "Who may connect", hide_short_help = true)]
    tls_verify_peer: bool,
    /// Of the clients with a certificate, let in only this one; repeatable
    ///
    /// The fingerprint is the SHA-256 of the client's certificate, as `certtool --fingerprint --hash sha256` or
    /// `openssl x509 -noout -fingerprint -sha256` print it. Implies --tls-verify-peer.
    #[arg(long, value_name = "FINGERPRINT", help_heading = "Who may connect", hide_short_help = true)]
    tls_allow_client: Vec<Fingerprint>,
    /// Let other hosts connect without TLS
    ///
    /// Anyone who reaches the address can then read and write, and who is on the way can read and change what passes.
    #[arg(long, help_heading = "Who may connect", hide_short_help = true)]
    insecure: bool,
    /// Let this user connect to the Unix socket, beside root and the server's own; repeatable
    #[arg(long, value_name = "UID", help_heading = "Who may connect", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(UID_MAX)))]
    pub(super) allow_uid: Vec<u32>,
}

/// Whether TLS is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TlsName {
    /// There is no TLS
    #[default]
    Off,
    /// Clients without TLS are refused, on TCP and on Unix sockets
    Require,
}

impl SecurityArgs {
    /// What the server proves itself with, if TLS is required.
    ///
    /// # Errors
    /// If options contradict each other, or a file can't be used.
    pub(super) fn tls(&self) -> Result<Option<Tls>> {
        self.tls_for(match (self.tls_verify_peer, self.tls_allow_client.as_slice()) {
            (false, []) => TlsClients::All,
            (true, []) => TlsClients::Verified,
            (_, listed) => TlsClients::Listed(listed.to_vec()),
        })
    }

    /// The same for sockets of several arrays, each of which may have its own list of clients; one of them has if
    /// `is_listed`.
    ///
    /// # Errors
    /// As [`SecurityArgs::tls`].
    pub(super) fn tls_for_several(&self, is_listed: bool) -> Result<Option<Tls>> {
        self.tls_for(if self.verifies(is_listed) { TlsClients::Verified } else { TlsClients::All })
    }

    /// Whether clients of such sockets need certificates.
    pub(super) fn verifies(&self, is_listed: bool) -> bool {
        self.tls_verify_peer || is_listed
    }

    /// The clients that alone are let in, if there is a list.
    pub(super) fn listed(&self) -> Option<Vec<Fingerprint>> {
        (!self.tls_allow_client.is_empty()).then(|| self.tls_allow_client.clone())
    }

    /// A file beside which all certificates are.
    pub(super) fn certificates(&self) -> Option<PathBuf> {
        self.tls_certificates.as_ref().map(|directory| directory.join("server-cert.pem"))
    }

    fn tls_for(&self, clients: TlsClients) -> Result<Option<Tls>> {
        let Self { tls, tls_certificates, tls_verify_peer, tls_allow_client, .. } = self;
        if *tls == TlsName::Off {
            let is_meant = tls_certificates.is_some() || *tls_verify_peer || !tls_allow_client.is_empty();
            ensure!(!is_meant, Misuse("without --tls require there is no TLS: give that, too".into()));
            return Ok(None);
        }
        let Some(directory) = tls_certificates else {
            let advice = "--tls require needs --tls-certificates DIR, with server-cert.pem and server-key.pem in DIR";
            return Err(Misuse(advice.into()).into());
        };
        Ok(Some(Tls::load(directory, clients)?))
    }

    /// Refuses to let other hosts connect in the clear, unless that is asked for.
    pub(super) fn ensure_private(&self, addresses: impl IntoIterator<Item = SocketAddr>) -> Result<(), Misuse> {
        if self.insecure || self.tls == TlsName::Require {
            return Ok(());
        }
        match addresses.into_iter().find(|address| !address.ip().to_canonical().is_loopback()) {
            None => Ok(()),
            Some(address) => Err(Misuse(format!(
                "{address}: other hosts could connect without TLS, and anyone who reaches the address could read and \
                 write. Give --tls require and --tls-certificates DIR, or --insecure if all hosts in that network are \
                 trusted; --listen {} is for this machine only",
                address.port()
            ))),
        }
    }
}
