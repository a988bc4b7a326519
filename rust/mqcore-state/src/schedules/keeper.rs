//! Schedules, due runs, and runs in flight to queues. Contains no thread, clock or socket: the caller supplies the
//! time, and carries commands to shards.

mod jobs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::intake::SCHEDULES;
use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_journal::error::JournalError;
use mqcore_journal::maintenance::Maintenance;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::snapshot::Snapshot;
use mqcore_journal::storage::Storage;
use mqcore_scheduler::plan::{Plan, PlanProgress, Recurrence};
use mqcore_scheduler::scheduler::{EntryId, Firing, ScheduleEntry, Scheduler};
use mqcore_session::schedules::{ScheduleEnd, job_queues};

use crate::jobs::ledger::Ledger;

use super::draft::{Crons, ScheduleDraft};
use super::ended::{EndedSchedule, EndedSchedules, Terms, terms_of};
use super::queues::{ScheduleQueues, default_queue, named_queue, parts};
use super::store::{RunRecord, SavedSchedules, ScheduleJournal};
use super::view::{ScheduleList, ScheduleView};

/// Maximum schedules.
pub(crate) const SCHEDULES_MAX: usize = 4_000_000;
/// Maximum runs that wait for their queues; beyond it, schedules wait too.
const OUTSTANDING_MAX: usize = 100_000;
/// Maximum runs taken at a time.
const RUNS_AT_ONCE: usize = 8_192;
/// Milliseconds until a run is sent again to a shard that could not accept it.
const RETRY_MS: u64 = 1_000;
/// Maximum bytes of a job in a list.
const JOB_SHOWN_BYTES: usize = 1_024;

/// The data of a schedule that only this module uses.
#[derive(Debug, Clone)]
struct ScheduleData {
    /// Its number in the journal; without a journal it is counted as well.
    sequence: u64,
    run: Arc<[u8]>,
    /// Its terms, if it has a limited number of runs.
    terms: Option<Arc<Terms>>,
}

impl ScheduleData {
    fn new(sequence: u64, id: &EntryId, plan: &Plan, run: Arc<[u8]>) -> Self {
        let terms = plan.runs.map(|_| Arc::new(terms_of(id, plan, &run)));
        Self { sequence, run, terms }
    }
}

/// A job in flight to its queue.
#[derive(Debug)]
struct InFlightJob {
    to: QueueAddress,
    shard: usize,
    job: Outgoing,
}

#[derive(Debug)]
enum Outgoing {
    /// A run of a schedule.
    Run { id: EntryId, due_ms: u64, fence: u64, run: Arc<[u8]> },
    /// A job of a flow. Its record stays until it has ended, because it is the evidence that it has begun.
    Step { id: Box<[u8]>, headers: Box<[u8]>, body: Box<[u8]> },
}

/// All schedules, and all runs in flight.
pub struct Keeper<S: Storage> {
    scheduler: Scheduler<ScheduleData>,
    /// The queues of all schedules, shared with sessions.
    queues: Arc<ScheduleQueues>,
    /// The journal; `None`: schedules are only in memory.
    store: Option<ScheduleJournal<S>>,
    placement: Placement,
    node: Arc<str>,
    epoch: u64,
    next: u64,
    ended: EndedSchedules,
    /// Due, and not saved yet.
    due: VecDeque<Firing<ScheduleData>>,
    /// Saved, and not confirmed by their queues.
    outgoing: BTreeMap<u64, InFlightJob>,
    /// Those of `outgoing` that have not been sent since they were saved.
    unsent: VecDeque<u64>,
    /// Shards that could not accept a run: the number from which to send again, and when.
    blocked: BTreeMap<usize, (u64, u64)>,
    /// Runs in their queues, and ended schedules, whose settlement is not saved yet.
    settled: Vec<u64>,
    /// Progress of schedules that only their runs have: the journal's numbers of the schedules, and their states.
    caught_up: Vec<(u64, PlanProgress)>,
    fired: u64,
    /// Results, cancellations and flows of jobs.
    ledger: Ledger,
    /// Records about jobs that were too large to be saved.
    unsaved: BTreeSet<u64>,
    /// Options of queues that are created for jobs of flows.
    job_queues: QueueChanges,
}

