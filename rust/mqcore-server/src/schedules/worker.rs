//! The thread that runs schedules: it saves new schedules and due runs, and then sends the runs to their shards.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{QueueAddress, RequestId};
use mqcore_broker::model::rejection::Rejection;
use mqcore_journal::error::JournalError;
use mqcore_journal::storage::FileStorage;
use mqcore_scheduler::clock::{ClockStep, ClockWatch};
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::schedules::ScheduleEnd;
use tokio::sync::oneshot;

use super::keeper::Keeper;
use super::port::{PortRequest, PortState, SchedulePort};
use super::queues::default_queue;
use super::view::EndScheduleError;
use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;
use crate::shard::inbox::Urgent;
use crate::storage::backup::Pin;
use crate::storage::data_dir::{DataDir, SideJournal};

/// Requests taken in one batch.
const BATCH_MAX: usize = 4_096;
/// Maximum sleep while a condition may change without a request: a full disk, or a manual clock.
const IDLE: Duration = Duration::from_millis(200);
/// Time between two rounds of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_millis(200);
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 << 20;

/// Starts the thread. `directory` is held until its files are closed.
pub(crate) fn start(
    port: &SchedulePort,
    keeper: Keeper<FileStorage>,
    hub: &Arc<Hub>,
    directory: Option<Arc<DataDir>>,
    alive: TaskGuard,
) -> std::io::Result<()> {
    let Some(asks) = port.take_receiver() else { return Ok(()) };
    let worker = ScheduleThread {
        keeper,
        hub: Arc::clone(hub),
        shared: Arc::clone(&port.shared),
        known: HashMap::new(),
        ended: Vec::new(),
        failed: false,
        housekept: Instant::now(),
        pin: Weak::new(),
        watch: ClockWatch::default(),
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
    keeper: Keeper<FileStorage>,
    hub: Arc<Hub>,
    shared: Arc<PortState>,
    /// Queues looked up in this round, and whether they exist.
    known: HashMap<QueueAddress, bool>,
    /// Schedules ended in this round, and how to answer their requests.
    ended: Vec<(EntryId, oneshot::Sender<Result<(), EndScheduleError>>)>,
    /// The journal failed, so nothing runs until the next start: runs that cannot be saved could happen twice.
    failed: bool,
    housekept: Instant,
    /// Alive while a backup needs the files as they are.
    pin: Weak<Pin>,
    watch: ClockWatch,
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
            for ask in first.into_iter().chain(asks.try_iter().take(BATCH_MAX)) {
                ended |= matches!(ask, PortRequest::End);
                self.handle(ask);
            }
            let outcome = self.round();
            self.answer_ends(&outcome);
            self.note(outcome);
            self.wait_at_barrier();
            self.show();
            if ended {
                break;
            }
        }
        if !self.failed
            && let Err(error) = self.keeper.close()
        {
            tracing::error!(%error, "cannot close the journal of schedules; the next start reads it in full");
        }
    }

    /// How long to wait for a request.
    fn idle_timeout(&self) -> Duration {
        let full = self.shared.numbers.failing.load(Ordering::Relaxed);
        if full || self.failed || !self.hub.shutdown.is_running() {
            return IDLE;
        }
        let clock = &self.hub.clock;
        let due = self.keeper.next_due().map(|due| due.saturating_sub(clock.system_ms()));
        let retry = self.keeper.next_retry().map(|retry| retry.saturating_sub(clock.now().0));
        // Never longer, because setting the system clock notifies no process.
        due.into_iter().chain(retry).map(Duration::from_millis).fold(IDLE, Duration::min)
    }

    fn handle(&mut self, ask: PortRequest) {
        let now = self.hub.clock.now().0;
        match ask {
            PortRequest::Schedule(wanted) => {
                self.shared.waiting.fetch_sub(wanted.bytes(), Ordering::Relaxed);
                let id = wanted.id;
                if let Err(rejection) = self.keeper.schedule(*wanted, self.hub.clock.system_ms()) {
                    self.refused(&id, &rejection);
                }
            }
            PortRequest::Unschedule { id, allowed, end } => match self.keeper.check_right(&id, &allowed) {
                Ok(()) => drop(self.keeper.unschedule(&id, end)),
                Err(rejection) => self.refused(&id, &rejection),
            },
            PortRequest::EndSchedule(id, answer) => self.end_schedule(id, answer),
            PortRequest::List(max, answer) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = answer.send(self.keeper.list(max));
            }
            PortRequest::Event(Event::Confirmed(numbers)) => self.keeper.confirmed(&numbers),
            PortRequest::Event(Event::Deferred(number, rejection)) => {
                tracing::debug!(number, why = %rejection, "a queue rejected a run of a schedule; the broker tries again");
                self.keeper.put_off(number, now);
            }
            PortRequest::Event(_) | PortRequest::Look | PortRequest::End => {}
        }
    }

    /// Counts and logs a request that was rejected: its protocol has no answer.
    fn refused(&self, id: &EntryId, rejection: &Rejection) {
        self.shared.numbers.refused.fetch_add(1, Ordering::Relaxed);
        tracing::error!(schedule = %id, why = %rejection, "rejected a request for a schedule");
    }

    /// The time of the system clock. If it was set back, the schedules are adjusted. If it was set forward, the runs
    /// in between simply become due.
    fn look_at_clock(&mut self, steady_ms: u64) -> u64 {
        let system_ms = self.hub.clock.system_ms();
        match self.watch.look(system_ms, steady_ms) {
            Some(ClockStep::Back(by)) => {
                tracing::warn!(by_ms = by, "the system clock was set back; schedules follow it");
                self.keeper.set_back(system_ms);
            }
            Some(ClockStep::Forward(by)) => {
                tracing::warn!(by_ms = by, "the system clock was set forward; schedules follow it");
            }
            None => {}
        }
        system_ms
    }

    /// Ends a schedule. The caller may have gone; then nothing needs the answer.
    fn end_schedule(&mut self, id: EntryId, answer: oneshot::Sender<Result<(), EndScheduleError>>) {
        if self.shared.numbers.failing.load(Ordering::Relaxed) {
            let _ = answer.send(Err(EndScheduleError::Failing));
        } else if self.keeper.unschedule(&id, ScheduleEnd::Ended) {
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
        if self.failed {
            return Ok(());
        }
        let now = self.hub.clock.now().0;
        if self.housekept.elapsed() >= HOUSEKEEPING {
            self.housekept = Instant::now();
            let done = self.keeper.keep_house(now, HOUSEKEEPING_BYTES, self.pin.strong_count() > 0)?;
            self.hub.counters.journal.add_damage(SideJournal::Schedules.as_str(), &done.damaged);
        }
        let system = self.look_at_clock(now);
        // A stopping broker begins no runs: what is due now is also due at the next start.
        if self.hub.shutdown.is_running() {
            let queues = self.keeper.take_due(system);
            // If a shard does not answer, the server is stopping. Due runs are found again at the next start.
            if !queues.is_empty() && self.learn(queues) {
                let known = &self.known;
                self.keeper.write_due(|queue| known.get(queue).copied().unwrap_or(false))?;
            }
        }
        self.keeper.commit()?;
        let commands = self.keeper.take_commands(now);
        self.send_to_shards(commands);
        Ok(())
    }

    /// Takes part in a backup, if one is requested: reports the files, and waits until all writers have done so. By
    /// then, a run settled here is in its shard's files; any other is sent again by a broker that starts on the copy.
    fn wait_at_barrier(&mut self) {
        let Some((writer, barrier)) = self.hub.backups.take_beside(SideJournal::Schedules) else { return };
        let Some(snapshot) = self.keeper.snapshot() else { return };
        self.pin = barrier.pin();
        barrier.arrive(writer, snapshot.map_err(|error| error.to_string()));
    }

    /// Asks the shards which of these queues, and `default`, exist. False: a shard has stopped.
    fn learn(&mut self, mut queues: Vec<QueueAddress>) -> bool {
        let default = default_queue();
        if !queues.contains(&default) {
            queues.push(default.clone());
        }
        let placement = self.hub.placement;
        let mut asked: Vec<Vec<QueueAddress>> = vec![Vec::new(); placement.shards()];
        for queue in queues {
            asked[queue.channel.shard(placement)].push(queue);
        }
        self.known.clear();
        let asked = asked.into_iter().enumerate().filter(|(_, queues)| !queues.is_empty());
        let answers: Vec<_> = asked
            .map(|(shard, queues)| {
                let (answer, receiver) = oneshot::channel();
                self.hub.shards[shard].send_urgent(Urgent::Takes(queues.clone(), answer));
                (queues, receiver)
            })
            .collect();
        for (queues, receiver) in answers {
            let Ok(takes) = receiver.blocking_recv() else { return false };
            self.known.extend(queues.into_iter().zip(takes));
        }
        let needs_default = self.known.values().any(|known| !known);
        if needs_default && !self.known.get(&default).copied().unwrap_or_default() {
            let changes = self.hub.job_queues.clone();
            let request = Request::CreateQueue { queue: default.clone(), changes };
            let shard = default.channel.shard(placement);
            self.send_to_shards(vec![(shard, Command::Request(RequestId(0), Box::new(request)))]);
        }
        true
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

    fn note(&mut self, outcome: Result<(), JournalError>) {
        let failing = &self.shared.numbers.failing;
        match outcome {
            Ok(()) if self.failed => {}
            Ok(()) => {
                if failing.swap(false, Ordering::Relaxed) {
                    tracing::warn!("schedules are saved again");
                }
            }
            Err(error @ JournalError::Full { .. }) => {
                if !failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "cannot save schedules: runs wait until there is disk space");
                }
            }
            Err(error) => {
                self.failed = true;
                failing.store(true, Ordering::Relaxed);
                tracing::error!(%error, "cannot save schedules: no schedule runs until the next start; check the disk and restart the broker");
            }
        }
    }

    fn show(&self) {
        let numbers = &self.shared.numbers;
        for (shown, number) in [
            (&numbers.schedules, self.keeper.len() as u64),
            (&numbers.runs, self.keeper.fired()),
            (&numbers.skipped, self.keeper.skipped()),
            (&numbers.outstanding, self.keeper.outstanding() as u64),
        ] {
            shown.store(number, Ordering::Relaxed);
        }
    }
}
