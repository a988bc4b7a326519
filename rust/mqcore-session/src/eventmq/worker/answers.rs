//! Answers to clients about jobs without a result of a worker, and settlements of deliveries.

use mqcore_broker::model::command::{Acknowledgement, Command, MessageId, Nack, Retry};
use mqcore_broker::model::effect::Deliver;
use mqcore_broker::model::id::{QueueAddress, Tag};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_wire::eventmq::headers::Headers;

use crate::eventmq::job;
use crate::eventmq::ledger::cancelled_result;

/// The id of the client that waits for the result of a job.
pub(super) fn client_of(deliver: &Deliver, wishes: Headers) -> Option<&str> {
    let client = deliver.message.producer().filter(|client| client.protocol == job::PROTOCOL)?;
    wishes.reply_requested.then_some(&*client.id)
}

const LOST: &str = "the connection to the worker was lost before the job ended; the job may have run";

pub(super) fn lost_result() -> String {
    job::failure("Lost", LOST)
}

pub(super) fn cancelled_job(client: &str, id: &MessageId) -> Command {
    ended_job(client, id, cancelled_result().as_bytes())
}

/// Sends the result of a job to its client.
pub(super) fn ended_job(client: &str, id: &MessageId, result: &[u8]) -> Command {
    let message = Message::from_parts(id, b"", result, Properties::default(), None);
    Command::Respond { to: client.into(), message }
}

pub(super) fn settlement(
    queue: &QueueAddress,
    tag: Tag,
    message_id: MessageId,
    negative: Option<(&str, Retry)>,
) -> Command {
    Command::Acknowledge(Acknowledgement {
        tag,
        queue: queue.clone(),
        message_id,
        refusal: negative.map(|(why, retry)| Nack::new(why, retry)),
        headers: Box::default(),
        hops: 0,
        first_acquirer: false,
    })
}
