//! Backups as byte streams, and files compressed with zstd, for `mqcore.backup`.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_server::storage::archive::BackupStream;
use mqcore_server::storage::backup::Backup;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zstd::stream::{read::Decoder, write::Encoder};

use crate::error;

/// A fast level, sufficient for compressible bodies.
const LEVEL: i32 = 3;
/// Maximum bytes per read.
const READ_MAX: usize = 16 * 1024 * 1024;

/// A tar archive that is generated while it is read. While it is open, the broker removes no file of its journals.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct BackupArchive {
    archive: Mutex<Option<BackupStream>>,
    /// Total bytes of its files.
    #[pyo3(get)]
    file_bytes: u64,
}

impl BackupArchive {
    pub(crate) fn new(backup: Backup) -> Self {
        let archive = BackupStream::new(backup);
        Self { file_bytes: archive.file_bytes(), archive: Mutex::new(Some(archive)) }
    }
}

#[pymethods]
impl BackupArchive {
    /// Backs up the data directory of a stopped broker.
    #[staticmethod]
    fn of_stopped(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| Backup::of_stopped(&path)).map(Self::new).map_err(|refused| error::backup(&refused))
    }

    /// Reads at most this many bytes; none at the end.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| match lock(&self.archive).as_mut() {
            Some(archive) => read_up_to(archive, size),
            None => Ok(Vec::new()),
        });
        Ok(PyBytes::new(py, &read.map_err(failed)?))
    }

    /// Releases the files.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.archive).take()));
    }
}

/// Writes a new compressed file.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ZstdWriter {
    encoder: Mutex<Option<Encoder<'static, File>>>,
}

#[pymethods]
impl ZstdWriter {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let mut encoder = Encoder::new(create_private(&path).map_err(failed)?, LEVEL).map_err(failed)?;
        // A checksum detects changed bytes.
        encoder.include_checksum(true).map_err(failed)?;
        Ok(Self { encoder: Mutex::new(Some(encoder)) })
    }

    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        py.detach(|| match lock(&self.encoder).as_mut() {
            Some(encoder) => encoder.write_all(data),
            None => Err(std::io::Error::other("the file is closed")),
        })
        .map_err(failed)
    }

    /// Completes the file and syncs it. Without this call the file is incomplete.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| match lock(&self.encoder).take() {
            Some(encoder) => encoder.finish().and_then(|file| file.sync_all()),
            None => Ok(()),
        })
        .map_err(failed)
    }
}

/// Reads a compressed file.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ZstdReader {
    decoder: Mutex<Decoder<'static, BufReader<File>>>,
}

#[pymethods]
impl ZstdReader {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let file = File::open(path).map_err(failed)?;
        Ok(Self { decoder: Mutex::new(Decoder::new(file).map_err(failed)?) })
    }

    /// Reads at most this many bytes; none at the end.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| read_up_to(&mut *lock(&self.decoder), size));
        Ok(PyBytes::new(py, &read.map_err(failed)?))
    }
}

/// Creates a file that only its owner can access, because it holds messages.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(true).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

fn read_up_to(source: &mut impl Read, size: usize) -> std::io::Result<Vec<u8>> {
    let size = size.min(READ_MAX);
    let mut bytes = Vec::with_capacity(size);
    source.take(size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// With the system's error number, by which callers detect a full disk.
fn failed(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
