//! A client's frames as commands, and the broker's events as frames.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{
    Acknowledgement, ClientPattern, Command, MessageId, Nack, Request, Retry,
};
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{QueueAddress, Tag};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::tmqp::header::{self, key, nack_reason};
use mqcore_wire::tmqp::operation::{Operation, status};
use mqcore_wire::tmqp::{self, Frame, Kind};

use super::answer::{self, RepeatedParts};
use super::frame::{addressee, pattern_text, properties};
use super::passing::{self, Greeting, Names, NodeConversation};
use super::pending::{Form, PendingAnswer, PendingRequests, UNANSWERED, WholeAnswer};
use super::publish::{ChannelNames, Publisher};
use super::topic::TopicNames;
use super::{delivery, information, occurrence, operation, pull, routers, subscription, topic};
use crate::message_id::MessageIds;
use crate::node::NodeTerms;
use crate::session::{SessionConfig, SessionError};

/// The state of a client's conversation between two frames.
#[derive(Debug)]
pub(super) struct Exchange {
    shards: u32,
    /// Maximum bytes of a frame, and so of all copies of one message.
    frame_bytes_max: u64,
    answer_bytes_max: u32,
    ids: MessageIds,
    channels: ChannelNames,
    topics: TopicNames,
    pub(super) pending: PendingRequests,
    ignored: u64,
    /// Boxed, because most brokers stand alone.
    node: Option<Box<NodeContext>>,
}

/// The state of a session that concerns other brokers.
#[derive(Debug)]
struct NodeContext {
    terms: Arc<NodeTerms>,
    /// State for a peer that is another broker.
    passing: Option<NodeConversation>,
}

/// Takes a frame of one kind.
type Handler = fn(&mut Exchange, &Arc<Client>, &Frame<'_>, &mut Vec<Command>, &mut Vec<u8>);

/// The handlers of all kinds that [`Exchange::frame`] does not handle itself because they are frequent.
const HANDLERS: [(Kind, Handler); 9] = [
    (Kind::PULL, Exchange::pull),
    (Kind::DIRECT, Exchange::direct),
    (Kind::RESPONSE, Exchange::respond),
    (Kind::SERVER, Exchange::operate),
    (Kind::EVENT, Exchange::subscribe),
    (Kind::ROUTER, Exchange::route),
    (Kind::OTHER, Exchange::custom),
    (Kind::PING, |_, _, _, _, output| output.extend_from_slice(&tmqp::PONG)),
    (Kind::PONG, |_, _, _, _, _| {}),
];

/// Whether the conversation continues after a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Close,
}

impl Exchange {
    pub(super) fn new(config: &SessionConfig, now: Timestamp) -> Self {
        Self {
            shards: config.shards.max(1) as u32,
            frame_bytes_max: config.limits.frame_bytes_max,
            answer_bytes_max: config.answer_bytes_max,
            ids: MessageIds::new(config.connection, now),
            channels: ChannelNames::default(),
            topics: TopicNames::default(),
            pending: PendingRequests::default(),
            ignored: 0,
            node: config.node.clone().map(|terms| Box::new(NodeContext { terms, passing: None })),
        }
    }

    pub(super) const fn ignored_frames(&self) -> u64 {
        self.ignored
    }

    pub(super) fn fresh_id(&mut self) -> [u8; 32] {
        self.ids.next()
    }

    /// Marks the peer as another broker.
    pub(super) fn pass_on(&mut self, client: &Client, greeting: &Greeting) {
        if let Some(node) = &mut self.node {
            node.passing = Some(NodeConversation::new(client, greeting));
        }
    }

