//! What only MQKS has: what queues are bound to, deleting them, statistics.

use std::time::Duration;

use mqcore_wire::mqks::arguments::Rebind;
use tokio::time::Instant;

use super::conversation::{Question, octets};
use crate::address::QueueAddress;
use crate::client::Client;
use crate::conversation::Answer;
use crate::error::ClientError;
use crate::shared::Waited;

/// How the bindings of a queue change, in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings {
    /// What it is to be bound to instead of all it was; `None`: it keeps that.
    pub replace: Option<Vec<String>>,
    /// What it is no longer to be bound to.
    pub remove: Vec<String>,
    /// Masks of what it is no longer to be bound to: `user.*.connected`.
    pub remove_masks: Vec<String>,
    /// What it is to be bound to in addition.
    pub add: Vec<String>,
}

/// Each fails with [`ClientError::NotSupported`] where something else is spoken, with [`ClientError::Refused`] if the
/// broker says no, with [`ClientError::RequestTimeout`] or with [`ClientError::ConnectionLost`].
#[allow(clippy::missing_errors_doc, reason = "the same for all, said above")]
impl Client {
    /// Changes what a queue is bound to, whether or not it exists yet.
    pub async fn rebind(&self, queue: &QueueAddress, bindings: &Bindings) -> Result<(), ClientError> {
        let Bindings { replace, remove, remove_masks, add } = bindings;
        if replace.is_none() && remove.is_empty() && remove_masks.is_empty() && add.is_empty() {
            return Err(ClientError::invalid("bindings", "nothing is to change"));
        }
        let all = replace.iter().flatten().chain(remove).chain(remove_masks).chain(add);
        for event in all {
            QueueAddress::plain(event)?;
        }
        let name = queue.name();
        let rebind = Rebind {
            queue: name.as_bytes(),
            replace: replace.as_deref().map(octets),
            remove: octets(remove),
            remove_masks: octets(remove_masks),
            add: octets(add),
        };
        let mut data = Vec::new();
        rebind.encode(&mut data);
        let question =
            Question { operation: "rebind", about: &name, action: "rebind", confirm: true, data: &data };
        self.asked(&question, None).await.map(drop)
    }

    /// Deletes a queue with its messages; its consumers get nothing more. Fine if there is none.
    pub(crate) async fn delete_mqks_queue(&self, queue: &QueueAddress) -> Result<(), ClientError> {
        let name = queue.name();
        let question = Question {
            operation: "delete queue",
            about: &name,
            action: "delete_queue",
            confirm: true,
            data: name.as_bytes(),
        };
        self.asked(&question, None).await.map(drop)
    }

    /// Asks for a number by the expression that the original would evaluate, such as `len(state.queues)`.
    pub async fn statistic(&self, expression: &str) -> Result<u64, ClientError> {
        let question = Question {
            operation: "read statistic",
            about: expression,
            action: "_eval",
            confirm: false,
            data: expression.as_bytes(),
        };
        let told = self.asked(&question, None).await?;
        let number = std::str::from_utf8(&told).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| ClientError::BadAnswer {
            operation: question.operation,
            target: expression.into(),
            why: "it is no number".into(),
        })
    }

    async fn asked(
        &self,
        question: &Question<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, ClientError> {
        let started = Instant::now();
        let deadline = self.shared.deadline(timeout);
        let waited =
            self.shared.answer(deadline, |dialogue, waiter| dialogue.question(question, waiter)).await?;
        match waited {
            Waited::Answered((Ok(Answer::Response(told)), _)) => Ok(told.body_slice().to_vec()),
            Waited::Answered((result, _)) => result.map(|_| Vec::new()),
            Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: question.operation,
                target: question.about.into(),
                waited: started.elapsed(),
            }),
        }
    }
}
