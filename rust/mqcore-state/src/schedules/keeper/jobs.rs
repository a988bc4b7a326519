//! Jobs of flows, beside runs of schedules: the keeper saves and sends both.

use std::sync::Arc;

use mqcore_broker::model::command::{Command, PassedOn, Request};
use mqcore_broker::model::id::{ConnectionId, RequestId};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::transfer::{MOVED_AT_ONCE_MAX, MoveMessages, MoveTarget};
use mqcore_journal::error::JournalError;
use mqcore_journal::storage::Storage;
use mqcore_session::jobs::{EndedJob, JobBoard, LedgerRequest, step_message};
use mqcore_session::schedules::{Headers, Run};

use super::{InFlightJob, Keeper, Outgoing};
use crate::jobs::ledger::{Change, StepJob};
use crate::schedules::queues::parts;
use crate::schedules::store::ScheduleJournal;

impl<S: Storage> Keeper<S> {
    /// Lets sessions share running and cancelled jobs, and names the options of queues for jobs of flows.
    pub fn share_jobs(&mut self, board: &Arc<JobBoard>, job_queues: QueueChanges) {
        self.ledger.share(board);
        self.job_queues = job_queues;
    }

    /// The commands that put a job into its queue.
    pub(super) fn commands(&self, number: u64, outgoing: &InFlightJob) -> Vec<(usize, Command)> {
        let InFlightJob { to, shard, job } = outgoing;
        let ticket = Ticket { node: Arc::clone(&self.node), epoch: self.epoch, number };
        let message = match job {
            Outgoing::Run { id, due_ms, fence, run } => {
                let Some((queue, headers, job)) = parts(run) else { return Vec::new() };
                let run = Run { queue, headers, job, schedule: &id.0, due_ms: *due_ms, fence: *fence };
                run.message(to, ticket.clone())
            }
            Outgoing::Step { id, headers, body } => {
                let queue = to.to_string();
                let queue = queue.strip_suffix("/0").unwrap_or(&queue);
                step_message(id, (queue.as_bytes(), headers, body), to, ticket.clone())
            }
        };
        let message = match message {
            Ok(message) => message,
            Err(why) => {
                tracing::error!(
                    number,
                    why,
                    "cannot turn a run of a schedule or a job of a flow into a job; it is skipped"
                );
                return Vec::new();
            }
        };
        let command = Command::Publish { queue: to.clone(), message };
        let publish = (*shard, Command::PassedOn(Box::new(PassedOn { ticket, command })));
        match job {
            Outgoing::Step { headers, .. } if Headers::parse(headers).create_queue => {
                // Without effect on one that exists.
                let request = Request::CreateQueue { queue: to.clone(), changes: self.job_queues.clone() };
                vec![(*shard, Command::Request(RequestId(0), Box::new(request))), publish]
            }
            _ => vec![publish],
        }
    }

    /// A job has ended. Its session hears of that with [`Keeper::take_notices`], or its client with [`Keeper::take_answers`].
    pub fn job_ended(&mut self, job: EndedJob, now_ms: u64) {
        self.ledger.ended(job, &mut self.next, now_ms);
    }

    /// Handles a request of a client about jobs, which hears the answer with [`Keeper::take_notices`].
    pub fn job_request(&mut self, asker: ConnectionId, request: LedgerRequest, now_ms: u64) {
        self.ledger.request(asker, request, &mut self.next, now_ms);
    }

    /// Forgets results of jobs whose time is over.
    pub fn expire_results(&mut self, now_ms: u64) {
        self.ledger.expire(now_ms);
    }

    /// Number of results of jobs.
    #[must_use]
    pub fn results(&self) -> usize {
        self.ledger.results()
    }

    /// Notices for sessions about jobs. Must be called after [`Keeper::commit`].
    pub fn take_notices(&mut self) -> Vec<(ConnectionId, JobNotice)> {
        self.ledger.take_notices()
    }

    /// Approximate memory of these notices.
    #[must_use]
    pub fn notice_bytes(&self) -> usize {
        self.ledger.notice_bytes
    }

    /// The commands that send results to clients of jobs that no session has any more. Must be called after [`Keeper::commit`].
    pub fn take_answers(&mut self) -> Vec<(usize, Command)> {
        let answers = self.ledger.answers.drain(..);
        answers.map(|(to, message)| (Placement::HOME, Command::Respond { to, message })).collect()
    }

    /// Buffers the changes about jobs, before any other record: numbers ascend. Changes that find no space stay for the
    /// next round.
    pub(super) fn save_jobs(&mut self) -> Result<(), JournalError> {
        let Some(store) = &mut self.store else {
            self.ledger.changes.clear();
            return Ok(());
        };
        while let Some(change) = self.ledger.changes.front() {
            match save(store, change) {
                Err(JournalError::TooLarge { size, max }) => {
                    tracing::error!(
                        size,
                        max,
                        "a result or a job of a flow is too large to be saved; a crash would lose it"
                    );
                    self.unsaved.extend(change.number());
                }
                saved => saved?,
            }
            if let Change::Settle(number) = change
                && !self.unsaved.remove(number)
            {
                self.settled.push(*number);
            }
            self.ledger.changes.pop_front();
        }
        Ok(())
    }

    /// Sends jobs of flows that have begun and are saved.
    pub(super) fn send_steps(&mut self) {
        for step in std::mem::take(&mut self.ledger.begun) {
            let StepJob { number, id, queue: to, headers, body } = step;
            let shard = to.channel.shard(self.placement);
            self.outgoing
                .insert(number, InFlightJob { to, shard, job: Outgoing::Step { id, headers, body } });
            self.unsent.push_back(number);
        }
    }

    /// The commands that remove cancelled jobs from their queues, as far as they are among the first ones.
    pub(super) fn take_removals(&mut self) -> Vec<(usize, Command)> {
        let removed = std::mem::take(&mut self.ledger.removed);
        let commands = removed.into_iter().map(|(queue, id)| {
            let shard = queue.channel.shard(self.placement);
            let removal =
                MoveMessages { queue, to: MoveTarget::Nowhere, ids: vec![id], max: MOVED_AT_ONCE_MAX };
            (shard, Command::Request(RequestId(0), Box::new(Request::MoveMessages(Box::new(removal)))))
        });
        commands.collect()
    }
}

fn save<S: Storage>(store: &mut ScheduleJournal<S>, change: &Change) -> Result<(), JournalError> {
    match change {
        Change::Result(number, result) => store.put_result(*number, result),
        Change::Flow(number, flow) => store.put_flow(*number, flow),
        Change::Step(number, step) => store.put_step(*number, step),
        Change::Settle(_) => Ok(()),
    }
}