    /// Whether the peer is another broker.
    pub(super) fn is_node(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.passing.is_some())
    }

    fn passing(&mut self) -> Option<&mut NodeConversation> {
        self.node.as_mut()?.passing.as_mut()
    }

    /// Confirms to a node how far the frames that it forwarded are done, if that has changed.
    pub(super) fn answer_node(&mut self, output: &mut Vec<u8>) {
        if let Some(passing) = self.passing() {
            passing.tell(output);
        }
    }

    /// Takes one frame of the client, whose bytes are in `bytes`.
    #[inline]
    pub(super) fn frame(
        &mut self,
        client: &Arc<Client>,
        mut frame: Frame<'_>,
        bytes: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<Next, SessionError> {
        if self.node.is_some() && passing::is_passed_on(frame.kind) && self.passing().is_some() {
            return self.passed_on(frame, bytes, commands);
        }
        if frame.hops == 0 {
            self.ignored += 1;
            return Ok(Next::Continue);
        }
        frame.hops -= 1;
        // A response without an id could not be matched to its request.
        frame.pending_response &= !frame.id.is_empty();
        if !frame.source.is_empty() && frame.source != client.id.as_bytes() {
            return Err(SessionError::misbehaved("the source of a frame is not the client that sent it"));
        }
        match frame.kind {
            Kind::QUEUE if frame.target.starts_with(topic::PREFIX) => {
                let (topics, pending) = (&mut self.topics, &mut self.pending);
                topic::publish(client, &frame, bytes, topics, pending, commands, output);
            }
            Kind::QUEUE => self.publisher(client).publish(&frame, bytes, commands, output),
            Kind::ACKNOWLEDGE => self.acknowledge(client, &frame, commands),
            Kind::TERMINATE => return Ok(Next::Close),
            kind => match HANDLERS.iter().find(|(handled, _)| *handled == kind) {
                Some((_, handle)) => handle(self, client, &frame, commands, output),
                None => self.ignored += 1,
            },
        }
        Ok(Next::Continue)
    }

    /// A frame that another broker forwards, or a number of its own.
    fn passed_on(
        &mut self,
        frame: Frame<'_>,
        bytes: &[u8],
        commands: &mut Vec<Command>,
    ) -> Result<Next, SessionError> {
        if let Some(NodeContext { terms, passing: Some(passing), .. }) = self.node.as_deref_mut() {
            let (channels, topics, ids) = (&mut self.channels, &mut self.topics, &mut self.ids);
            passing.frame(terms, frame, bytes, &mut Names { channels, topics, ids }, commands)?;
        }
        Ok(Next::Continue)
    }

    fn publisher<'a>(&'a mut self, client: &'a Arc<Client>) -> Publisher<'a> {
        let (channels, ids) = (&mut self.channels, &mut self.ids);
        Publisher { client, channels, ids, copied_bytes_max: self.frame_bytes_max }
    }

    /// A consumer's acknowledgement. One without a channel or an id is ignored, because it has no answer.
    #[inline]
    fn acknowledge(&mut self, client: &Arc<Client>, frame: &Frame<'_>, commands: &mut Vec<Command>) {
        if frame.high_priority {
            return self.acknowledge_direct(client, frame, commands);
        }
        let channel = match self.channels.name(frame.target) {
            Ok(channel) if !frame.id.is_empty() => channel,
            _ => {
                self.ignored += 1;
                return;
            }
        };
        let reason = header::header_value(frame.headers, key::NACK_REASON);
        commands.push(Command::Acknowledge(Acknowledgement {
            tag: Tag::CHANNEL,
            queue: QueueAddress { channel, id: frame.content_type },
            message_id: MessageId::from_slice(frame.id),
            refusal: reason.map(|reason| Nack::new(&String::from_utf8_lossy(reason), retry(frame.headers))),
            headers: frame.headers.into(),
            hops: frame.hops,
            first_acquirer: frame.first_acquirer,
        }));
    }

    fn acknowledge_direct(&mut self, client: &Arc<Client>, frame: &Frame<'_>, commands: &mut Vec<Command>) {
        match addressee(frame) {
            Some(to) => commands.push(Command::AcknowledgeDirect {
                to: to.into(),
                message: message(client, frame, frame.id),
            }),
            None => self.ignored += 1,
        }
    }

    fn respond(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        _output: &mut Vec<u8>,
    ) {
        match addressee(frame) {
            Some(to) => {
                commands.push(Command::Respond { to: to.into(), message: message(client, frame, frame.id) });
            }
            None => self.ignored += 1,
        }
    }

    fn direct(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let Some(to) = str::from_utf8(frame.target).ok().filter(|to| !to.is_empty()) else {
            if !frame.id.is_empty() {
                let reason = "the target of a direct message is a client id, @name:NAME or @type:TYPE";
                let rejection = Rejection::new(RejectionKind::BadRequest, reason);
                answer::refusal(&RepeatedParts::by_frame(frame), client.id.as_bytes(), &rejection, output);
            }
            return;
        };
        let fresh;
        let id = if frame.id.is_empty() {
            fresh = self.ids.next();
            &fresh[..]
        } else {
            frame.id
        };
        commands.push(Command::Direct { to: ClientPattern::parse(to), message: message(client, frame, id) });
    }

    /// A custom message for the program that the broker is part of. It has no answer.
    fn custom(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        _output: &mut Vec<u8>,
    ) {
        commands.push(Command::Custom(message(client, frame, frame.id)));
    }

    fn route(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        match routers::read(client, frame, &mut self.ids) {
            Ok(command) => commands.push(command),
            Err(refusal) => {
                let waits = (frame.pending_acknowledge, frame.pending_response);
                let to = (frame.target, frame.content_type);
                let id = client.id.as_bytes();
                routers::answered(&RepeatedParts::by_frame(frame), waits, to, id, Some(&refusal), output);
            }
        }
    }

    fn pull(
        &mut self,
        _client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        match pull::read(frame, &mut self.channels, &mut self.pending) {
            Ok(pull) => commands.push(Command::Pull(Box::new(pull))),
            Err(why) => delivery::no_content(
                &RepeatedParts::by_frame(frame),
                frame.target,
                frame.content_type,
                why,
                output,
            ),
        }
    }

    fn operate(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let repeated = RepeatedParts::by_frame(frame);
        let form = answer_form(frame);
        let request = match Operation::from_code(frame.content_type) {
            Some(Operation::ExtendDelivery) => {
                match operation::extension(frame, &mut self.channels) {
                    Some(command) => commands.push(command),
                    None => self.ignored += 1,
                }
                return;
            }
            Some(operation) => operation::request(operation, client, frame),
            None => {
                self.ignored += 1;
                let reason = format!("unknown operation {}", frame.content_type);
                Err(Rejection::new(RejectionKind::BadRequest, reason))
            }
        };
        self.ask(client, &repeated, form, request, commands, output);
    }

    fn subscribe(
        &mut self,
        client: &Arc<Client>,
        frame: &Frame<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        // Always answered, as the original does, so a missing id is generated.
        let fresh;
        let id = if frame.id.is_empty() {
            fresh = self.ids.next();
            &fresh[..]
        } else {
            frame.id
        };
        let repeated = RepeatedParts { id, ..RepeatedParts::by_frame(frame) };
        let request = subscription::read(frame).map(Request::Subscribe);
        self.ask(client, &repeated, Some(Form::YesOrNo), request, commands, output);
    }

    /// Sends a request to the broker, or rejects it at once if it is invalid or too many are open.
    fn ask(
        &mut self,
        client: &Arc<Client>,
        repeated: &RepeatedParts<'_>,
        form: Option<Form>,
        request: Result<Request, Rejection>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let request = match (request, &form) {
            (Ok(_), Some(_)) if self.pending.is_full() => {
                Err(Rejection::new(RejectionKind::Busy, "too many requests are unanswered; try again later"))
            }
            (request, _) => request,
        };
        match (request, form) {
            (Ok(request), Some(form)) => {
                let parts = request.answers(self.shards as usize);
                let answer = PendingAnswer::new(repeated, form);
                commands.extend(self.pending.ask(answer, request, parts, self.answer_bytes_max));
            }
            (Ok(request), None) => commands.push(Command::Request(UNANSWERED, Box::new(request))),
            (Err(rejection), Some(form)) => answer_request(client, repeated, &form, Err(rejection), output),
            (Err(_), None) => {}
        }
    }

    /// Writes an event of the broker. False if the peer has to disconnect and connect again.
    pub(super) fn event(&mut self, client: &Arc<Client>, event: Event, output: &mut Vec<u8>) -> bool {
        match event {
            Event::Confirmed(tickets) => {
                if let Some(passing) = self.passing() {
                    passing.confirmed(&tickets);
                    passing.tell(output);
                }
            }
            // The node sends it again on a new connection, with all that follows, so the order stays.
            Event::Deferred(..) | Event::Job(_) => return false,
            // A node notifies its client itself.
            Event::PublishRefused { .. } | Event::DirectRefused { .. } if self.passing().is_some() => {}
            Event::Acknowledged { queue, message, negative, relayed } => {
                let (channel, id, negative) =
                    (queue.channel.as_str().as_bytes(), queue.id, negative.as_deref());
                match relayed.as_deref() {
                    _ if message.id().is_empty() => {}
                    None => answer::settled(&message, channel, id, negative, output),
                    Some((word, consumer)) => {
                        answer::relayed(&message, channel, id, negative, word, consumer.as_deref(), output);
                    }
                }
            }
            Event::PublishRefused { queue, message, rejection } => {
                let (repeated, waits) =
                    (RepeatedParts::by_message(&message), message.properties().pending_acknowledge);
                let channel = queue.channel.as_str().as_bytes();
                answer::publish_refused(&repeated, waits, channel, queue.id, &rejection, output);
            }
            Event::Answered(request, part) => {
                if let Some((pending, answer)) = self.pending.answered(request, part) {
                    answer_whole(client, &pending, answer, output);
                }
            }
            Event::Pulled {
                request,
                message,
                acknowledge,
                hide_source,
                first,
                attempt,
                index,
                count,
                left,
            } => {
                if let Some(pull) = self.pending.pull(request) {
                    let pulled =
                        delivery::Pulled { message: &message, acknowledge, hide_source, first, attempt };
                    delivery::pulled(pull, &pulled, index, count, left, output);
                }
            }
            Event::PullEnded { request, outcome } => {
                if let Some(pull) = self.pending.pull_ended(request) {
                    let why = delivery::no_content_word(outcome);
                    delivery::no_content(&pull.repeated(), &pull.channel, pull.queue, why, output);
                }
            }
            Event::Cached { request, message, hide_source } => {
                if let Some(pull) = self.pending.pull_ended(request) {
                    delivery::cached(&pull, &message, hide_source, client.id.as_bytes(), output);
                }
            }
            // Its consumers join channels: there are no subscriptions that could end or have bindings.
            Event::SubscriptionEnded { .. } | Event::BindingsChanged { .. } | Event::Delivered(_) => {}
            // The producer did not ask for an acknowledgement.
            Event::TopicRefused { .. } => {}
            Event::Direct { to, message } => {
                delivery::relay(Kind::DIRECT, &message, pattern_text(&to).as_bytes(), output);
            }
            Event::Custom(message) => {
                delivery::relay(Kind::OTHER, &message, client.id.as_bytes(), output);
            }
            Event::Published { topic, message } => delivery::published(&topic, &message, output),
            Event::Routed { router, message, refusal } => {
                let properties = message.properties();
                let waits = (properties.pending_acknowledge, properties.pending_response);
                let to = (router.as_str().as_bytes(), properties.content_type);
                let (repeated, id) = (RepeatedParts::by_message(&message), client.id.as_bytes());
                routers::answered(&repeated, waits, to, id, refusal.as_ref(), output);
            }
            Event::DirectAcknowledged(message) => {
                delivery::relay(Kind::ACKNOWLEDGE, &message, client.id.as_bytes(), output);
            }
            Event::Responded(message) => {
                delivery::relay(Kind::RESPONSE, &message, client.id.as_bytes(), output);
            }
            Event::DirectRefused { to, message, rejection } => {
                direct_refused(client, &to, &message, &rejection, output);
            }
            Event::Notified(occurrence) => occurrence::encode(&occurrence, output),
            // Sent once, before there was a client.
            Event::Welcomed(_) | Event::Refused(_) => {}
        }
        true
    }
}

