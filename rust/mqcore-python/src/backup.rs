//! A backup as something to read from, and files compressed with zstd, for `mqcore.backup`.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_server::storage::archive::Archive;
use mqcore_server::storage::backup::Backup;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zstd::stream::{read::Decoder, write::Encoder};

use crate::error;

/// Quick, and enough for bodies that compress at all.
const LEVEL: i32 = 3;
/// Bytes answered at once at most.
const READ_MAX: usize = 16 * 1024 * 1024;

/// A tar archive that is made while it is read. As long as it is open, a broker removes no file of its journals.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct BackupArchive {
    archive: Mutex<Option<Archive>>,
    /// Bytes of files in it.
    #[pyo3(get)]
    file_bytes: u64,
}

impl BackupArchive {
    pub(crate) fn new(backup: Backup) -> Self {
        let archive = Archive::new(backup);
        Self { file_bytes: archive.file_bytes(), archive: Mutex::new(Some(archive)) }
    }
}

#[pymethods]
impl BackupArchive {
    /// Of the data directory of a stopped broker.
    #[staticmethod]
    fn of_stopped(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| Backup::of_stopped(&path)).map(Self::new).map_err(|refused| error::backup(&refused))
    }

    /// At most so many bytes; none at the end.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| match lock(&self.archive).as_mut() {
            Some(archive) => read_up_to(archive, size),
            None => Ok(Vec::new()),
        });
        Ok(PyBytes::new(py, &read.map_err(failed)?))
    }

    /// Lets the files go.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.archive).take()));
    }
}

/// Writes what is given into a new file, compressed.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ZstdWriter {
    encoder: Mutex<Option<Encoder<'static, File>>>,
}

#[pymethods]
impl ZstdWriter {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let mut encoder = Encoder::new(File::create(path).map_err(failed)?, LEVEL).map_err(failed)?;
        // So that a changed byte is noticed where it stands.
        encoder.include_checksum(true).map_err(failed)?;
        Ok(Self { encoder: Mutex::new(Some(encoder)) })
    }

    fn write(&self, py: Python<'_>, octets: &[u8]) -> PyResult<()> {
        py.detach(|| match lock(&self.encoder).as_mut() {
            Some(encoder) => encoder.write_all(octets),
            None => Err(std::io::Error::other("the file is closed")),
        })
        .map_err(failed)
    }

    /// Ends the file, and makes it durable. Without this it is not whole.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| match lock(&self.encoder).take() {
            Some(encoder) => encoder.finish().and_then(|file| file.sync_all()),
            None => Ok(()),
        })
        .map_err(failed)
    }
}

/// Reads what such a file holds.
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

    /// At most so many bytes; none at the end.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| read_up_to(&mut *lock(&self.decoder), size));
        Ok(PyBytes::new(py, &read.map_err(failed)?))
    }
}

fn read_up_to(source: &mut impl Read, size: usize) -> std::io::Result<Vec<u8>> {
    let size = size.min(READ_MAX);
    let mut octets = Vec::with_capacity(size);
    source.take(size as u64).read_to_end(&mut octets)?;
    Ok(octets)
}

/// With the system's number, by which a caller tells a full disk.
fn failed(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
