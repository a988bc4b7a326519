//! One client's side of TMQP: frames in, results out. No IO and no clock.
//!
//! Whoever waits for an answer is a `W`, which the conversation keeps by message id and hands back with the answer;
//! it never looks inside. What is to be written gathers in one buffer, so that everything that was said since the
//! last write is one write.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::header::{header_value, key, nack_reason};
use mqcore_wire::tmqp::operation::status;
use mqcore_wire::tmqp::{Frame, HOPS_FRESH, Kind, PING, PONG, encode};

use crate::address::QueueAddress;
use crate::error::{ClientError, Refusal};
pub use crate::message_id::MessageId;
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::{Intent, Request, Target};

/// A message for a queue.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    /// Where.
    pub queue: &'a QueueAddress,
    /// Its id; `None`: a new one.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// Before all others.
    pub high_priority: bool,
}

/// A message for clients.
#[derive(Debug, Clone, Copy)]
pub struct DirectMessage<'a> {
    /// A client id, `@name:NAME` or `@type:KIND`; or `@router:NAME`, which sends the message to a router.
    pub target: &'a str,
    /// Its id; `None`: a new one.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// What sender and receiver agreed on.
    pub content_type: u16,
    /// Before all others.
    pub high_priority: bool,
    /// Only the oldest of the clients that match.
    pub only_first: bool,
    /// What is waited for.
    pub wait: Wait,
}

/// What targets that name routers begin with.
const ROUTER: &str = "@router:";

/// What the sender of a direct message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Nothing,
    /// An acknowledgement of the receiver.
    Acknowledge,
    /// A response of the receiver.
    Response,
}

/// Who acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The broker: it has taken the message.
    Server,
    /// A consumer, or the receiver of a direct message.
    Consumer,
}

/// An answer that is no error.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A positive acknowledgement.
    Confirmed(By),
    /// A response of success, or of a number that belongs to applications.
    Response(Received),
    /// What a pull brought.
    Pulled(PullAnswer),
}

/// What a pull brought, and why it ended.
#[derive(Debug, Clone)]
pub struct PullAnswer {
    /// The messages, in order.
    pub messages: Vec<Received>,
    /// How it ended.
    pub end: PullEnd,
}

/// How a pull ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEnd {
    /// With a `No-Content` of this value.
    NoContent(Box<str>),
    /// With the message of a cache queue.
    Cached,
    /// It was cut short: by a lost connection, or because the caller would not wait longer.
    CutShort,
}

/// What a frame meant.
#[derive(Debug)]
pub enum Arrival<W> {
    /// Nothing to anybody here; where it matters, a counter says so.
    Nothing,
    /// Somebody's wait is over.
    Settled(W, Result<Answer, ClientError>),
    /// One word ended the waits of several.
    SettledMany(Vec<(W, Result<Answer, ClientError>)>),
    /// A message of a queue.
    Delivery(Received),
    /// A direct message.
    Direct(Received),
    /// Something happened that was subscribed to.
    Event(Received),
    /// The broker would not let an intent of this target stand after a reconnect. It is asked again by
    /// [`Conversation::restore`].
    NotRestored(Target, ClientError),
    /// A frame of an extension, which its target names.
    Extension(Received),
    /// The broker says goodbye.
    Terminated,
    /// The broker ends the conversation; why.
    Refused(Arc<str>),
}

/// Whether an intent already stands.
#[derive(Debug)]
pub enum TakenUp<W> {
    /// It does; nobody has to wait.
    Already(W),
    /// It was asked for.
    Asked(MessageId),
}

/// What happened and is nobody's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Answers that nobody waited for any more.
    pub late_answers: u64,
    /// Messages published without confirmation that the broker refused.
    pub refused_unconfirmed: u64,
    /// Messages of pulls that nobody waits for any more. Those that ask for it are handed back.
    pub late_pulled: u64,
}

#[derive(Debug)]
enum Expect {
    Confirmation,
    Response,
    Pull(Vec<Received>),
    Intent(Intent),
}

