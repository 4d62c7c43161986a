//! What a client proves itself with over TLS, and by what it knows servers.

use std::{
    collections::BTreeMap,
    env,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio_rustls::rustls::{
    ClientConfig,
    client::{Resumption, WebPkiServerVerifier},
    crypto::ring::default_provider,
};

use crate::certificates::{
    REVOKED, TlsError, authority, certificates, ensure_valid_now, malformed, private_key, revoked, unfit_key,
};

const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// Where libnbd has them of a user other than root, below the home directory, and of all.
const OF_USER: [&str; 2] = [".pki/libnbd", ".config/pki/libnbd"];
const OF_ALL: &str = "/etc/pki/libnbd";

/// What was read last, by directory.
static LAST: Mutex<BTreeMap<PathBuf, Arc<ClientConfig>>> = Mutex::new(BTreeMap::new());

/// The directory for URIs that name none: libnbd's.
pub(super) fn usual_directory() -> PathBuf {
    let home = env::var_os("HOME").filter(|_| !rustix::process::geteuid().is_root());
    let of_user = home.into_iter().flat_map(|home| OF_USER.map(|place| Path::new(&home).join(place)));
    of_user.filter(|place| place.is_dir()).chain([OF_ALL.into()]).next().expect("the last one is always there")
}

/// Reads the files of a directory: `ca-cert.pem`, `ca-crl.pem` if it exists, `client-cert.pem` and `client-key.pem` if
/// one of them does. Whoever may not read them any more goes on with what they were when it last could.
pub(super) fn config(directory: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let mut last = LAST.lock().expect("nobody panics with it");
    match read(directory) {
        Ok(config) => {
            last.insert(directory.to_owned(), Arc::clone(&config));
            Ok(config)
        }
        Err(error) => match last.get(directory) {
            Some(config) if is_forbidden(&error) => Ok(Arc::clone(config)),
            _ => Err(error),
        },
    }
}

fn is_forbidden(error: &TlsError) -> bool {
    matches!(error, TlsError::Unreadable { source, .. } if source.kind() == ErrorKind::PermissionDenied)
}

fn read(directory: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(authority(directory)?, Arc::clone(&provider))
        .with_crls(revoked(directory)?)
        .build()
        .map_err(|error| malformed(&directory.join(REVOKED), error))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for all versions")
        .with_webpki_verifier(verifier);
    let [certificate, key] = [CERTIFICATE, KEY].map(|name| directory.join(name));
    let mut config = if certificate.exists() || key.exists() {
        let chain = certificates(&certificate)?;
        ensure_valid_now(&certificate, &chain)?;
        let own = private_key(&key)?;
        builder.with_client_auth_cert(chain, own).map_err(|fault| unfit_key(fault, &certificate, &key))?
    } else {
        builder.with_no_client_auth()
    };
    // Each connection proves itself anew.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
