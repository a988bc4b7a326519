//! Saved messages of several queues of a stopped broker in a fixed order, so that a replay can continue where another
//! one stopped.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use mqcore_server::storage::data_dir::DataDirError;
use mqcore_server::storage::inspection::{InspectedShard, QueuePositions, Selection, StoppedDataDir};
use pyo3::prelude::*;

use crate::error;
use crate::journal::inspect;
use crate::message::Message;

/// The selected messages: queues in the order of their names, each in its own order. It holds their locations, and
/// reads each message on demand.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct JournalSelection {
    /// Locks the data directory until this is dropped.
    _directory: StoppedDataDir,
    walk: Mutex<Walk>,
    /// Whether the directory is damaged, so that messages may be missing.
    #[pyo3(get)]
    damaged: bool,
    #[pyo3(get)]
    count: usize,
    /// A fingerprint: equal for the same messages in the same order.
    #[pyo3(get)]
    fingerprint: u64,
    /// Names, messages and bytes of bodies.
    #[pyo3(get)]
    queues: Vec<(String, usize, u64)>,
}

struct Walk {
    shards: Vec<InspectedShard>,
    /// Each with the index of its shard.
    queues: Vec<(usize, QueuePositions)>,
    queue: usize,
    place: usize,
}

/// Shard, number, queue, message, and time of arrival in Unix milliseconds.
type Selected = (usize, u64, String, Message, u64);

#[pymethods]
impl JournalSelection {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        queues: &str,
        since_ms: u64,
        until_ms: u64,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let directory = StoppedDataDir::open(&path).map_err(|error| error::data_dir(&error))?;
        let wanted = Selection { queues: queues.into(), since_ms, until_ms };
        let (mut shards, mut found, mut damaged) = (Vec::new(), Vec::new(), false);
        for number in 0..directory.shards() {
            let shard = inspect(py, &directory, number, progress)?;
            let (shard, (queues, unreadable)) = py.detach(|| {
                let selected = shard.select(&wanted);
                (shard, selected)
            });
            damaged |= unreadable > 0 || shard.report().is_none_or(|report| report.is_alarming());
            found.extend(queues.into_iter().map(|queue| (number, queue)));
            shards.push(shard);
        }
        found.sort_by(|(_, one), (_, other)| one.queue.cmp(&other.queue));
        let queues: Vec<_> = found
            .iter()
            .map(|(_, queue)| (queue.queue.to_string(), queue.places.len(), queue.body_bytes))
            .collect();
        Ok(Self {
            _directory: directory,
            damaged,
            count: queues.iter().map(|(_, count, _)| count).sum(),
            fingerprint: fingerprint(&found),
            queues,
            walk: Mutex::new(Walk { shards, queues: found, queue: 0, place: 0 }),
        })
    }

    /// Skips the next messages without reading them.
    fn skip(&self, count: usize) {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..count {
            if walk.step().is_none() {
                break;
            }
        }
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Selected>> {
        py.detach(|| self.walk.lock().unwrap_or_else(PoisonError::into_inner).take())
            .map_err(|error| error::data_dir(&error))
    }
}

impl Walk {
    /// The index of the next message's queue, and of the message in it.
    fn step(&mut self) -> Option<(usize, usize)> {
        while self.place >= self.queues.get(self.queue)?.1.places.len() {
            (self.queue, self.place) = (self.queue + 1, 0);
        }
        self.place += 1;
        Some((self.queue, self.place - 1))
    }

    fn take(&mut self) -> Result<Option<Selected>, DataDirError> {
        let Some((queue, place)) = self.step() else { return Ok(None) };
        let (shard, QueuePositions { places, .. }) = &self.queues[queue];
        let place = places[place];
        let (restored, _) = self.shards[*shard].message(place)?;
        let put = restored.put;
        let queue = put.queue.to_string();
        Ok(Some((*shard, place.sequence(), queue, Message::new(put.message), put.received.0)))
    }
}

/// FNV-1a over everything that determines the order. It is stable across versions, because files store it.
fn fingerprint(queues: &[(usize, QueuePositions)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (shard, queue) in queues {
        take(queue.queue.to_string().as_bytes());
        take(&(*shard as u64).to_le_bytes());
        for place in &queue.places {
            take(&place.sequence().to_le_bytes());
            take(&place.rank().to_le_bytes());
        }
    }
    hash
}
