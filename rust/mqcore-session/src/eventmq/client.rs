//! Jobs on their way into queues: to the queue that they name, or to `default` if that queue does not exist.
//!
//! The broker decides whether a queue exists. It returns a job for an unknown queue. If the job has the header
//! `create-queue`, the session creates the queue and sends the job again; otherwise it sends the job to `default`, which it
//! creates if necessary.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_wire::eventmq::{Job, queues};

use super::job;

/// Addresses remembered by one session, so that a job for a known queue allocates no name.
const ADDRESSES: usize = 4;

/// The jobs of one client.
#[derive(Debug, Default)]
pub(super) struct Intake {
    known: [Option<(Box<[u8]>, QueueAddress)>; ADDRESSES],
    /// Index that the next unknown name overwrites.
    oldest: usize,
    /// Jobs that wait until their queue exists.
    waiting: Vec<(QueueAddress, Message)>,
    /// Queues that are being created.
    creating: Vec<QueueAddress>,
    /// Jobs were sent to queues since [`Intake::take_sent`].
    sent: bool,
}

/// The next step for a job that a queue rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// The job was sent to `default`.
    FellBack,
    /// The job waits, and the caller has to create this queue.
    Needs(QueueAddress),
    /// The job waits for a queue that is being created.
    Waits,
    /// The job is lost.
    Lost,
}

/// The queue for jobs whose queue does not exist.
pub(super) fn default_queue() -> QueueAddress {
    QueueAddress::parse(queues::DEFAULT).expect("the name is one")
}

fn is_default(queue: &QueueAddress) -> bool {
    queue.id == 0 && queue.channel.as_str().eq_ignore_ascii_case(queues::DEFAULT)
}

impl Intake {
    /// Whether the session has to stop reading for now.
    pub(super) fn holds(&self) -> bool {
        !self.creating.is_empty()
    }

    /// Whether jobs were sent to queues since the last call, which the queues may still reject.
    pub(super) fn take_sent(&mut self) -> bool {
        std::mem::take(&mut self.sent)
    }

    /// Puts a job into its queue.
    pub(super) fn request(
        &mut self,
        id: &[u8],
        job: &Job<'_>,
        client: &Arc<Client>,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let queue = self.address(job.queue);
        let message = job::message(id, job, &queue, true, client)?;
        commands.push(Command::Publish { queue, message });
        self.sent = true;
        Ok(())
    }

    /// A name that no queue can have counts as a queue that does not exist.
    pub(super) fn address(&mut self, name: &[u8]) -> QueueAddress {
        if let Some((_, address)) = self.known.iter().flatten().find(|(known, _)| **known == *name) {
            return address.clone();
        }
        let parsed = str::from_utf8(name).ok().and_then(|name| QueueAddress::parse(name).ok());
        let address = parsed.unwrap_or_else(default_queue);
        self.known[self.oldest] = Some((name.into(), address.clone()));
        self.oldest = (self.oldest + 1) % ADDRESSES;
        address
    }

    /// Handles a job that a queue rejected.
    pub(super) fn refused(
        &mut self,
        queue: &QueueAddress,
        message: &Message,
        rejection: &Rejection,
        commands: &mut Vec<Command>,
    ) -> Refused {
        if rejection.kind != RejectionKind::NotFound {
            return Refused::Lost;
        }
        let mut queue = queue.clone();
        let mut message = message.clone();
        if !is_default(&queue) && !job::creates_queue(&message) {
            let default = default_queue();
            message = job::redirected(&message, &queue, &default);
            if !self.creating.contains(&default) {
                commands.push(Command::Publish { queue: default, message });
                self.sent = true;
                return Refused::FellBack;
            }
            queue = default;
        }
        self.waiting.push((queue.clone(), message));
        if self.needs(&queue) { Refused::Needs(queue) } else { Refused::Waits }
    }

    /// Notes that a queue has to exist. True if the caller has to create it, false if it is being created.
    pub(super) fn needs(&mut self, queue: &QueueAddress) -> bool {
        let is_new = !self.creating.contains(queue);
        if is_new {
            self.creating.push(queue.clone());
        }
        is_new
    }

    /// A queue was created, or cannot be. Returns the jobs that are lost.
    pub(super) fn created(
        &mut self,
        queue: &QueueAddress,
        answer: Result<Reply, Rejection>,
        commands: &mut Vec<Command>,
    ) -> Vec<Message> {
        self.creating.retain(|creating| creating != queue);
        let all = std::mem::take(&mut self.waiting);
        let (ready, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(|(wanted, _)| wanted == queue);
        self.waiting = waiting;
        let ready = ready.into_iter().map(|(_, message)| message);
        match answer {
            Err(rejection) if rejection.kind != RejectionKind::AlreadyExists => ready.collect(),
            _ => {
                commands.extend(ready.map(|message| Command::Publish { queue: queue.clone(), message }));
                self.sent = true;
                Vec::new()
            }
        }
    }
}
