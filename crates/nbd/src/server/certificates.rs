//! What a server proves itself with over TLS, and which clients it believes.
//!
//! The files have the names that libnbd, nbdkit and QEMU give them. Everything is checked when they are read, so that
//! no client is the first to find a mistake.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, RwLock},
};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsFault, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{CertificateDer, UnixTime},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tracing::warn;

use crate::certificates::{
    REVOKED, TlsError, authority, certificates, ensure_valid_now, malformed, private_key, revoked, unfit_key,
};

const SERVER_CERTIFICATE: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";

/// Nobody panics who has the lock.
const WHOLE: &str = "a configuration is exchanged as a whole";

/// Which clients are let in over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsClients {
    /// Whoever reaches the server.
    All,
    /// Those with a certificate that `ca-cert.pem` has signed and `ca-crl.pem`, if it exists, does not revoke.
    Verified,
    /// Of these only the ones with such a certificate.
    Listed(Vec<Fingerprint>),
}

/// The SHA-256 of a certificate in DER. Written in hexadecimal digits, with or without colons, as `openssl x509
/// -fingerprint -sha256` and `certtool --fingerprint --hash sha256` print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

/// How a server does TLS, 1.2 or 1.3: cheap to clone, and the same on all threads, also when its files are read anew.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    clients: TlsClients,
    /// Of the last files that could be used.
    config: RwLock<Arc<ServerConfig>>,
}

/// Why a text is no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons")]
pub struct FingerprintError;

impl Tls {
    /// Reads the certificate and the key of a server, and what its clients are verified with.
    ///
    /// # Errors
    /// [`TlsError`] names the file, and says what to do about it.
    pub fn load(directory: &Path, clients: TlsClients) -> Result<Self, TlsError> {
        let config = RwLock::new(config(directory, &clients)?);
        Ok(Self(Arc::new(Shared { directory: directory.to_owned(), clients, config })))
    }

    /// Reads its files anew, for all clients that connect from now on.
    ///
    /// # Errors
    /// As [`Tls::load`]; then everything stays as it was.
    ///
    /// # Panics
    /// If another thread panicked.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = config(&self.0.directory, &self.0.clients)?;
        *self.0.config.write().expect(WHOLE) = config;
        Ok(())
    }

    /// Uses what another one has read of the same files for the same clients; false if it has others.
    ///
    /// # Panics
    /// If another thread panicked.
    pub fn renew(&self, newer: &Self) -> bool {
        let is_same = self.0.directory == newer.0.directory && self.0.clients == newer.0.clients;
        if is_same {
            let config = newer.config();
            *self.0.config.write().expect(WHOLE) = config;
        }
        is_same
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.config.read().expect(WHOLE))
    }
}

/// What a server proves itself with, and verifies its clients with.
fn config(directory: &Path, clients: &TlsClients) -> Result<Arc<ServerConfig>, TlsError> {
    let [certificate, key_file] = [SERVER_CERTIFICATE, SERVER_KEY].map(|name| directory.join(name));
    let chain = certificates(&certificate)?;
    ensure_valid_now(&certificate, &chain)?;
    let key = private_key(&key_file)?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for all versions");
    let builder = match clients {
        TlsClients::All => builder.with_no_client_auth(),
        TlsClients::Verified => builder.with_client_cert_verifier(verifier(directory, provider)?),
        TlsClients::Listed(listed) => {
            let authority = verifier(directory, provider)?;
            builder.with_client_cert_verifier(Arc::new(ListedClients { authority, listed: listed.clone() }))
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|fault| unfit_key(fault, &certificate, &key_file))?;
    // Connections last. Each new one proves itself anew: a client that was let in once need not be let in again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Verifies clients by the authority's certificate and, if there is one, its list of revoked certificates.
fn verifier(directory: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(authority(directory)?, provider);
    builder.with_crls(revoked(directory)?).build().map_err(|error| malformed(&directory.join(REVOKED), error))
}

/// Lets only certain ones of the verified clients in.
#[derive(Debug)]
struct ListedClients {
    authority: Arc<dyn ClientCertVerifier>,
    listed: Vec<Fingerprint>,
}

impl ClientCertVerifier for ListedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsFault> {
        let verified = self.authority.verify_client_cert(certificate, intermediates, now)?;
        let fingerprint = Fingerprint::of(certificate);
        if self.listed.contains(&fingerprint) {
            return Ok(verified);
        }
        warn!(%fingerprint, "a client with a valid certificate is not on the list of those that are let in");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsFault> {
        self.authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsFault> {
        self.authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}

impl Fingerprint {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = digest(&SHA256, certificate);
        Self(digest.as_ref().try_into().expect("a SHA-256 has so many bytes"))
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digit = |digit: char| digit.to_digit(16).map(|digit| digit as u8).ok_or(FingerprintError);
        let digits: Vec<u8> = text.chars().filter(|&c| c != ':').map(digit).collect::<Result<_, _>>()?;
        let (pairs, rest) = digits.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        let bytes = bytes.try_into().map_err(|_| FingerprintError)?;
        if rest.is_empty() { Ok(Self(bytes)) } else { Err(FingerprintError) }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_programs_print_them() {
        let plain = "0123456789abcdef".repeat(4);
        let fingerprint: Fingerprint = plain.parse().unwrap();
        assert_eq!(fingerprint.to_string(), plain);
        let with_colons = format!("01:23:45:67:89:AB:CD:EF:{}", "0123456789ABCDEF".repeat(3));
        assert_eq!(with_colons.parse(), Ok(fingerprint));
        for wrong in ["", "sha256", &plain[1..], &plain[2..], &format!("{plain}00"), &plain.replace('0', "g")] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(FingerprintError), "{wrong}");
        }
    }
}
