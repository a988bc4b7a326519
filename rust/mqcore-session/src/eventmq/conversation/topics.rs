//! Publishing and subscribing.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::TopicName;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::topic::TopicPattern;
use mqcore_broker::model::topic_header::header_line;

use super::EventmqSession;
use crate::eventmq::listener::Role;
use crate::eventmq::pending::RequestSubject;

impl EventmqSession {
    pub(super) fn publish(
        &mut self,
        id: &[u8],
        topic: &[u8],
        body: &[u8],
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let progress = self.progress_in(topic, body);
        let headers = header_line(topic).unwrap_or_default();
        let message = Message::from_parts(id, &headers, body, Properties::default(), self.client.clone());
        let topic = TopicName::new(topic).map_err(|error| error.to_string())?;
        let answer =
            progress.map(|report| self.pending.expect(RequestSubject::Progress(Box::new(report)), 1));
        commands.push(Command::PublishTopic { topic, message, to_producer: false, answer });
        Ok(())
    }

    pub(super) fn subscribe(&mut self, topic: &[u8], commands: &mut Vec<Command>) {
        // No topic has a name this long.
        let Ok(prefix) = TopicName::new(topic) else { return self.ignore() };
        if self.role != Role::Subscribe {
            return self.ignore();
        }
        let limit = self.exchange.topics_max;
        if self.topics.len() >= limit && !self.topics.contains_key(topic) {
            let reason =
                format!("the connection has reached the limit of {limit} topics; unsubscribe from one first");
            self.fail(b"", reason, self.heard_at);
            return self.ignore();
        }
        let wanted = self.topics.entry(topic.into()).or_default();
        *wanted = wanted.saturating_add(1);
        if *wanted == 1 {
            let pattern = TopicPattern::Prefix(prefix);
            self.ask_every_shard(Request::SubscribeTopic { pattern }, commands);
        }
    }

    pub(super) fn cancel(&mut self, topic: &[u8], commands: &mut Vec<Command>) {
        let Ok(prefix) = TopicName::new(topic) else { return self.ignore() };
        let Some(wanted) = self.topics.get_mut(topic) else { return self.ignore() };
        *wanted -= 1;
        if *wanted == 0 {
            self.topics.remove(topic);
            let pattern = TopicPattern::Prefix(prefix);
            self.ask_every_shard(Request::UnsubscribeTopic { pattern }, commands);
        }
    }

    pub(super) fn ask_every_shard(&mut self, request: Request, commands: &mut Vec<Command>) {
        let number = self.pending.expect(RequestSubject::Topic, self.config.shards.max(1));
        commands.push(Command::Request(number, Box::new(request)));
    }
}
