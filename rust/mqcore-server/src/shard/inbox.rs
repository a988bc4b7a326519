//! The inbox of a shard: its kinds of input, and the limit on their size.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::effect::{Answer, Forwarded, Loaded, Question};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RouterName, Sequence};
use mqcore_broker::model::location::{Locations, MessageQuery};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::node::{NodeInformation, Upstream};
use mqcore_broker::model::options::Durability;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{QueueInformation, WaitingMessage};
use mqcore_broker::model::transfer::{ArrivedMessage, Transfer, TransferEnd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::handler::AnswerSink;
use crate::net::outbox::Outbox;
use crate::shard::program::ProgramReply;
use crate::shard::statistics::StatisticsRequest;

/// Maximum bytes, as read from sockets, that wait for one shard; connections with more wait. Small enough to stay in
/// the cache of a core, large enough that a shard never runs dry while connections read.
const INBOX_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes per permit.
const PERMIT_BYTES: usize = 1024;

/// Commands of one connection, decoded together.
#[derive(Debug)]
pub(crate) struct CommandBatch {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) client: Arc<Client>,
    pub(crate) commands: Vec<Command>,
    /// Room in the inbox, released when the batch is dropped.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

/// The room of a batch whose parts went to several shards.
pub(crate) type SharedRoom = Arc<OwnedSemaphorePermit>;

/// Input from connections, in order.
#[derive(Debug)]
pub(crate) enum Input {
    /// Commands of a client.
    Batch(CommandBatch),
    /// A connection ended. Sent after all its commands.
    Closed(ConnectionId),
    /// A congested connection accepts more again.
    Writable(ConnectionId),
    /// A connection accepts no output any more. `Closed` follows.
    Unwritable(ConnectionId),
}

/// Input that must not wait behind publishers, because they may wait for it.
#[derive(Debug)]
pub(crate) enum Urgent {
    /// Handlers answer.
    Answers(Vec<Answer>),
    /// Another shard transfers messages to here.
    Transfers(Vec<Transfer>),
    /// Another shard forwards commands to this one. Their room in that shard's inbox is released when this shard is done, so
    /// publishers wait for the slower of both shards.
    Forwarded(Vec<Forwarded>, Arc<[SharedRoom]>),
    /// Records up to this one are written, or written and synced.
    Committed(Durability, Sequence),
    /// The journal rejects messages, for now or until the next start.
    StorageRefuses(Box<str>),
    /// The journal accepts messages again.
    StorageAccepts,
    /// The journal has lost records, for this reason. The shard takes no durable messages until the operator accepts that.
    RecordsLost(Box<str>),
    /// Bodies were read from the journal.
    Loaded(Loaded),
    /// The body of a dequeued message was read, for the handler that is notified.
    Dequeued(Box<Question>),
    /// Transfers of messages of this shard ended.
    Transferred(Vec<TransferEnd>),
    /// Another shard has settled messages that moved to here.
    Released(Vec<ArrivedMessage>),
    /// A handler is added or replaced.
    Handler(Box<HandlerSpec>),
    /// The program has, or has no longer, a router of this shard.
    Router(RouterName, Option<Box<RouterDefinition>>),
    /// The program declares something of this shard.
    Declare(Declaration, ProgramReply),
    /// The program, or a user of the admin side, requests something of this shard.
    Request(Box<Request>, ProgramReply),
    /// A request for statistics.
    Statistics(StatisticsRequest),
    /// A request for the other brokers; only the home shard knows them.
    Nodes(oneshot::Sender<Vec<NodeInformation>>),
    /// A request for the state of a queue; `None` if it does not exist.
    Queue(QueueAddress, oneshot::Sender<Option<Box<QueueInformation>>>),
    /// A request for up to so many waiting messages of a queue.
    WaitingMessage(QueueAddress, usize, oneshot::Sender<Option<Vec<WaitingMessage>>>),
    /// A request for the location of a message.
    Locate(MessageQuery, oneshot::Sender<Locations>),
    /// Which of these queues exist, or would be created by publishing?
    Takes(Vec<QueueAddress>, oneshot::Sender<Vec<bool>>),
    /// The program sends a custom message to clients, or closes their connections. Answered with the number of clients.
    Clients(ClientPattern, Option<Message>, oneshot::Sender<usize>),
    /// Runs of schedules for queues of this shard.
    Scheduled(Vec<Command>),
    /// An upstream broker connected, disconnected or introduced itself.
    Upstream(Box<Upstream>),
    /// Asks for the queues whose delivery handler is not registered, each with its key. Answered when the shard runs.
    WaitingForHandlers(oneshot::Sender<Vec<(QueueAddress, Box<str>)>>),
    /// Dropped when there is nothing left to do.
    Fence(mpsc::Sender<()>),
    /// The manual clock was advanced.
    ClockTurned,
    /// The server has drained: the shard ends.
    End,
}

/// The sending side of a shard. Sending to a shard that has stopped has no effect.
#[derive(Debug, Clone)]
pub(crate) struct ShardHandle {
    inbox: mpsc::UnboundedSender<Input>,
    urgent: mpsc::UnboundedSender<Urgent>,
    room: Arc<Semaphore>,
}

/// The receiving side, for the shard's task.
#[derive(Debug)]
pub(crate) struct ShardInbox {
    pub(crate) inbox: mpsc::UnboundedReceiver<Input>,
    pub(crate) urgent: mpsc::UnboundedReceiver<Urgent>,
}

/// Creates both sides. The channels are not bounded themselves: batches are bounded by the room that they need,
/// closings by the number of connections, answers by the number of questions.
pub(crate) fn channel() -> (ShardHandle, ShardInbox) {
    let (inbox_sender, inbox) = mpsc::unbounded_channel();
    let (urgent_sender, urgent) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(INBOX_BYTES_MAX / PERMIT_BYTES));
    (ShardHandle { inbox: inbox_sender, urgent: urgent_sender, room }, ShardInbox { inbox, urgent })
}

/// How many permits a batch of this many bytes needs. A batch larger than all the room takes all of it.
pub(crate) fn permits_for(bytes: usize) -> u32 {
    (bytes / PERMIT_BYTES + 1).min(INBOX_BYTES_MAX / PERMIT_BYTES) as u32
}

impl ShardHandle {
    /// The semaphore for room in the inbox.
    pub(crate) fn room(&self) -> &Arc<Semaphore> {
        &self.room
    }

    pub(crate) fn send(&self, input: Input) {
        let _ = self.inbox.send(input);
    }

    pub(crate) fn send_urgent(&self, urgent: Urgent) {
        let _ = self.urgent.send(urgent);
    }
}

impl AnswerSink for ShardHandle {
    fn answer(&self, answers: Vec<Answer>) {
        self.send_urgent(Urgent::Answers(answers));
    }
}
