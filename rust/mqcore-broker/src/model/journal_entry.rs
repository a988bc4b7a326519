//! Records as a journal stores them: numbers, keys and bytes.

use std::sync::Arc;

use crate::model::definition::{
    NUMBERS_KEY, channel_key, encode_channel, encode_intake, encode_message_id, encode_numbers,
    encode_policy, encode_queue, encode_router, encode_topic_binding, intake_key, message_id_key, policy_key,
    queue_key, router_key, topic_binding_key,
};
use crate::model::id::{MessageNumber, QueueAddress, Sequence};
use crate::model::message::Message;
use crate::model::record::{Record, encode_put};
use crate::model::time::Timestamp;
use crate::model::transfer::{TransferSource, TransferredPut};

/// A record in the form in which a journal stores it.
#[derive(Debug)]
pub enum JournalEntry<'a> {
    /// A message that stays until it is settled.
    Put(StoredMessage<'a>),
    /// The message with this sequence is settled.
    Settle(Sequence),
    /// The delivery progress of the message with this sequence.
    Touch(Sequence, Vec<u8>),
    /// A definition: key and value.
    Define(Vec<u8>, Vec<u8>),
    /// The definition with this key is removed.
    Undefine(Vec<u8>),
}

/// The message of [`Record::Put`] or [`Record::PutTransferred`]. Encoded on demand, because a full disk rejects it unencoded.
#[derive(Debug, Clone, Copy)]
pub struct StoredMessage<'a> {
    queue: &'a Arc<QueueAddress>,
    message: &'a Message,
    received: Timestamp,
    number: MessageNumber,
    source: Option<&'a TransferSource>,
}

impl StoredMessage<'_> {
    /// The bytes of the record, for [`decode_put`](crate::model::record::decode_put).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_put(self.queue, self.message, self.received, self.number, self.source)
    }

    /// The size of the body in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.message.body().len()
    }
}

impl<'a> From<&'a Record> for JournalEntry<'a> {
    fn from(record: &'a Record) -> Self {
        match record {
            Record::Put { queue, message, received, number } => Self::Put(StoredMessage {
                queue,
                message,
                received: *received,
                number: *number,
                source: None,
            }),
            Record::PutTransferred(put) => {
                let TransferredPut { queue, message, received, number, source } = &**put;
                let (received, number) = (*received, *number);
                Self::Put(StoredMessage { queue, message, received, number, source: Some(source) })
            }
            Record::Settle(settled) => Self::Settle(*settled),
            Record::Touch(touched, progress) => Self::Touch(*touched, progress.encode()),
            Record::DefineChannel(name, options) => {
                Self::Define(channel_key(name), encode_channel(name, options))
            }
            Record::DefineQueue(queue, options) => {
                Self::Define(queue_key(queue), encode_queue(queue, options))
            }
            Record::DefineIntake(node, progress) => {
                Self::Define(intake_key(node), encode_intake(node, progress))
            }
            Record::RemoveIntake(node) => Self::Undefine(intake_key(node)),
            Record::RememberId(queue, id, until) => {
                Self::Define(message_id_key(queue, id), encode_message_id(queue, id, *until))
            }
            Record::ForgetId(queue, id) => Self::Undefine(message_id_key(queue, id)),
            Record::Numbers(below) => Self::Define(NUMBERS_KEY.to_vec(), encode_numbers(*below)),
            Record::RemoveChannel(name) => Self::Undefine(channel_key(name)),
            Record::RemoveQueue(queue) => Self::Undefine(queue_key(queue)),
            Record::DefineRouter(router) => Self::Define(router_key(&router.name), encode_router(router)),
            Record::DefinePolicy(policy) => Self::Define(policy_key(&policy.name), encode_policy(policy)),
            Record::RemovePolicy(name) => Self::Undefine(policy_key(name)),
            Record::BindTopic(pattern, queue) => {
                Self::Define(topic_binding_key(pattern, queue), encode_topic_binding(pattern, queue))
            }
            Record::UnbindTopic(pattern, queue) => Self::Undefine(topic_binding_key(pattern, queue)),
            Record::RemoveRouter(name) => Self::Undefine(router_key(name)),
        }
    }
}
