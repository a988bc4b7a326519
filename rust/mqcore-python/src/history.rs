//! The history of a data directory for `mqcore.spark`: its range, its pieces, and their rows as Arrow streams.

use std::path::PathBuf;
use std::sync::Arc;

use mqcore_server::storage::history::{
    Batches, Group, HistoryDir, HistoryError, HistoryRequest, Piece, View,
};
use mqcore_server::storage::history::{archived_objects, arrow_stream};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::config::store_option;
use crate::error;
use crate::error::{DataDirUnreadable, HistoryLost};

type EndsRow = (u32, String, u64, u64);
type PieceRow = (u32, String, u64, u64, Vec<u32>, u64, u64);

fn raised(failed: HistoryError) -> PyErr {
    let words = failed.to_string();
    match failed {
        HistoryError::Lost { .. } => HistoryLost::new_err(words),
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

/// The history in a data directory, whether a broker runs on it or not.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct History {
    directory: HistoryDir,
}

#[pymethods]
impl History {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let directory = HistoryDir::open(&path).map_err(|failed| error::data_dir(&failed))?;
        Ok(Self { directory })
    }

    /// For each shard: its number, its journal's identity, the earliest sequence, and the one after the latest.
    fn ends(&self, py: Python<'_>) -> PyResult<Vec<EndsRow>> {
        let ends = py.detach(|| self.directory.ends()).map_err(raised)?;
        Ok(ends.into_iter().map(|ends| (ends.shard, ends.journal, ends.earliest, ends.latest)).collect())
    }

    /// Splits ranges (shard, first sequence, one after the last) into pieces of about this many bytes.
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
        let pieces =
            py.detach(|| self.directory.pieces(&request, &stretches, target_bytes)).map_err(raised)?;
        let rows = pieces.into_iter().map(|piece| {
            let Piece { shard, journal, from, until, segments, kept_from, bytes } = piece;
            (shard, journal, from, until, segments, kept_from, bytes)
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
    fn read(&self, request: &str, piece: PieceRow, fail_on_loss: bool) -> PyResult<HistoryRows> {
        let request = Arc::new(HistoryRequest::parse(request).map_err(raised)?);
        let (shard, journal, from, until, segments, kept_from, bytes) = piece;
        let piece = Piece { shard, journal, from, until, segments, kept_from, bytes };
        let reading = self.directory.read(&request, &piece, fail_on_loss).map_err(raised)?;
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
