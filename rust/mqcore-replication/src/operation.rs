//! Changes of files, and their encoding in the entries of a group's log.

use bytes::{Buf, Bytes};

/// The version of the encoding, the first byte of an entry.
const VERSION: u8 = 1;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;

const CREATE: u8 = 1;
const WRITE: u8 = 2;
const SET_LENGTH: u8 = 3;
const RENAME: u8 = 4;
const REMOVE: u8 = 5;
const PUT: u8 = 6;

/// A change of a file. Names are relative to the data directory, such as `shard-0/00000001.segment`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOperation {
    /// Creates a file of zeros, or replaces a file by one.
    Create {
        /// The file.
        name: String,
        /// Its length in bytes.
        length: u64,
    },
    /// Writes bytes.
    Write {
        /// The file.
        name: String,
        /// The place of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Truncates or extends a file.
    SetLength {
        /// The file.
        name: String,
        /// Its new length in bytes.
        length: u64,
    },
    /// Renames a file. Replaces an existing one.
    Rename {
        /// Its name before.
        from: String,
        /// Its name after.
        to: String,
    },
    /// Removes a file.
    Remove {
        /// The file.
        name: String,
    },
    /// Writes a small file as a whole: a reader sees the old or the new content.
    Put {
        /// The file.
        name: String,
        /// The content.
        bytes: Bytes,
    },
}

/// Why an entry cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// A newer version wrote it.
    #[error(
        "an entry of the group's log has version {0}, which this version of mqcore does not know; upgrade this node"
    )]
    Version(u8),
    /// It is damaged, or has a name that no broker writes.
    #[error("an entry of the group's log is invalid: {0}")]
    Invalid(&'static str),
}

/// Begins an entry.
pub fn begin_entry(output: &mut Vec<u8>) {
    output.push(VERSION);
}

impl FileOperation {
    /// Appends the operation to an entry.
    pub fn encode(&self, output: &mut Vec<u8>) {
        match self {
            Self::Create { name, length } => {
                encode_name(CREATE, name, output);
                output.extend_from_slice(&length.to_le_bytes());
            }
            Self::Write { name, offset, bytes } => encode_write(name, *offset, bytes, output),
            Self::SetLength { name, length } => {
                encode_name(SET_LENGTH, name, output);
                output.extend_from_slice(&length.to_le_bytes());
            }
            Self::Rename { from, to } => {
                encode_name(RENAME, from, output);
                output.extend_from_slice(&(to.len() as u16).to_le_bytes());
                output.extend_from_slice(to.as_bytes());
            }
            Self::Remove { name } => encode_name(REMOVE, name, output),
            Self::Put { name, bytes } => {
                encode_name(PUT, name, output);
                encode_bytes(bytes, output);
            }
        }
    }
}

/// Appends an [`FileOperation::Write`] without a copy of its bytes.
pub fn encode_write(name: &str, offset: u64, bytes: &[u8], output: &mut Vec<u8>) {
    encode_name(WRITE, name, output);
    output.extend_from_slice(&offset.to_le_bytes());
    encode_bytes(bytes, output);
}

fn encode_name(kind: u8, name: &str, output: &mut Vec<u8>) {
    debug_assert!(is_valid(name), "{name}");
    output.push(kind);
    output.extend_from_slice(&(name.len() as u16).to_le_bytes());
    output.extend_from_slice(name.as_bytes());
}

fn encode_bytes(bytes: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    output.extend_from_slice(bytes);
}

/// The operations of an entry, in order. An empty entry, the first one of each leader, has none.
///
/// # Errors
/// [`EntryError`].
pub fn decode_entry(mut entry: Bytes) -> Result<Vec<FileOperation>, EntryError> {
    let mut operations = Vec::new();
    if entry.is_empty() {
        return Ok(operations);
    }
    match entry.get_u8() {
        VERSION => {}
        version => return Err(EntryError::Version(version)),
    }
    while !entry.is_empty() {
        operations.push(decode(&mut entry)?);
    }
    Ok(operations)
}

