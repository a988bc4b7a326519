//! Storage of a journal's files: the journal's only access to a disk.

pub mod directory;
pub mod file;
pub mod lock;
mod memory;
pub mod private;
mod read_only;

use std::io;

pub use file::FileStorage;
pub use memory::{Fault, MemoryFile, MemoryStorage, StorageCall};
pub use read_only::ReadOnlyStorage;

/// One flat directory of files.
///
/// Written bytes are durable after `sync_data` of their file. A created, renamed or removed file is durable after
/// `sync_directory`. Nothing is guaranteed before that, in any order. A [`Shortage`](crate::error::Shortage) of space or
/// file descriptors may pass. A file that cannot be removed or renamed is tried again later. Every other error of a change
/// is permanent.
pub trait Storage {
    /// An open file. Remains usable after the file is renamed or removed.
    type File;

    /// Lists the names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file of `length` zero bytes, and reserves its space if the system can. Fails if the file exists.
    fn create(&self, name: &str, length: u64) -> io::Result<Self::File>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Returns a file's length in bytes.
    fn length(&self, file: &Self::File) -> io::Result<u64>;
    /// Reads up to `buffer.len()` bytes and returns the number read; 0 only at the end of the file.
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes some of `bytes` and returns the number written.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<usize>;
    /// Truncates or extends a file.
    fn set_length(&self, file: &Self::File, length: u64) -> io::Result<()>;
    /// Makes a file's bytes and length durable.
    fn sync_data(&self, file: &Self::File) -> io::Result<()>;
    /// Renames a file. Replaces an existing file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes created, renamed and removed names durable.
    fn sync_directory(&self) -> io::Result<()>;
    /// The journal found that a file is missing, or does not have the bytes that were written.
    ///
    /// # Errors
    /// The storage gets intact files in another way. The journal must not repair anything: a storage with copies elsewhere would
    /// apply to them what the journal does because of the damage here.
    fn report_damage(&self, file: &str, what: &str) -> io::Result<()> {
        let _ = (file, what);
        Ok(())
    }
}

/// Writes all of `bytes` at `offset`, in as many calls as needed.
pub(crate) fn write_whole<S: Storage>(
    storage: &S,
    file: &S::File,
    mut offset: u64,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = storage.write_at(file, offset, bytes)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += written as u64;
        bytes = &bytes[written.min(bytes.len())..];
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
pub(crate) fn read_most<S: Storage>(
    storage: &S,
    file: &S::File,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match storage.read_at(file, offset + filled as u64, &mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
