//! Exports a stopped broker's messages and history as files of rows, for `mqcore.journal`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use mqcore_broker::model::id::QueueAddress;
use mqcore_server::storage::export::{FileError, Format, TableFile};
use mqcore_server::storage::inspection::{InspectedShard, StoppedDataDir};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error;
use crate::journal::inspect;

/// Rows or blocks between two progress reports: often enough to read, rare enough to be cheap.
const REPORT_EVERY: u64 = 1024;

pub(crate) fn format(name: &str) -> PyResult<Format> {
    match name {
        "parquet" => Ok(Format::Parquet),
        "arrow" => Ok(Format::Arrow),
        _ => Err(PyValueError::new_err(format!("unknown format {name:?}; use 'parquet' or 'arrow'"))),
    }
}

/// Reports progress to Python. An exception of the callback stops the work.
pub(crate) struct Reporting {
    progress: Py<PyAny>,
    done: u64,
    raised: Option<PyErr>,
}

impl Reporting {
    pub(crate) fn new(progress: &Bound<'_, PyAny>) -> Self {
        Self { progress: progress.clone().unbind(), done: 0, raised: None }
    }

    /// Counts one row or block; false: stop.
    pub(crate) fn one_more(&mut self) -> bool {
        self.done += 1;
        if self.done.is_multiple_of(REPORT_EVERY) && self.raised.is_none() {
            self.raised = Python::attach(|py| self.report(py).err());
        }
        self.raised.is_none()
    }

    fn report(&self, py: Python<'_>) -> PyResult<()> {
        py.check_signals()?;
        self.progress.call1(py, (self.done,)).map(drop)
    }

    /// Raises the callback's exception, or reports once more and returns the number of rows.
    pub(crate) fn outcome(self, written: Result<u64, FileError>) -> PyResult<u64> {
        if let Some(raised) = self.raised {
            return Err(raised);
        }
        let rows = written.map_err(|error| error::table_file(&error))?;
        Python::attach(|py| self.report(py))?;
        Ok(rows)
    }
}

/// The history of messages in a stopped broker's journals.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct JournalHistory {
    shards: Mutex<Vec<InspectedShard>>,
    queue: Option<QueueAddress>,
    /// Locks the data directory until this is dropped.
    _directory: StoppedDataDir,
    /// Whether the directory is damaged, so that steps may be missing.
    #[pyo3(get)]
    damaged: bool,
    /// Blocks of steps in the journals.
    #[pyo3(get)]
    blocks: u64,
}

#[pymethods]
impl JournalHistory {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        queue: Option<&str>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let address = |queue| QueueAddress::parse(queue).map_err(|reason| error::name(queue, reason));
        let queue = queue.map(address).transpose()?;
        let directory = StoppedDataDir::open(&path).map_err(|error| error::data_dir(&error))?;
        let (mut shards, mut damaged) = (Vec::new(), false);
        for number in 0..directory.shards() {
            let shard = inspect(py, &directory, number, progress)?;
            damaged |= shard.report().is_none_or(|report| report.is_alarming());
            shards.push(shard);
        }
        let blocks = shards.iter().map(InspectedShard::note_count).sum();
        Ok(Self { shards: Mutex::new(shards), queue, _directory: directory, damaged, blocks })
    }

    /// Writes them to a `parquet` or `arrow` file. Calls `progress` with the number of processed blocks; its exception
    /// stops the export. Returns the number of rows, and whether every block was readable.
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        table_format: &str,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, bool)> {
        let format = format(table_format)?;
        let mut reporting = Reporting::new(progress);
        let mut readable = true;
        let outcome = py.detach(|| self.write_all(&path, format, &mut reporting, &mut readable));
        Ok((reporting.outcome(outcome)?, readable))
    }
}

impl JournalHistory {
    fn write_all(
        &self,
        path: &Path,
        format: Format,
        reporting: &mut Reporting,
        readable: &mut bool,
    ) -> Result<u64, FileError> {
        let shards = self.shards.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut file = TableFile::steps(path, format)?;
        for shard in shards.iter() {
            *readable &= file.push_steps(shard, self.queue.as_ref(), &mut || reporting.one_more())?;
        }
        file.finish()
    }
}
