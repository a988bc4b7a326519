//! Files on object storage, for backups: blocking calls around [`mqcore_lake::transfer`] and [`mqcore_lake::backup`].

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::path::Path;

use mqcore_journal::storage::private::private_options;
use mqcore_lake::backup::point::PointFile;
use mqcore_lake::backup::points;
use mqcore_lake::backup::receive::{self, FileSink};
use mqcore_lake::store::Store;
use mqcore_lake::transfer::{self, TransferProgress};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::storage::archive::{MANIFEST, manifest, manifest_entry};
use crate::storage::manifest::COPIES;

pub use mqcore_lake::backup::point::RestorePoint;
pub use mqcore_lake::transfer::TransferError;

/// The objects below a URL. Credentials and settings come from the environment variables of the vendors.
#[derive(Debug)]
pub struct ObjectFiles {
    store: Store,
    runtime: tokio::runtime::Runtime,
}

impl ObjectFiles {
    /// Opens the store. Sends no request.
    ///
    /// # Errors
    /// The URL or a setting is invalid, or the system has no resources left.
    pub fn open(url: &str) -> Result<Self, TransferError> {
        let store = Store::open(url, &BTreeMap::new(), &BTreeMap::new())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { store, runtime })
    }

    /// Sends a file as a new object.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn send(
        &self,
        name: &str,
        path: &Path,
        progress: &mut TransferProgress<'_>,
    ) -> Result<u64, TransferError> {
        let mut file = File::open(path)?;
        let total = file.metadata()?.len();
        self.runtime.block_on(transfer::send_file(&self.store, name, (&mut file, total), progress))
    }

    /// Receives an object into a new file.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn receive(
        &self,
        name: &str,
        path: &Path,
        progress: &mut TransferProgress<'_>,
    ) -> Result<u64, TransferError> {
        let mut file = private_options().write(true).create_new(true).open(path)?;
        self.runtime.block_on(transfer::receive_file(&self.store, name, &mut file, progress))
    }

    /// The names of all objects directly below the URL, in order.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn names(&self) -> Result<Vec<String>, TransferError> {
        let mut names = self.runtime.block_on(self.store.list_directly())?;
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes an object. Does nothing if there is none of this name.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn delete(&self, name: &str) -> Result<(), TransferError> {
        Ok(self.runtime.block_on(self.store.delete(&[name.to_owned()]))?)
    }

    /// The numbers of all restore points, ascending.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn restore_points(&self) -> Result<Vec<u64>, TransferError> {
        Ok(self.runtime.block_on(points::numbers(&self.store))?)
    }

    /// Reads a restore point.
    ///
    /// # Errors
    /// [`TransferError::Missing`]: it has expired. [`TransferError::Store`].
    pub fn restore_point(&self, number: u64) -> Result<RestorePoint, TransferError> {
        let missing = || TransferError::Missing(self.store.location(&points::name(number)));
        self.runtime.block_on(points::get(&self.store, number))?.ok_or_else(missing)
    }

    /// Finds the newest of some restore points whose moment is `time_ms`, in Unix milliseconds, or before.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn find_restore_point(
        &self,
        numbers: &[u64],
        time_ms: u64,
    ) -> Result<Option<RestorePoint>, TransferError> {
        Ok(self.runtime.block_on(points::find(&self.store, numbers, time_ms))?)
    }

    /// Receives a restore point into an existing empty directory, as a backup that is a directory.
    ///
    /// # Errors
    /// [`TransferError`]. The directory may have a part of it, without a manifest.
    pub fn receive_restore_point(
        &self,
        point: &RestorePoint,
        directory: &Path,
        progress: &mut TransferProgress<'_>,
    ) -> Result<(), TransferError> {
        let format = point.format.as_bytes();
        let mut received = ReceivedDirectory { directory, open: None, manifest: Vec::new() };
        for name in COPIES {
            received.add_small(name, format)?;
        }
        self.runtime.block_on(receive::receive(&self.store, point, &mut received, progress))?;
        let manifest =
            manifest(&point.version, point.created_ms, (point.shards, point.messages), received.manifest);
        create(&directory.join(MANIFEST), manifest.as_bytes())?;
        Ok(())
    }
}

/// A backup that is a directory, while its files arrive.
struct ReceivedDirectory<'a> {
    directory: &'a Path,
    open: Option<(File, Sha256)>,
    manifest: Vec<Value>,
}

impl ReceivedDirectory<'_> {
    fn add_small(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        create(&self.directory.join(name), content)?;
        let length = content.len() as u64;
        self.manifest.push(manifest_entry(name, (length, length), &Sha256::digest(content)));
        Ok(())
    }
}

impl FileSink for ReceivedDirectory<'_> {
    fn begin(&mut self, file: &PointFile) -> io::Result<()> {
        // The name comes from the store, and must not lead out of the directory.
        let is_plain =
            |part: &str| !part.is_empty() && part != ".." && part != "." && !part.contains(['\\', ':']);
        let named = file.name.split_once('/').filter(|(journal, name)| is_plain(journal) && is_plain(name));
        let Some((journal, name)) = named.filter(|(_, name)| !name.contains('/')) else {
            return Err(io::Error::other(format!("{:?} does not belong into a backup", file.name)));
        };
        let journal = self.directory.join(journal);
        create_directory(&journal)?;
        self.open = Some((create(&journal.join(name), b"")?, Sha256::new()));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some((file, hash)) = &mut self.open else { return Ok(()) };
        hash.update(bytes);
        file.write_all(bytes)
    }

    fn end(&mut self, file: &PointFile) -> io::Result<()> {
        let Some((_, hash)) = self.open.take() else { return Ok(()) };
        self.manifest.push(manifest_entry(&file.name, (file.bytes, file.length), &hash.finalize()));
        Ok(())
    }
}

/// Creates a file that only its owner can access, and that begins with some content.
fn create(path: &Path, content: &[u8]) -> io::Result<File> {
    let mut file = private_options().write(true).create_new(true).open(path)?;
    file.write_all(content)?;
    Ok(file)
}

/// Creates a directory that only its owner can access, if there is none.
fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
