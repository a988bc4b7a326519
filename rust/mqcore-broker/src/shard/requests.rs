//! Requests: a table from each request to the method that carries it out.

use std::sync::Arc;

use crate::context::Context;
use crate::context::commits::{Awaiting, Storage};
use crate::model::client::Client;
use crate::model::command::{Request, RequiredState};
use crate::model::declaration::{Declaration, OnConflict};
use crate::model::definition::{channel_key, queue_key};
use crate::model::effect::{Effect, Event, Reply};
use crate::model::id::{ChannelName, QueueAddress, RequestId, Sequence};
use crate::model::options::{ChannelChanges, Durability, QueueChanges};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::topic::TopicPattern;
use crate::shard::channel::{Channel, no_queue};
use crate::shard::entities::{Entities, no_channel};
use crate::shard::routes::no_router;

impl Entities {
    /// Carries out a request and answers it, at once or when everything that the answer promises is done.
    pub(crate) fn answer_request(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        request: Request,
        context: &mut Context<'_>,
    ) {
        if let Request::TestRoute { router, message } = request {
            return self.test_route(client, id, router, message, context);
        }
        if let Request::MoveMessages(wanted) = request {
            if client.admin {
                return self.move_messages(client.connection, id, *wanted, context);
            }
            context.state.counters.refused += 1;
            let event = Event::Answered(id, Err(only_administrators()));
            context.effects.push(Effect::Notify(client.connection, event));
            return;
        }
        if let Some(request) = self.authenticate(client, id, request, context) {
            self.carry_out(client, id, request, context);
        }
    }

    /// Carries out a request that its client may make, and answers it.
    pub(crate) fn carry_out(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        request: Request,
        context: &mut Context<'_>,
    ) {
        let before = context.state.commits.sequence;
        let required = request.required();
        let result = self.request(client, request, context);
        self.answer_once_committed(client, id, before, required, result, context);
    }

    /// Carries out a declaration of the program and answers it like a request.
    pub(crate) fn answer_declaration(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        declaration: &Declaration,
        context: &mut Context<'_>,
    ) {
        let before = context.state.commits.sequence;
        let result = self.declare(declaration, OnConflict::Reject, context).map(Reply::Declared);
        self.answer_once_committed(client, id, before, RequiredState::Definitions, result, context);
    }

    /// Answers a request that began when `before` was the last sequence.
    fn answer_once_committed(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        before: Sequence,
        required: RequiredState,
        result: Result<Reply, Rejection>,
        context: &mut Context<'_>,
    ) {
        if result.is_err() {
            context.state.counters.refused += 1;
        }
        let event = Event::Answered(id, result);
        let commits = &mut context.state.commits;
        let has_journal = commits.storage == Storage::Ready;
        if let Some(ticket) = self.ticket.take() {
            // Bindings do not survive restarts, so there is no commit to wait for.
            self.bindings.wait(ticket, client.connection, event);
        } else if has_journal && commits.sequence > before {
            // The request changed what must survive, so the answer waits for the commit.
            commits.wait(Durability::Fsync, Awaiting::Answer(client.connection, event));
        } else if has_journal && required == RequiredState::Definitions && commits.has_unsynced_changes() {
            // Another request made the change that this one relies on, and a crash can still undo it.
            commits.wait_for_changes(Awaiting::Answer(client.connection, event));
        } else if has_journal && required == RequiredState::Removals && commits.has_unsynced_records() {
            // The same: messages that were removed before would be back after a crash.
            commits.wait_for_records(Awaiting::Answer(client.connection, event));
        } else {
            context.effects.push(Effect::Notify(client.connection, event));
        }
    }

