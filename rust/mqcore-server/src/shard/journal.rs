//! The shard's side of its journal: collects records, history and reads, and sends them to the thread together.

use std::task::{Context, Poll};

use mqcore_broker::history::Block;
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::record::Record;
use mqcore_broker::model::stats::WaitingMessage;
use mqcore_broker::shard::Broker;
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::shard::inbox::Urgent;
use crate::storage::body_reader::ReadRequest;
use crate::storage::journal_batch::JournalBatch;
use crate::storage::journal_writer::JournalWriter;

/// Pending records and reads, and the thread that executes them.
#[derive(Default)]
pub(crate) struct ShardJournal {
    records: Vec<(Sequence, Record)>,
    history: Vec<Block>,
    reads: Vec<ReadRequest>,
    /// `None`: everything stays in memory.
    writer: Option<JournalWriter>,
}

impl ShardJournal {
    /// From now on records are saved.
    pub(crate) fn attach(&mut self, writer: JournalWriter) {
        self.writer = Some(writer);
    }

    pub(crate) fn record(&mut self, sequence: Sequence, record: Record) {
        self.records.push((sequence, record));
    }

    pub(crate) fn read(&mut self, request: ReadRequest) {
        self.reads.push(request);
    }

    /// Ready when the thread has sent an event.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.writer {
            Some(writer) => writer.poll_ready(context),
            None => Poll::Pending,
        }
    }

    /// Moves the events of the thread into `urgent`, in order.
    pub(crate) fn take_events(&mut self, urgent: &mut Vec<Urgent>) {
        if let Some(writer) = &mut self.writer {
            urgent.extend(writer.events());
        }
    }

    /// Sends everything collected, and the broker's history, to the thread.
    pub(crate) fn write(&mut self, broker: &mut Broker, hub: &Hub) {
        let Some(writer) = &self.writer else { return };
        broker.take_history(&mut self.history);
        let sync_requested = broker.take_sync_request();
        if self.records.is_empty() && self.history.is_empty() && self.reads.is_empty() && !sync_requested {
            return;
        }
        hub.moved();
        let (written, sync) = (broker.waits_for_write(), broker.waits_for_sync());
        let (records, history) = (std::mem::take(&mut self.records), std::mem::take(&mut self.history));
        let reads = std::mem::take(&mut self.reads);
        writer.write(JournalBatch { reads, records, history, dropped: 0, written, sync });
    }

    /// Returns messages that wait in a queue. The thread reads those that are not in memory.
    pub(crate) fn look(
        &self,
        waiting: Option<Vec<WaitingMessage>>,
        reply: oneshot::Sender<Option<Vec<WaitingMessage>>>,
    ) {
        match (waiting, &self.writer) {
            (Some(waiting), Some(writer)) if waiting.iter().any(|waiting| waiting.message.is_none()) => {
                writer.write(JournalBatch {
                    reads: vec![ReadRequest::Look(waiting, reply)],
                    ..JournalBatch::default()
                });
            }
            (waiting, _) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(waiting);
            }
        }
    }
}
