//! Requests for results, cancellations and flows of jobs, and the answers.

use std::sync::Arc;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::{self, EmqpCommand};

use super::{EventmqSession, Part};
use crate::eventmq::ledger::{Flow, JobLedger, LedgerRequest, failed_answer};
use crate::eventmq::pending::{LedgerCheck, ProgressReport, RequestSubject};

/// Topics to which workers publish the progress of jobs; the job follows.
const PROGRESS: &[u8] = b"mqcore.jobs.progress/";
/// Maximum bytes of a report that is kept for clients that ask for the state of a job. Subscribers get larger ones too.
const PROGRESS_BYTES_MAX: usize = 4 << 10;

impl EventmqSession {
    fn ledger(&self) -> Result<Arc<dyn JobLedger>, String> {
        self.exchange.jobs().cloned().ok_or_else(|| "this broker keeps no results of jobs".to_owned())
    }

    pub(super) fn await_result(&self, job: &[u8]) -> Result<(), String> {
        self.ledger()?.request(self.config.connection, LedgerRequest::Await { job: job.into() });
        Ok(())
    }

    pub(super) fn look_up_job(&self, id: &[u8], job: &[u8]) -> Result<(), String> {
        let request = LedgerRequest::Lookup { request: id.into(), job: job.into() };
        self.ledger()?.request(self.config.connection, request);
        Ok(())
    }

    /// Cancels a job, if the client may publish to its queue.
    pub(super) fn cancel_job(
        &mut self,
        id: &[u8],
        (job, queue, hard): (&[u8], &[u8], bool),
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        self.ledger()?;
        let queue = self.intake.address(queue);
        let request =
            LedgerRequest::Cancel { request: id.into(), job: job.into(), queue: queue.clone(), hard };
        self.ask_for_next(
            LedgerCheck { id: id.into(), request, queues: vec![queue], create: Vec::new() },
            commands,
        );
        Ok(())
    }

    /// Begins a flow, if the client may publish to all its queues.
    pub(super) fn begin_flow(
        &mut self,
        id: &[u8],
        text: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        self.ledger()?;
        let flow = match Flow::parse(text) {
            Ok(flow) => flow,
            Err(why) => {
                self.reply(failed_answer("Rejected", &why).as_bytes(), Some(id), output);
                return Err(why);
            }
        };
        let mut queues: Vec<QueueAddress> = flow.steps.iter().map(|step| step.address()).collect();
        queues.sort_unstable();
        queues.dedup();
        let request = LedgerRequest::Begin { request: id.into(), flow: Box::new(flow) };
        self.ask_for_next(LedgerCheck { id: id.into(), request, queues, create: Vec::new() }, commands);
        Ok(())
    }

    /// Asks whether the client may publish to the last queue of a check.
    fn ask_for_next(&mut self, check: LedgerCheck, commands: &mut Vec<Command>) {
        let Some(queue) = check.queues.last().cloned() else { return };
        let number = self.pending.expect(RequestSubject::Ledger(Box::new(check)), 1);
        commands.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
    }

    /// The broker has decided whether the client may publish to the last queue of a check.
    pub(super) fn ledger_allowed(
        &mut self,
        mut check: LedgerCheck,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        let queue = check.queues.pop();
        match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => {
                self.reply(failed_answer("Denied", &rejection.reason).as_bytes(), Some(&check.id), output);
                return self.fail(&check.id, rejection.to_string(), now);
            }
            Err(_) => check.create.extend(queue),
            Ok(_) => {}
        }
        if !check.queues.is_empty() {
            let mut commands = std::mem::take(&mut self.wanted);
            self.ask_for_next(check, &mut commands);
            self.wanted = commands;
            return;
        }
        if matches!(check.request, LedgerRequest::Begin { .. }) {
            for queue in check.create {
                if self.intake.needs(&queue) {
                    self.create_queue(queue);
                }
            }
        }
        if let Ok(ledger) = self.ledger() {
            ledger.request(self.config.connection, check.request);
        }
    }

    /// Takes what the ledger tells.
    pub(super) fn job_notice(&mut self, notice: JobNotice, now: Timestamp, output: &mut Vec<u8>) {
        match notice {
            JobNotice::Kept(result) => {
                if let Part::Worker(work) = &mut self.part {
                    work.result_kept(&result, now, &mut self.wanted);
                }
            }
            JobNotice::NotKept(result) => {
                if let Part::Worker(work) = &mut self.part {
                    work.result_refused(&result, RejectionKind::Busy, now, &mut self.wanted);
                }
            }
            JobNotice::Told { queue: None, message } => {
                self.reply(message.body(), Some(message.id()), output);
            }
            JobNotice::Told { queue: Some(queue), message } => {
                let number = self.pending.expect(RequestSubject::Told(message), 1);
                self.wanted.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
            }
            JobNotice::Stop { job, queue, hard } => {
                let Part::Worker(work) = &self.part else { return };
                if work.can_stop(&job) {
                    let queue = crate::eventmq::job::shown(&queue);
                    let command = EmqpCommand::Cancel { job: &job, queue: queue.as_bytes(), hard };
                    eventmq::EmqpMessage { id: self.ids.next(), command }.encode(output);
                }
            }
        }
    }

    /// The broker has decided whether the client may know something about a job.
    pub(super) fn told_allowed(
        &mut self,
        message: &Message,
        answer: Result<Reply, Rejection>,
        output: &mut Vec<u8>,
    ) {
        match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => {
                let why = failed_answer("Denied", &rejection.reason);
                self.reply(why.as_bytes(), Some(message.id()), output);
            }
            _ => self.reply(message.body(), Some(message.id()), output),
        }
    }

    /// The progress that a worker reports with a message to this topic. `None`: it is another topic, or the report is too large.
    pub(super) fn progress_in(&self, topic: &[u8], report: &[u8]) -> Option<ProgressReport> {
        let job = topic.strip_prefix(PROGRESS).filter(|_| report.len() <= PROGRESS_BYTES_MAX)?;
        self.exchange.jobs().map(|_| ProgressReport { job: job.into(), report: report.into() })
    }

    /// The broker has decided whether the client may publish a report.
    pub(super) fn progress_published(
        &mut self,
        progress: &ProgressReport,
        answer: &Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        match (answer, self.exchange.jobs()) {
            (Ok(_), Some(ledger)) => ledger.board().progressed(&progress.job, &progress.report),
            (Ok(_), None) => {}
            (Err(rejection), _) => self.fail(&progress.job, rejection.to_string(), now),
        }
    }
}