    /// Carries out a request that any client may make; administrators' requests are in the second table.
    fn request(
        &mut self,
        client: &Arc<Client>,
        request: Request,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        match request {
            Request::Join { channel } => self.join(client, &channel, context),
            Request::JoinQueues(join) => self.join_queues(client, *join, context),
            Request::Leave { channel } => self.leave(client, &channel, context),
            Request::LeaveQueues { channel, queues } => self.leave_queues(client, &channel, &queues, context),
            Request::MayPublish { queue } => self.may_publish(&queue, context),
            Request::MayDirect { to } => {
                let connected = !self.directory.receivers(&to, true).is_empty();
                done_or(connected, || "no such client is connected".to_owned())
            }
            // The server has checked the permission, but only if there are users or rules.
            Request::MayRunSchedules if client.admin => Ok(Reply::Done),
            Request::CreateChannel { channel, changes } => {
                self.create_new_channel(&channel, &changes, client, context)
            }
            Request::CreateQueue { queue, changes } => {
                done(self.create_new_queue(&queue, &changes, client, context))
            }
            Request::Subscribe(subscription) => self.subscribe(client, &subscription),
            Request::SubscribeQueue(subscription) => self.subscribe_queue(client, *subscription, context),
            Request::UnsubscribeQueue { queue, tag, started } => {
                self.unsubscribe_queue((client.connection, tag), &queue, started, context)
            }
            Request::ToSubscriptions { name, what } => self.reach_subscriptions(&name, &what, context),
            Request::RebindQueue { queue, binding } => done(self.rebind(&queue, *binding, None, context)),
            Request::ObjectCounts => Ok(Reply::ObjectCounts(Box::new(self.object_counts(context.state)))),
            Request::DropQueue { queue } => {
                self.drop_queue(&queue, context);
                Ok(Reply::Done)
            }
            Request::SubscribeTopic { pattern } => {
                let limits = context.state.config.topic_limits;
                done(self.topics.subscribe(client, pattern, &limits))
            }
            Request::UnsubscribeTopic { pattern } => self.unsubscribe_topic(client, &pattern),
            Request::BindTopic { pattern, queue } => self.bind_topic(pattern, queue, context),
            Request::UnbindTopic { pattern, queue } => self.unbind_bound_topic(&pattern, &queue, context),
            _ if !client.admin => Err(only_administrators()),
            request => self.administrator_request(request, context),
        }
    }

    fn administrator_request(
        &mut self,
        request: Request,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        match request {
            Request::UpdateChannel { channel, changes } => {
                done(self.update_channel(&channel, &changes, context))
            }
            Request::RemoveChannel { channel } => {
                let key = self.lookup(&channel).ok_or_else(|| no_channel(&channel))?;
                self.remove_channel(key, context);
                Ok(Reply::Done)
            }
            Request::ChannelInformation { channel } => {
                self.channel(&channel).map(|channel| Reply::Channel(Box::new(channel.information())))
            }
            Request::ListChannels { filter, page } => Ok(self.list_channels(filter.as_deref(), &page)),
            Request::ListConsumers { channel, page } => {
                self.channel(&channel)?.list_consumers(&page, context.now)
            }
            Request::ListQueues { channel, page } => self.channel(&channel)?.list_queues(&page),
            Request::QueueInformation { queue } => self.queue_information(&queue),
            Request::UpdateQueue { queue, changes } => {
                self.change(&queue.channel, context, |channel, context| {
                    channel.update_queue(queue.id, &changes, context)
                })
            }
            Request::RemoveQueue { queue } => self
                .change(&queue.channel, context, |channel, context| channel.remove_queue(queue.id, context)),
            Request::ClearQueue { queue, clear } => {
                self.change(&queue.channel, context, |channel, context| {
                    let found = channel.queues.get_mut(&queue.id);
                    found.ok_or_else(|| no_queue(&queue.channel, queue.id))?.clear(clear, context);
                    Ok(())
                })
            }
            Request::CreateRouter { router, method } => self.create_router(router, method, context),
            Request::RemoveRouter { router } => {
                self.check_router_is_changeable(&router)?;
                self.remove_router(&router, context);
                Ok(Reply::Done)
            }
            Request::EnableRouter { router, enabled } => self.enable_router(&router, enabled, context),
            Request::Disconnect { to } => {
                done_or(self.reach_clients(&to, None, context) > 0, || "no such client is connected".into())
            }
            Request::ListRouters { filter, page } => Ok(self.list_routers(filter.as_deref(), &page)),
            Request::ListBindings { router } => {
                let found = self.routers.get(&router).ok_or_else(|| no_router(&router))?;
                Ok(Reply::Bindings(found.definition.bindings.clone()))
            }
            Request::AddBinding { router, binding } => self.add_binding(&router, binding, context),
            Request::RemoveBinding { router, binding } => self.remove_binding(&router, &binding, context),
            Request::ListClients { kind, page } => self.list_clients(kind.as_deref(), &page, context.now),
            Request::SetPolicy(policy) => self.set_policy(*policy, context),
            Request::RemovePolicy { name } => self.remove_policy(&name, context),
            Request::ListPolicies => Ok(Reply::Policies(context.state.policies.all().to_vec())),
            Request::MayAdminister => Ok(Reply::Done),
            Request::ListNodes { page } => self.list_nodes(&page, context.now),
            // `answer_request` starts the route that answers a test, and a move; `request` carries out the rest.
            _ => Ok(Reply::Done),
        }
    }

