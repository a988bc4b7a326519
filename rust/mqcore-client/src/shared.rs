//! State that the program's handles and the connection task share: the conversation, waiters and consumers.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use hashbrown::HashMap;
use tokio::sync::{Notify, oneshot, watch};

use crate::address::{Protocol, QueueAddress, is_topic, topic_matches};
use crate::config::ClientConfig;
use crate::conversation::{Inbox, IntentState, MessageId, PullAnswer, RequestAnswer};
use crate::counters::ClientCounters;
use crate::dialogue::{Dialogue, Part};
use crate::error::ClientError;
use crate::mailbox::{Bound, Gauge, Mailbox, QueuedMessage, lock};
use crate::membership::Membership;
use crate::pending::PendingAnswer;
use crate::received::Received;
use crate::request::{Request, Subscription};
use crate::socket_writer::SocketWriter;
use crate::state::ClientState;
use crate::waiter::{CountedWait, Outcome, Waiter};

/// The consumers of one queue in this client, which share its messages in turn.
#[derive(Debug)]
struct ChannelMailboxes {
    channel: Box<[u8]>,
    mailboxes: Vec<Arc<Mailbox>>,
    next: usize,
}

/// All state behind the lock, which is held to encode or decode a few frames and never across an await.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) conversation: Dialogue,
    mailboxes_by_queue: HashMap<u16, Vec<ChannelMailboxes>>,
    /// Mailboxes of topics, or of patterns of topics.
    topics: Vec<(QueueAddress, Arc<Mailbox>)>,
    /// Queues that the client leaves, and mailboxes of their former consumers: they keep what still arrives.
    leaving: Vec<(QueueAddress, Arc<Mailbox>)>,
    event_streams: Vec<(Vec<Subscription>, Arc<Mailbox>)>,
    inboxes: [Option<Arc<Mailbox>>; 2],
    /// With the name of the extension whose frames they get.
    extension_streams: Vec<(Box<str>, Arc<Mailbox>)>,
    /// Queues with messages but without a consumer here; the log warns about each once.
    unclaimed: hashbrown::HashSet<(Box<[u8]>, u16)>,
    /// Number of the connection; messages of earlier connections cannot be settled.
    pub(crate) epoch: u32,
    /// Deadline for in-flight work; `Some`: the client is closing.
    pub(crate) closing: Option<Instant>,
    /// Whether the connection task has taken output that is not written yet.
    pub(crate) writing: bool,
    /// The reason why there is no connection.
    pub(crate) cause: Arc<str>,
    /// Whether output was added without a wake-up of the connection task. [`SharedClient::flush`] follows, or the task
    /// lingers.
    pub(crate) unannounced: bool,
    /// Whether the output has something that no call waits for: unconfirmed messages or acknowledgements.
    pub(crate) deferrable: bool,
    /// Whether the connection task takes more of that soon without a wake-up, because it has just written some.
    pub(crate) lingers: bool,
    /// Writes output from other threads, if the connection allows it.
    pub(crate) socket: Option<SocketWriter>,
    /// Whether the connection task has ended.
    pub(crate) ended: bool,
    /// When to look for late confirmations of messages that were published without waiting; never too late.
    pub(crate) expire_at: Option<Instant>,
}

/// Maximum queues remembered for the warning.
const UNCLAIMED_REMEMBERED_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct SharedClient {
    pub(crate) config: ClientConfig,
    pub(crate) protocol: Protocol,
    pub(crate) core: Mutex<Core>,
    pub(crate) gauge: Arc<Gauge>,
    /// Notified when there may be room to write or a connection.
    pub(crate) room: Notify,
    /// Number of calls that wait for room or a connection.
    pub(crate) waiting: AtomicUsize,
    /// Notified when all output is written, or lost with its connection.
    pub(crate) written: Notify,
    pub(crate) state: watch::Sender<ClientState>,
    pub(crate) counters: ClientCounters,
}

