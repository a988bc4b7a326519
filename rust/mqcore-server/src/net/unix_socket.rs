//! A listening Unix socket and its file.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Listens until it is dropped, which removes the file.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the created file, so that a file of another process is not removed.
    file: (u64, u64),
}

impl UnixSocket {
    /// Binds `path`, replacing a socket that no server uses any more. Processes that `mode` allows to write can
    /// connect.
    pub(crate) async fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        remove_if_left_behind(path).await?;
        let listener = UnixListener::bind(path)?;
        let made = std::fs::symlink_metadata(path)?;
        let socket = Self { listener, path: path.into(), file: (made.dev(), made.ino()) };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(socket)
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.file);
        if ours {
            // If it cannot be removed, the system refuses connections to it, and the next server removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket file that no server uses. Other files, and a socket in use, stay; binding then fails.
async fn remove_if_left_behind(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        _ => return Ok(()),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}
