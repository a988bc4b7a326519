//! Files and directories that only their owner can access.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use crate::storage::directory::sync_directory;

/// Options that create files with mode 0600 on Unix, less the umask. The mode of an existing file does not change.
pub fn private_options() -> OpenOptions {
    #[allow(unused_mut, reason = "only Unix has modes")]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Creates a directory and its missing parents with mode 0700 on Unix, and makes all their names durable. The mode of an
/// existing directory does not change.
///
/// The name of an existing directory is synced too: a process that was killed may have created it just before.
///
/// # Errors
/// The error of the system.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut existing = path;
    while !existing.as_os_str().is_empty() && !existing.is_dir() {
        missing.push(existing);
        let Some(parent) = existing.parent() else { break };
        existing = parent;
    }
    for directory in missing.iter().rev() {
        match make(directory) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            outcome => outcome?,
        }
    }
    sync_parent(path)?;
    for directory in missing {
        sync_parent(directory)?;
    }
    Ok(())
}

fn make(directory: &Path) -> io::Result<()> {
    #[allow(unused_mut, reason = "only Unix has modes")]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(directory)
}

/// Makes the name of a directory durable in its parent. A parent that this process must not read is left to the system.
fn sync_parent(directory: &Path) -> io::Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    match sync_directory(parent) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}