/// When a consumer wants a rejected message redelivered. A delay that is not a number of seconds is ignored.
fn retry(headers: &[u8]) -> Retry {
    if header::header_value(headers, key::UNSTARTED).is_some() {
        return Retry::Unstarted;
    }
    let delay = header::header_value(headers, key::RETRY_AFTER).and_then(|value| str::from_utf8(value).ok());
    let delay = delay.and_then(|text| text.trim().parse().ok()).map(Duration::try_from_secs_f64);
    delay.and_then(Result::ok).map_or(Retry::AsDecided, Retry::After)
}

/// How the sender of an operation wants the answer; `None` if it wants none.
fn answer_form(frame: &Frame<'_>) -> Option<Form> {
    if frame.pending_response {
        let is_page = header::header_value(frame.headers, key::PAGE_SIZE).is_some();
        return Some(if is_page { Form::Page } else { Form::Response });
    }
    let acknowledged = frame.pending_acknowledge && !frame.id.is_empty();
    acknowledged
        .then(|| Form::Acknowledgement { target: frame.target.into(), content_type: frame.content_type })
}

fn answer_whole(client: &Client, pending: &PendingAnswer, answer: WholeAnswer, output: &mut Vec<u8>) {
    let repeated = pending.repeated();
    match answer {
        WholeAnswer::Reply(answer) => answer_request(client, &repeated, &pending.form, answer, output),
        WholeAnswer::List(Ok(list)) => {
            answer::list(&repeated, client.id.as_bytes(), &list.body, list.next.as_deref(), output);
        }
        WholeAnswer::List(Err(rejection)) => {
            answer_request(client, &repeated, &pending.form, Err(rejection), output);
        }
    }
}

