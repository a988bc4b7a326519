//! The client side of TMQP: turns frames into results. It has no IO and no clock.
//!
//! A `W` identifies a caller that waits for an answer. The conversation stores it by message id and returns it with the
//! answer. Output collects in one buffer, so that everything since the last write goes out in one write.

mod answers;
mod copies;
mod custom;
mod exchange;
mod receive;

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, Kind, PING, encode};

pub use self::exchange::{
    AckedBy, ConversationCounts, DirectMessage, FrameEvent, Inbox, IntentState, PullAnswer, PullEnd,
    QueueMessage, RequestAnswer, Wait,
};
use crate::address::{QueueAddress, is_topic};
use crate::error::ClientError;
pub use crate::message_id::MessageId;
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::{Intent, Request, Target};

/// Nack reason with which a client returns the messages that the program did not take.
pub const REASON_CONSUMER_CLOSED: &str = "consumer-closed";

/// Prefix of targets that name routers.
const ROUTER: &str = "@router:";

#[derive(Debug)]
enum Expect {
    Confirmation,
    Response,
    /// The messages so far.
    Pull(Vec<Received>),
    /// Each message goes to the caller when it arrives.
    PullStream,
    Intent(Intent),
    /// The end of the deliveries of a queue.
    Leave(QueueAddress),
}

impl Expect {
    fn is_pull(&self) -> bool {
        matches!(self, Self::Pull(_) | Self::PullStream)
    }
}

#[derive(Debug)]
struct PendingRequest<W> {
    expect: Expect,
    operation: &'static str,
    about: Target,
    /// `None`: a request of the conversation itself.
    waiter: Option<W>,
}

/// An intent and the number of its users.
#[derive(Debug)]
struct SharedIntent {
    /// In the spelling of its first user, with the prefetch of all.
    intent: Intent,
    users: usize,
    /// The client requested it on this connection, and the broker has not refused. The client cancels it after its last
    /// user.
    announced: bool,
    /// Whether the broker has confirmed it on this connection.
    agreed: bool,
}

/// Maximum number of pulls whose late messages are recognized. The broker ends each of them soon.
const FORGOTTEN_PULLS_MAX: usize = 1024;

/// The conversation over all connections of one client.
#[derive(Debug)]
pub struct Conversation<W> {
    own_id: Box<str>,
    limits: Limits,
    ids: MessageIds,
    open: bool,
    pending: HashMap<MessageId, PendingRequest<W>, RandomState>,
    /// Number of pending pulls. If it is 0, deliveries are not searched for a `Request-Id`.
    pulls: usize,
    /// Pulls that ended here before the broker ended them, so that further messages may arrive; the oldest first.
    forgotten_pulls: VecDeque<MessageId>,
    intents: HashMap<Intent, SharedIntent, RandomState>,
    /// Whether the broker delivers only the queues that this client names. Unknown, and false, until the first answer.
    joins_queues: bool,
    /// Messages without acknowledgement that arrived after their pull ended, for the next pull of their queue.
    late: Vec<Received>,
    output: Vec<u8>,
    tally: ConversationCounts,
}

