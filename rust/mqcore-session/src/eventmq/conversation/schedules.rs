//! Schedules: kept by this broker, or passed on to a scheduler.

use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::eventmq::{self, Case, Command as Said, Schedule};
use mqcore_wire::zmtp::{Cutter, Item};

use super::{EventmqSession, Part};
use crate::eventmq::pending::Asked;
use crate::eventmq::schedules;
use crate::eventmq::schedules::ScheduleRequest;

impl EventmqSession {
    /// Schedules are kept by the scheduler that joined last, where there is one that can; else by this broker. All of them end
    /// one.
    pub(super) fn schedule(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let schedulers = self.exchange.schedulers();
        if self.exchange.schedules().is_some() {
            let request = ScheduleRequest {
                id: id.into(),
                queue: schedule.queue.into(),
                headers: schedule.headers.into(),
                wishes: Headers::parse(schedule.headers),
                interval: schedule.interval.map(Into::into),
                job: schedule.body.into(),
                cron: schedule.cron.map(Into::into),
            };
            if request.job.len() > schedules::JOB_BYTES_MAX {
                let most = schedules::JOB_BYTES_MAX;
                return Err(format!("a job that is scheduled has at most {most} octets"));
            }
            let kept_here = begins && (schedulers.is_empty() || request.needs_broker());
            // The previous keeper loses the schedule: only one keeps it.
            let queue = self.intake.address(schedule.queue);
            let number = self.pending.expect(Asked::Schedule(Box::new(request), kept_here), 1);
            commands.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
            if kept_here {
                self.tell_schedulers(id, schedule, false, commands);
                return Ok(());
            }
        } else if schedulers.is_empty() {
            return Err("nobody keeps schedules: no scheduler is connected".to_owned());
        } else if begins && (schedule.interval.is_none() || schedule.cron.is_none()) {
            // In the document's form the original's scheduler would die of it.
            return Err(
                "a schedule needs an interval and a cron expression, of which one may be empty".to_owned()
            );
        }
        self.tell_schedulers(id, schedule, begins, commands);
        Ok(())
    }

    /// Passes a schedule on to the scheduler that joined last, or its end to all of them.
    pub(super) fn tell_schedulers(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) {
        let (interval, cron) = (schedule.interval.or(Some(b"-1")), schedule.cron.or(Some(b"")));
        let schedule = Schedule { interval, cron, ..*schedule };
        let command = if begins { Said::Schedule(schedule) } else { Said::Unschedule(schedule) };
        let mut octets = Vec::new();
        eventmq::Message { id, command }.encode(&mut octets);
        let most = if begins { 1 } else { usize::MAX };
        for scheduler in self.exchange.schedulers().into_iter().take(most) {
            let properties = Properties { hops: 16, ..Properties::default() };
            let message = Message::from_parts(id, b"", &octets, properties, self.client.clone());
            commands.push(Command::Direct { to: ClientPattern::Id(scheduler), message });
        }
    }

    /// The broker has said whether the client may publish to the queue of a schedule.
    pub(super) fn keep_schedule(
        &mut self,
        request: ScheduleRequest,
        begins: bool,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        let Some(keeper) = self.exchange.schedules() else { return };
        let id = request.id.clone();
        let done = match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => Err(rejection),
            // Its runs go where any job for an unknown queue goes, or to a queue that is there by then.
            _ if begins => keeper.schedule(request),
            _ => keeper.unschedule(request),
        };
        if let Err(rejection) = done {
            self.fail(&id, rejection.to_string(), now);
        }
    }

    /// What a client said, for this scheduler. Clients of other protocols may say anything; it must be one of these two.
    pub(super) fn for_scheduler(&mut self, message: &Message, output: &mut Vec<u8>) {
        let mut cutter = Cutter::new();
        let body = message.body();
        let is_schedule = match cutter.next(body, &self.config.limits) {
            Ok(Some((Item::Message(parts), consumed))) if consumed == body.len() => {
                let command = eventmq::parse(parts, Case::Exact).map(|message| message.command);
                matches!(command, Ok(Said::Schedule(_) | Said::Unschedule(_)))
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
