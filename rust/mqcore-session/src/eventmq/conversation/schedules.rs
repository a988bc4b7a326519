//! Schedules: run by this broker, or passed on to a scheduler.

use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::eventmq::{self, Case, EmqpCommand, Schedule};
use mqcore_wire::zmtp::{Item, ZmtpDecoder};

use super::{EventmqSession, Part, deny};
use crate::eventmq::pending::{RequestSubject, ScheduleChange};
use crate::eventmq::schedules;
use crate::eventmq::schedules::{ScheduleEnd, ScheduleRequest};
use crate::session::SessionError;

/// The protocol of clients whose rights on schedules sessions have checked.
const PROTOCOL: &str = "emqp";
const NO_SCHEDULER: &str = "no scheduler is connected that could run the schedule; connect one or configure this broker to run schedules";

impl EventmqSession {
    /// Begins, changes or ends a schedule, after the broker has checked the rights of the client: on the queue that the
    /// request names, and on the queue that the schedule has.
    pub(super) fn schedule(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let wishes = match Headers::check(schedule.headers) {
            Ok(wishes) => wishes,
            Err(mistake) if begins => {
                return Err(format!("{}: {mistake}", schedules::title(schedule.queue, schedule.body)));
            }
            // Only the call identifies the schedule to end.
            Err(_) => Headers::parse(schedule.headers),
        };
        if schedule.body.len() > schedules::JOB_BYTES_MAX {
            let most = schedules::JOB_BYTES_MAX;
            return Err(format!("a scheduled job exceeds the limit of {most} bytes"));
        }
        if self.exchange.schedules().is_none() {
            if self.exchange.schedulers().is_empty() {
                return Err(NO_SCHEDULER.to_owned());
            }
            if begins && (schedule.interval.is_none() || schedule.cron.is_none()) {
                // The original's scheduler crashes on a request in the document's form.
                return Err(
                    "a schedule needs both an interval and a cron expression; one of them may be empty"
                        .to_owned(),
                );
            }
        }
        let request = ScheduleRequest {
            id: id.into(),
            queue: schedule.queue.into(),
            headers: schedule.headers.into(),
            wishes,
            interval: schedule.interval.map(Into::into),
            job: schedule.body.into(),
            cron: schedule.cron.map(Into::into),
        };
        let queue = self.intake.address(schedule.queue);
        let change = ScheduleChange { request, begins, queue, allowed: Vec::new(), is_missing: false };
        self.ask_for_queue(change, commands);
        Ok(())
    }

    fn ask_for_queue(&mut self, change: ScheduleChange, commands: &mut Vec<Command>) {
        let queue = change.queue.clone();
        let number = self.pending.expect(RequestSubject::Schedule(Box::new(change)), 1);
        commands.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
    }

