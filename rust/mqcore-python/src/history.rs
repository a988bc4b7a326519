//! The history of a data directory for `mqcore.spark`: its range, its pieces, and their rows as Arrow streams.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mqcore_server::storage::history::{
    Batches, Division, Group, HistoryDir, HistoryError, HistoryRequest, Piece, QueueSlice, StoreAccess, View,
};
use mqcore_server::storage::history::{archived_bytes, archived_objects, arrow_stream, sequence};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::config::store_option;
use crate::error;
use crate::error::{ArchiveDenied, ArchiveUnreachable, DataDirUnreadable, HistoryLost};

type EndsRow = (u32, String, u64, u64);
type PieceRow = (u32, String, u64, u64, Vec<u32>, u64, u64, Option<(Option<String>, Option<String>)>);
/// Settings `name=value` of an object store, and environment variables of another process.
type AccessRow = (Vec<String>, Vec<(String, String)>);

fn access((options, variables): AccessRow) -> PyResult<StoreAccess> {
    let options = options.iter().map(|option| store_option(option)).collect::<PyResult<_>>()?;
    Ok(StoreAccess { options, variables: variables.into_iter().collect() })
}

fn raised(failed: HistoryError) -> PyErr {
    let words = failed.to_string();
    match failed {
        HistoryError::Lost { .. } => HistoryLost::new_err(words),
        HistoryError::Denied { .. } => ArchiveDenied::new_err(words),
        HistoryError::Unreachable { .. } => ArchiveUnreachable::new_err(words),
        HistoryError::Request(_) => PyValueError::new_err(words),
        HistoryError::Io { path, source } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, source.kind().to_string(), path)),
            None => PyOSError::new_err(words),
        },
        _ => DataDirUnreadable::new_err(words),
    }
}

fn view(name: &str) -> PyResult<View> {
    match name {
        "messages" => Ok(View::Messages),
        "steps" => Ok(View::Steps),
        _ => Err(PyValueError::new_err(format!("unknown view {name:?}; use 'messages' or 'steps'"))),
    }
}

/// The newest state of an archive on object storage: a manifest in JSON, as for an archive in a directory, in which the paths
/// are URLs. `None`: there are no tables. `options` are settings `name=value` of the store.
#[pyfunction]
pub(crate) fn object_archive_manifest(
    py: Python<'_>,
    url: &str,
    options: Vec<String>,
) -> PyResult<Option<String>> {
    let options = options.iter().map(|option| store_option(option)).collect::<PyResult<_>>()?;
    py.detach(|| archived_objects(url, &options)).map_err(raised)
}

/// Size in bytes of all objects of an archive, also of metadata and of earlier snapshots. `options` as above.
#[pyfunction]
pub(crate) fn object_archive_bytes(py: Python<'_>, url: &str, options: Vec<String>) -> PyResult<u64> {
    let options = options.iter().map(|option| store_option(option)).collect::<PyResult<_>>()?;
    py.detach(|| archived_bytes(url, &options)).map_err(raised)
}

/// The columns of a view: name, Spark type, and when to show it (`default`, `headers`, `meta` or `alias`).
#[pyfunction]
pub(crate) fn history_columns(name: &str) -> PyResult<Vec<(&'static str, &'static str, &'static str)>> {
    let columns = view(name)?.columns().iter().map(|column| {
        let group = match column.group {
            Group::Default => "default",
            Group::Headers => "headers",
            Group::Meta => "meta",
            Group::Alias => "alias",
        };
        (column.name, column.spark_type, group)
    });
    Ok(columns.collect())
}

/// The history in a data directory, whether a broker runs on it or not, or the archived part of it on object storage.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct History {
    directory: HistoryDir,
}

#[pymethods]
impl History {
    /// Opens a data directory. `store` are settings and environment variables for its archive on object storage.
    #[new]
    #[pyo3(signature = (path, store=(Vec::new(), Vec::new())))]
    fn new(path: PathBuf, store: AccessRow) -> PyResult<Self> {
        let directory =
            HistoryDir::open(&path, &access(store)?).map_err(|failed| error::data_dir(&failed))?;
        Ok(Self { directory })
    }

    /// Opens an archive on object storage by its URL. Sends no request.
    #[staticmethod]
    fn of_archive(url: &str, store: AccessRow) -> PyResult<Self> {
        let opened = HistoryDir::of_archive(url, &access(store)?);
        let directory = opened.map_err(|failed| error::ConfigError::new_err(failed.to_string()))?;
        Ok(Self { directory })
    }

