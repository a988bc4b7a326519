//! Makes the names in a directory durable.

use std::io;
use std::path::Path;

/// Makes the names in a directory durable: of files that were created, renamed or removed there. An empty path is the
/// current directory.
///
/// # Errors
/// The error of the system.
#[cfg(unix)]
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    std::fs::File::open(directory)?.sync_all()
}

/// Directories cannot be synced on this system; the file system journals names itself.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}