#[derive(Debug)]
struct Pending<W> {
    expect: Expect,
    operation: &'static str,
    about: Target,
    /// `None`: the conversation asked for itself.
    waiter: Option<W>,
}

/// An intent and how many want it.
#[derive(Debug)]
struct Standing {
    /// As the first who wanted it spelled it.
    intent: Intent,
    users: usize,
    /// The broker was asked on this connection and has not refused: it may have to be told when nobody wants it.
    told: bool,
    /// The broker has agreed to it on this connection.
    agreed: bool,
}

/// The conversation over all connections of one client.
#[derive(Debug)]
pub struct Conversation<W> {
    own_id: Box<str>,
    limits: Limits,
    ids: MessageIds,
    open: bool,
    pending: HashMap<MessageId, Pending<W>, RandomState>,
    /// How many of them are pulls: without any, nobody looks for a `Request-Id`.
    pulls: usize,
    intents: HashMap<Intent, Standing, RandomState>,
    output: Vec<u8>,
    tally: Tally,
}

impl<W> Conversation<W> {
    /// A conversation that has not begun.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            own_id: "".into(),
            limits,
            ids: MessageIds::new(),
            open: false,
            pending: HashMap::default(),
            pulls: 0,
            intents: HashMap::default(),
            output: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// A connection stands, and the broker calls this client `own_id`: says first what is to stand on it.
    pub fn opened(&mut self, own_id: &str) {
        debug_assert!(self.pending.is_empty(), "what was pending ends with its connection");
        self.own_id = own_id.into();
        self.output.clear();
        self.open = true;
        self.restore();
    }

    /// The connection is gone. Answers with everybody who waited, and what their pulls had brought by then.
    pub fn lost(&mut self) -> Vec<(W, Option<PullAnswer>)> {
        self.open = false;
        self.output.clear();
        self.pulls = 0;
        for standing in self.intents.values_mut() {
            (standing.told, standing.agreed) = (false, false);
        }
        let pending = std::mem::take(&mut self.pending);
        pending.into_values().filter_map(|pending| Some((pending.waiter?, partial(pending.expect)))).collect()
    }

    /// Asks for every intent that the broker has not been asked for on this connection, or has refused.
    pub fn restore(&mut self) {
        let missing: Vec<(Intent, Request)> = self
            .intents
            .iter_mut()
            .filter(|(_, standing)| !standing.told)
            .map(|(key, standing)| {
                standing.told = true;
                (key.clone(), Request::take_up(&standing.intent))
            })
            .collect();
        for (key, request) in missing {
            // The request was written once before, so it fits a frame.
            let asked = self.ask(&request, true, Expect::Intent(key), None);
            debug_assert!(asked.is_ok(), "{asked:?}");
        }
    }

    /// Whether a connection stands.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// What the broker calls this client; empty before the first connection.
    #[must_use]
    pub fn own_id(&self) -> &str {
        &self.own_id
    }