fn answer_request(
    client: &Client,
    repeated: &RepeatedParts<'_>,
    form: &Form,
    answer: Result<Reply, Rejection>,
    output: &mut Vec<u8>,
) {
    let to = client.id.as_bytes();
    match (form, answer) {
        (Form::Response | Form::Page, Ok(Reply::JoinedQueues(joined))) => {
            answer::joined_queues(repeated, to, &joined, output);
        }
        (Form::Response | Form::Page, Ok(reply)) => {
            answer::response(repeated, to, status::OK, &information::body(&reply), output);
        }
        (Form::Response | Form::Page, Err(rejection)) => {
            answer::refusal(repeated, to, &rejection, output);
        }
        (Form::YesOrNo, Ok(_)) => answer::response(repeated, to, status::OK, &[], output),
        (Form::YesOrNo, Err(rejection)) => {
            answer::refusal_with_code(repeated, to, status::FAILED, &rejection.reason, output);
        }
        (Form::Receipt { target, content_type }, answer) => {
            let repeated = RepeatedParts { high_priority: false, ..*repeated };
            let reason = match &answer {
                Ok(Reply::Published(0)) => Some(nack_reason::NO_CONSUMERS),
                Ok(_) => None,
                Err(rejection) => Some(&*rejection.reason),
            };
            answer::acknowledgement(&repeated, target, *content_type, reason, output);
        }
        (Form::Acknowledgement { target, content_type }, answer) => {
            let repeated = RepeatedParts { high_priority: false, ..*repeated };
            let reason = answer.as_ref().err().map(|rejection| rejection.reason.as_ref());
            answer::acknowledgement(&repeated, target, *content_type, reason, output);
        }
    }
}

/// No client received a direct message. For an id the sender is always notified; for a name or a type, which may match
/// no client, only if it waits for an answer.
fn direct_refused(
    client: &Client,
    to: &ClientPattern,
    message: &Message,
    rejection: &Rejection,
    output: &mut Vec<u8>,
) {
    if message.id().is_empty() {
        return;
    }
    let (repeated, properties) = (RepeatedParts::by_message(message), message.properties());
    if properties.pending_response || matches!(to, ClientPattern::Id(_)) {
        answer::refusal(&repeated, client.id.as_bytes(), rejection, output);
    }
    if properties.pending_acknowledge {
        // High priority marks the acknowledgement of a direct message.
        let repeated = RepeatedParts { high_priority: true, ..repeated };
        let reason = header::nack_reason::NO_CONSUMERS;
        answer::acknowledgement(
            &repeated,
            client.id.as_bytes(),
            properties.content_type,
            Some(reason),
            output,
        );
    }
}

/// A frame from client to client as a message, under this id.
fn message(client: &Arc<Client>, frame: &Frame<'_>, id: &[u8]) -> Message {
    Message::from_parts(id, frame.headers, frame.payload, properties(frame), Some(client.clone()))
}
