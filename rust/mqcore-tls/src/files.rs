//! Reading PEM files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsConfigError;

/// Maximum size of a file in bytes. All authorities of a system together have less than 1 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads all certificates of a file in order; at least one.
pub(crate) fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let pem = read(what, path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(what, path, &error))?;
    if certificates.is_empty() {
        return Err(TlsConfigError::NoCertificate { what, path: path.into() });
    }
    Ok(certificates)
}

/// Reads the first private key of a file.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    let pem = read("key", path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if contains(&pem, b"ENCRYPTED PRIVATE KEY") => {
            Err(TlsConfigError::EncryptedKey { path: path.into() })
        }
        Err(pem::Error::NoItemsFound) => Err(TlsConfigError::NoKey { path: path.into() }),
        Err(_) if contains(&pem, b"Proc-Type: 4,ENCRYPTED") => {
            Err(TlsConfigError::EncryptedKey { path: path.into() })
        }
        Err(error) => Err(broken("key", path, &error)),
    }
}

/// Reads the authorities of a file.
pub(crate) fn authorities(what: &'static str, path: &Path) -> Result<RootCertStore, TlsConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        store.add(certificate).map_err(|error| {
            let why = format!("it contains a certificate that is not an authority: {error}");
            TlsConfigError::Broken { what, path: path.into(), why }
        })?;
    }
    Ok(store)
}

/// Whether a file is readable by users other than its owner and group.
#[cfg(unix)]
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o007 != 0)
}

/// Whether a file is readable by users other than its owner and group. Unknown on this system.
#[cfg(not(unix))]
pub(crate) fn is_open_to_others(_path: &Path) -> bool {
    false
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsConfigError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| TlsConfigError::Unreadable { what, path: path.into(), source })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(broken(what, path, &"it exceeds 16 MiB"));
    }
    Ok(bytes)
}

fn broken(what: &'static str, path: &Path, why: &dyn std::fmt::Display) -> TlsConfigError {
    TlsConfigError::Broken { what, path: path.into(), why: why.to_string() }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("mqcore-tls-{name}-{}.pem", std::process::id()));
        std::fs::write(&path, content).expect("the file is written");
        path
    }

    #[cfg(unix)]
    #[test]
    fn only_permissions_of_all_users_open_a_file_to_others() {
        use std::os::unix::fs::PermissionsExt;

        let path = temporary("mode", b"");
        for (mode, is_open) in [(0o600, false), (0o640, false), (0o670, false), (0o604, true), (0o601, true)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("they change");
            assert_eq!(is_open_to_others(&path), is_open, "{mode:o}");
        }
        std::fs::remove_file(&path).expect("the file is removed");
    }

    #[test]
    fn encrypted_key_is_distinguished_from_a_missing_one() {
        for (pem, is_encrypted) in [
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n", true),
            ("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", false),
            ("", false),
        ] {
            let path = temporary("key", pem.as_bytes());
            match key(&path) {
                Err(TlsConfigError::EncryptedKey { .. }) => assert!(is_encrypted, "{pem}"),
                Err(TlsConfigError::NoKey { .. }) => assert!(!is_encrypted, "{pem}"),
                other => panic!("{pem}: {other:?}"),
            }
            std::fs::remove_file(&path).expect("the file is removed");
        }
    }

    #[test]
    fn file_of_the_maximum_size_is_read_and_a_larger_one_rejected() {
        let path = temporary("size", b"");
        for (size, why) in [(FILE_BYTES_MAX, "no certificate in the"), (FILE_BYTES_MAX + 1, "exceeds 16 MiB")]
        {
            File::create(&path).and_then(|file| file.set_len(size)).expect("the file is created");
            let error = certificates("certificate", &path).expect_err("zeros are no certificate").to_string();
            assert!(error.contains(why), "{size}: {error}");
        }
        std::fs::remove_file(&path).expect("the file is removed");
    }
}