impl<S: Storage> Keeper<S> {
    /// Creates a keeper without a journal.
    #[must_use]
    pub fn in_memory(placement: Placement, now_ms: u64) -> Self {
        Self {
            scheduler: Scheduler::default(),
            queues: Arc::default(),
            store: None,
            placement,
            node: SCHEDULES.into(),
            epoch: now_ms,
            next: 1,
            ended: EndedSchedules::default(),
            due: VecDeque::new(),
            outgoing: BTreeMap::new(),
            unsent: VecDeque::new(),
            blocked: BTreeMap::new(),
            settled: Vec::new(),
            caught_up: Vec::new(),
            fired: 0,
            ledger: Ledger::default(),
            unsaved: BTreeSet::new(),
            job_queues: job_queues(None),
        }
    }

    /// Continues with the schedules of a journal. Runs that no queue has confirmed are sent again. Also returns the number of
    /// unreadable records. Calls `found` with the report before it changes a file.
    ///
    /// # Errors
    /// [`JournalError`] if the journal cannot be opened, or the error of `found`.
    pub fn open(
        storage: S,
        options: Options,
        placement: Placement,
        crons: &Crons,
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<(Self, u64), JournalError> {
        let now_ms = options.now_ms;
        let mut keeper = Self::in_memory(placement, now_ms);
        let mut find = |text: &str, zone: &str| crons.find(text, zone, jiff::tz::db());
        let (store, kept) = ScheduleJournal::open(storage, options, &mut find, found)?;
        let SavedSchedules { schedules, runs, ended, results, flows, steps, unreadable, epoch, next } = kept;
        (keeper.epoch, keeper.next, keeper.store) = (epoch, next, Some(store));
        for kept in schedules {
            let what = ScheduleData::new(kept.sequence, &kept.id, &kept.plan, kept.run.into());
            let entry = ScheduleEntry { id: kept.id, plan: kept.plan, state: kept.state, what };
            // A crash between a schedule and the end of the previous one leaves both; the later one is valid.
            let before = keeper.scheduler.insert(entry);
            keeper.settled.extend(before.map(|before| before.what.sequence));
        }
        for kept in ended {
            // A crash between a schedule and the start of the same one leaves both; the later one is valid.
            let lives =
                keeper.scheduler.get(&kept.id).is_some_and(|entry| entry.what.sequence > kept.sequence);
            let settled = if lives { Some(kept.sequence) } else { keeper.ended.insert(kept) };
            keeper.settled.extend(settled);
        }
        for kept in runs {
            keeper.catch_up(&kept.run);
            keeper.send(kept.number, kept.run);
        }
        keeper.ledger.restore(flows, steps, results, &mut keeper.next, now_ms);
        // The clock may have been set back while no broker was running.
        keeper.set_back(now_ms);
        Ok((keeper, unreadable))
    }

    /// Lets sessions find the queues of schedules from now on.
    pub fn share_queues(&mut self, queues: &Arc<ScheduleQueues>) {
        self.queues = Arc::clone(queues);
        for entry in self.scheduler.iter() {
            queues.insert(entry.id, &entry.what.run);
        }
    }

    /// A crash between a run and the state of its schedule leaves the run, which contains that state.
    fn catch_up(&mut self, run: &RunRecord) {
        let Some(entry) = self.scheduler.get(&run.id) else { return };
        if entry.what.sequence != run.schedule || entry.state.fence >= run.fence {
            return;
        }
        let Some(mut entry) = self.scheduler.remove(&run.id) else { return };
        match run.state {
            Some(state) => {
                entry.state = state;
                self.scheduler.insert(entry);
                // The run is settled soon. Without this, a crash after that would repeat it.
                self.caught_up.push((run.schedule, state));
            }
            None => {
                self.settled.push(run.schedule);
                self.remember_end(run.id, terms_of(&run.id, &entry.plan, &entry.what.run));
            }
        }
    }

    /// The number of schedules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.scheduler.len()
    }