    /// How many wait for an answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// What happened and is nobody's result.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// What is to be written and has not been taken yet. Take from the front or all of it.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Publishes. With a waiter, an acknowledgement is asked for.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an id in use, [`ClientError::TooLarge`] for what fits no frame.
    pub fn publish(
        &mut self,
        publication: &Publication<'_>,
        waiter: Option<W>,
    ) -> Result<MessageId, ClientError> {
        let id = self.id_for(publication.id)?;
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

    /// Sends a direct message. A waiter is needed exactly if something is waited for.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn send(&mut self, message: &DirectMessage<'_>, waiter: Option<W>) -> Result<MessageId, ClientError> {
        let id = self.id_for(message.id)?;
        let (kind, target) = match message.target.strip_prefix(ROUTER) {
            Some(router) => (Kind::ROUTER, router),
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

    /// Asks something that is answered by one response.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn request(&mut self, request: &Request, waiter: W) -> Result<MessageId, ClientError> {
        self.ask(request, true, Expect::Response, Some(waiter))
    }

    /// Pulls.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`].
    pub fn pull(&mut self, request: &Request, waiter: W) -> Result<MessageId, ClientError> {
        let id = self.ask(request, false, Expect::Pull(Vec::new()), Some(waiter))?;
        self.pulls += 1;
        Ok(id)
    }

    /// Somebody wants `intent` to stand from now on, until [`Conversation::give_up`] as many times.
    ///
    /// # Errors
    ///
    /// As [`Conversation::publish`]; nothing is counted then.
    pub fn take_up(&mut self, intent: Intent, waiter: W) -> Result<TakenUp<W>, ClientError> {
        let key = intent.folded();
        if self.intents.get(&key).is_some_and(|standing| standing.agreed) {
            let _ = self.count_user(key, intent);
            return Ok(TakenUp::Already(waiter));
        }
        let id = self.ask(&Request::take_up(&intent), true, Expect::Intent(key.clone()), Some(waiter))?;
        self.count_user(key, intent).told = true;
        Ok(TakenUp::Asked(id))
    }

    /// Somebody wants it no more. The last one makes it so.
    pub fn give_up(&mut self, intent: &Intent) {
        let key = intent.folded();
        let Some(standing) = self.intents.get_mut(&key) else { return };
        standing.users -= 1;
        if standing.users > 0 {
            return;
        }
        let was_told = standing.told;
        let intent = self.intents.remove(&key).map_or_else(|| intent.clone(), |standing| standing.intent);
        if self.open && was_told {
            let request = Request::give_up(&intent);
            let id = self.ids.next();
            // Asking for no answer: nobody would do anything with it.
            let written = self.write_request(&request, &id, false);
            debug_assert!(written.is_ok(), "taking it up was longer: {written:?}");
        }
    }

    /// Whether this client is a consumer of the channel, or wants to be.
    #[must_use]
    pub fn has_joined(&self, channel: &[u8]) -> bool {
        self.intents.keys().any(
            |intent| matches!(intent, Intent::Join(joined) if joined.as_bytes().eq_ignore_ascii_case(channel)),
        )
    }

    /// Acknowledges a message of a queue, or refuses it with a reason.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is no header value.
    pub fn acknowledge(&mut self, message: &Received, refusal: Option<&str>) -> Result<(), ClientError> {
        let headers = refusal_headers(refusal)?;
        self.write(&Frame {
            first_acquirer: message.first_acquirer(),
            content_type: message.content_type(),
            id: message.id(),
            target: message.target(),
            headers: &headers,
            ..Frame::new(Kind::ACKNOWLEDGE)
        })
    }

    /// Acknowledges a direct message to its sender, or refuses it with a reason.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a reason that is no header value.
    pub fn acknowledge_direct(
        &mut self,
        message: &Received,
        refusal: Option<&str>,
    ) -> Result<(), ClientError> {
        let headers = refusal_headers(refusal)?;
        self.write(&Frame {
            first_acquirer: message.first_acquirer(),
            // Tells the broker that the target is a client and not a channel.
            high_priority: true,
            content_type: message.content_type(),
            id: message.id(),
            target: message.source(),
            headers: &headers,
            ..Frame::new(Kind::ACKNOWLEDGE)
        })
    }

    /// Answers a direct message. Status 0 is success; from 1000 on they belong to applications.
    ///
    /// # Errors
    ///
    /// [`ClientError::TooLarge`] for a body that fits no frame.
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

    /// Asks for a life sign.
    pub fn ping(&mut self) {
        self.output.extend_from_slice(&PING);
    }

    /// Nobody waits for this any more. Answers with what a pull had brought by then.
    pub fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        let pending = self.pending.remove(id)?;
        self.pulls -= usize::from(matches!(pending.expect, Expect::Pull(_)));
        partial(pending.expect)
    }

