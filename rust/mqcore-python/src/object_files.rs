//! Files on object storage, for `mqcore.backup`.

use std::path::PathBuf;

use mqcore_server::storage::object_files::{ObjectFiles as Files, RestorePoint, TransferError};
use pyo3::prelude::*;

use crate::error;

/// The objects below a URL, such as `s3://bucket/backups`.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ObjectFiles {
    files: Files,
}

#[pymethods]
impl ObjectFiles {
    /// Credentials and settings come from the environment variables of the vendors. Sends no request.
    #[new]
    fn new(url: &str) -> PyResult<Self> {
        Ok(Self { files: Files::open(url).map_err(raised)? })
    }

    /// Sends a file as a new object. Calls `progress` with the sent and the total number of bytes; its exception stops it.
    fn send(&self, py: Python<'_>, name: &str, path: PathBuf, progress: Py<PyAny>) -> PyResult<u64> {
        watched(py, progress, |show| self.files.send(name, &path, show))
    }

    /// Receives an object into a new file, as above.
    fn receive(&self, py: Python<'_>, name: &str, path: PathBuf, progress: Py<PyAny>) -> PyResult<u64> {
        watched(py, progress, |show| self.files.receive(name, &path, show))
    }

    /// The names of all objects, in order.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        py.detach(|| self.files.names()).map_err(raised)
    }

    /// The numbers of all restore points, ascending.
    fn restore_points(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        py.detach(|| self.files.restore_points()).map_err(raised)
    }

    /// The number, the moment in Unix milliseconds, and the bytes of a restore point.
    fn restore_point(&self, py: Python<'_>, number: u64) -> PyResult<PointRow> {
        py.detach(|| self.files.restore_point(number)).map(|point| row(&point)).map_err(raised)
    }

    /// The same of the newest of `numbers` whose moment is `time_ms` or before.
    fn find_restore_point(
        &self,
        py: Python<'_>,
        numbers: Vec<u64>,
        time_ms: u64,
    ) -> PyResult<Option<PointRow>> {
        let found = py.detach(|| self.files.find_restore_point(&numbers, time_ms)).map_err(raised)?;
        Ok(found.as_ref().map(row))
    }

    /// Receives a restore point into an empty directory, which is then a backup. `progress` as above.
    fn receive_restore_point(
        &self,
        py: Python<'_>,
        number: u64,
        directory: PathBuf,
        progress: Py<PyAny>,
    ) -> PyResult<()> {
        watched(py, progress, |show| {
            let point = self.files.restore_point(number)?;
            self.files.receive_restore_point(&point, &directory, show)
        })
    }

    /// Deletes an object.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.files.delete(name)).map_err(raised)
    }
}

/// Number, moment in Unix milliseconds, and bytes of a restore point.
type PointRow = (u64, u64, u64);

fn row(point: &RestorePoint) -> PointRow {
    (point.number, point.created_ms, point.file_bytes())
}

/// Runs a transfer whose progress Python sees. An exception of the callback, or a signal, stops it.
fn watched<T: Send>(
    py: Python<'_>,
    progress: Py<PyAny>,
    transfer: impl FnOnce(&mut (dyn FnMut(u64, u64) -> bool + Send)) -> Result<T, TransferError> + Send,
) -> PyResult<T> {
    let mut stopped = None;
    let done = py.detach(|| {
        transfer(&mut |done, total| {
            stopped = Python::attach(|py| {
                py.check_signals().and_then(|()| progress.call1(py, (done, total)).map(drop)).err()
            });
            stopped.is_none()
        })
    });
    match stopped {
        Some(stopped) => Err(stopped),
        None => done.map_err(raised),
    }
}

fn raised(failed: TransferError) -> PyErr {
    let words = failed.to_string();
    match failed {
        TransferError::Missing(_) => error::DataDirMissing::new_err(words),
        TransferError::Damaged(_) => error::DataDirDamaged::new_err(words),
        TransferError::Exists(_) => error::ConfigError::new_err(words),
        TransferError::File(failed) => failed.into(),
        failed if failed.is_invalid() => error::ConfigError::new_err(words),
        failed if failed.is_denied() => error::ArchiveDenied::new_err(words),
        _ => error::ArchiveUnreachable::new_err(words),
    }
}
