//! Certificates for TLS, in directories laid out as libnbd, nbdkit and QEMU want them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A server on this machine.
    Server,
    /// A client.
    Client,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// While the tests run.
    Now,
    /// No more.
    Before,
    /// Not yet.
    Later,
}

/// Whoever signs certificates.
#[derive(Debug)]
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whom nobody knows.
    ///
    /// # Panics
    /// If keys can't be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// Writes a certificate with this serial number, its key and this authority's certificate into `directory`, which
    /// is made. Returns its path.
    ///
    /// # Panics
    /// If something can't be made.
    pub fn issue(&self, directory: &Path, of: Of, valid: Valid, serial: u64) -> PathBuf {
        let names = match of {
            Of::Server => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            Of::Client => Vec::new(),
        };
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, format!("{of:?} {serial}"));
        params.serial_number = Some(SerialNumber::from(serial));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match of {
            Of::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Of::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1)),
            Valid::Before => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
            Valid::Later => (date_time_ymd(2119, 1, 1), date_time_ymd(2120, 1, 1)),
        };
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let name = match of {
            Of::Server => "server",
            Of::Client => "client",
        };
        fs::create_dir_all(directory).expect("a directory");
        let file = |name: &str| directory.join(name);
        fs::write(file(&format!("{name}-cert.pem")), certificate.pem()).expect("a file");
        let key_file = file(&format!("{name}-key.pem"));
        fs::write(&key_file, key.serialize_pem()).expect("a file");
        fs::set_permissions(key_file, fs::Permissions::from_mode(0o600)).expect("a mode");
        self.trusted_in(directory);
        directory.to_owned()
    }

    /// Makes this the authority that `directory` trusts.
    ///
    /// # Panics
    /// If the file can't be written.
    pub fn trusted_in(&self, directory: &Path) {
        fs::create_dir_all(directory).expect("a directory");
        fs::write(directory.join("ca-cert.pem"), self.certificate.pem()).expect("a file");
    }

    /// Revokes the certificate with this serial number, for the server whose certificates are in `directory`.
    ///
    /// # Panics
    /// If the file can't be written.
    pub fn revoke_in(&self, directory: &Path, serial: u64) {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2120, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("a list").pem().expect("a list");
        fs::write(directory.join("ca-crl.pem"), list).expect("a file");
    }
}
