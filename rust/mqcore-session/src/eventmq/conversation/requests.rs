//! Requests of peers, by the kind of listener.

use mqcore_broker::model::command::Command;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::{self, Case, EmqpCommand, EmqpError, PeerKind};
use mqcore_wire::zmtp::Parts;
use mqcore_wire::zmtp::command::{ZmtpCommand, subscription};

use super::{EventmqSession, Part, Stage};
use crate::eventmq::listener::Role;
use crate::request_error::RequestError;
use crate::session::SessionError;

impl EventmqSession {
    pub(super) fn control(
        &mut self,
        body: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let control = ZmtpCommand::parse(body)?;
        match (self.stage, control) {
            (Stage::Shaking, ZmtpCommand::Ready(ready)) => return self.shake(ready, commands),
            (Stage::Shaking, ZmtpCommand::Error(_)) => self.stage = Stage::Over,
            (Stage::Shaking, _) => {
                return Err(SessionError::Misbehaved("expected READY at the end of the handshake".into()));
            }
            (_, ZmtpCommand::Ping { context, .. }) => ZmtpCommand::Pong(context).encode(output),
            (_, ZmtpCommand::Subscribe(topic)) => self.subscribe(topic, commands),
            (_, ZmtpCommand::Cancel(topic)) => self.cancel(topic, commands),
            (_, ZmtpCommand::Ready(_)) => {
                return Err(SessionError::Misbehaved("unexpected command after the handshake".into()));
            }
            (_, ZmtpCommand::Error(_)) => self.stage = Stage::Over,
            (_, ZmtpCommand::Pong(_) | ZmtpCommand::Other(_)) => self.ignore(),
        }
        Ok(())
    }

    pub(super) fn ignore(&mut self) {
        self.ignored += 1;
        self.exchange.count(|counters| &counters.ignored);
    }

    /// Records a failed request: the protocol has no error message for its peer.
    pub(super) fn fail(&mut self, id: &[u8], reason: String, now: Timestamp) {
        let number = self.numbers.next(now);
        self.request_errors.push(RequestError { number, request: id.into(), reason });
    }

    pub(super) fn message(
        &mut self,
        parts: Parts<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        if self.role == Role::Subscribe {
            return match parts.get(0).and_then(subscription) {
                Some(ZmtpCommand::Subscribe(topic)) => self.subscribe(topic, commands),
                Some(ZmtpCommand::Cancel(topic)) => self.cancel(topic, commands),
                _ => self.ignore(),
            };
        }
        let case = if self.role == Role::Backend { Case::Any } else { Case::Exact };
        let id = parts.get(3).unwrap_or_default();
        let id = &id[..id.len().min(eventmq::NAME_BYTES_MAX)];
        let done = match eventmq::parse(parts, case) {
            Ok(message) => match self.role {
                Role::Backend => self.worker_says(message, now, commands, output),
                Role::Frontend => self.client_says(message, now, commands, output),
                Role::Admin => self.administrator_says(&message, commands),
                Role::Publish | Role::Subscribe => self.publisher_says(&message, commands),
            },
            // Some programs greet with commands of their own, for example the original's command line. They are
            // ignored.
            Err(EmqpError::UnknownCommand(_) | EmqpError::Incomplete(_)) => {
                self.ignore();
                Ok(())
            }
            Err(mistake) => Err(mistake.to_string()),
        };
        if let Err(why) = done {
            self.fail(id, why, now);
        }
    }

    pub(super) fn worker_says(
        &mut self,
        message: eventmq::EmqpMessage<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        match (message.command, &mut self.part) {
            (EmqpCommand::Ready, Part::Worker(work)) => work.ready(),
            (EmqpCommand::Ready, Part::Joining { slots, .. }) => *slots = slots.saturating_add(1),
            (EmqpCommand::Reply { body, request: Some(request) }, Part::Worker(work)) => {
                let Some(client) = &self.client else { return Ok(()) };
                if !work.result(request, body, client, now, commands) {
                    self.ignore();
                }
            }
            // The document's REPLY has no place for the id of its request.
            (EmqpCommand::Reply { body, request: None }, Part::Worker(work)) => {
                let Some(client) = &self.client else { return Ok(()) };
                let request = work.request_of(message.id)?;
                if !work.result(&request, body, client, now, commands) {
                    self.ignore();
                }
            }
            // Like any message, it shows that the worker is alive. Queues that have not been notified of free slots are
            // notified now.
            (EmqpCommand::Heartbeat, Part::Worker(work)) => work.has_room |= work.slots().free() > 0,
            (EmqpCommand::Heartbeat, Part::Joining { .. }) => {}
            (EmqpCommand::Inform { queues, kind: PeerKind::Worker, counts }, _) => {
                return self.join(message.id, queues, counts, now, commands, output);
            }
            (EmqpCommand::Inform { kind: PeerKind::Scheduler, .. }, _) => {
                return Err("a scheduler must connect to a listener with role=frontend".to_owned());
            }
            (
                EmqpCommand::Kbye | EmqpCommand::Kbai | EmqpCommand::Disconnect,
                Part::Worker(work) | Part::Joining { work, .. },
            ) => work.leave(),
            _ => self.ignore(),
        }
        Ok(())
    }

    pub(super) fn client_says(
        &mut self,
        message: eventmq::EmqpMessage<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let id = message.id;
        match message.command {
            EmqpCommand::Request(job) => {
                let Some(client) = &self.client else { return Ok(()) };
                self.intake.request(id, &job, client, commands)
            }
            EmqpCommand::Schedule(schedule) => self.schedule(id, &schedule, true, commands),
            EmqpCommand::Unschedule(schedule) => self.schedule(id, &schedule, false, commands),
            EmqpCommand::Publish { topic, body, .. } => self.publish(id, topic, body, commands),
            EmqpCommand::Await(job) => self.await_result(job),
            EmqpCommand::Lookup(job) => self.look_up_job(id, job),
            EmqpCommand::Cancel { job, queue, hard } => self.cancel_job(id, (job, queue, hard), commands),
            EmqpCommand::Flow(flow) => self.begin_flow(id, flow, commands, output),
            EmqpCommand::Inform { kind: PeerKind::Scheduler, .. } => {
                self.apply_as_scheduler(id, now, commands, output);
                Ok(())
            }
            EmqpCommand::Inform { kind: PeerKind::Worker, .. } => {
                Err("a worker must connect to a listener with role=backend".to_owned())
            }
            EmqpCommand::Disconnect => {
                Err("clients cannot stop the broker; use the administration interface".to_owned())
            }
            EmqpCommand::Kbye | EmqpCommand::Kbai => {
                self.part = Part::None;
                self.heartbeat_at = Timestamp::NEVER;
                Ok(())
            }
            EmqpCommand::Heartbeat => Ok(()),
            _ => {
                self.ignore();
                Ok(())
            }
        }
    }

    pub(super) fn publisher_says(
        &mut self,
        message: &eventmq::EmqpMessage<'_>,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        match message.command {
            EmqpCommand::Publish { topic, body, .. } => self.publish(message.id, topic, body, commands),
            _ => {
                self.ignore();
                Ok(())
            }
        }
    }
}
