//! Where a journal's files live: the only way from the journal to a disk.

mod file;
mod memory;
mod read_only;

use std::io;

pub use file::FileStorage;
pub use memory::{Call, Fault, MemoryFile, MemoryStorage};
pub use read_only::ReadOnlyStorage;

/// One flat directory of files.
///
/// What was written is durable after `sync_data` of its file, and a file that was created, renamed or removed
/// durably so after `sync_directory`: nothing is promised before, in any order. Errors of kind
/// [`io::ErrorKind::StorageFull`] mean that space may come back; every other error of a change is taken as final.
pub trait Storage {
    /// An open file. Stays usable after the file is renamed or removed.
    type File;

    /// The names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a file of `length` zero bytes with its space reserved where the system can; fails if it exists.
    fn create(&self, name: &str, length: u64) -> io::Result<Self::File>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// A file's length in bytes.
    fn length(&self, file: &Self::File) -> io::Result<u64>;
    /// Reads at most `buffer.len()` bytes; 0 only at the end of the file.
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes some of `bytes`, and says how many.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts a file.
    fn set_length(&self, file: &Self::File, length: u64) -> io::Result<()>;
    /// Makes a file's bytes and length durable.
    fn sync_data(&self, file: &Self::File) -> io::Result<()>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renamings and removals durable.
    fn sync_directory(&self) -> io::Result<()>;
}

/// Writes all of `bytes` at `offset`, however many calls it takes.
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

/// Reads until `buffer` is full or the file ends; says how much there was.
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