/// The result of an attempt to act.
enum Act<R> {
    Done(R),
    NotYet,
    Never(ClientError),
}

impl SharedClient {
    pub(crate) fn new(config: ClientConfig, protocol: Protocol) -> Arc<Self> {
        let core = Core {
            conversation: Dialogue::new(protocol, config.limits),
            mailboxes_by_queue: HashMap::new(),
            topics: Vec::new(),
            leaving: Vec::new(),
            event_streams: Vec::new(),
            inboxes: [None, None],
            extension_streams: Vec::new(),
            unclaimed: hashbrown::HashSet::new(),
            epoch: 0,
            closing: None,
            writing: false,
            cause: "not connected yet".into(),
            unannounced: false,
            deferrable: false,
            lingers: false,
            socket: None,
            ended: false,
            expire_at: None,
        };
        Arc::new(Self {
            gauge: Arc::new(Gauge::new(config.read_buffer_bytes)),
            config,
            protocol,
            core: Mutex::new(core),
            room: Notify::new(),
            waiting: AtomicUsize::new(0),
            written: Notify::new(),
            state: watch::Sender::new(ClientState::Connecting { attempt: 1 }),
            counters: ClientCounters::default(),
        })
    }

    /// Runs `act` as soon as there is a connection with room for output, until `deadline`.
    pub(crate) async fn say<R>(
        &self,
        deadline: Instant,
        mut act: impl FnMut(&mut Dialogue) -> R,
    ) -> Result<R, ClientError> {
        self.say_in(deadline, |core| act(&mut core.conversation)).await
    }

