//! Requests to consume that wait for an authenticator of the program.

use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::context::questions::{OpenQuestion, Suspended};
use crate::model::client::Client;
use crate::model::command::Request;
use crate::model::config::HandlerSpec;
use crate::model::decision::Step;
use crate::model::effect::{Answer, Effect, Event, HandlerFailure, Question};
use crate::model::id::{ChannelName, ConnectionId, HandlerId, QueueAddress, QueueRef, RequestId};
use crate::model::options::Status;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::shard::entities::Entities;

/// A request that waits for the answer of an authenticator.
struct PendingRequest {
    client: Arc<Client>,
    id: RequestId,
    request: Request,
}

/// The requests that wait for authenticators, by number.
#[derive(Default)]
pub(crate) struct Authentications {
    pending: HashMap<u64, PendingRequest>,
    last: u64,
}

impl Authentications {
    /// A connection was closed: its requests are dropped.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        if !self.pending.is_empty() {
            self.pending.retain(|_, pending| pending.client.connection != connection);
        }
    }
}

impl Entities {
    /// Returns the request if no authenticator decides about it. Otherwise it is answered later.
    pub(crate) fn authenticate(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        request: Request,
        context: &mut Context<'_>,
    ) -> Option<Request> {
        let (channel, joins) = match &request {
            Request::Join { channel } => (channel.clone(), true),
            Request::JoinQueues(join) => (join.channel.clone(), true),
            Request::SubscribeQueue(subscription) => (subscription.queue.channel.clone(), false),
            _ => return Some(request),
        };
        let known = self.lookup(&channel).map(|key| &self.channels[key]);
        if joins && known.is_some_and(|channel| channel.members.has_joined(client.connection)) {
            // It was asked about when the client joined.
            return Some(request);
        }
        let options = known.map_or(&context.state.config.channel, |channel| &channel.options);
        let Some(key) = options.authenticator.as_deref().filter(|key| !key.is_empty()) else {
            return Some(request);
        };
        let key = HandlerSpec::authenticator_key(key);
        let pending = PendingRequest { client: client.clone(), id, request };
        let kind = RejectionKind::Busy;
        match context.state.handler(&key) {
            None => {
                let reason = format!(
                    "the {key} of channel {channel} is not registered; start the program that has it"
                );
                pending.refuse(Rejection::new(kind, reason), context);
            }
            Some(_) if self.authentications.pending.len() >= context.state.config.undecided_max => {
                let reason = format!("too many clients wait for the {key}; try again later");
                pending.refuse(Rejection::new(kind, reason), context);
            }
            Some(handler) => self.ask_authenticator(pending, channel, handler, context),
        }
        None
    }

    fn ask_authenticator(
        &mut self,
        pending: PendingRequest,
        channel: ChannelName,
        handler: HandlerId,
        context: &mut Context<'_>,
    ) {
        self.authentications.last += 1;
        let number = self.authentications.last;
        let suspended = Suspended::Authentication(number);
        let open = OpenQuestion { queue_ref: QueueRef::NONE, suspended, handler };
        let question = Question {
            id: context.state.ask(open, context.now),
            handler,
            step: Step::Authenticate,
            queue: Arc::new(QueueAddress { channel, id: 0 }),
            status: Status::default(),
            message: None,
            attempt: 0,
            saved: false,
            consumer: Some(pending.client.clone()),
            acknowledgement: None,
            wants_answer: true,
        };
        context.effects.push(Effect::Ask(question));
        self.authentications.pending.insert(number, pending);
    }

    /// Takes the answer of an authenticator; `None` if the deadline passed.
    pub(crate) fn authenticated(&mut self, number: u64, answer: Option<Answer>, context: &mut Context<'_>) {
        let Some(pending) = self.authentications.pending.remove(&number) else { return };
        let why = match answer.map(|answer| answer.result) {
            Some(Ok(decision)) if decision.allow => {
                return self.carry_out(&pending.client, pending.id, pending.request, context);
            }
            Some(Ok(_)) => "the authenticator of the channel refuses this client",
            Some(Err(HandlerFailure::Raised)) => "the authenticator of the channel failed",
            Some(Err(HandlerFailure::Gone)) => "the authenticator of the channel is not running",
            None => "the authenticator of the channel did not answer in time",
        };
        pending.refuse(Rejection::new(RejectionKind::Unauthorized, why), context);
    }
}

impl PendingRequest {
    fn refuse(self, rejection: Rejection, context: &mut Context<'_>) {
        context.state.counters.refused += 1;
        context.notify(self.client.connection, Event::Answered(self.id, Err(rejection)));
    }
}
