//! One client's side of TMQP: frames in, results out. No IO and no clock.
//!
//! Whoever waits for an answer is a `W`, which the conversation keeps by message id and hands back with the answer;
//! it never looks inside. What is to be written gathers in one buffer, so that everything that was said since the
//! last write is one write.

mod exchange;
mod receive;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::header::{key, nack_reason};
use mqcore_wire::tmqp::{Frame, Kind, PING, encode};

pub use self::exchange::{
    Answer, Arrival, By, DirectMessage, Publication, PullAnswer, PullEnd, TakenUp, Tally, Wait,
};
use crate::error::ClientError;
pub use crate::message_id::MessageId;
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::{Intent, Request, Target};

/// What targets that name routers begin with.
const ROUTER: &str = "@router:";

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

    /// Asks for a heartbeat.
    pub fn ping(&mut self) {
        self.output.extend_from_slice(&PING);
    }

    /// Nobody waits for this any more. Answers with what a pull had brought by then.
    pub fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        let pending = self.pending.remove(id)?;
        self.pulls -= usize::from(matches!(pending.expect, Expect::Pull(_)));
        partial(pending.expect)
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

fn partial(expect: Expect) -> Option<PullAnswer> {
    match expect {
        Expect::Pull(messages) => Some(PullAnswer { messages, end: PullEnd::CutShort }),
        _ => None,
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