fn decode(entry: &mut Bytes) -> Result<FileOperation, EntryError> {
    let kind = entry.get_u8();
    let name = decode_name(entry)?;
    Ok(match kind {
        CREATE => FileOperation::Create { name, length: number(entry)? },
        WRITE => FileOperation::Write { name, offset: number(entry)?, bytes: decode_bytes(entry)? },
        SET_LENGTH => FileOperation::SetLength { name, length: number(entry)? },
        RENAME => FileOperation::Rename { from: name, to: decode_name(entry)? },
        REMOVE => FileOperation::Remove { name },
        PUT => FileOperation::Put { name, bytes: decode_bytes(entry)? },
        _ => return Err(EntryError::Invalid("unknown operation")),
    })
}

fn decode_name(entry: &mut Bytes) -> Result<String, EntryError> {
    let length = entry.try_get_u16_le().map_err(|_| SHORT)?;
    if entry.len() < usize::from(length) {
        return Err(SHORT);
    }
    let name = entry.split_to(length.into());
    let name = str::from_utf8(&name).map_err(|_| EntryError::Invalid("a name is not UTF-8"))?;
    if !is_valid(name) {
        return Err(EntryError::Invalid("a name leaves the data directory or is too long"));
    }
    Ok(name.to_owned())
}

const SHORT: EntryError = EntryError::Invalid("it ends too early");

fn number(entry: &mut Bytes) -> Result<u64, EntryError> {
    entry.try_get_u64_le().map_err(|_| SHORT)
}

fn decode_bytes(entry: &mut Bytes) -> Result<Bytes, EntryError> {
    let length = entry.try_get_u32_le().map_err(|_| SHORT)? as usize;
    if entry.len() < length {
        return Err(SHORT);
    }
    Ok(entry.split_to(length))
}

/// Whether a name is one that operations may have: one file, at most one directory deep, and none of the group itself.
#[must_use]
pub fn is_valid(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let parts: Vec<&str> = name.split('/').collect();
    name.len() <= NAME_BYTES_MAX
        && parts.len() <= 2
        && parts.iter().all(|part| is_part(part))
        && parts[0] != crate::identity::DIRECTORY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<FileOperation> {
        let name = || "shard-0/00000001.segment".to_owned();
        vec![
            FileOperation::Create { name: name(), length: 1 << 40 },
            FileOperation::Write { name: name(), offset: 7, bytes: Bytes::from_static(b"bytes") },
            FileOperation::SetLength { name: name(), length: 3 },
            FileOperation::Rename { from: name(), to: "shard-0/b".to_owned() },
            FileOperation::Remove { name: name() },
            FileOperation::Put { name: "format".to_owned(), bytes: Bytes::new() },
        ]
    }

    #[test]
    fn operations_are_decoded_as_they_were_encoded() {
        let mut entry = Vec::new();
        begin_entry(&mut entry);
        all().iter().for_each(|operation| operation.encode(&mut entry));
        assert_eq!(decode_entry(entry.into()).unwrap(), all());
        assert_eq!(decode_entry(Bytes::new()).unwrap(), []);
    }

    #[test]
    fn an_entry_that_ends_too_early_is_an_error() {
        for operation in all() {
            let mut entry = Vec::new();
            begin_entry(&mut entry);
            operation.encode(&mut entry);
            for length in 2..entry.len() {
                let cut = Bytes::copy_from_slice(&entry[..length]);
                assert!(decode_entry(cut).is_err(), "{operation:?} cut to {length}");
            }
        }
        assert_eq!(decode_entry(Bytes::from_static(&[2])), Err(EntryError::Version(2)));
        assert!(decode_entry(Bytes::from_static(&[1, 9, 1, 0, b'a'])).is_err());
    }

    #[test]
    fn a_name_stays_in_the_data_directory() {
        for name in ["format", "shard-12/00000001.segment", "limits/catalog.new"] {
            assert!(is_valid(name), "{name}");
        }
        let long = "a".repeat(256);
        for name in
            ["", "/etc/passwd", "..", "a/../b", "a/b/c", "a//b", "a/", "./a", "a\0b", "consensus/log", &long]
        {
            assert!(!is_valid(name), "{name}");
        }
    }
}
