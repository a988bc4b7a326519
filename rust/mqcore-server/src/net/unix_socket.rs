//! A listening Unix socket and the file that stands for it.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Listens until it is dropped; then its file is gone.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file that was made, so that nobody else's is removed.
    file: (u64, u64),
}

impl UnixSocket {
    /// Binds `path`, in place of a socket that nobody serves any more, and lets in whom `mode` lets write.
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
            // Whoever finds it anyway is refused by the system, and the next server removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket file whose server is gone. A file that is no socket, and a socket that is served, stay and are
/// then in the way.
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
