//! Small files: replaced as a whole, and with a checksum in their last line if they belong to a member itself. A changed bit must
//! not become another id, or another place.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use mqcore_journal::storage::directory::sync_directory;
use mqcore_journal::storage::private::private_options;
use sha2::{Digest as _, Sha256};

/// Digits of the checksum.
const DIGITS: usize = 16;

/// Writes a text so that a crash leaves the old or the new one, durable at return.
///
/// # Errors
/// The error of the system.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    replace_file(path, format!("{text}\n{}\n", checksum(text)).as_bytes())
}

/// Reads a text. `None`: there is no such file.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it is not what was written; otherwise the error of the system.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let content = match fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let parts = content.strip_suffix('\n').and_then(|lines| lines.rsplit_once('\n'));
    match parts {
        Some((text, sum)) if sum == checksum(text) => Ok(Some(text.to_owned())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum does not match its content")),
    }
}

/// Writes a file so that a crash leaves the old or the new content, durable at return.
///
/// # Errors
/// The error of the system.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    // A file left by a process that died, or a link that another user has put there.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private_options().create_new(true).write(true).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

fn checksum(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_bit_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, "12 3").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("12 3"));
        let intact = fs::read(&path).unwrap();
        for bit in 0..intact.len() * 8 {
            let mut damaged = intact.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "bit {bit}");
        }
        fs::write(&path, &intact[..intact.len() - 1]).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "a shorter file");
    }
}