    fn may_publish(&self, queue: &QueueAddress, context: &Context<'_>) -> Result<Reply, Rejection> {
        done_or(self.takes(queue, &context.state.config), || {
            format!("queue {queue} does not exist; create it first")
        })
    }

    fn create_new_channel(
        &mut self,
        channel: &ChannelName,
        changes: &ChannelChanges,
        client: &Client,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let exists = self.lookup(channel).is_some();
        context.check_definition(exists, &channel_key(channel))?;
        if exists {
            let reason = format!("channel {channel} already exists");
            return Err(Rejection::new(RejectionKind::AlreadyExists, reason));
        }
        self.create_channel(channel, changes, Some(client), context)?;
        Ok(Reply::Done)
    }

    fn create_new_queue(
        &mut self,
        queue: &QueueAddress,
        changes: &QueueChanges,
        client: &Client,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let channel = self.lookup(&queue.channel);
        let exists = channel.is_some_and(|key| self.channels[key].queues.contains_key(&queue.id));
        context.check_definition(exists, &queue_key(queue))?;
        self.create_queue(queue, changes, Some(client), context)
    }

    fn unsubscribe_topic(
        &mut self,
        client: &Arc<Client>,
        pattern: &TopicPattern,
    ) -> Result<Reply, Rejection> {
        let gone = self.topics.unsubscribe(client.connection, pattern);
        done_or(gone, || format!("the client has not subscribed to {}", pattern.name()))
    }

    fn bind_topic(
        &mut self,
        pattern: TopicPattern,
        queue: QueueAddress,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        if !self.topics.is_saved(&pattern, &queue) {
            context.check_definitions()?;
        }
        if self.topics.bind_saved(pattern.clone(), &queue)? {
            context.record(Record::BindTopic(pattern, queue));
        }
        Ok(Reply::Done)
    }

    fn unbind_bound_topic(
        &mut self,
        pattern: &TopicPattern,
        queue: &QueueAddress,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let gone = self.unbind_topic(pattern, queue, context);
        done_or(gone, || format!("queue {queue} is not bound to {}", pattern.name()))
    }

    fn queue_information(&mut self, queue: &QueueAddress) -> Result<Reply, Rejection> {
        let channel = self.channel(&queue.channel)?;
        let found = channel.queues.get(&queue.id).ok_or_else(|| no_queue(&queue.channel, queue.id))?;
        Ok(Reply::Queue(Box::new(found.information(&channel.members))))
    }

    fn change(
        &mut self,
        channel: &ChannelName,
        context: &mut Context<'_>,
        change: impl FnOnce(&mut Channel, &mut Context<'_>) -> Result<(), Rejection>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(channel).ok_or_else(|| no_channel(channel))?;
        change(&mut self.channels[key], context)?;
        self.destroy_if_abandoned(key, context);
        Ok(Reply::Done)
    }
}

fn only_administrators() -> Rejection {
    Rejection::new(RejectionKind::Unauthorized, "only administrators may do this")
}

fn done(result: Result<(), Rejection>) -> Result<Reply, Rejection> {
    result.map(|()| Reply::Done)
}

fn done_or(done: bool, why: impl FnOnce() -> String) -> Result<Reply, Rejection> {
    if done { Ok(Reply::Done) } else { Err(Rejection::new(RejectionKind::NotFound, why())) }
}
