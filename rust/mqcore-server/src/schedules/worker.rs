//! The thread that runs schedules: it saves new schedules and due runs, and then sends the runs to their shards.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::rejection::Rejection;
use mqcore_journal::error::JournalError;
use mqcore_replication::storage::DataStorage;
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::LedgerRequest;
use mqcore_session::schedules::ScheduleEnd;
use mqcore_state::schedules::keeper::Keeper;
use mqcore_state::schedules::queues::default_queue;
use mqcore_state::schedules::rounds::{RoundChange, RoundTerms, ScheduleRounds};
use tokio::sync::oneshot;

use super::end::EndScheduleError;
use super::port::{PortRequest, PortState, SchedulePort};
use crate::hub::Hub;
use crate::net::outbox::OutboxItem;
use crate::runtime::shutdown::{TaskGuard, VitalGuard};
use crate::shard::inbox::Urgent;
use crate::storage::backup::Pin;
use crate::storage::data_dir::{DataDir, SideJournal};

/// Requests taken in one batch.
const BATCH_MAX: usize = 4_096;
/// Memory of the answers of one batch, in bytes. Requests are small, and results of jobs may be large.
const ANSWERS_MAX: usize = 8 << 20;
/// Time between two rounds of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_millis(200);

/// Starts the thread. `directory` is held until its files are closed.
pub(crate) fn start(
    port: &SchedulePort,
    keeper: Keeper<DataStorage>,
    hub: &Arc<Hub>,
    directory: Option<Arc<DataDir>>,
    alive: TaskGuard,
) -> std::io::Result<()> {
    let alive = VitalGuard::from(alive);
    let Some(asks) = port.take_receiver() else { return Ok(()) };
    let worker = ScheduleThread {
        rounds: ScheduleRounds::new(keeper),
        hub: Arc::clone(hub),
        shared: Arc::clone(&port.shared),
        ended: Vec::new(),
        asked: HashMap::new(),
        housekept: Instant::now(),
        pin: Weak::new(),
    };
    std::thread::Builder::new().name("mqcore-schedules".into()).spawn(move || {
        worker.run(&asks);
        // Releases the directory for the next broker before this one counts as stopped.
        drop(directory);
        drop(alive);
    })?;
    Ok(())
}

/// The thread.
struct ScheduleThread {
    rounds: ScheduleRounds<DataStorage>,
    hub: Arc<Hub>,
    shared: Arc<PortState>,
    /// Schedules ended in this round, and how to answer their requests.
    ended: Vec<(EntryId, oneshot::Sender<Result<(), EndScheduleError>>)>,
    /// Requests of the admin side about jobs that have no answer yet, by the connections that they use instead.
    asked: HashMap<ConnectionId, oneshot::Sender<JobNotice>>,
    housekept: Instant,
    /// Alive while a backup needs the files as they are.
    pin: Weak<Pin>,
}

impl ScheduleThread {
    fn run(mut self, asks: &Receiver<PortRequest>) {
        loop {
            let first = match asks.recv_timeout(self.idle_timeout()) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut ended = false;
            let before = self.rounds.notice_bytes();
            for ask in first.into_iter().chain(asks.try_iter().take(BATCH_MAX)) {
                ended |= matches!(ask, PortRequest::End);
                self.handle(ask);
                if self.rounds.notice_bytes().saturating_sub(before) > ANSWERS_MAX {
                    break;
                }
            }
            let outcome = self.round();
            self.answer_ends(&outcome);
            self.note(outcome);
            self.tell_sessions();
            let answers = self.rounds.take_answers();
            self.send_to_shards(answers);
            self.wait_at_barrier();
            self.show();
            if ended {
                break;
            }
        }
        if let Err(error) = self.rounds.close(self.pin.strong_count() > 0) {
            tracing::error!(%error, "cannot close the journal of schedules; the next start reads it in full");
        }
    }

    /// How long to wait for a request.
    fn idle_timeout(&self) -> Duration {
        let clock = &self.hub.clock;
        let (now, system) = (clock.now().0, clock.system_ms());
        Duration::from_millis(self.rounds.wait_ms(now, system, self.hub.shutdown.is_running()))
    }