impl<W> Conversation<W> {
    /// Creates a conversation without a connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            own_id: "".into(),
            limits,
            ids: MessageIds::new(),
            open: false,
            pending: HashMap::default(),
            pulls: 0,
            forgotten_pulls: VecDeque::new(),
            intents: HashMap::default(),
            joins_queues: false,
            late: Vec::new(),
            output: Vec::new(),
            tally: ConversationCounts::default(),
        }
    }

    /// Starts a connection on which the broker assigned `own_id` to this client, and restores its intents first.
    pub fn opened(&mut self, own_id: &str) {
        debug_assert!(self.pending.is_empty(), "requests end with their connection");
        self.own_id = own_id.into();
        self.output.clear();
        self.open = true;
        self.restore();
    }

    /// Ends the connection. Returns all waiters, with the messages that their pulls had received.
    pub fn lost(&mut self) -> Vec<(W, Option<PullAnswer>)> {
        self.open = false;
        self.output.clear();
        self.pulls = 0;
        self.forgotten_pulls.clear();
        self.joins_queues = false;
        for standing in self.intents.values_mut() {
            (standing.announced, standing.agreed) = (false, false);
        }
        let pending = std::mem::take(&mut self.pending);
        pending.into_values().filter_map(|pending| Some((pending.waiter?, partial(pending.expect)))).collect()
    }

    /// Requests every intent that is not yet requested on this connection, or was refused.
    pub fn restore(&mut self) {
        let missing: Vec<(Intent, Request)> = self
            .intents
            .iter_mut()
            .filter(|(_, standing)| !standing.announced)
            .map(|(key, standing)| {
                standing.announced = true;
                (key.clone(), Request::take_up(&standing.intent))
            })
            .collect();
        for (key, request) in missing {
            // The same request was written before, so it fits into a frame.
            let asked = self.ask(&request, true, Expect::Intent(key), None);
            debug_assert!(asked.is_ok(), "{asked:?}");
        }
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The id that the broker assigned to this client; empty before the first connection.
    #[must_use]
    pub fn own_id(&self) -> &str {
        &self.own_id
    }

    /// Number of requests without an answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Counters of events that are not the result of a call.
    #[must_use]
    pub fn tally(&self) -> ConversationCounts {
        self.tally
    }

    /// Output that is not taken yet. Take it all, or from the front.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Publishes a message. With a waiter, requests an acknowledgement.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an id in use, [`ClientError::TooLarge`] for a message that exceeds a frame.
    pub fn publish(
        &mut self,
        publication: &QueueMessage<'_>,
        waiter: Option<W>,
    ) -> Result<MessageId, ClientError> {
        let id = self.id_for(publication.id, waiter.is_some())?;
        self.write(&Frame {
            high_priority: publication.high_priority,
            pending_acknowledge: waiter.is_some(),
            content_type: publication.queue.id(),
            id: &id,
            target: publication.queue.channel().as_bytes(),
            headers: publication.headers,
            payload: publication.body,
            ..Frame::new(Kind::QUEUE)
        })?;
        if let Some(waiter) = waiter {
            let about = Target::Queue(publication.queue.clone());
            self.wait(id.clone(), Expect::Confirmation, "publish to", about, Some(waiter));
        }
        Ok(id)
    }

    /// Sends a direct message. Pass a waiter exactly if the message requests an answer.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn send(&mut self, message: &DirectMessage<'_>, waiter: Option<W>) -> Result<MessageId, ClientError> {
        let id = self.id_for(message.id, waiter.is_some())?;
        let (kind, target) = match message.target.strip_prefix(ROUTER) {
            Some(router) => (Kind::ROUTER, router),
            None if is_topic(message.target.as_bytes()) => (Kind::QUEUE, message.target),
            None => (Kind::DIRECT, message.target),
        };
        self.write(&Frame {
            first_acquirer: message.only_first,
            high_priority: message.high_priority,
            pending_response: message.wait == Wait::Response,
            pending_acknowledge: message.wait == Wait::Acknowledge,
            content_type: message.content_type,
            id: &id,
            target: target.as_bytes(),
            headers: message.headers,
            payload: message.body,
            ..Frame::new(kind)
        })?;
        if let Some(waiter) = waiter {
            let (expect, operation) = match message.wait {
                Wait::Response => (Expect::Response, "request of"),
                Wait::Acknowledge | Wait::Nothing => (Expect::Confirmation, "send to"),
            };
            self.wait(id.clone(), expect, operation, Target::Name(message.target.into()), Some(waiter));
        }
        Ok(id)
    }

    /// Sends a request that one response answers.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn request(&mut self, request: &Request, waiter: W) -> Result<MessageId, ClientError> {
        self.ask(request, true, Expect::Response, Some(waiter))
    }

    /// Sends a pull.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn pull(&mut self, request: &Request, waiter: W) -> Result<MessageId, ClientError> {
        let id = self.ask(request, false, Expect::Pull(Vec::new()), Some(waiter))?;
        self.pulls += 1;
        Ok(id)
    }

    /// Sends a pull whose messages arrive as [`FrameEvent::Pulled`]. Its answer contains none of them.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn pull_stream(&mut self, request: &Request, waiter: W) -> Result<MessageId, ClientError> {
        let id = self.ask(request, false, Expect::PullStream, Some(waiter))?;
        self.pulls += 1;
        Ok(id)
    }

    /// The caller that waits for the answer to this request.
    #[must_use]
    pub fn waiter(&self, id: &[u8]) -> Option<&W> {
        self.pending.get(id)?.waiter.as_ref()
    }

    /// Every caller that waits for an answer, with the id of its request.
    pub fn waiters(&self) -> impl Iterator<Item = (&MessageId, &W)> {
        self.pending.iter().filter_map(|(id, pending)| Some((id, pending.waiter.as_ref()?)))
    }

    /// Adds a user of `intent`. Each call needs a [`Conversation::give_up`].
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`]; the user is not counted then.
    pub fn take_up(&mut self, intent: Intent, waiter: W) -> Result<IntentState<W>, ClientError> {
        let key = intent.folded();
        let known = self.intents.get(&key);
        let total = match (&intent, known.map(|standing| &standing.intent)) {
            (Intent::Consume(queue, more), Some(Intent::Consume(_, before))) => {
                Intent::Consume(queue.clone(), before.saturating_add(*more))
            }
            (Intent::Join(_) | Intent::Topic(_) | Intent::Event(_), _)
                if known.is_some_and(|standing| standing.agreed) =>
            {
                let _ = self.count_user(key, intent);
                return Ok(IntentState::Already(waiter));
            }
            (intent, _) => intent.clone(),
        };
        let id = self.ask(&Request::take_up(&total), true, Expect::Intent(key.clone()), Some(waiter))?;
        self.count_user(key, intent).announced = true;
        Ok(IntentState::Asked(id))
    }

    /// Removes a user of an intent. The last one cancels it. Returns whether [`FrameEvent::Left`] will follow.
    pub fn give_up(&mut self, intent: &Intent) -> bool {
        let key = intent.folded();
        let Some(standing) = self.intents.get_mut(&key) else { return false };
        standing.users -= 1;
        if let Intent::Consume(_, total) = &mut standing.intent {
            *total = total.saturating_sub(intent.prefetch());
        }
        if standing.users > 0 {
            if standing.announced && intent.prefetch() > 0 {
                let request = Request::take_up(&standing.intent);
                self.write_unanswered(&request);
            }
            return false;
        }
        let was_announced = standing.announced;
        let intent = self.intents.remove(&key).map_or_else(|| intent.clone(), |standing| standing.intent);
        if !self.open || !was_announced {
            return false;
        }
        let joined = intent.joined().cloned();
        let is_last = joined.as_ref().is_none_or(|channel| !self.has_joined(channel.as_bytes()));
        let request = match (&intent, joined) {
            (Intent::Join(_) | Intent::Consume(..), Some(channel)) if is_last => Request::leave(&channel),
            (Intent::Consume(..), _) if self.joins_queues => Request::give_up(&intent),
            // The other users need the channel.
            (Intent::Join(_) | Intent::Consume(..), _) => return false,
            (Intent::Topic(_) | Intent::Event(_), _) => Request::give_up(&intent),
        };
        if let Intent::Consume(queue, _) = intent {
            return self.ask(&request, true, Expect::Leave(queue), None).is_ok();
        }
        // No answer is requested, because it would not be used.
        self.write_unanswered(&request);
        false
    }

    /// Removes all users of all consumed queues, because the client closes. Returns the queues for which
    /// [`FrameEvent::Left`] will follow.
    pub fn leave_all(&mut self) -> Vec<QueueAddress> {
        let intents = self.intents.values().map(|standing| &standing.intent);
        let consumed: Vec<_> =
            intents.filter(|intent| matches!(intent, Intent::Consume(..))).cloned().collect();
        let mut left = Vec::new();
        for intent in consumed {
            if let Some(standing) = self.intents.get_mut(&intent.folded()) {
                standing.users = 1;
            }
            if let (true, Intent::Consume(queue, _)) = (self.give_up(&intent), intent) {
                left.push(queue);
            }
        }
        left
    }

    fn write_unanswered(&mut self, request: &Request) {
        if self.open {
            let id = self.ids.next();
            let written = self.write_request(request, &id, false);
            debug_assert!(written.is_ok(), "the request to take it up was longer: {written:?}");
        }
    }

    /// Whether this client has joined the channel, or is about to.
    #[must_use]
    pub fn has_joined(&self, channel: &[u8]) -> bool {
        let joined = self.intents.keys().filter_map(Intent::joined);
        joined.into_iter().any(|joined| joined.as_bytes().eq_ignore_ascii_case(channel))
    }

    /// Responds to a direct message. Status 0 is success; 1000 and above belong to applications.
    ///
    /// # Errors
    ///
    /// [`ClientError::TooLarge`] for a body that exceeds a frame.
    pub fn respond(
        &mut self,
        message: &Received,
        status: u16,
        headers: &[u8],
        body: &[u8],
    ) -> Result<(), ClientError> {
        self.write(&Frame {
            content_type: status,
            id: message.id(),
            target: message.source(),
            headers,
            payload: body,
            ..Frame::new(Kind::RESPONSE)
        })
    }

    /// Sends a heartbeat request.
    pub fn ping(&mut self) {
        self.output.extend_from_slice(&PING);
    }

    /// Forgets a request. Returns the messages that a pull had received.
    pub fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        let pending = self.pending.remove(id)?;
        if pending.expect.is_pull() {
            self.pulls -= 1;
            if self.forgotten_pulls.len() >= FORGOTTEN_PULLS_MAX {
                self.forgotten_pulls.pop_front();
            }
            self.forgotten_pulls.push_back(MessageId::from_slice(id));
        }
        partial(pending.expect)
    }

    fn count_user(&mut self, key: Intent, intent: Intent) -> &mut SharedIntent {
        let prefetch = intent.prefetch();
        let standing = match self.intents.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(SharedIntent { intent, users: 0, announced: false, agreed: false })
            }
            Entry::Occupied(occupied) => {
                let standing = occupied.into_mut();
                if let Intent::Consume(_, total) = &mut standing.intent {
                    *total = total.saturating_add(prefetch);
                }
                standing
            }
        };
        standing.users += 1;
        standing
    }

    fn ask(
        &mut self,
        request: &Request,
        pending_response: bool,
        expect: Expect,
        waiter: Option<W>,
    ) -> Result<MessageId, ClientError> {
        let id = self.ids.next();
        self.write_request(request, &id, pending_response)?;
        self.wait(id.clone(), expect, request.operation, request.about.clone(), waiter);
        Ok(id)
    }

    fn wait(
        &mut self,
        id: MessageId,
        expect: Expect,
        operation: &'static str,
        about: Target,
        waiter: Option<W>,
    ) {
        self.pending.insert(id, PendingRequest { expect, operation, about, waiter });
    }

    fn write_request(
        &mut self,
        request: &Request,
        id: &[u8],
        pending_response: bool,
    ) -> Result<(), ClientError> {
        self.write(&Frame {
            pending_response,
            content_type: request.content_type,
            id,
            target: request.target.as_bytes(),
            headers: &request.headers,
            payload: &request.body,
            ..Frame::new(request.kind)
        })
    }

    /// Appends a frame, with this client as its source.
    fn write(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        let frame = Frame { source: self.own_id.as_bytes(), ..*frame };
        frame.check().map_err(too_large)?;
        let size = frame.encoded_size() as u64;
        if size > self.limits.frame_bytes_max {
            return Err(ClientError::TooLarge { part: "message", size, limit: self.limits.frame_bytes_max });
        }
        encode(&frame, &mut self.output);
        Ok(())
    }

    /// The id of a message. An empty one means that the message has none, and cannot be answered.
    fn id_for(&mut self, given: Option<&str>, is_answered: bool) -> Result<MessageId, ClientError> {
        let Some(given) = given else { return Ok(self.ids.next()) };
        if given.is_empty() && is_answered {
            let why =
                "it is empty, so no answer can refer to it; wait for none, or omit the id to get a new one";
            return Err(ClientError::invalid("message id", why));
        }
        if self.pending.contains_key(given.as_bytes()) {
            let why = format!("{given:?} waits for its answer; use another id");
            return Err(ClientError::invalid("message id", why));
        }
        Ok(MessageId::from_slice(given.as_bytes()))
    }
}

fn partial(expect: Expect) -> Option<PullAnswer> {
    match expect {
        Expect::Pull(messages) => Some(PullAnswer { messages, end: PullEnd::CutShort }),
        Expect::PullStream => Some(PullAnswer { messages: Vec::new(), end: PullEnd::CutShort }),
        _ => None,
    }
}

fn too_large(error: mqcore_wire::error::WireError) -> ClientError {
    match error {
        mqcore_wire::error::WireError::TooLarge { part, size, max } => {
            ClientError::TooLarge { part, size, limit: max }
        }
        other => ClientError::BadFrame(other),
    }
}
