//! Schedules: run by this broker, or passed on to a scheduler.

use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::eventmq::{self, Case, EmqpCommand, Schedule};
use mqcore_wire::zmtp::{Item, ZmtpDecoder};

use super::{EventmqSession, Part};
use crate::eventmq::pending::Asked;
use crate::eventmq::schedules;
use crate::eventmq::schedules::ScheduleRequest;

impl EventmqSession {
    /// The scheduler that joined last receives a new schedule if it can run it; otherwise this broker runs it. All of
    /// them receive the end of a schedule.
    pub(super) fn schedule(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let schedulers = self.exchange.schedulers();
        let wishes = match Headers::check(schedule.headers) {
            Ok(wishes) => wishes,
            Err(mistake) if begins => {
                return Err(format!("{}: {mistake}", schedules::title(schedule.queue, schedule.body)));
            }
            // Only the call identifies the schedule to end.
            Err(_) => Headers::parse(schedule.headers),
        };
        if self.exchange.schedules().is_some() {
            let request = ScheduleRequest {
                id: id.into(),
                queue: schedule.queue.into(),
                headers: schedule.headers.into(),
                wishes,
                interval: schedule.interval.map(Into::into),
                job: schedule.body.into(),
                cron: schedule.cron.map(Into::into),
            };
            if request.job.len() > schedules::JOB_BYTES_MAX {
                let most = schedules::JOB_BYTES_MAX;
                return Err(format!("a scheduled job exceeds the limit of {most} bytes"));
            }
            let kept_here = begins && (schedulers.is_empty() || request.needs_broker());
            // The previous owner drops the schedule: only one runs it.
            let queue = self.intake.address(schedule.queue);
            let number = self.pending.expect(Asked::Schedule(Box::new(request), kept_here), 1);
            commands.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
            if kept_here {
                self.tell_schedulers(id, schedule, false, commands);
                return Ok(());
            }
        } else if schedulers.is_empty() {
            return Err("no scheduler is connected that could run the schedule; connect one or configure this broker to run schedules".to_owned());
        } else if begins && (schedule.interval.is_none() || schedule.cron.is_none()) {
            // The original's scheduler crashes on a request in the document's form.
            return Err("a schedule needs both an interval and a cron expression; one of them may be empty"
                .to_owned());
        }
        self.tell_schedulers(id, schedule, begins, commands);
        Ok(())
    }

    /// Passes a new schedule to the scheduler that joined last, or the end of one to all schedulers.
    pub(super) fn tell_schedulers(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) {
        let (interval, cron) = (schedule.interval.or(Some(b"-1")), schedule.cron.or(Some(b"")));
        let schedule = Schedule { interval, cron, ..*schedule };
        let command =
            if begins { EmqpCommand::Schedule(schedule) } else { EmqpCommand::Unschedule(schedule) };
        let mut bytes = Vec::new();
        eventmq::EmqpMessage { id, command }.encode(&mut bytes);
        let most = if begins { 1 } else { usize::MAX };
        for scheduler in self.exchange.schedulers().into_iter().take(most) {
            let message = Message::from_parts(id, b"", &bytes, Properties::default(), self.client.clone());
            commands.push(Command::Direct { to: ClientPattern::Id(scheduler), message });
        }
    }

    /// The broker has decided whether the client may publish to the queue of a schedule.
    pub(super) fn keep_schedule(
        &mut self,
        request: ScheduleRequest,
        begins: bool,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        let Some(keeper) = self.exchange.schedules().cloned() else { return };
        let id = request.id.clone();
        let title = schedules::title(&request.queue, &request.job);
        let is_missing = matches!(&answer, Err(rejection) if rejection.kind == RejectionKind::NotFound);
        if begins && is_missing && request.wishes.create_queue {
            let queue = self.intake.address(&request.queue);
            if self.intake.needs(&queue) {
                self.create_queue(queue);
            }
        }
        let done = match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => Err(rejection),
            // Without `create-queue` its runs go to the queue `default`, as jobs for unknown queues do, or to a queue that is
            // created by then.
            _ if begins => keeper.schedule(request),
            _ => keeper.unschedule(request),
        };
        if let Err(rejection) = done {
            self.fail(&id, format!("{title}: {rejection}"), now);
        }
    }

    /// Passes a client's message on to this scheduler. Clients of other protocols may send anything; only these two
    /// commands are passed on.
    pub(super) fn for_scheduler(&mut self, message: &Message, output: &mut Vec<u8>) {
        let mut decoder = ZmtpDecoder::new();
        let body = message.body();
        let is_schedule = match decoder.next(body, &self.config.limits) {
            Ok(Some((Item::Message(parts), consumed))) if consumed == body.len() => {
                let command = eventmq::parse(parts, Case::Exact).map(|message| message.command);
                matches!(command, Ok(EmqpCommand::Schedule(_) | EmqpCommand::Unschedule(_)))
            }
            _ => false,
        };
        if is_schedule && matches!(self.part, Part::Scheduler(_)) {
            output.extend_from_slice(body);
        } else {
            self.ignore();
        }
    }
}