    fn handle(&mut self, ask: PortRequest) {
        match ask {
            PortRequest::Schedule(wanted) => {
                self.shared.waiting.fetch_sub(wanted.bytes(), Ordering::Relaxed);
                let id = wanted.id;
                if let Err(rejection) = self.rounds.schedule(*wanted, self.hub.clock.system_ms()) {
                    self.refused(&id, &rejection);
                }
            }
            PortRequest::Unschedule { id, allowed, end } => {
                if let Err(rejection) = self.rounds.unschedule(&id, &allowed, end) {
                    self.refused(&id, &rejection);
                }
            }
            PortRequest::EndSchedule(id, answer) => self.end_schedule(id, answer),
            PortRequest::List(max, answer) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = answer.send(self.rounds.keeper().list(max));
            }
            PortRequest::JobEnded(job) => self.rounds.job_ended(job, self.hub.clock.system_ms()),
            PortRequest::Job(asker, request) => {
                let is_question =
                    matches!(request, LedgerRequest::Lookup { .. } | LedgerRequest::Await { .. });
                if is_question && self.hub.registry.find(asker).is_none() {
                    // It has ended, perhaps because it asked for more than it reads.
                    return;
                }
                self.rounds.job_request(asker, request, self.hub.clock.system_ms());
            }
            PortRequest::JobOfAdmin(asker, request, answer) => {
                // While the disk is full, answers wait, and their receivers may have gone.
                self.asked.retain(|_, answer| !answer.is_closed());
                self.asked.insert(asker, answer);
                self.rounds.job_request(asker, request, self.hub.clock.system_ms());
            }
            PortRequest::Event(event) => self.rounds.event(event, self.hub.clock.now().0),
            PortRequest::Look | PortRequest::End => {}
        }
    }

    /// Counts and logs a request that was rejected: its protocol has no answer.
    fn refused(&self, id: &EntryId, rejection: &Rejection) {
        self.shared.numbers.refused.fetch_add(1, Ordering::Relaxed);
        tracing::error!(schedule = %id, why = %rejection, "rejected a request for a schedule");
    }

    /// Ends a schedule. The caller may have gone; then nothing needs the answer.
    fn end_schedule(&mut self, id: EntryId, answer: oneshot::Sender<Result<(), EndScheduleError>>) {
        if self.rounds.is_failing() {
            let _ = answer.send(Err(EndScheduleError::Failing));
        } else if self.rounds.keeper_mut().unschedule(&id, ScheduleEnd::Ended) {
            self.ended.push((id, answer));
        } else {
            let _ = answer.send(Err(EndScheduleError::Missing(id)));
        }
    }

    /// Answers the requests for ends of this round with the result of saving them.
    fn answer_ends(&mut self, outcome: &Result<(), JournalError>) {
        for (id, answer) in self.ended.drain(..) {
            let outcome = outcome
                .as_ref()
                .map(|()| tracing::info!(schedule = %id, "an administrator ended a schedule"));
            let outcome = outcome.map_err(|error| EndScheduleError::NotSaved { id, why: error.to_string() });
            let _ = answer.send(outcome);
        }
    }

    /// Saves new schedules and due runs, and then sends commands to the shards.
    fn round(&mut self) -> Result<(), JournalError> {
        let now_ms = self.hub.clock.now().0;
        let is_due = self.housekept.elapsed() >= HOUSEKEEPING;
        if is_due {
            self.housekept = Instant::now();
        }
        let queues = self.rounds.begin(RoundTerms {
            now_ms,
            system_ms: self.hub.clock.system_ms(),
            is_running: self.hub.shutdown.is_running(),
            housekeeping: is_due.then(|| self.pin.strong_count() > 0),
        })?;
        let damaged = self.rounds.take_damaged();
        self.hub.counters.journal.add_damage(SideJournal::Schedules.as_str(), &damaged);
        // If a shard does not answer, the server is stopping. Due runs are found again at the next start.
        if !queues.is_empty()
            && let Some(found) = self.look_up(queues)
        {
            let (needs_default, written) = self.rounds.found(found);
            if needs_default {
                self.create_default();
            }
            written?;
        }
        self.rounds.write()?;
        self.rounds.sync()?;
        let commands = self.rounds.take_commands(now_ms);
        self.send_to_shards(commands);
        Ok(())
    }

    /// Takes part in a backup, if one is requested: reports the files, and waits until all writers have done so. By
    /// then, a run settled here is in its shard's files; any other is sent again by a broker that starts on the copy.
    fn wait_at_barrier(&mut self) {
        let Some((writer, barrier)) = self.hub.backups.take_beside(SideJournal::Schedules) else { return };
        let is_pinned = self.pin.strong_count() > 0;
        let Some(snapshot) = self.rounds.keeper_mut().snapshot(is_pinned) else { return };
        self.pin = barrier.pin();
        barrier.arrive(writer, snapshot.map_err(|error| error.to_string()));
    }

    /// Asks the shards which of these queues exist. `None`: a shard has stopped.
    fn look_up(&self, queues: Vec<QueueAddress>) -> Option<Vec<(QueueAddress, bool)>> {
        let placement = self.hub.placement;
        let mut asked: Vec<Vec<QueueAddress>> = vec![Vec::new(); placement.shards()];
        for queue in queues {
            asked[queue.channel.shard(placement)].push(queue);
        }
        let asked = asked.into_iter().enumerate().filter(|(_, queues)| !queues.is_empty());
        let answers: Vec<_> = asked
            .map(|(shard, queues)| {
                let (answer, receiver) = oneshot::channel();
                self.hub.shards[shard].send_urgent(Urgent::Takes(queues.clone(), answer));
                (queues, receiver)
            })
            .collect();
        let mut found = Vec::new();
        for (queues, receiver) in answers {
            found.extend(queues.into_iter().zip(receiver.blocking_recv().ok()?));
        }
        Some(found)
    }

    /// Creates the queue for jobs whose queue does not exist.
    fn create_default(&self) {
        let queue = default_queue();
        let shard = queue.channel.shard(self.hub.placement);
        let request = Request::CreateQueue { queue, changes: self.hub.job_queues.clone() };
        self.send_to_shards(vec![(shard, Command::Request(RequestId(0), Box::new(request)))]);
    }

    fn send_to_shards(&self, commands: Vec<(usize, Command)>) {
        let mut of_shards: Vec<Vec<Command>> = vec![Vec::new(); self.hub.shards.len()];
        for (shard, command) in commands {
            of_shards[shard].push(command);
        }
        for (shard, commands) in
            of_shards.into_iter().enumerate().filter(|(_, commands)| !commands.is_empty())
        {
            self.hub.moved();
            self.hub.shards[shard].send_urgent(Urgent::Scheduled(commands));
        }
    }

    /// Passes on notices about jobs to sessions and the admin side. A connection that has ended needs nothing.
    fn tell_sessions(&mut self) {
        for (connection, notice) in self.rounds.take_notices() {
            if let Some(answer) = self.asked.remove(&connection) {
                let _ = answer.send(notice);
                continue;
            }
            let Some(outbox) = self.hub.registry.find(connection) else { continue };
            let event = Event::Job(Box::new(notice));
            let bytes = event.pending_bytes();
            self.hub.moved();
            // The thread does not stop for a connection that reads slowly; its own limit closes that.
            outbox.push(&mut vec![OutboxItem::Events(vec![event])], bytes, 0);
        }
    }

    fn note(&mut self, outcome: Result<(), JournalError>) {
        match self.rounds.end(outcome) {
            None => {}
            Some(RoundChange::Recovered) => tracing::warn!("schedules are saved again"),
            Some(RoundChange::Full(error)) => {
                tracing::error!(%error, "cannot save schedules: runs wait until there is disk space");
            }
            Some(RoundChange::Failed(error)) => {
                tracing::error!(%error, "cannot save schedules: no schedule runs until the next start; check the disk and restart the broker");
            }
        }
        self.shared.numbers.failing.store(self.rounds.is_failing(), Ordering::Relaxed);
    }

    fn show(&self) {
        let (numbers, keeper) = (&self.shared.numbers, self.rounds.keeper());
        for (shown, number) in [
            (&numbers.schedules, keeper.len() as u64),
            (&numbers.runs, keeper.fired()),
            (&numbers.skipped, keeper.skipped()),
            (&numbers.outstanding, keeper.outstanding() as u64),
        ] {
            shown.store(number, Ordering::Relaxed);
        }
    }
}
