//! Channels, which are topics of the broker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqcore_broker::model::command::{Command, Request as BrokerRequest};
use mqcore_broker::model::id::TopicName;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::topic::TopicPattern;
use mqcore_wire::throttr::Family;
use mqcore_wire::throttr::answer;

use super::ThrottrSession;
use crate::throttr::held::AnswerUse;
use crate::throttr::peer::Counted;
use crate::throttr::shared::SUBSCRIPTIONS_MAX;

impl ThrottrSession {
    /// Ends all subscriptions, and the entry of the connection in the directory.
    pub(super) fn unregister(&mut self) {
        self.flush_tallies();
        for (topic, subscription) in std::mem::take(&mut self.subscriptions) {
            self.directory.unsubscribe(topic.as_bytes(), &subscription);
        }
        self.directory.leave(self.connection);
    }

    /// The topic of a channel's name, which has at most 255 bytes.
    pub(super) fn topic(&mut self, channel: &[u8]) -> Option<TopicName> {
        match &self.topic {
            Some(topic) if topic.as_bytes() == channel => Some(topic.clone()),
            _ => {
                let topic = TopicName::new(channel).ok()?;
                self.topic = Some(topic.clone());
                Some(topic)
            }
        }
    }

    /// False if no request is needed: the peer has subscribed already, or reached the limit.
    pub(super) fn subscribe(
        &mut self,
        channel: &[u8],
        then: fn(TopicName) -> AnswerUse,
        commands: &mut Vec<Command>,
    ) -> bool {
        if self.subscriptions.contains_key(channel) || self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return false;
        }
        let Some(topic) = self.topic(channel) else { return false };
        let subscription = self.directory.subscribe(channel, self.peer.id, self.now);
        self.subscriptions.insert(topic.clone(), subscription);
        let request = self.held.ask(then(topic.clone()));
        let subscribe = BrokerRequest::SubscribeTopic { pattern: TopicPattern::Exact(topic) };
        commands.push(Command::Request(request, Box::new(subscribe)));
        true
    }

    /// False if the peer had not subscribed.
    pub(super) fn unsubscribe(&mut self, channel: &[u8], commands: &mut Vec<Command>) -> bool {
        let Some((topic, subscription)) = self.subscriptions.remove_entry(channel) else { return false };
        self.directory.unsubscribe(channel, &subscription);
        let request = self.held.ask(AnswerUse::Respond);
        let unsubscribe = BrokerRequest::UnsubscribeTopic { pattern: TopicPattern::Exact(topic) };
        commands.push(Command::Request(request, Box::new(unsubscribe)));
        true
    }

    pub(super) fn publish(
        &mut self,
        channel: &[u8],
        payload: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let Some(topic) = self.topic(channel) else { return answer::status(false, output) };
        if self.terms.metrics {
            self.peer.add(Counted::PublishedBytes, payload.len() as u64);
            if let Some(own) = self.subscriptions.get(channel) {
                own.write_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
            }
        }
        let producer = Some(Arc::clone(&self.client));
        let message = Message::from_parts(&[], &[], payload, Properties::default(), producer);
        let to_producer = self.terms.dialect.family == Family::V73;
        // A publisher that is the only subscriber counts as a receiver, even where it does not get its own messages.
        let answer = Some(match self.subscriptions.contains_key(channel) {
            true if to_producer => self.held.ask_to_publish(AnswerUse::Subscriber, &message),
            true => self.held.ask(AnswerUse::Subscriber),
            false => self.held.ask(AnswerUse::Respond),
        });
        commands.push(Command::PublishTopic { topic, message, to_producer, answer });
    }

    /// Sends a message of a channel that the peer subscribed to, behind the answers to earlier requests. One that its width cannot express is dropped and
    /// counted.
    pub(super) fn push(&mut self, topic: &TopicName, message: &Message, output: &mut Vec<u8>) {
        let (payload, dialect) = (message.body(), self.terms.dialect);
        if payload.len() as u64 > dialect.width.max() {
            return self.directory.count_inexpressible();
        }
        if self.held.is_empty() && self.stream.is_none() {
            answer::push(topic.as_bytes(), payload, dialect, output);
        } else {
            let mut frame = std::mem::take(&mut self.fresh);
            answer::push(topic.as_bytes(), payload, dialect, &mut frame);
            if self.stream.is_some() {
                self.behind_stream.extend_from_slice(&frame);
            } else {
                self.held.push(message, &frame, output);
            }
            frame.clear();
            self.fresh = frame;
        }
        if self.terms.metrics {
            self.peer.add(Counted::ReceivedBytes, payload.len() as u64);
            if let Some(own) = self.subscriptions.get(topic) {
                own.read_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn channel(&self, channel: &[u8], output: &mut Vec<u8>) {
        let subscriptions = self.directory.subscriptions(channel);
        if subscriptions.is_empty() {
            return answer::status(false, output);
        }
        answer::channel(subscriptions.len() as u64, output);
        for subscription in subscriptions {
            let read = subscription.read_bytes.load(Ordering::Relaxed);
            let written = subscription.write_bytes.load(Ordering::Relaxed);
            answer::subscriber(&subscription.id, subscription.since, read, written, output);
        }
    }
}