    /// Reads one frame. One without hops left means nothing, whatever it is.
    pub fn receive(&mut self, frame: &Frame<'_>) -> Arrival<W> {
        if frame.hops == 0 {
            return Arrival::Nothing;
        }
        match frame.kind {
            Kind::QUEUE => self.receive_message(frame),
            Kind::ACKNOWLEDGE => self.receive_acknowledgement(frame),
            Kind::RESPONSE => self.receive_response(frame),
            Kind::DIRECT => Arrival::Direct(Received::copy(frame)),
            Kind::EVENT => Arrival::Event(Received::copy(frame)),
            Kind::PING => {
                self.output.extend_from_slice(&PONG);
                Arrival::Nothing
            }
            Kind::TERMINATE => Arrival::Terminated,
            _ => Arrival::Nothing,
        }
    }

    fn receive_message(&mut self, frame: &Frame<'_>) -> Arrival<W> {
        // Most deliveries have no header, and most clients no pull under way.
        let pull = if frame.headers.is_empty() { None } else { header_value(frame.headers, key::REQUEST_ID) };
        let Some(request) = pull else { return Arrival::Delivery(Received::copy(frame)) };
        let end = header_value(frame.headers, key::NO_CONTENT);
        let Some(Pending { expect: Expect::Pull(messages), .. }) = self.pending.get_mut(request) else {
            return self.receive_late_pulled(frame, end.is_some());
        };
        match end {
            None => {
                messages.push(Received::copy(frame));
                Arrival::Nothing
            }
            Some(reason) => {
                let reason = String::from_utf8_lossy(reason).into();
                self.end_pull(request, PullEnd::NoContent(reason))
            }
        }
    }

    /// Somebody pulled and went away: what asks for an acknowledgement is handed back, not kept from others.
    fn receive_late_pulled(&mut self, frame: &Frame<'_>, is_end: bool) -> Arrival<W> {
        if !is_end {
            self.tally.late_pulled += 1;
            if frame.pending_acknowledge {
                let refused = self.acknowledge(&Received::copy(frame), Some(nack_reason::NONE));
                debug_assert_eq!(refused, Ok(()), "what was read can be written");
            }
        }
        Arrival::Nothing
    }

    fn receive_acknowledgement(&mut self, frame: &Frame<'_>) -> Arrival<W> {
        let Some(pending) = self.take_pending(frame.id) else {
            self.tally.late_answers += 1;
            return Arrival::Nothing;
        };
        let result = match header_value(frame.headers, key::NACK_REASON) {
            Some(reason) => Err(ClientError::Nacked {
                target: pending.about.to_text(),
                reason: String::from_utf8_lossy(reason).into(),
            }),
            None if frame.source.is_empty() && frame.hops == HOPS_FRESH => Ok(Answer::Confirmed(By::Server)),
            None => Ok(Answer::Confirmed(By::Consumer)),
        };
        self.settle(pending, result)
    }

    fn receive_response(&mut self, frame: &Frame<'_>) -> Arrival<W> {
        let code = frame.content_type;
        let Some(pending) = self.take_pending(frame.id) else {
            // An answer to a message that was published without confirmation has the channel as its target.
            let unconfirmed = code != status::OK && frame.target != self.own_id.as_bytes();
            let counter =
                if unconfirmed { &mut self.tally.refused_unconfirmed } else { &mut self.tally.late_answers };
            *counter += 1;
            return Arrival::Nothing;
        };
        if code != status::OK && code < status_of_applications() {
            let refusal = refusal(&pending, frame);
            return self.settle(pending, Err(refusal.into()));
        }
        let answer = match pending.expect {
            Expect::Pull(_) => {
                Answer::Pulled(PullAnswer { messages: vec![Received::copy(frame)], end: PullEnd::Cached })
            }
            Expect::Confirmation => Answer::Confirmed(By::Server),
            Expect::Response | Expect::Intent(_) => Answer::Response(Received::copy(frame)),
        };
        self.settle(pending, Ok(answer))
    }

