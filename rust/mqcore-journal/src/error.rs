//! Errors of a journal, and how to handle them.

use std::io;

/// An error of a journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The storage failed. Unless this happened while reading, the journal has failed and returns this error from every later
    /// write and sync. Repair the disk, then open the journal again.
    #[error("{doing} {file}: {message}")]
    Io {
        /// Operation: `"writing"`, `"syncing"`, ...
        doing: &'static str,
        /// File name, or `"the directory"`.
        file: String,
        /// Kind of the storage error.
        kind: io::ErrorKind,
        /// Message of the storage error.
        message: String,
    },
    /// The system has no disk space or no file descriptor left. Nothing is lost or partially written. Make room, call
    /// `maintain`, and try again.
    #[error("{}", .shortage.describe(*.needed))]
    Full {
        /// Bytes needed.
        needed: u64,
        /// The exhausted resource.
        shortage: Shortage,
    },
    /// The bytes on disk are not the expected record.
    #[error("segment {segment} is damaged at byte {offset}: {why}")]
    Damaged {
        /// Segment number.
        segment: u32,
        /// Offset in the segment file, in bytes.
        offset: u32,
        /// Reason.
        why: &'static str,
    },
    /// No live record has this number.
    #[error("record {0} is not live: it was settled, lost, or never written")]
    NotLive(u64),
    /// The record exceeds the size limit.
    #[error("a record of {size} bytes exceeds the limit of {max} bytes (max_record_bytes)")]
    TooLarge {
        /// Size of the record in bytes.
        size: u64,
        /// Limit in bytes.
        max: u64,
    },
    /// The number does not ascend. Numbers are never reused.
    #[error("record number {sequence} was already used; the next free number is {next}")]
    Order {
        /// Requested number.
        sequence: u64,
        /// Smallest number that is allowed.
        next: u64,
    },
    /// A newer version wrote the files. Nothing was changed.
    #[error("{file} has format version {found}, but this version reads up to {known}; use a newer mqcore")]
    Version {
        /// File name.
        file: String,
        /// Version of the file.
        found: u16,
        /// Newest version supported.
        known: u16,
    },
    /// The storage cannot read any file that identifies the journal, and the caller does not know its identity. Nothing was
    /// changed.
    #[error(
        "the identity of the journal is unknown, because {file} cannot be read ({message}); check the disk and try again"
    )]
    Unidentified {
        /// Name of a file.
        file: String,
        /// Message of the storage error.
        message: String,
    },
    /// The files belong to another shard. Nothing was changed.
    #[error("{file} belongs to shard {found}, not to shard {expected}; check the data directory")]
    Shard {
        /// File name.
        file: String,
        /// Shard of the file.
        found: u32,
        /// Shard that was opened.
        expected: u32,
    },
}

impl JournalError {
    /// Whether the error reports damaged or missing bytes.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::NotLive(_))
    }

    pub(crate) fn io(doing: &'static str, file: &str, error: &io::Error) -> Self {
        Self::Io { doing, file: file.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}

/// A resource that the system has none left of, for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Disk space.
    Space,
    /// File descriptors, of the process or of the system.
    Descriptors,
}

impl Shortage {
    /// Returns the shortage that an error reports: the only kind of error that may resolve itself.
    pub fn of(error: &io::Error) -> Option<Self> {
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Some(Self::Space);
        }
        #[cfg(unix)]
        {
            use rustix::io::Errno;
            let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
            if exhausted.contains(&error.raw_os_error()) {
                return Some(Self::Descriptors);
            }
        }
        None
    }

    /// Describes the shortage in the words that producers receive.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Space => "no space is left on the disk of the data directory",
            Self::Descriptors => "no file descriptor is left for the journal",
        }
    }

    fn describe(self, needed: u64) -> String {
        match self {
            Self::Space => format!(
                "disk full: the journal needs {needed} more bytes; free some space, then it continues automatically"
            ),
            Self::Descriptors => {
                "the journal cannot open a file: no file descriptor is left; raise the limit of open files \
                 or close connections, then it continues automatically"
                    .to_owned()
            }
        }
    }
}