    /// Like [`SharedClient::say`], with all state.
    async fn say_in<R>(
        &self,
        deadline: Instant,
        mut act: impl FnMut(&mut Core) -> R,
    ) -> Result<R, ClientError> {
        let mut waiting = None;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Before the check, so that room between the check and the wait is not missed.
            room.as_mut().enable();
            match self.try_say(&mut act) {
                Act::Done(result) => return Ok(result),
                Act::Never(error) => return Err(error),
                Act::NotYet => {
                    waiting.get_or_insert_with(|| CountedWait::new(&self.waiting));
                }
            }
            if tokio::time::timeout_at(deadline, room).await.is_err() {
                return Err(self.no_room());
            }
        }
    }

    fn try_say<R>(&self, act: &mut impl FnMut(&mut Core) -> R) -> Act<R> {
        let mut core = lock(&self.core);
        if core.closing.is_some() || core.ended {
            return Act::Never(ClientError::Closed);
        }
        let conversation = &mut core.conversation;
        if !conversation.is_open() || !conversation.has_room(&self.config) {
            self.end_lingering(&mut core);
            return Act::NotYet;
        }
        Act::Done(self.with_wake(&mut core, act))
    }

    /// Runs `act` at once, regardless of room: for answers, whose number the received data limits.
    pub(crate) fn with_core<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        self.with_wake(&mut lock(&self.core), act)
    }

    /// Wakes the connection task at the first output since its last write.
    pub(crate) fn with_wake<R>(&self, core: &mut Core, act: impl FnOnce(&mut Core) -> R) -> R {
        let announced = !core.conversation.output().is_empty() && !core.unannounced;
        let result = act(core);
        if !announced && !core.conversation.output().is_empty() {
            core.unannounced = false;
            self.gauge.wake.notify_one();
        }
        result
    }

    /// Asks for the whole acknowledge timeout of a message again. Returns whether the client sends this.
    pub(crate) fn extend(&self, queued: &QueuedMessage) -> bool {
        self.with_core(|core| core.epoch == queued.epoch && core.conversation.extend(&queued.message))
    }

    fn no_room(&self) -> ClientError {
        let core = lock(&self.core);
        let cause = if core.conversation.is_open() {
            "the broker reads too slowly: the limit of unwritten or unanswered requests is reached".into()
        } else {
            core.cause.clone()
        };
        ClientError::ConnectionLost { cause, sent: false }
    }

    /// Waits until no output waits to be written.
    pub(crate) async fn flushed(&self) {
        loop {
            let written = self.written.notified();
            tokio::pin!(written);
            // Before the check, so that a notification between the check and the wait is not missed.
            written.as_mut().enable();
            {
                let mut core = lock(&self.core);
                let waits = core.writing || !core.conversation.output().is_empty();
                if core.ended || !core.conversation.is_open() || !waits {
                    return;
                }
            }
            written.await;
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        timeout: Option<Duration>,
    ) -> Result<Received, ClientError> {
        let started = Instant::now();
        let deadline = self.deadline(timeout);
        let waited =
            self.answer(deadline, |conversation, waiter| conversation.request(request, waiter)).await?;
        match waited {
            Waited::Answered((Ok(RequestAnswer::Response(response)), _)) => Ok(response),
            Waited::Answered((Err(error), _)) => Err(error),
            Waited::Answered((Ok(other), _)) => Err(ClientError::BadAnswer {
                operation: request.operation,
                target: request.about.to_text(),
                why: format!("expected a response, got {other:?}").into(),
            }),
            Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: request.operation,
                target: request.about.to_text(),
                waited: started.elapsed(),
            }),
        }
    }

    /// Like [`SharedClient::ask`], for callers that build the request and handle the timeout themselves.
    pub(crate) async fn answer(
        &self,
        deadline: Instant,
        mut act: impl FnMut(&mut Dialogue, Waiter) -> Result<MessageId, ClientError>,
    ) -> Result<Waited, ClientError> {
        let pending = self
            .say_in(deadline, |core| {
                let (sender, receiver) = oneshot::channel();
                let id = act(&mut core.conversation, Waiter::One(sender))?;
                Ok::<_, ClientError>(PendingAnswer::new(self, core.epoch, id, receiver))
            })
            .await??;
        pending.outcome(deadline).await
    }

    /// Adds a subscription, on this connection and later ones, until the result is dropped.
    ///
    /// A repeated request is harmless, so it retries when the connection is lost meanwhile.
    pub(crate) async fn take_part(
        self: &Arc<Self>,
        part: Part,
        timeout: Option<Duration>,
    ) -> Result<Membership, ClientError> {
        let deadline = self.deadline(timeout);
        loop {
            match self.take_part_now(&part, deadline).await {
                Err(ClientError::ConnectionLost { sent: true, .. }) if Instant::now() < deadline => {}
                result => return result,
            }
        }
    }

    async fn take_part_now(
        self: &Arc<Self>,
        part: &Part,
        deadline: Instant,
    ) -> Result<Membership, ClientError> {
        let started = Instant::now();
        let (taken_up, receiver, epoch) = self
            .say_in(deadline, |core| {
                let (sender, receiver) = oneshot::channel();
                let taken_up = core.conversation.take_up(part, Waiter::One(sender))?;
                Ok::<_, ClientError>((taken_up, receiver, core.epoch))
            })
            .await??;
        // The user is counted from here on; the guard removes it however this call ends.
        let membership = Membership::new(self.clone(), part.clone());
        let IntentState::Asked(id) = taken_up else { return Ok(membership) };
        match PendingAnswer::new(self, epoch, id, receiver).outcome(deadline).await? {
            Waited::Answered((result, _)) => result.map(|_| membership),
            Waited::TooLong(_) => {
                let (operation, target) = part.in_words();
                Err(ClientError::RequestTimeout { operation, target, waited: started.elapsed() })
            }
        }
    }

    /// The deadline of a call that starts now.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        let timeout = timeout.unwrap_or(self.config.request_timeout);
        // Limited to a year, so that the addition does not overflow.
        Instant::now() + timeout.min(Duration::from_secs(366 * 24 * 3600))
    }
}

/// The result of a wait.
pub(crate) enum Waited {
    Answered(Outcome),
    /// With the messages that a pull had received.
    TooLong(Option<PullAnswer>),
}

