//! A backup as one stream of bytes: a tar archive, produced while it is read.
//!
//! The files come first, then `manifest.json` with the length and SHA-256 of each. An archive without a manifest is
//! incomplete.

use std::fs::File;
use std::io::{self, Read};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::storage::backup::{Backup, BackupFile};
use crate::storage::manifest::COPIES;

/// The block size of tar.
const BLOCK: usize = 512;
/// The last file of a backup.
pub(super) const MANIFEST: &str = "manifest.json";

/// A backup to be read once. Dropping it lets the broker remove files again.
#[derive(Debug)]
pub struct BackupStream {
    backup: Backup,
    next: usize,
    /// Bytes that are ready: a header, padding, or a small file.
    ready: Vec<u8>,
    ready_at: usize,
    open: Option<OpenArchiveFile>,
    manifest: Vec<Value>,
    ended: bool,
}

/// The file being read.
#[derive(Debug)]
struct OpenArchiveFile {
    file: File,
    left: u64,
    hash: Sha256,
}

impl BackupStream {
    /// Starts at the first file.
    pub fn new(backup: Backup) -> Self {
        let mut archive = Self {
            backup,
            next: 0,
            ready: Vec::new(),
            ready_at: 0,
            open: None,
            manifest: Vec::new(),
            ended: false,
        };
        let format = archive.backup.format.clone();
        let length = format.len() as u64;
        for name in COPIES {
            archive.note(name, length, length, Sha256::digest(&format).as_slice());
            archive.push_small(name, format.as_bytes());
        }
        archive
    }

    /// Total bytes of files; the archive is slightly larger.
    pub fn file_bytes(&self) -> u64 {
        self.backup.total_bytes()
    }

    fn note(&mut self, name: &str, bytes: u64, length: u64, digest: &[u8]) {
        self.manifest.push(manifest_entry(name, (bytes, length), digest));
    }

    fn push_small(&mut self, name: &str, content: &[u8]) {
        self.ready.extend_from_slice(&header(name, content.len() as u64, self.backup.created_ms));
        self.ready.extend_from_slice(content);
        self.ready.resize(self.ready.len().next_multiple_of(BLOCK), 0);
    }

    /// Prepares more bytes, or opens the next file. False: the archive is complete.
    fn go_on(&mut self) -> io::Result<bool> {
        self.ready.clear();
        self.ready_at = 0;
        if let Some(file) = self.backup.files.get(self.next) {
            self.ready.extend_from_slice(&header(&file.name, file.bytes, self.backup.created_ms));
            let open =
                File::open(&file.path).map_err(|error| io::Error::new(error.kind(), named(file, &error)))?;
            self.open = Some(OpenArchiveFile { file: open, left: file.bytes, hash: Sha256::new() });
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        self.ended = true;
        let Backup { created_ms, shards, live, .. } = self.backup;
        let files = std::mem::take(&mut self.manifest);
        let manifest = manifest(env!("CARGO_PKG_VERSION"), created_ms, (shards, live), files);
        self.push_small(MANIFEST, manifest.as_bytes());
        // Two empty blocks end an archive.
        self.ready.resize(self.ready.len() + 2 * BLOCK, 0);
        Ok(true)
    }

    /// Reads from the open file, and closes it at its end.
    fn read_file(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let file = &self.backup.files[self.next];
        if open.left > 0 {
            let most = buffer.len().min(usize::try_from(open.left).unwrap_or(usize::MAX));
            let count = open
                .file
                .read(&mut buffer[..most])
                .map_err(|error| io::Error::new(error.kind(), named(file, &error)))?;
            if count == 0 {
                let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(io::Error::new(cut.kind(), named(file, &cut)));
            }
            open.hash.update(&buffer[..count]);
            open.left -= count as u64;
            return Ok(count);
        }
        let digest = std::mem::take(&mut open.hash).finalize();
        let BackupFile { name, bytes, length, .. } = file.clone();
        self.open = None;
        self.next += 1;
        self.note(&name, bytes, length, digest.as_slice());
        self.ready.resize((bytes.next_multiple_of(BLOCK as u64) - bytes) as usize, 0);
        self.ready_at = 0;
        Ok(0)
    }
}

impl Read for BackupStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let ready = &self.ready[self.ready_at..];
            if !ready.is_empty() {
                let count = ready.len().min(buffer.len());
                buffer[..count].copy_from_slice(&ready[..count]);
                self.ready_at += count;
                return Ok(count);
            }
            if self.open.is_some() {
                self.ready.clear();
                self.ready_at = 0;
                match self.read_file(buffer)? {
                    0 => continue,
                    count => return Ok(count),
                }
            }
            if !self.go_on()? {
                return Ok(0);
            }
        }
    }
}

/// Describes a file in the manifest. `bytes` and `length`: as in [`BackupFile`].
pub(super) fn manifest_entry(name: &str, (bytes, length): (u64, u64), digest: &[u8]) -> Value {
    let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"name": name, "bytes": bytes, "length": length, "sha256": sha256})
}

/// The content of the manifest.
pub(super) fn manifest(
    version: &str,
    created_ms: u64,
    (shards, messages): (usize, Option<u64>),
    files: Vec<Value>,
) -> String {
    let manifest = json!({
        "schema": "mqcore.backup/1",
        "version": version,
        "created_ms": created_ms,
        "shards": shards,
        "messages": messages,
        "files": files,
    });
    manifest.to_string()
}

fn named(file: &BackupFile, error: &io::Error) -> String {
    format!("{}: {error}", file.path.display())
}

/// The header block of a file, as in POSIX's ustar: name, mode, owner, length, time and checksum.
fn header(name: &str, bytes: u64, created_ms: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{bytes:011o}\0"));
    put(136, &format!("{:011o}\0", created_ms / 1000));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