    fn end_pull(&mut self, request: &[u8], end: PullEnd) -> Arrival<W> {
        let Some(mut pending) = self.take_pending(request) else { return Arrival::Nothing };
        let messages = match &mut pending.expect {
            Expect::Pull(messages) => std::mem::take(messages),
            _ => Vec::new(),
        };
        self.settle(pending, Ok(Answer::Pulled(PullAnswer { messages, end })))
    }

    fn take_pending(&mut self, id: &[u8]) -> Option<Pending<W>> {
        let pending = self.pending.remove(id)?;
        self.pulls -= usize::from(matches!(pending.expect, Expect::Pull(_)));
        Some(pending)
    }

    /// Notes what the answer means for an intent, and gives it to whoever waited.
    fn settle(&mut self, pending: Pending<W>, result: Result<Answer, ClientError>) -> Arrival<W> {
        if let Expect::Intent(key) = &pending.expect
            && let Some(standing) = self.intents.get_mut(key)
        {
            match (&result, &pending.waiter) {
                (Ok(_), _) => standing.agreed = true,
                // Another user's request may have been agreed to meanwhile.
                (Err(_), _) if standing.agreed => {}
                (Err(_), Some(_)) => standing.told = false,
                (Err(error), None) => {
                    standing.told = false;
                    return Arrival::NotRestored(pending.about, error.clone());
                }
            }
        }
        match pending.waiter {
            Some(waiter) => Arrival::Settled(waiter, result),
            None => Arrival::Nothing,
        }
    }

    fn count_user(&mut self, key: Intent, intent: Intent) -> &mut Standing {
        let new = Standing { intent, users: 0, told: false, agreed: false };
        let standing = self.intents.entry(key).or_insert(new);
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
        self.pending.insert(id, Pending { expect, operation, about, waiter });
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

    fn id_for(&mut self, given: Option<&str>) -> Result<MessageId, ClientError> {
        let Some(given) = given else { return Ok(self.ids.next()) };
        if given.is_empty() {
            return Err(ClientError::invalid("message id", "it is empty; leave it out to get a new one"));
        }
        if self.pending.contains_key(given.as_bytes()) {
            let why = format!("{given:?} is waiting for its answer; ids are unique");
            return Err(ClientError::invalid("message id", why));
        }
        Ok(MessageId::from_slice(given.as_bytes()))
    }
}

/// The first status that means nothing to the broker.
const fn status_of_applications() -> u16 {
    1000
}

fn partial(expect: Expect) -> Option<PullAnswer> {
    match expect {
        Expect::Pull(messages) => Some(PullAnswer { messages, end: PullEnd::CutShort }),
        _ => None,
    }
}

/// Octets of a reason that are repeated, at most.
const REASON_BYTES_MAX: usize = 1024;

fn refusal<W>(pending: &Pending<W>, frame: &Frame<'_>) -> Refusal {
    // Servers of this protocol say why in a header, if they do; mqcore says it in the body.
    let reason = header_value(frame.headers, key::REASON)
        .or_else(|| header_value(frame.headers, key::ERROR))
        .unwrap_or(frame.payload);
    let reason = String::from_utf8_lossy(&reason[..reason.len().min(REASON_BYTES_MAX)]);
    Refusal {
        code: frame.content_type,
        operation: pending.operation,
        target: pending.about.to_text(),
        reason: reason.into(),
    }
}

fn refusal_headers(refusal: Option<&str>) -> Result<Vec<u8>, ClientError> {
    let mut headers = Vec::new();
    if let Some(reason) = refusal {
        let reason = if reason.is_empty() { nack_reason::NONE } else { reason };
        crate::request::push(&mut headers, key::NACK_REASON, reason)?;
    }
    Ok(headers)
}

fn too_large(error: mqcore_wire::error::WireError) -> ClientError {
    match error {
        mqcore_wire::error::WireError::TooLarge { part, size, max } => {
            ClientError::TooLarge { part, size, limit: max }
        }
        other => ClientError::BadFrame(other),
    }
}
