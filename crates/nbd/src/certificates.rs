//! Files of certificates and keys, for clients and servers. They have the names that libnbd, nbdkit and QEMU give them.

use std::{
    fmt, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    CertificateError, Error as TlsFault, InconsistentKeys, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::ring::default_provider,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};

/// Whom to believe.
pub(crate) const AUTHORITY: &str = "ca-cert.pem";

/// Whom not to, though they were believed once. Need not be there.
pub(crate) const REVOKED: &str = "ca-crl.pem";

/// The largest file that is read, in bytes: authorities of the whole web have less than 1 MiB.
const FILE_MAX: u64 = 16 << 20;

/// Nobody but the owner and the group may have anything to do with a private key.
const KEY_MODE_FORBIDDEN: u32 = 0o007;

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
    #[error("TLS: {} is not the key of {}", key.display(), certificate.display())]
    Mismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The certificate is too old.
    #[error("TLS: {} has expired: make a new certificate", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
    },
    /// The certificate is too new.
    #[error("TLS: {} is not valid yet: correct the clock, or make a new certificate", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with a key and its certificate.
pub(crate) fn unfit_key(fault: TlsFault, certificate: &Path, key: &Path) -> TlsError {
    match fault {
        TlsFault::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { key: key.to_owned(), certificate: certificate.to_owned() }
        }
        // GnuTLS pads the number of half of the elliptic keys with a zero (RFC 5915 has a fixed length).
        fault => {
            let name = key.file_name().unwrap_or_default().display();
            malformed(key, format_args!("{fault}; `openssl pkey -in {name} -out NEW` writes a key in the usual way"))
        }
    }
}

/// The authorities that a directory names.
pub(crate) fn authority(directory: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let path = directory.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|fault| malformed(&path, fault))?;
    }
    Ok(Arc::new(roots))
}

/// The lists of revoked certificates that a directory has, if any.
pub(crate) fn revoked(directory: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let path = directory.join(REVOKED);
    if path.exists() { all(&path, "list of revoked certificates") } else { Ok(Vec::new()) }
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

pub(crate) fn malformed(path: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError::Malformed { path: path.to_owned(), reason: reason.to_string() }
}

/// Everything of a kind that a file has: at least one.
fn all<T: PemObject>(path: &Path, expected: &'static str) -> Result<Vec<T>, TlsError> {
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&read(path)?).collect();
    let items = items.map_err(|error| malformed(path, described(&error)))?;
    if items.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), expected });
    }
    Ok(items)
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    all(path, "certificate")
}

pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let metadata = fs::metadata(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })?;
    if metadata.permissions().mode() & KEY_MODE_FORBIDDEN != 0 {
        return Err(TlsError::Exposed { path: path.to_owned() });
    }
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Empty { path: path.to_owned(), expected: "unencrypted private key" },
        error => malformed(path, described(&error)),
    })
}

/// What is wrong with a file, without what is in it.
fn described(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it is cut off: the line that ends a block is missing".into(),
        pem::Error::IllegalSectionStart { .. } => "a line that begins a block is cut off".into(),
        error => error.to_string(),
    }
}

/// Checks that a certificate can be read and that this is its time. Who signed it is the other side's business, so
/// nobody is trusted here, and that nobody has signed it is all that is found about a good one.
pub(crate) fn ensure_valid_now(path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_read() {
        assert!(matches!(read(Path::new("/dev/zero")), Err(TlsError::Malformed { .. })));
        assert!(matches!(read(Path::new("/")), Err(TlsError::Unreadable { .. })));
    }

    #[test]
    fn what_is_cut_off_is_said_in_words() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, said) in [
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "it is cut off: the line that ends a block is missing"),
            ("-----BEGIN CERTI", "a line that begins a block is cut off"),
        ] {
            fs::write(file.path(), text).unwrap();
            let refused = certificates(file.path()).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
