//! A stopped broker's data directory for `mqcore.journal`: plain values, and an iterator over one queue's messages.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mqcore_broker::model::id::QueueAddress;
use mqcore_server::storage::acceptance::{Loss, LossAcceptance, LossCause};
use mqcore_server::storage::data_dir::{self, DataDirError};
use mqcore_server::storage::export::{FileError, Format, TableFile};
use mqcore_server::storage::inspection::{
    InspectedSegment, InspectedShard, MessagePosition, PartFinding, RecoveryReport, SideContents,
    SideJournal, StoppedDataDir,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error;
use crate::export;
use crate::message::Message;

/// The journal's directory, its shard, and the segment's number, records, live ones, bytes and state.
type SegmentRow = (String, Option<usize>, u32, u64, u64, u64, &'static str);
/// The journal's directory, its shard, and the kind and text of the finding.
type FindingRow = (String, Option<usize>, &'static str, String);

/// The journal's directory, the segment (0: the whole journal), the cause and the text of a loss.
type LossRow = (String, u32, &'static str, String);

/// Inspects all shards, then set-aside directories with the following numbers. Calls `progress` with the number,
/// processed bytes and total bytes. An exception of `progress` stops the inspection.
///
/// `thorough` also reads every definition, message and other record as a start would.
#[pyfunction]
pub(crate) fn journal_inspect(
    py: Python<'_>,
    path: PathBuf,
    progress: &Bound<'_, PyAny>,
    thorough: bool,
) -> PyResult<Py<PyDict>> {
    let directory = StoppedDataDir::open(&path).map_err(|error| error::data_dir(&error))?;
    let shards = directory.shards();
    let mut segments: Vec<SegmentRow> = Vec::new();
    let mut findings: Vec<FindingRow> = Vec::new();
    let mut definitions = 0;
    let mut losses: Vec<Loss> = Vec::new();
    for finding in directory.findings().map_err(|error| error::data_dir(&error))? {
        findings.push(part_row(&finding));
        if let PartFinding::Loss(loss) = finding {
            losses.push(loss);
        }
    }
    for shard in 0..shards {
        let name = format!("shard-{shard}");
        let inspected = inspect(py, &directory, shard, progress)?;
        let rows = inspected.segments().into_iter();
        segments.extend(rows.map(|segment| segment_row(name.clone(), Some(shard), segment)));
        definitions += inspected.definition_count();
        losses.extend(inspected.report().into_iter().flat_map(|report| directory.new_losses(&name, report)));
        // The manifest lists the journals that should exist.
        if inspected.report().is_some() || !directory.lists_journals() {
            let found = found(inspected.report()).into_iter();
            findings.extend(found.map(|(kind, words)| (name.clone(), Some(shard), kind, words)));
        }
        if thorough {
            let mut show = |words| findings.push((name.clone(), Some(shard), "unreadable", words));
            // Moved, because a shard cannot be shared between threads.
            py.detach(move || inspected.each_unreadable(&mut show));
            py.check_signals()?;
        }
    }
    let mut held = SideContents::default();
    for (place, which) in SideJournal::ALL.into_iter().enumerate() {
        let read = |report: &mut dyn FnMut(u64, u64)| directory.inspect_side(which, report);
        let Some(inspected) = watched(py, shards + place, progress, read)? else { continue };
        let name = which.as_str();
        let rows = inspected.segments().into_iter();
        segments.extend(rows.map(|segment| segment_row(name.to_owned(), None, segment)));
        losses.extend(inspected.report().into_iter().flat_map(|report| directory.new_losses(name, report)));
        if inspected.report().is_some() || !directory.lists_journals() {
            let found = found(inspected.report()).into_iter();
            findings.extend(found.map(|(kind, words)| (name.to_owned(), None, kind, words)));
        }
        let mut show = |words| findings.push((name.to_owned(), None, "unreadable", words));
        let contents = py.detach(move || {
            let contents = inspected.contents();
            if thorough {
                inspected.each_unreadable(&mut show);
            }
            contents
        });
        held.limits += contents.limits;
        held.forwards += contents.forwards;
        held.schedules += contents.schedules;
        held.runs += contents.runs;
        held.results += contents.results;
        held.flows += contents.flows;
        py.check_signals()?;
    }
    let dict = PyDict::new(py);
    dict.set_item("shards", shards)?;
    dict.set_item("segments", segments)?;
    dict.set_item("definitions", definitions)?;
    dict.set_item("findings", findings)?;
    dict.set_item("limits", held.limits)?;
    dict.set_item("forwards", held.forwards)?;
    dict.set_item("schedules", held.schedules)?;
    dict.set_item("runs", held.runs)?;
    dict.set_item("results", held.results)?;
    dict.set_item("flows", held.flows)?;
    dict.set_item("losses", losses.len())?;
    Ok(dict.unbind())
}

/// The finding of a manifest.
fn part_row(finding: &PartFinding) -> FindingRow {
    let shard = |name: &str| name.strip_prefix("shard-").and_then(|number| number.parse().ok());
    match finding {
        PartFinding::Manifest(name) => (
            "format".to_owned(),
            None,
            "manifest",
            format!("{name} is missing or damaged; its copy is intact"),
        ),
        PartFinding::Extra(name) => (name.clone(), shard(name), "extra", "there is no such shard".to_owned()),
        PartFinding::Loss(loss) => {
            let kind = match loss.cause {
                LossCause::Missing if loss.segment == 0 => "missing",
                LossCause::Foreign => "foreign",
                _ => "lost",
            };
            (loss.journal.clone(), shard(&loss.journal), kind, loss.text.clone())
        }
    }
}

/// Accepts the losses of one shard or of all journals. Calls `progress` with the number of the journal, processed bytes and
/// total bytes; an exception of `progress` stops, and nothing is accepted. Returns journal, segment, cause and text of each.
#[pyfunction]
pub(crate) fn journal_accept_loss(
    py: Python<'_>,
    path: PathBuf,
    shard: Option<usize>,
    progress: &Bound<'_, PyAny>,
) -> PyResult<Vec<LossRow>> {
    let acceptance = LossAcceptance::open(&path).map_err(|error| error::data_dir(&error))?;
    if let Some(shard) = shard
        && shard >= acceptance.shards()
    {
        return Err(error::no_shard(&path, shard, acceptance.shards()));
    }
    let progress = progress.clone().unbind();
    let mut raised = None;
    let accepted = py.detach(|| {
        acceptance.accept(shard, &mut |number, done, total| {
            if raised.is_none() {
                raised = Python::attach(|py| {
                    py.check_signals().and_then(|()| progress.call1(py, (number, done, total))).err()
                });
            }
            raised.is_none()
        })
    });
    if let Some(raised) = raised {
        return Err(raised);
    }
    let accepted = accepted.map_err(|error| error::data_dir(&error))?;
    Ok(accepted
        .into_iter()
        .map(|loss| (loss.journal, loss.segment, loss.cause.as_str(), loss.text))
        .collect())
}

/// File descriptors that hold locks on data directories. A forked child closes them, or it would keep the locks.
#[pyfunction]
pub(crate) fn lock_descriptors() -> Vec<i32> {
    data_dir::lock_descriptors()
}

fn segment_row(journal: String, shard: Option<usize>, segment: InspectedSegment) -> SegmentRow {
    let stats = segment.stats;
    (journal, shard, stats.number, stats.records, stats.live, stats.file_bytes, segment.state.as_str())
}

fn found(report: Option<&RecoveryReport>) -> Vec<(&'static str, String)> {
    let Some(report) = report else {
        return vec![("missing", "it has no segments".to_owned())];
    };
    let torn = report.torn.iter().map(|torn| ("torn", torn.to_string()));
    let damaged = report.damaged.iter().map(|damage| ("damaged", damage.to_string()));
    let missing = report.missing.iter().map(|missing| ("missing", missing.to_string()));
    let stray = report.strays.iter().map(|name| ("stray", name.clone()));
    let catalog = report.catalog.map(|damage| ("catalog", damage.to_string()));
    let aside = (report.quarantined > 0).then(|| ("aside", report.quarantined.to_string()));
    torn.chain(damaged).chain(missing).chain(stray).chain(catalog).chain(aside).collect()
}

pub(crate) fn inspect(
    py: Python<'_>,
    directory: &StoppedDataDir,
    shard: usize,
    progress: &Bound<'_, PyAny>,
) -> PyResult<InspectedShard> {
    watched(py, shard, progress, |report| directory.inspect(shard, report))
}

/// Reads and reports to `progress`, whose exception is raised here.
fn watched<T: Send>(
    py: Python<'_>,
    number: usize,
    progress: &Bound<'_, PyAny>,
    read: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T, DataDirError> + Send,
) -> PyResult<T> {
    let progress = progress.clone().unbind();
    let mut raised = None;
    let outcome = py.detach(|| {
        read(&mut |done, total| {
            if raised.is_none() {
                raised = Python::attach(|py| {
                    py.check_signals().and_then(|()| progress.call1(py, (number, done, total))).err()
                });
            }
        })
    });
    match raised {
        Some(raised) => Err(raised),
        None => outcome.map_err(|error| error::data_dir(&error)),
    }
}

/// The saved messages of one queue, in order. It holds their locations, and reads each message on demand.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct JournalMessages {
    /// Locks the data directory until this is dropped.
    _directory: StoppedDataDir,
    rest: Mutex<Vec<RemainingMessages>>,
    /// Whether the directory is damaged, so that messages may be missing.
    #[pyo3(get)]
    damaged: bool,
    #[pyo3(get)]
    count: usize,
}

struct RemainingMessages {
    shard: InspectedShard,
    places: std::vec::IntoIter<MessagePosition>,
}

#[pymethods]
impl JournalMessages {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, queue: &str, progress: &Bound<'_, PyAny>) -> PyResult<Self> {
        let address = QueueAddress::parse(queue).map_err(|reason| error::name(queue, reason))?;
        let directory = StoppedDataDir::open(&path).map_err(|error| error::data_dir(&error))?;
        let (mut rest, mut damaged, mut defined, mut count) = (Vec::new(), false, false, 0);
        for number in 0..directory.shards() {
            let shard = inspect(py, &directory, number, progress)?;
            let (shard, (places, unreadable)) = py.detach(|| {
                let places = shard.places(&address);
                (shard, places)
            });
            defined |= shard.defines(&address);
            damaged |= unreadable > 0 || shard.report().is_none_or(|report| report.is_alarming());
            count += places.len();
            if !places.is_empty() {
                rest.push(RemainingMessages { shard, places: places.into_iter() });
            }
        }
        if !defined && count == 0 {
            return Err(error::no_saved_queue(queue));
        }
        Ok(Self { _directory: directory, rest: Mutex::new(rest), damaged, count })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Writes the remaining messages to a `parquet` or `arrow` file. Calls `progress` with the number written; its
    /// exception stops the export. Returns the number of rows.
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        table_format: &str,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let format = export::format(table_format)?;
        let mut reporting = export::Reporting::new(progress);
        let outcome = py.detach(|| self.write_rest(&path, format, &mut reporting));
        reporting.outcome(outcome)
    }

    /// Queue, message, attempts and time of arrival in Unix milliseconds.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(String, Message, u16, u64)>> {
        let next = py.detach(|| self.take()).map_err(|error| error::data_dir(&error))?;
        Ok(next.map(|(restored, attempts)| {
            let put = restored.put;
            (put.queue.to_string(), Message::new(put.message), attempts, put.received.0)
        }))
    }
}

impl JournalMessages {
    fn write_rest(
        &self,
        path: &Path,
        format: Format,
        reporting: &mut export::Reporting,
    ) -> Result<u64, FileError> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = TableFile::messages(path, format)?;
        for RemainingMessages { shard, places } in rest.iter_mut() {
            for place in places {
                file.push_message(shard, place)?;
                if !reporting.one_more() {
                    return Ok(0);
                }
            }
        }
        file.finish()
    }

    fn take(&self) -> Result<Option<(mqcore_server::storage::data_dir::SavedMessage, u16)>, DataDirError> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = rest.first_mut() {
            if let Some(place) = first.places.next() {
                return first.shard.message(place).map(Some);
            }
            rest.remove(0);
        }
        Ok(None)
    }
}
