//! Topics in TMQP, which has none of its own: a target `@topic:NAME` names one, in place of a channel.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::TopicName;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::topic::TopicPattern;
use mqcore_wire::tmqp::Frame;

use super::answer::RepeatedParts;
use super::pending::{Form, PendingAnswer, PendingRequests};
use super::publish::{refuse, stored};

/// Prefix of targets that name topics. No channel can have such a name.
pub(crate) const PREFIX: &[u8] = b"@topic:";

/// Names remembered by one session.
const NAMES: usize = 4;

/// The most recent topics in this session's frames, so that a message to a known one allocates no name. Boxed, because
/// most sessions use none.
#[derive(Debug, Default)]
pub(super) struct TopicNames(Option<Box<RecentTopics>>);

#[derive(Debug, Default)]
struct RecentTopics {
    known: [Option<TopicName>; NAMES],
    /// Index that the next unknown name overwrites.
    oldest: usize,
}

impl TopicNames {
    pub(super) fn name(&mut self, bytes: &[u8]) -> Result<TopicName, Rejection> {
        let RecentTopics { known, oldest } = &mut **self.0.get_or_insert_default();
        if let Some(name) = known.iter().flatten().find(|name| name.as_bytes() == bytes) {
            return Ok(name.clone());
        }
        let name = topic_name(bytes)?;
        known[*oldest] = Some(name.clone());
        *oldest = (*oldest + 1) % NAMES;
        Ok(name)
    }
}

fn topic_name(bytes: &[u8]) -> Result<TopicName, Rejection> {
    TopicName::new(bytes).map_err(|error| Rejection::new(RejectionKind::BadRequest, error.to_string()))
}

/// The topic or the mask that a target names; `None` if it names something else.
pub(super) fn pattern(target: &[u8]) -> Option<Result<TopicPattern, Rejection>> {
    let name = target.strip_prefix(PREFIX)?;
    Some(topic_name(name).map(TopicPattern::from_name))
}

/// Publishes a queue message whose target is a topic. If its producer waits for an acknowledgement, it reports whether
/// any subscriber received the message.
pub(super) fn publish(
    client: &Arc<Client>,
    frame: &Frame<'_>,
    bytes: &[u8],
    topics: &mut TopicNames,
    pending: &mut PendingRequests,
    commands: &mut Vec<Command>,
    output: &mut Vec<u8>,
) {
    let waits = frame.pending_acknowledge && !frame.id.is_empty();
    let taken = match topics.name(frame.target.strip_prefix(PREFIX).unwrap_or_default()) {
        Ok(_) if waits && pending.is_full() => {
            let reason = "too many messages wait for acknowledgements; publish again later";
            Err(Rejection::new(RejectionKind::Busy, reason))
        }
        taken => taken,
    };
    let unasked = Frame { pending_acknowledge: false, pending_response: false, ..*frame };
    let message = stored(&unasked, bytes, client);
    let topic = match taken.and_then(|topic| message.check_terms().map(|()| topic)) {
        Ok(topic) => topic,
        Err(rejection) => return refuse(frame, &rejection, output),
    };
    let answer = waits.then(|| {
        let repeated = RepeatedParts { first_acquirer: true, ..RepeatedParts::by_frame(frame) };
        pending.expect_answer(PendingAnswer::new(&repeated, Form::receipt(frame)), 1)
    });
    commands.push(Command::PublishTopic { topic, message, to_producer: true, answer });
}
