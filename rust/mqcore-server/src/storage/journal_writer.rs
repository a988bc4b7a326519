//! The shard's side of the thread that writes its journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll};

use mqcore_journal::journal::Journal;
use mqcore_replication::storage::DataStorage;

use crate::hub::Hub;
use crate::runtime::shutdown::VitalGuard;
use crate::runtime::waker::{WakeReceiver, wake_channel};
use crate::shard::inbox::Urgent;
use crate::storage::body_reader::BodyReader;
use crate::storage::data_dir::DataDir;
use crate::storage::journal_batch::{HistoryTerms, JournalBatch};
use crate::storage::journal_thread::JournalThread;

/// Bytes of history that may wait for the thread. Beyond it the broker drops events and records how many: no confirmation waits
/// for history, so nothing else bounds it.
const HISTORY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The shard's side of the thread. Dropping it makes the thread write what is left, close the journal and end.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    batches: Sender<JournalBatch>,
    /// Events from the thread.
    events: WakeReceiver<Urgent>,
    /// Bytes of history that wait for the thread.
    pending: Arc<AtomicUsize>,
}

impl JournalWriter {
    /// Starts the thread.
    pub(crate) fn start(
        shard: usize,
        mut journal: Journal<DataStorage>,
        hub: &Arc<Hub>,
        directory: Arc<DataDir>,
        history: HistoryTerms,
    ) -> std::io::Result<Self> {
        journal.retain_notes(history.age_ms, Some(history.bytes));
        let is_replicated = matches!(journal.storage(), DataStorage::Replicated(_));
        let alive = VitalGuard::from(hub.shutdown.enter());
        let reader = BodyReader::start(shard, hub)?;
        let (batches, receiver) = channel();
        let (sender, events) = wake_channel()?;
        let writer =
            JournalThread::new(shard, journal, is_replicated, reader, Arc::clone(hub), sender, history);
        let pending = writer.pending_history();
        std::thread::Builder::new().name(format!("mqcore-journal-{shard}")).spawn(move || {
            writer.run(&receiver);
            // Releases the directory for the next broker before this one counts as stopped.
            drop(directory);
            drop(alive);
        })?;
        Ok(Self { batches, events, pending })
    }

    /// Ready when the thread has sent an event.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.events.poll_ready(context)
    }

    /// The events of the thread, in order.
    pub(crate) fn events(&mut self) -> impl Iterator<Item = Urgent> {
        self.events.drain()
    }

    /// Sends a batch. Never blocks.
    pub(crate) fn write(&self, mut batch: JournalBatch) {
        if !batch.history.is_empty() {
            let bytes = batch.history.iter().map(|block| block.bytes.len()).sum();
            if self.pending.load(Ordering::Relaxed) < HISTORY_BYTES_MAX {
                self.pending.fetch_add(bytes, Ordering::Relaxed);
            } else {
                batch.dropped += batch.history.drain(..).map(|block| block.steps).sum::<u64>();
            }
        }
        // The thread ends only when this is dropped.
        let _ = self.batches.send(batch);
    }
}