    /// Whether there is no schedule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scheduler.is_empty()
    }

    /// The number of runs that their queues have not confirmed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.due.len() + self.outgoing.len()
    }

    /// How often schedules skipped missed runs.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.scheduler.skipped()
    }

    /// How many runs were saved for their queues.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    // ---- Schedules -------------------------------------------------------------------------------------------------

    /// Adds a schedule, replacing the one with the same call. An unchanged schedule continues as it is: workers
    /// request their schedules at every start.
    ///
    /// The client needs a right on the queue that the schedule has, not only on the one that it is to get.
    pub fn schedule(&mut self, wanted: ScheduleDraft, now_ms: u64) -> Result<(), Rejection> {
        let ScheduleDraft { id, plan, run, unless_ended, allowed } = wanted;
        self.check_right(&id, &allowed)?;
        let before = self.scheduler.get(&id);
        if before.is_some_and(|before| before.what.run == run && before.plan == plan) {
            return Ok(());
        }
        if unless_ended && before.is_none() && self.ended.has(&id, &terms_of(&id, &plan, &run)) {
            tracing::info!(schedule = %id, "a worker sent a schedule that has ended; it does not start again");
            return Ok(());
        }
        if before.is_none() && self.scheduler.len() >= SCHEDULES_MAX {
            let why = format!(
                "the limit of {SCHEDULES_MAX} schedules is reached; remove some with `mqcore jobs unschedule`"
            );
            return Err(Rejection::new(RejectionKind::LimitExceeded, why));
        }
        let saved = self.save_jobs();
        saved.map_err(|error| Rejection::new(RejectionKind::Busy, error.to_string()))?;
        let state = plan.begin(now_ms);
        let state = state.map_err(|error| Rejection::new(RejectionKind::BadRequest, error.to_string()))?;
        let sequence = self.next;
        if let Some(store) = &mut self.store {
            let put = store.put_schedule(sequence, &id, &plan, &state, &run);
            put.map_err(|error| Rejection::new(RejectionKind::Busy, error.to_string()))?;
        }
        self.next += 1;
        self.queues.insert(id, &run);
        let what = ScheduleData::new(sequence, &id, &plan, run);
        let before = self.scheduler.insert(ScheduleEntry { id, plan, state, what });
        self.settled.extend(before.map(|before| before.what.sequence));
        self.settled.extend(self.ended.remove(&id));
        Ok(())
    }

    /// Whether a client that may publish to the queues `allowed` may change or end a schedule. Its session has asked
    /// for these rights; the schedule may have changed since.
    pub fn check_right(&self, id: &EntryId, allowed: &[QueueAddress]) -> Result<(), Rejection> {
        let Some(entry) = self.scheduler.get(id) else { return Ok(()) };
        let queue = named_queue(&entry.what.run);
        if allowed.contains(&queue) {
            return Ok(());
        }
        let why = format!(
            "schedule {id} has got queue {queue} meanwhile, and the client has not shown a right to push there; send the request again"
        );
        Err(Rejection::new(RejectionKind::Unauthorized, why))
    }

    /// Ends a schedule, durably once [`Keeper::commit`] has returned. Runs that are due already still happen. False:
    /// it does not exist. The caller has checked the right of the client.
    pub fn unschedule(&mut self, id: &EntryId, end: ScheduleEnd) -> bool {
        let Some(before) = self.scheduler.remove(id) else { return false };
        self.queues.remove(id);
        self.settled.push(before.what.sequence);
        // One that another scheduler takes over continues there, and may return here.
        if end == ScheduleEnd::Ended {
            self.remember_end(*id, terms_of(id, &before.plan, &before.what.run));
        }
        if let Some(store) = &mut self.store {
            store.demand_sync();
        }
        true
    }

    /// Remembers that a schedule has ended, so that the workers of its program do not start it again.
    fn remember_end(&mut self, id: EntryId, terms: Terms) {
        let kept = EndedSchedule { sequence: self.next, id, terms };
        let saved = self.save_jobs().and_then(|()| match &mut self.store {
            Some(store) => store.put_ended(&kept),
            None => Ok(()),
        });
        if let Err(error) = saved {
            // The schedule ends nevertheless.
            tracing::warn!(schedule = %id, %error, "cannot save that a schedule has ended; a worker may start it again");
            return;
        }
        self.next += 1;
        self.settled.extend(self.ended.insert(kept));
    }

    /// The next `max` schedules by due time.
    #[must_use]
    pub fn list(&self, max: usize) -> ScheduleList {
        let schedules = self.scheduler.upcoming(max).into_iter().map(view).collect();
        ScheduleList { total: self.scheduler.len() as u64, schedules }
    }

    // ---- Due runs --------------------------------------------------------------------------------------------------

    /// When the next run is due, in Unix milliseconds of the system clock.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.scheduler.next_due().filter(|_| self.has_room())
    }

    /// When to retry a shard that could not accept a run, by the monotonic clock.
    #[must_use]
    pub fn next_retry(&self) -> Option<u64> {
        self.blocked.values().map(|(_, until)| *until).min()
    }

    /// The system clock was set back to `now_ms`.
    pub fn set_back(&mut self, now_ms: u64) {
        self.scheduler.set_back(now_ms);
    }

    fn has_room(&self) -> bool {
        self.due.is_empty() && self.outgoing.len() < OUTSTANDING_MAX
    }

    /// Takes due runs. Returns the queues whose existence must be known before the runs can be saved.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<QueueAddress> {
        if self.has_room() {
            let mut firings = Vec::new();
            self.scheduler.take_due(now_ms, RUNS_AT_ONCE, &mut firings);
            for last in firings.iter().filter(|firing| firing.state.is_none()) {
                self.queues.remove(&last.id);
            }
            self.due.extend(firings);
        }
        let mut queues: Vec<_> = self.due.iter().map(|firing| named_queue(&firing.what.run)).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    /// Saves due runs. `known` tells which queues exist; runs for others go to `default`. Stops early if the disk is
    /// full, and continues there the next time.
    pub fn write_due(&mut self, known: impl Fn(&QueueAddress) -> bool) -> Result<(), JournalError> {
        self.save_caught_up()?;
        self.save_jobs()?;
        while let Some(firing) = self.due.front() {
            let run = RunRecord {
                schedule: firing.what.sequence,
                id: firing.id,
                due_ms: firing.due_ms,
                fence: firing.fence,
                state: firing.state,
                fallen_back: !known(&named_queue(&firing.what.run)),
                run: Arc::clone(&firing.what.run),
            };
            let terms = firing.what.terms.clone().filter(|_| run.state.is_none());
            let number = self.next;
            if let Some(store) = &mut self.store {
                store.put_run(number, &run)?;
                let entry = self.scheduler.get(&run.id);
                let current = entry.is_some_and(|entry| entry.what.sequence == run.schedule);
                match run.state {
                    // Settlements still fit on a full disk, so the run is not saved twice.
                    None => self.settled.push(run.schedule),
                    Some(state) if current => store.touch(run.schedule, &state)?,
                    Some(_) => {}
                }
            }
            self.next += 1;
            self.fired += 1;
            self.due.pop_front();
            let id = run.id;
            self.send(number, run);
            if let Some(terms) = terms {
                self.remember_end(id, *terms);
            }
        }
        Ok(())
    }

    /// Saves the progress that only runs had, before anything that follows it.
    fn save_caught_up(&mut self) -> Result<(), JournalError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        for (sequence, state) in &self.caught_up {
            store.touch(*sequence, state)?;
        }
        self.caught_up.clear();
        Ok(())
    }

    fn send(&mut self, number: u64, run: RunRecord) {
        let to = if run.fallen_back { default_queue() } else { named_queue(&run.run) };
        let shard = to.channel.shard(self.placement);
        let RunRecord { id, due_ms, fence, run, .. } = run;
        self.outgoing
            .insert(number, InFlightJob { to, shard, job: Outgoing::Run { id, due_ms, fence, run } });
        self.unsent.push_back(number);
    }

    /// Makes all saved changes durable. Runs may only be sent after that.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn commit(&mut self) -> Result<(), JournalError> {
        self.write()?;
        self.sync()
    }

    /// Writes all saved changes. They are durable after [`Keeper::sync`].
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn write(&mut self) -> Result<(), JournalError> {
        self.save_caught_up()?;
        self.save_jobs()?;
        let Some(store) = &mut self.store else {
            self.settled.clear();
            return Ok(());
        };
        if !self.settled.is_empty() {
            self.settled.sort_unstable();
            store.settle(&self.settled)?;
            self.settled.clear();
        }
        store.write()
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.store.as_mut().map_or(Ok(()), ScheduleJournal::sync)
    }

    /// Takes the commands for shards, each shard's in order. Must be called after [`Keeper::commit`]. `now_ms` is the
    /// time of the monotonic clock, so that setting the system clock does not delay a retry.
    pub fn take_commands(&mut self, now_ms: u64) -> Vec<(usize, Command)> {
        self.ledger.saved();
        let mut commands = self.take_removals();
        self.send_steps();
        let mut again_at = Vec::new();
        let over = self.blocked.iter().filter(|(_, (_, until))| *until <= now_ms);
        let over: Vec<_> = over.map(|(shard, (from, _))| (*shard, *from)).collect();
        for (shard, from) in over {
            self.blocked.remove(&shard);
            let again = self.outgoing.range(from..).filter(|(_, outgoing)| outgoing.shard == shard);
            commands.extend(again.flat_map(|(number, outgoing)| self.commands(*number, outgoing)));
            again_at.push(shard);
        }
        let again: Vec<usize> = again_at;
        for number in std::mem::take(&mut self.unsent) {
            let Some(outgoing) = self.outgoing.get(&number) else { continue };
            // A shard that receives everything again receives this run as well.
            if !self.blocked.contains_key(&outgoing.shard) && !again.contains(&outgoing.shard) {
                commands.extend(self.commands(number, outgoing));
            }
        }
        commands
    }

    /// Runs have reached their queues.
    pub fn confirmed(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(InFlightJob { job: Outgoing::Run { .. }, .. }) = self.outgoing.remove(number) {
                self.settled.push(*number);
            }
        }
    }

    /// A queue cannot accept a run now. The run and the later ones for its shard are sent again after a while.
    /// `now_ms` is as for [`Keeper::take_commands`].
    pub fn put_off(&mut self, number: u64, now_ms: u64) {
        let Some(outgoing) = self.outgoing.get(&number) else { return };
        let (from, until) = self.blocked.entry(outgoing.shard).or_insert((number, now_ms + RETRY_MS));
        *from = number.min(*from);
        *until = now_ms + RETRY_MS;
    }

    /// Whether there is a journal.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.store.is_some()
    }

    /// The identity of the journal, if there is one.
    #[must_use]
    pub fn identity(&self) -> Option<u64> {
        self.store.as_ref().map(ScheduleJournal::identity)
    }

    /// The saved state as files, which stay unchanged until the next housekeeping. `pinned`: so do those of earlier calls.
    /// `None`: there is no journal.
    pub fn snapshot(&mut self, pinned: bool) -> Option<Result<Snapshot, JournalError>> {
        self.store.as_mut().map(|store| store.snapshot(pinned))
    }

    /// Reclaims space. `pinned`: no file may be removed now.
    pub fn keep_house(
        &mut self,
        now_ms: u64,
        bytes: usize,
        pinned: bool,
    ) -> Result<Maintenance, JournalError> {
        self.store
            .as_mut()
            .map_or_else(|| Ok(Maintenance::default()), |store| store.keep_house(now_ms, bytes, pinned))
    }

    /// Closes the journal properly. `pinned`: its files stay as they are, because a backup reads them.
    pub fn close(self, pinned: bool) -> Result<(), JournalError> {
        self.store.map_or(Ok(()), |store| store.close(pinned))
    }
}

fn view(entry: &ScheduleEntry<ScheduleData>) -> ScheduleView {
    let (queue, headers, job) = parts(&entry.what.run).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (interval_ms, cron) = match &entry.plan.when {
        Recurrence::Every(interval) => (Some(*interval), None),
        Recurrence::Cron(cron) => (None, Some((cron.text().to_owned(), cron.zone().to_owned()))),
    };
    ScheduleView {
        id: entry.id,
        queue: text(queue),
        headers: text(headers),
        job: text(&job[..job.len().min(JOB_SHOWN_BYTES)]),
        interval_ms,
        cron,
        catch_up: entry.plan.catch_up.as_str(),
        due_ms: entry.state.due_ms,
        runs: entry.state.fence,
        left: entry.state.left.map(std::num::NonZeroU32::get),
    }
}
