//! Messages between connections, shards and journal threads.

use std::sync::Arc;

use mqcore_broker::history::Block;
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::effect::{Answer, Forwarded, Load, Loaded};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, Sequence};
use mqcore_broker::model::options::Durability;
use mqcore_broker::model::record::Record;
use mqcore_broker::model::transfer::{ArrivedMessage, Transfer, TransferEnd};

/// Input from connections, in order.
#[derive(Debug)]
pub(crate) enum Input {
    Batch(Arc<Client>, Vec<Command>),
    Closed(ConnectionId),
    Writable(ConnectionId),
}

/// Input that goes before that of connections.
#[derive(Debug)]
pub(crate) enum Urgent {
    Transfers(Vec<Transfer>),
    Forwarded(Vec<Forwarded>),
    Transferred(Vec<TransferEnd>),
    Released(Vec<ArrivedMessage>),
    Committed(Durability, Sequence),
    StorageRefuses(Box<str>),
    StorageAccepts,
    Loaded(Loaded),
    Answer(Answer),
    /// A request of the operator that changes this queue.
    Operate(QueueAddress, Box<Request>),
    /// The operator applies the configuration of this queue again.
    Declare(QueueAddress, Box<Declaration>),
    /// A declaration has succeeded, which one that was rejected may need.
    DeclareAgain,
    /// The program registers a delivery handler.
    Handler(Box<HandlerSpec>),
    /// Runs of schedules, and other commands of the thread that runs schedules.
    Scheduled(Vec<Command>),
    /// Which of these queues exist?
    Takes(Vec<QueueAddress>),
}

/// Work that a shard passes to its journal thread together.
#[derive(Debug, Default)]
pub(crate) struct JournalBatch {
    pub(crate) reads: Vec<Load>,
    pub(crate) records: Vec<(Sequence, Record)>,
    pub(crate) history: Vec<Block>,
    pub(crate) written: bool,
    pub(crate) sync: bool,
}
