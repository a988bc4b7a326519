//! Jobs on their way into queues: to the queue that they name, or to `default` if that queue does not exist.
//!
//! The broker decides whether a queue exists. It returns a job for an unknown queue; the session then sends the job to
//! `default`, which it creates if necessary.

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
    /// Jobs that wait until the queue `default` exists.
    waiting: Vec<Message>,
    /// The queue `default` is being created.
    making: bool,
}

/// The next step for a job that a queue rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The job was sent to `default`.
    FellBack,
    /// The job waits, and the caller has to create `default`.
    NeedsDefault,
    /// The job waits for `default`.
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
        self.making
    }

    /// Queues that recent jobs were sent to and that may still reject them.
    pub(super) fn recent(&self) -> impl Iterator<Item = &QueueAddress> {
        self.known.iter().flatten().map(|(_, address)| address)
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
        if !is_default(queue) {
            let default = default_queue();
            let message = job::redirected(message, queue, &default);
            if self.making {
                self.waiting.push(message);
                return Refused::Waits;
            }
            commands.push(Command::Publish { queue: default, message });
            return Refused::FellBack;
        }
        self.waiting.push(message.clone());
        if std::mem::replace(&mut self.making, true) { Refused::Waits } else { Refused::NeedsDefault }
    }

    /// The queue `default` was created, or cannot be. Returns the jobs that are lost.
    pub(super) fn default_made(
        &mut self,
        answer: Result<Reply, Rejection>,
        commands: &mut Vec<Command>,
    ) -> Vec<Message> {
        self.making = false;
        let waiting = std::mem::take(&mut self.waiting);
        match answer {
            Err(rejection) if rejection.kind != RejectionKind::AlreadyExists => waiting,
            _ => {
                let queue = default_queue();
                let jobs = waiting.into_iter();
                commands.extend(jobs.map(|message| Command::Publish { queue: queue.clone(), message }));
                Vec::new()
            }
        }
    }
}