impl Core {
    /// Adds the mailbox of a consumer of a queue or topic.
    pub(crate) fn add_consumer(&mut self, queue: &QueueAddress, mailbox: Arc<Mailbox>) {
        // In other protocols it is a name like any other.
        if queue.is_topic() && matches!(self.conversation, Dialogue::Tmqp(_)) {
            self.topics.push((queue.clone(), mailbox));
        } else {
            self.add_mailbox(queue.channel().as_bytes(), queue.id(), mailbox);
        }
    }

    /// The mailboxes that get a message of this topic: each consumer gets every message.
    pub(crate) fn topic_mailboxes(&self, topic: &[u8]) -> Vec<Arc<Mailbox>> {
        if self.topics.is_empty() || !is_topic(topic) {
            return Vec::new();
        }
        let matches = |pattern: &QueueAddress| topic_matches(pattern.channel().as_bytes(), topic);
        self.topics
            .iter()
            .filter(|(pattern, _)| matches(pattern))
            .map(|(_, mailbox)| mailbox.clone())
            .collect()
    }

    fn add_mailbox(&mut self, channel: &[u8], queue: u16, mailbox: Arc<Mailbox>) {
        let channels = self.mailboxes_by_queue.entry(queue).or_default();
        match channels
            .iter_mut()
            .find(|mailboxes_by_queue| mailboxes_by_queue.channel.eq_ignore_ascii_case(channel))
        {
            Some(mailboxes_by_queue) => mailboxes_by_queue.mailboxes.push(mailbox),
            None => {
                channels.push(ChannelMailboxes { channel: channel.into(), mailboxes: vec![mailbox], next: 0 })
            }
        }
    }

    pub(crate) fn remove_taker(&mut self, channel: &[u8], queue: u16, mailbox: &Arc<Mailbox>) {
        self.topics.retain(|(_, other)| !Arc::ptr_eq(other, mailbox));
        let Some(channels) = self.mailboxes_by_queue.get_mut(&queue) else { return };
        for mailboxes_by_queue in channels
            .iter_mut()
            .filter(|mailboxes_by_queue| mailboxes_by_queue.channel.eq_ignore_ascii_case(channel))
        {
            mailboxes_by_queue.mailboxes.retain(|other| !Arc::ptr_eq(other, mailbox));
        }
        channels.retain(|mailboxes_by_queue| !mailboxes_by_queue.mailboxes.is_empty());
    }

    /// The next mailbox in turn for a message of this queue.
    pub(crate) fn taker(&mut self, channel: &[u8], queue: u16) -> Option<Arc<Mailbox>> {
        let channels = self.mailboxes_by_queue.get_mut(&queue)?;
        let takers = channels.iter_mut().find(|takers| takers.channel.eq_ignore_ascii_case(channel))?;
        let count = takers.mailboxes.len();
        let mut next = (takers.next + 1) % count;
        if count > 1 {
            // The broker allows as many messages as all consumers together can take.
            let mut others = (0..count).map(|step| (next + step) % count);
            next = others.find(|place| takers.mailboxes[*place].has_room()).unwrap_or(next);
        }
        takers.next = next;
        Some(takers.mailboxes[next].clone())
    }

    /// Whether the client waits for the broker to confirm that it delivers nothing more to a former consumer.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The mailbox of a former consumer of this queue, which the client is leaving.
    pub(crate) fn leaving(&self, channel: &[u8], queue: u16) -> Option<&Arc<Mailbox>> {
        self.leaving.iter().find(|(left, _)| left.is(channel, queue)).map(|(_, mailbox)| mailbox)
    }