    /// The broker has decided whether the client may publish to a queue of a schedule.
    pub(super) fn schedule_allowed(
        &mut self,
        mut change: ScheduleChange,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => {
                return self.fail_schedule(&change.request, &rejection, now);
            }
            // Without `create-queue` its runs go to the queue `default`, as jobs for unknown queues do, or to a queue that
            // is created by then.
            Err(_) if change.allowed.is_empty() => change.is_missing = true,
            _ => {}
        }
        let queue = change.queue.clone();
        change.allowed.push(queue);
        let has = self.queue_of(&change.request).filter(|has| !change.allowed.contains(has));
        if let Some(queue) = has {
            change.queue = queue;
            let mut commands = std::mem::take(&mut self.wanted);
            self.ask_for_queue(change, &mut commands);
            self.wanted = commands;
            return;
        }
        if !change.begins {
            return self.end_schedule(change, now);
        }
        match self.scheduler_for(&change.request) {
            Some(to) => {
                let request = Request::MayDirect { to: ClientPattern::Id(to.clone()) };
                let number = self.pending.expect(RequestSubject::HandOver(Box::new(change), to), 1);
                self.wanted.push(Command::Request(number, Box::new(request)));
            }
            None => self.keep_schedule(change, now),
        }
    }

    /// The queue that the schedule with this call has, at the broker or at a scheduler.
    fn queue_of(&self, request: &ScheduleRequest) -> Option<QueueAddress> {
        let kept = self.exchange.schedules().and_then(|keeper| keeper.queue_of(request));
        kept.or_else(|| self.exchange.handed_over(&request.identity()))
    }

    /// The scheduler that joined last, if it can run this schedule.
    fn scheduler_for(&self, request: &ScheduleRequest) -> Option<Box<str>> {
        let keeps = self.exchange.schedules().is_some();
        if keeps && (request.needs_broker() || !self.exchange.has_room_to_hand_over(&request.identity())) {
            return None;
        }
        self.exchange.schedulers().into_iter().next()
    }

    /// The broker has decided whether the client may send to a scheduler. If it may not, or the scheduler has left, the
    /// schedule stays here.
    pub(super) fn hand_over(
        &mut self,
        change: ScheduleChange,
        to: Box<str>,
        answer: &Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        if answer.is_err() {
            return self.keep_schedule(change, now);
        }
        let ScheduleChange { request, allowed, .. } = change;
        let message = self.for_schedulers(&request, true);
        if let (Some(keeper), Some(queue)) = (self.exchange.schedules().cloned(), allowed.first()) {
            self.exchange.hand_over(request.identity(), queue.clone());
            let ended = keeper.unschedule(request.clone(), &allowed, ScheduleEnd::HandedOver);
            if let Err(rejection) = ended {
                return self.fail_schedule(&request, &rejection, now);
            }
        }
        self.wanted.push(Command::Direct { to: ClientPattern::Id(to), message });
    }

    /// This broker runs the schedule. Schedulers drop theirs: only one runs it.
    fn keep_schedule(&mut self, change: ScheduleChange, now: Timestamp) {
        let ScheduleChange { request, allowed, is_missing, .. } = change;
        let Some(keeper) = self.exchange.schedules().cloned() else {
            return self.fail(&request.id, NO_SCHEDULER.to_owned(), now);
        };
        if is_missing && request.wishes.create_queue {
            let queue = self.intake.address(&request.queue);
            if self.intake.needs(&queue) {
                self.create_queue(queue);
            }
        }
        match keeper.schedule(request.clone(), &allowed) {
            Ok(()) => self.end_at_schedulers(&request),
            Err(rejection) => self.fail_schedule(&request, &rejection, now),
        }
    }

    fn end_schedule(&mut self, change: ScheduleChange, now: Timestamp) {
        let ScheduleChange { request, allowed, .. } = change;
        if let Some(keeper) = self.exchange.schedules().cloned()
            && let Err(rejection) = keeper.unschedule(request.clone(), &allowed, ScheduleEnd::Ended)
        {
            return self.fail_schedule(&request, &rejection, now);
        }
        self.end_at_schedulers(&request);
    }

    /// Passes the end of a schedule to all schedulers.
    fn end_at_schedulers(&mut self, request: &ScheduleRequest) {
        self.exchange.take_back(&request.identity());
        for scheduler in self.exchange.schedulers() {
            let message = self.for_schedulers(request, false);
            self.wanted.push(Command::Direct { to: ClientPattern::Id(scheduler), message });
        }
    }

    /// The message with which schedulers receive a schedule, or its end.
    fn for_schedulers(&self, request: &ScheduleRequest, begins: bool) -> Message {
        let schedule = Schedule {
            queue: &request.queue,
            headers: &request.headers,
            interval: request.interval.as_deref().or(Some(b"-1")),
            body: &request.job,
            cron: request.cron.as_deref().or(Some(b"")),
        };
        let command =
            if begins { EmqpCommand::Schedule(schedule) } else { EmqpCommand::Unschedule(schedule) };
        let mut bytes = Vec::new();
        eventmq::EmqpMessage { id: &request.id, command }.encode(&mut bytes);
        Message::from_parts(&request.id, b"", &bytes, Properties::default(), self.client.clone())
    }

    fn fail_schedule(&mut self, request: &ScheduleRequest, rejection: &Rejection, now: Timestamp) {
        let title = schedules::title(&request.queue, &request.job);
        self.fail(&request.id, format!("{title}: {rejection}"), now);
    }

    /// A client asks to be a scheduler: it would receive the schedules of all clients, so it needs a right.
    pub(super) fn apply_as_scheduler(
        &mut self,
        id: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        if matches!(self.part, Part::Scheduler(_)) {
            return self.acknowledge(id, now, output);
        }
        self.part = Part::Applying;
        let number = self.pending.expect(RequestSubject::Scheduler(id.into()), 1);
        commands.push(Command::Request(number, Box::new(Request::MayRunSchedules)));
    }

    /// The broker has decided whether the client may be a scheduler.
    pub(super) fn scheduler_allowed(
        &mut self,
        id: &[u8],
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        if let Err(rejection) = answer {
            // Otherwise it would wait forever for schedules that it never receives.
            deny(&rejection, output);
            return Err(SessionError::Misbehaved(rejection.to_string().into()));
        }
        let Some(client) = &self.client else { return Ok(()) };
        match self.part {
            Part::Applying => {
                let registration = self.exchange.join_scheduler(&self.identity, &client.id, now);
                self.part = Part::Scheduler(registration);
            }
            Part::Scheduler(_) => {}
            // It has said goodbye meanwhile.
            _ => return Ok(()),
        }
        self.acknowledge(id, now, output);
        Ok(())
    }

    /// Passes a client's message on to this scheduler: only these two commands, and only from sessions of this protocol,
    /// which have checked the rights of the client. Clients of other protocols may send anything.
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
        let is_checked = message.producer().is_some_and(|client| client.protocol == PROTOCOL);
        if is_schedule && is_checked && matches!(self.part, Part::Scheduler(_)) {
            output.extend_from_slice(body);
        } else {
            self.ignore();
        }
    }
}
