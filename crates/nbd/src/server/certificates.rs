//! What a server proves itself with over TLS, and which clients it believes.
//!
//! The files have the names that libnbd, nbdkit and QEMU give them. Everything is checked when they are read, so that
//! no client is the first to find a mistake.

use std::{
    fmt, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, RwLock},
};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsFault, InconsistentKeys, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_cert_signed_by_trust_anchor},
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
        pem::{self, PemObject},
    },
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tracing::warn;

const SERVER_CERTIFICATE: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// Nobody panics who has the lock.
const WHOLE: &str = "a configuration is exchanged as a whole";

/// The largest file that is read, in bytes: authorities of the whole web have less than 1 MiB.
const FILE_MAX: u64 = 16 << 20;

/// Nobody but the owner and the group may have anything to do with a private key.
const KEY_MODE_FORBIDDEN: u32 = 0o007;

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

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("TLS: can't read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file does not have what it should.
    #[error("TLS: {} holds no {expected} in PEM format", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should have.
        expected: &'static str,
    },
    /// A file's content can't be used.
    #[error("TLS: {} can't be used: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Any user of this machine can reach the private key.
    #[error(
        "TLS: every user of this machine may open {}: run `chmod 600` on it, and if others may have read it make a new \
         key",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The private key is not that of the certificate.
    #[error("TLS: {SERVER_KEY} in {} is not the key of {SERVER_CERTIFICATE}", directory.display())]
    Mismatch {
        /// Where both are.
        directory: PathBuf,
    },
    /// The server's certificate is too old.
    #[error("TLS: {} has expired: make a new certificate", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
    },
    /// The server's certificate is too new.
    #[error("TLS: {} is not valid yet: correct the clock, or make a new certificate", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
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
    let chain = certificates(&directory.join(SERVER_CERTIFICATE))?;
    ensure_valid_now(&directory.join(SERVER_CERTIFICATE), &chain)?;
    let key = private_key(&directory.join(SERVER_KEY))?;
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
    let mut config = builder.with_single_cert(chain, key).map_err(|fault| match fault {
        TlsFault::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { directory: directory.to_owned() }
        }
        // GnuTLS pads the number of half of the elliptic keys with a zero (RFC 5915 has a fixed length).
        fault => malformed(
            &directory.join(SERVER_KEY),
            format_args!("{fault}; `openssl pkey -in {SERVER_KEY} -out NEW` writes a key in the usual way"),
        ),
    })?;
    // Connections last. Each new one proves itself anew: a client that was let in once need not be let in again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A file's bytes. One that never ends, or that somebody else would have to write first, is none.
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        return Err(malformed(path, "it is no file, or larger than 16 MiB"));
    }
    fs::read(path).map_err(unreadable)
}

fn malformed(path: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError::Malformed { path: path.to_owned(), reason: reason.to_string() }
}

/// Everything of a kind that a file has: at least one.
fn all<T: PemObject>(path: &Path, expected: &'static str) -> Result<Vec<T>, TlsError> {
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&read(path)?).collect();
    let items = items.map_err(|error| malformed(path, error))?;
    if items.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), expected });
    }
    Ok(items)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    all(path, "certificate")
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let metadata = fs::metadata(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })?;
    if metadata.permissions().mode() & KEY_MODE_FORBIDDEN != 0 {
        return Err(TlsError::Exposed { path: path.to_owned() });
    }
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Empty { path: path.to_owned(), expected: "unencrypted private key" },
        error => malformed(path, error),
    })
}

/// Checks that a certificate can be read and that this is its time. Who signed it is the clients' business, so nobody
/// is trusted here, and that nobody has signed it is all that is found about a good one.
fn ensure_valid_now(path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
    let certificate = ParsedCertificate::try_from(&chain[0]).map_err(|fault| malformed(path, fault))?;
    let algorithms = default_provider().signature_verification_algorithms.all;
    let nobody = RootCertStore::empty();
    let now = UnixTime::now();
    match verify_server_cert_signed_by_trust_anchor(&certificate, &nobody, &chain[1..], now, algorithms) {
        Err(TlsFault::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            Err(TlsError::Expired { path: path.to_owned() })
        }
        Err(TlsFault::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => Err(TlsError::NotYetValid { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Verifies clients by the authority's certificate and, if there is one, its list of revoked certificates.
fn verifier(directory: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let path = directory.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|fault| malformed(&path, fault))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let revoked = directory.join(REVOKED);
    if revoked.exists() {
        builder =
            builder.with_crls(all::<CertificateRevocationListDer<'static>>(&revoked, "list of revoked certificates")?);
    }
    builder.build().map_err(|error| malformed(&revoked, error))
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

    #[test]
    fn what_is_no_file_is_not_read() {
        assert!(matches!(read(Path::new("/dev/zero")), Err(TlsError::Malformed { .. })));
        assert!(matches!(read(Path::new("/")), Err(TlsError::Unreadable { .. })));
    }
}
