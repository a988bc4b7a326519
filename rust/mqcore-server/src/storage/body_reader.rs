//! The thread that reads paged-out bodies back into memory.
//!
//! The journal belongs to the thread that writes; between two batches, that thread only locates records. Reading
//! happens here, so that commits do not wait for reads, nor reads for syncs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use mqcore_broker::model::effect::{Load, Question};
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::record::decode_put;
use mqcore_broker::model::stats::WaitingMessage;
use mqcore_journal::journal::Journal;
use mqcore_journal::reading::LocatedRecords;
use mqcore_journal::storage::Storage;
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::runtime::shutdown::VitalGuard;
use crate::shard::inbox::Urgent;

/// Bytes of bodies after which the shard receives a part of its request.
const PART_BYTES: usize = 256 * 1024;

/// Bodies to read, and their receiver.
#[derive(Debug)]
pub(crate) enum ReadRequest {
    /// Messages that a queue is about to deliver.
    Load(Load),
    /// A dequeued message, for the handler to notify.
    Dequeued(Sequence, Box<Question>),
    /// Messages that a caller inspects and that are not in memory.
    Look(Vec<WaitingMessage>, oneshot::Sender<Option<Vec<WaitingMessage>>>),
}

/// A request, and the records that it needs.
pub(crate) type LocatedRead<S> = (ReadRequest, LocatedRecords<S>);

/// A handle to the thread. When it is dropped, the thread finishes its reads and ends.
#[derive(Debug)]
pub(crate) struct BodyReader<S: Storage> {
    jobs: Sender<LocatedRead<S>>,
}

impl<S: Storage + Clone + Send + 'static> BodyReader<S>
where
    S::File: Send + Sync,
{
    /// Starts the thread.
    pub(crate) fn start(shard: usize, hub: &Arc<Hub>) -> std::io::Result<Self> {
        let (jobs, receiver) = channel();
        let alive = VitalGuard::from(hub.shutdown.enter());
        let hub = Arc::clone(hub);
        std::thread::Builder::new().name(format!("mqcore-bodies-{shard}")).spawn(move || {
            run(shard, &hub, &receiver);
            drop(alive);
        })?;
        Ok(Self { jobs })
    }
}

impl<S: Storage + Clone> BodyReader<S> {
    /// Locates records before the journal changes, and queues the read. Returns the part that must be postponed because no file
    /// descriptor is left: its messages exist, so they must not count as unreadable.
    pub(crate) fn read(&self, journal: &Journal<S>, wanted: ReadRequest) -> Option<LocatedRead<S>> {
        let sequences: Vec<u64> = match &wanted {
            ReadRequest::Load(load) => load.sequences.iter().map(|sequence| sequence.0).collect(),
            ReadRequest::Dequeued(sequence, _) => vec![sequence.0],
            ReadRequest::Look(waiting, _) => {
                let absent = waiting.iter().filter(|waiting| waiting.message.is_none());
                absent.map(|waiting| waiting.sequence.0).collect()
            }
        };
        self.queue(wanted, journal.locate(&sequences))
    }

    /// Tries again to open the files of a postponed read. Returns what must still be postponed.
    pub(crate) fn read_again(
        &self,
        journal: &Journal<S>,
        postponed: LocatedRead<S>,
    ) -> Option<LocatedRead<S>> {
        let (wanted, located) = postponed;
        self.queue(wanted, journal.locate_again(&located))
    }

    fn queue(&self, wanted: ReadRequest, mut located: LocatedRecords<S>) -> Option<LocatedRead<S>> {
        let postponed = match wanted {
            // Shows what can be read now.
            ReadRequest::Look(..) => None,
            ReadRequest::Load(_) | ReadRequest::Dequeued(..) => located.take_postponed(),
        };
        let (now, later) = match (wanted, postponed) {
            (wanted, None) => (Some(wanted), None),
            // In parts: reading what is open closes files, so that the rest can be opened.
            (ReadRequest::Load(load), Some(rest)) => {
                (Some(ReadRequest::Load(load.clone())), Some((ReadRequest::Load(load), rest)))
            }
            (wanted, Some(rest)) => (None, Some((wanted, rest))),
        };
        if let Some(wanted) = now {
            // The thread ends only when this is dropped.
            let _ = self.jobs.send((wanted, located));
        }
        later
    }
}

fn run<S: Storage>(shard: usize, hub: &Hub, jobs: &Receiver<LocatedRead<S>>) {
    while let Ok((wanted, located)) = jobs.recv() {
        match wanted {
            ReadRequest::Load(load) => bring(shard, hub, &load, &located),
            ReadRequest::Dequeued(_, mut question) => {
                each(shard, &located, &mut |_, message| question.message = message);
                if question.message.is_some() {
                    notify(shard, hub, Urgent::Dequeued(question));
                }
            }
            ReadRequest::Look(mut waiting, reply) => {
                let mut absent = waiting.iter_mut().filter(|waiting| waiting.message.is_none());
                each(shard, &located, &mut |_, message| {
                    if let Some(waiting) = absent.next() {
                        waiting.message = message;
                    }
                });
                waiting.retain(|waiting| waiting.message.is_some());
                let _ = reply.send(Some(waiting));
            }
        }
    }
}

/// Loads bodies for a queue in parts, so that the first can be delivered while the next is read.
fn bring<S: Storage>(shard: usize, hub: &Hub, load: &Load, located: &LocatedRecords<S>) {
    let (mut part, mut bytes) = (Vec::new(), 0);
    each(shard, located, &mut |sequence, message| {
        bytes += message.as_ref().map_or(0, Message::memory_bytes);
        part.push((sequence, message));
        if bytes >= PART_BYTES {
            notify(shard, hub, Urgent::Loaded(load.loaded(std::mem::take(&mut part))));
            bytes = 0;
        }
    });
    if !part.is_empty() {
        notify(shard, hub, Urgent::Loaded(load.loaded(part)));
    }
}

fn notify(shard: usize, hub: &Hub, urgent: Urgent) {
    hub.moved();
    hub.shards[shard].send_urgent(urgent);
}

/// Calls `show` for each message. A message that cannot be read is logged as an error.
fn each<S: Storage>(
    shard: usize,
    located: &LocatedRecords<S>,
    show: &mut dyn FnMut(Sequence, Option<Message>),
) {
    located.read(&mut |sequence, payload| {
        let message = match payload {
            Ok(payload) => decode_put(payload).map(|put| put.message).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = &message {
            tracing::error!(shard, sequence, %error, "cannot read a saved message; it is dropped");
        }
        show(Sequence(sequence), message.ok());
    });
}