    /// Names of queues in the archive on object storage that its metadata contains, without reading its files.
    fn archived_queues(&self, py: Python<'_>) -> PyResult<BTreeSet<String>> {
        let files = py.detach(|| self.directory.archived_files()).map_err(raised)?;
        let bounds = files.into_iter().flat_map(|files| files.files).filter_map(|file| file.queues);
        Ok(bounds.flat_map(|(first, last)| [first, last]).collect())
    }

    /// For each shard in the archive on object storage: its number, and the sequence at which the archive begins, because
    /// earlier rows are in the data directory.
    fn archived_from(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64)>> {
        let files = py.detach(|| self.directory.archived_files()).map_err(raised)?;
        let shards = files.map(|files| files.shards).unwrap_or_default();
        Ok(shards.into_iter().map(|(shard, reach)| (shard, sequence(reach.begins, 0))).collect())
    }

    /// For each shard: its number, its journal's identity, the earliest sequence, and the one after the latest.
    fn ends(&self, py: Python<'_>) -> PyResult<Vec<EndsRow>> {
        let ends = py.detach(|| self.directory.ends()).map_err(raised)?;
        Ok(ends.into_iter().map(|ends| (ends.shard, ends.journal, ends.earliest, ends.latest)).collect())
    }

    /// Splits ranges (shard, first sequence, one after the last) into pieces of about this many bytes. Files of the archive
    /// that have rows of the same time are divided by queue, so that the pieces are not in the order of their sequences.
    fn pieces(
        &self,
        py: Python<'_>,
        request: &str,
        stretches: Vec<(u32, u64, u64)>,
        target_bytes: u64,
    ) -> PyResult<Vec<PieceRow>> {
        let request = HistoryRequest::parse(request).map_err(raised)?;
        let stretches: Vec<_> =
            stretches.into_iter().map(|(shard, from, until)| (shard, from..until)).collect();
        let division = Division { target_bytes, by_queue: true };
        let pieces = py.detach(|| self.directory.pieces(&request, &stretches, division)).map_err(raised)?;
        let rows = pieces.into_iter().map(|piece| {
            let Piece { shard, journal, from, until, segments, kept_from, bytes, queues } = piece;
            let queues = queues.map(|queues| (queues.from, queues.until));
            (shard, journal, from, until, segments, kept_from, bytes, queues)
        });
        Ok(rows.collect())
    }

    /// The end of the next `rows` rows of the ranges, in order.
    fn advance(
        &self,
        py: Python<'_>,
        request: &str,
        stretches: Vec<(u32, u64, u64)>,
        rows: u64,
        fail_on_loss: bool,
    ) -> PyResult<Vec<u64>> {
        let request = Arc::new(HistoryRequest::parse(request).map_err(raised)?);
        let stretches: Vec<_> =
            stretches.into_iter().map(|(shard, from, until)| (shard, from..until)).collect();
        py.detach(|| self.directory.advance(&request, &stretches, rows, fail_on_loss)).map_err(raised)
    }

    /// Reads a piece from `pieces`.
    fn read(
        &self,
        py: Python<'_>,
        request: &str,
        piece: PieceRow,
        fail_on_loss: bool,
    ) -> PyResult<HistoryRows> {
        let request = Arc::new(HistoryRequest::parse(request).map_err(raised)?);
        let (shard, journal, from, until, segments, kept_from, bytes, queues) = piece;
        let queues = queues.map(|(from, until)| QueueSlice { from, until });
        let piece = Piece { shard, journal, from, until, segments, kept_from, bytes, queues };
        let reading = py.detach(|| self.directory.read(&request, &piece, fail_on_loss)).map_err(raised)?;
        Ok(HistoryRows { batches: std::sync::Mutex::new(Some(Batches(reading))) })
    }
}

/// Rows that a consumer of Arrow's C stream interface can take once.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct HistoryRows {
    batches: std::sync::Mutex<Option<Batches>>,
}

#[pymethods]
impl HistoryRows {
    /// The stream in a capsule. Its consumer reads without the interpreter lock.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface allows ignoring a requested schema.
        drop(requested_schema);
        let batches = self.batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let batches = batches.ok_or_else(|| PyValueError::new_err("these rows were taken already"))?;
        PyCapsule::new_with_value(py, arrow_stream(batches), c"arrow_array_stream")
    }
}
