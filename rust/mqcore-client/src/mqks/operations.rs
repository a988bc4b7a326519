//! Operations of MQKS: bindings of queues, deletion, statistics.

use std::time::Duration;

use mqcore_wire::mqks::arguments::Rebind;
use tokio::time::Instant;

use super::conversation::{MqksRequest, bytes};
use crate::address::QueueAddress;
use crate::client::Client;
use crate::conversation::RequestAnswer;
use crate::error::ClientError;
use crate::shared::Waited;

/// Changes of a queue's bindings, applied in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings {
    /// Events that replace all bindings; `None`: the bindings stay.
    pub replace: Option<Vec<String>>,
    /// Events to remove.
    pub remove: Vec<String>,
    /// Masks of events to remove: `user.*.connected`.
    pub remove_masks: Vec<String>,
    /// Events to add.
    pub add: Vec<String>,
}

/// Each fails with [`ClientError::NotSupported`] for another protocol, with [`ClientError::Refused`] if the broker
/// refuses, with [`ClientError::RequestTimeout`] or with [`ClientError::ConnectionLost`].
#[allow(clippy::missing_errors_doc, reason = "the same for all, stated above")]
impl Client {
    /// Changes the bindings of a queue, which need not exist yet.
    pub async fn rebind(&self, queue: &QueueAddress, bindings: &Bindings) -> Result<(), ClientError> {
        let Bindings { replace, remove, remove_masks, add } = bindings;
        if replace.is_none() && remove.is_empty() && remove_masks.is_empty() && add.is_empty() {
            return Err(ClientError::invalid("bindings", "no change given; set at least one field"));
        }
        let all = replace.iter().flatten().chain(remove).chain(remove_masks).chain(add);
        for event in all {
            QueueAddress::plain(event)?;
        }
        let name = queue.name();
        let rebind = Rebind {
            queue: name.as_bytes(),
            replace: replace.as_deref().map(bytes),
            remove: bytes(remove),
            remove_masks: bytes(remove_masks),
            add: bytes(add),
        };
        let mut data = Vec::new();
        rebind.encode(&mut data);
        let question =
            MqksRequest { operation: "rebind", about: &name, action: "rebind", confirm: true, data: &data };
        self.asked(&question, None).await.map(drop)
    }

    /// Deletes a queue with its messages; its consumers get no more messages. Succeeds if there is none.
    pub(crate) async fn delete_mqks_queue(&self, queue: &QueueAddress) -> Result<(), ClientError> {
        let name = queue.name();
        let question = MqksRequest {
            operation: "delete queue",
            about: &name,
            action: "delete_queue",
            confirm: true,
            data: name.as_bytes(),
        };
        self.asked(&question, None).await.map(drop)
    }

    /// Reads a number with an expression of the original, such as `len(state.queues)`.
    pub async fn statistic(&self, expression: &str) -> Result<u64, ClientError> {
        let question = MqksRequest {
            operation: "read statistic",
            about: expression,
            action: "_eval",
            confirm: false,
            data: expression.as_bytes(),
        };
        let text = self.asked(&question, None).await?;
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| ClientError::BadAnswer {
            operation: question.operation,
            target: expression.into(),
            why: "not a number".into(),
        })
    }

    async fn asked(
        &self,
        question: &MqksRequest<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, ClientError> {
        let started = Instant::now();
        let deadline = self.shared.deadline(timeout);
        let waited =
            self.shared.answer(deadline, |dialogue, waiter| dialogue.question(question, waiter)).await?;
        match waited {
            Waited::Answered((Ok(RequestAnswer::Response(response)), _)) => {
                Ok(response.body_slice().to_vec())
            }
            Waited::Answered((result, _)) => result.map(|_| Vec::new()),
            Waited::TooLong(_) => Err(ClientError::RequestTimeout {
                operation: question.operation,
                target: question.about.into(),
                waited: started.elapsed(),
            }),
        }
    }
}