    /// Sets the terms of a consumed queue: the time to acknowledge a message, if the client can extend it, and whether
    /// repeated attempts have numbers.
    pub(crate) fn joined(&self, queue: &QueueAddress, timeout: Option<Duration>, numbers_attempts: bool) {
        let channels = self.mailboxes_by_queue.get(&queue.id()).into_iter().flatten();
        for takers in channels.filter(|takers| queue.is(&takers.channel, queue.id())) {
            takers.mailboxes.iter().for_each(|mailbox| mailbox.joined(timeout, numbers_attempts));
        }
    }

    /// Ends a consumer: other consumers of its queue in this client get the messages that wait in `mailbox`, or the
    /// broker does. Returns the mailbox to wake.
    pub(crate) fn end_consumer(
        &mut self,
        queue: &QueueAddress,
        mailbox: &Arc<Mailbox>,
        membership: Option<&mut Membership>,
    ) -> Option<Arc<Mailbox>> {
        let (channel, id) = (queue.channel().as_bytes(), queue.id());
        self.remove_taker(channel, id, mailbox);
        let started = mailbox.unsettled();
        let confirms = membership.is_some_and(|membership| membership.end(self, started));
        if confirms {
            // Until the broker confirms, messages may arrive. All of them go back together, in order.
            self.leaving.push((queue.clone(), mailbox.clone()));
            return None;
        }
        let Some(other) = self.taker(channel, id) else {
            self.give_back(mailbox.drain());
            return None;
        };
        for queued in mailbox.drain() {
            other.put(queued);
        }
        Some(other)
    }

    /// The broker delivers no more messages of a queue that the client left.
    pub(crate) fn left(&mut self, queue: &QueueAddress) {
        let is_of = |left: &QueueAddress| left.is(queue.channel().as_bytes(), queue.id());
        let messages: Vec<_> = self
            .leaving
            .extract_if(.., |(left, _)| is_of(left))
            .flat_map(|(_, mailbox)| mailbox.drain())
            .collect();
        self.give_back(messages);
    }

    /// Returns messages that no program got. The newest goes first, because the broker puts each before all others.
    pub(crate) fn give_back(&mut self, messages: Vec<QueuedMessage>) {
        for queued in messages.into_iter().rev() {
            let is_current = queued.epoch == self.epoch && self.conversation.is_open();
            if is_current && queued.message.wants_acknowledge() {
                self.conversation.give_back(&queued.message);
            }
        }
    }

    /// Asks for more time for messages that wait, or returns them. Returns when to look again.
    pub(crate) fn check_waiting(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let takers = self.mailboxes_by_queue.values().flatten().flat_map(|takers| &takers.mailboxes);
        let mailboxes: Vec<Arc<Mailbox>> =
            takers.filter(|mailbox| mailbox.timeout().is_some()).cloned().collect();
        for mailbox in mailboxes {
            let waiting = mailbox.waited(now);
            for message in &waiting.extend {
                self.conversation.extend(message);
            }
            self.give_back(waiting.give_back);
            next = [next, waiting.next].into_iter().flatten().min();
        }
        next
    }

    pub(crate) fn add_event_stream(&mut self, subscriptions: Vec<Subscription>, mailbox: Arc<Mailbox>) {
        self.event_streams.push((subscriptions, mailbox));
    }

    pub(crate) fn remove_event_stream(&mut self, mailbox: &Arc<Mailbox>) {
        self.event_streams.retain(|(_, other)| !Arc::ptr_eq(other, mailbox));
    }

    /// The streams that get an event.
    pub(crate) fn event_streams(&self, event: &Received) -> impl Iterator<Item = &Arc<Mailbox>> {
        let (name, channel, queue) = (event.source(), event.target(), event.content_type());
        let is_wanted = move |wanted: &Subscription| {
            wanted.name.as_bytes() == name
                && wanted.channel.as_ref().is_none_or(|of| of.as_bytes().eq_ignore_ascii_case(channel))
                && wanted.queue.is_none_or(|of| of == queue)
        };
        let streams = self.event_streams.iter();
        streams.filter(move |(wanted, _)| wanted.iter().any(is_wanted)).map(|(_, mailbox)| mailbox)
    }

    pub(crate) fn add_extension_stream(&mut self, name: &str, mailbox: Arc<Mailbox>) {
        self.extension_streams.push((name.into(), mailbox));
    }

    pub(crate) fn remove_extension_stream(&mut self, mailbox: &Arc<Mailbox>) {
        self.extension_streams.retain(|(_, other)| !Arc::ptr_eq(other, mailbox));
    }

    /// The streams that get frames of this extension.
    pub(crate) fn extension_streams(&self, name: &[u8]) -> impl Iterator<Item = &Arc<Mailbox>> {
        let streams = self.extension_streams.iter();
        streams.filter(move |(of, _)| of.as_bytes() == name).map(|(_, mailbox)| mailbox)
    }

    /// The mailbox of direct or custom messages; a client has one of each.
    pub(crate) fn inbox(&mut self, inbox: Inbox) -> &mut Option<Arc<Mailbox>> {
        &mut self.inboxes[inbox as usize]
    }

    pub(crate) fn mailboxes(&self) -> impl Iterator<Item = &Arc<Mailbox>> {
        let mailboxes_by_queue = self
            .mailboxes_by_queue
            .values()
            .flatten()
            .flat_map(|mailboxes_by_queue| &mailboxes_by_queue.mailboxes);
        let extensions = self.extension_streams.iter().map(|(_, mailbox)| mailbox);
        let events = self.event_streams.iter().map(|(_, mailbox)| mailbox);
        let leaving = self.leaving.iter().map(|(_, mailbox)| mailbox);
        let topics = self.topics.iter().map(|(_, mailbox)| mailbox);
        let inboxes = self.inboxes.iter().flatten();
        mailboxes_by_queue.chain(topics).chain(events).chain(extensions).chain(inboxes).chain(leaving)
    }

    /// Ends the consumers of queues that the client can leave, because it closes. Their messages go back, except those
    /// that the broker has removed.
    pub(crate) fn end_consumers(&mut self, gauge: &Arc<Gauge>) {
        let mailboxes_by_queue = &self.mailboxes_by_queue;
        let started = |queue: &QueueAddress| {
            let channels = mailboxes_by_queue.get(&queue.id()).into_iter().flatten();
            let takers = channels.filter(|takers| queue.is(&takers.channel, queue.id()));
            takers.flat_map(|takers| &takers.mailboxes).map(|mailbox| mailbox.unsettled()).sum()
        };
        for queue in self.conversation.leave_all(started) {
            let channels = self.mailboxes_by_queue.get_mut(&queue.id()).into_iter().flatten();
            for takers in channels.filter(|takers| queue.is(&takers.channel, queue.id())) {
                for mailbox in &takers.mailboxes {
                    // The program must not take what goes back.
                    let rest = Mailbox::new(gauge.clone(), Bound::None);
                    for queued in mailbox.extract(|queued| queued.message.wants_acknowledge()) {
                        rest.put(queued);
                    }
                    mailbox.close();
                    self.leaving.push((queue.clone(), rest));
                }
            }
        }
    }

    /// The connection is lost: there is nothing to wait for. A message that the program has not settled may keep its
    /// mailbox.
    pub(crate) fn forget_leaving(&mut self) {
        for (_, mailbox) in self.leaving.drain(..) {
            mailbox.drain();
        }
    }

    /// Records a queue with an unclaimed message. Returns whether the queue is new.
    pub(crate) fn note_unclaimed(&mut self, channel: &[u8], queue: u16) -> bool {
        if self.unclaimed.len() >= UNCLAIMED_REMEMBERED_MAX {
            return false;
        }
        self.unclaimed.insert((channel.to_ascii_lowercase().into(), queue))
    }

    /// A message of the current connection that arrived at `since`.
    pub(crate) fn queued(&self, message: Received, since: Instant) -> QueuedMessage {
        QueuedMessage { message, epoch: self.epoch, since }
    }
}
