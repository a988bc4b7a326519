//! The journal of schedules: the directory `schedules/` in the data directory.
//!
//! A put is a schedule, whose touch holds its progress, or a run in flight to its queue, which is settled when the
//! queue has it. The number of a run is the ticket by which its queue detects duplicates. A third kind of put is a
//! schedule that has ended. The others are about [jobs](crate::jobs).

use std::sync::Arc;

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::maintenance::Maintenance;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::snapshot::Snapshot;
use mqcore_journal::storage::Storage;
use mqcore_scheduler::plan::{Plan, PlanProgress};
use mqcore_scheduler::record::{FindCron, decode_plan, encode_plan};
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::Flow;

use super::ended::EndedSchedule;
use crate::jobs::record::{SavedResult, SavedStep, decode_flow, encode_flow};

const SCHEDULE: u8 = 1;
const RUN: u8 = 2;
const ENDED: u8 = 3;
const RESULT: u8 = 4;
const FLOW: u8 = 5;
const STEP: u8 = 6;
/// Bytes of an encoded state.
const STATE_BYTES: usize = 21;
/// The key for the time at which the journal was created: a later journal numbers its runs anew.
const EPOCH: &[u8] = b"epoch";
/// The key of a definition that exists if the disk could not read a segment at the last opening.
const UNREADABLE: &[u8] = b"unreadable";

/// A saved schedule.
#[derive(Debug)]
pub(crate) struct SavedSchedule {
    pub(crate) sequence: u64,
    pub(crate) id: EntryId,
    pub(crate) plan: Plan,
    pub(crate) state: PlanProgress,
    pub(crate) run: Box<[u8]>,
}

/// A run that no queue has confirmed.
#[derive(Debug)]
pub(crate) struct SavedRun {
    pub(crate) number: u64,
    pub(crate) run: RunRecord,
}

/// A saved run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRecord {
    /// The number of its schedule.
    pub(crate) schedule: u64,
    pub(crate) id: EntryId,
    pub(crate) due_ms: u64,
    pub(crate) fence: u64,
    /// The progress of its schedule after this run; `None`: the schedule has ended.
    pub(crate) state: Option<PlanProgress>,
    /// It goes to the queue `default`, because the queue that it names does not exist.
    pub(crate) fallen_back: bool,
    pub(crate) run: Arc<[u8]>,
}

/// The result of opening.
#[derive(Debug, Default)]
pub(crate) struct SavedSchedules {
    pub(crate) schedules: Vec<SavedSchedule>,
    pub(crate) runs: Vec<SavedRun>,
    pub(crate) ended: Vec<EndedSchedule>,
    pub(crate) results: Vec<(u64, SavedResult)>,
    pub(crate) flows: Vec<(u64, Flow)>,
    pub(crate) steps: Vec<(u64, SavedStep)>,
    pub(crate) unreadable: u64,
    pub(crate) epoch: u64,
    pub(crate) next: u64,
}

/// The journal.
pub(crate) struct ScheduleJournal<S: Storage> {
    journal: Journal<S>,
    scratch: Vec<u8>,
    /// A change that must be durable is not synced yet.
    unsynced: bool,
}

impl<S: Storage> ScheduleJournal<S> {
    /// Opens or creates the journal.
    pub(crate) fn open(
        storage: S,
        options: Options,
        cron: &mut FindCron<'_>,
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<(Self, SavedSchedules), JournalError> {
        let now_ms = options.now_ms;
        let (mut journal, recovered) =
            Journal::open_with_observers(storage, options, &mut |_, _| {}, &mut |_, _| {}, found)?;
        if recovered.report.is_alarming() {
            tracing::error!(report = %recovered.report, "the journal of schedules is damaged; damaged records were skipped");
        }
        let defined = |wanted: &[u8]| recovered.definitions.iter().find(|(key, _)| **key == *wanted);
        let before =
            defined(EPOCH).and_then(|(_, value)| value.first_chunk().copied()).map(u64::from_le_bytes);
        let (had_unreadable, has_unreadable) =
            (defined(UNREADABLE).is_some(), recovered.report.has_unreadable());
        // Runs that can be read again have smaller numbers than runs that their queues have meanwhile. In the same epoch, the
        // queues would reject them as duplicates.
        let epoch = match before {
            Some(epoch) if !had_unreadable => epoch,
            before => now_ms.max(before.map_or(0, |epoch| epoch + 1)),
        };
        if before != Some(epoch) || has_unreadable != had_unreadable {
            journal.define(EPOCH, &epoch.to_le_bytes())?;
            if has_unreadable {
                journal.define(UNREADABLE, b"")?;
            } else {
                journal.undefine(UNREADABLE)?;
            }
            journal.write()?;
            journal.sync()?;
        }
        let mut kept =
            SavedSchedules { epoch, next: recovered.next_sequence.max(1), ..SavedSchedules::default() };
        journal.each_live(0, &mut |sequence, live| {
            let read = live.map_err(|error| error.to_string());
            let read = read.and_then(|live| kept.read(sequence, live.payload, live.touch, cron));
            if let Err(error) = read {
                tracing::error!(sequence, %error, "cannot read a saved schedule; it is skipped");
                kept.unreadable += 1;
            }
        });
        Ok((Self { journal, scratch: Vec::new(), unsynced: false }, kept))
    }

    /// The identity of the journal.
    pub(crate) fn identity(&self) -> u64 {
        self.journal.identity()
    }

    /// Buffers a schedule.
    pub(crate) fn put_schedule(
        &mut self,
        sequence: u64,
        id: &EntryId,
        plan: &Plan,
        state: &PlanProgress,
        run: &[u8],
    ) -> Result<(), JournalError> {
        self.scratch.clear();
        encode_plan(id, plan, &mut self.scratch);
        self.journal.put(sequence, 0, &[&[SCHEDULE], &state.encode(), &self.scratch, run])?;
        self.unsynced = true;
        Ok(())
    }

    /// Buffers a run.
    pub(crate) fn put_run(&mut self, number: u64, run: &RunRecord) -> Result<(), JournalError> {
        let over = PlanProgress { due_ms: u64::MAX, fence: run.fence, left: None };
        let state = run.state.unwrap_or(over).encode();
        let (schedule, due, fence) =
            (run.schedule.to_le_bytes(), run.due_ms.to_le_bytes(), run.fence.to_le_bytes());
        let head: [&[u8]; 7] =
            [&[RUN, run.fallen_back.into()], &state, &schedule, &run.id.0, &due, &fence, &run.run];
        self.journal.put(number, 0, &head)?;
        self.unsynced = true;
        Ok(())
    }

    /// Buffers that a schedule has ended.
    pub(crate) fn put_ended(&mut self, ended: &EndedSchedule) -> Result<(), JournalError> {
        self.journal.put(ended.sequence, 0, &[&[ENDED], &ended.id.0, &ended.terms])?;
        self.unsynced = true;
        Ok(())
    }

    /// Buffers the result of a job.
    pub(crate) fn put_result(&mut self, number: u64, result: &SavedResult) -> Result<(), JournalError> {
        self.put(number, RESULT, &result.encode())
    }

    /// Buffers a flow of jobs.
    pub(crate) fn put_flow(&mut self, number: u64, flow: &Flow) -> Result<(), JournalError> {
        self.put(number, FLOW, &encode_flow(flow))
    }

    /// Buffers a job of a flow that has begun.
    pub(crate) fn put_step(&mut self, number: u64, step: &SavedStep) -> Result<(), JournalError> {
        self.put(number, STEP, &step.encode())
    }

    fn put(&mut self, number: u64, kind: u8, content: &[u8]) -> Result<(), JournalError> {
        self.journal.put(number, 0, &[&[kind], content])?;
        self.unsynced = true;
        Ok(())
    }

    /// Buffers the progress of a schedule.
    pub(crate) fn touch(&mut self, sequence: u64, state: &PlanProgress) -> Result<(), JournalError> {
        self.journal.touch(sequence, &state.encode())?;
        self.unsynced = true;
        Ok(())
    }

    /// Makes the next commit sync even if it only settles: an end that a client was notified of must survive a crash.
    pub(crate) fn demand_sync(&mut self) {
        self.unsynced = true;
    }

    /// Buffers that schedules have ended, or that runs have reached their queues.
    pub(crate) fn settle(&mut self, numbers: &[u64]) -> Result<(), JournalError> {
        self.journal.settle(numbers)
    }

    /// Writes buffered changes.
    pub(crate) fn write(&mut self) -> Result<(), JournalError> {
        self.journal.write()
    }

    /// Syncs what was written if it contains more than settlements or a sync was demanded: a settled run that a crash restores
    /// is only sent and rejected once more.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        if self.unsynced {
            self.journal.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// The saved state as files, which stay unchanged until the next housekeeping. `pinned`: so do those of earlier calls.
    pub(crate) fn snapshot(&mut self, pinned: bool) -> Result<Snapshot, JournalError> {
        self.journal.pin(pinned);
        self.journal.snapshot()
    }

    /// Reclaims space, or detects that the disk has space again. `pinned`: no file may be removed now.
    pub(crate) fn keep_house(
        &mut self,
        now_ms: u64,
        bytes: usize,
        pinned: bool,
    ) -> Result<Maintenance, JournalError> {
        self.journal.pin(pinned);
        self.journal.maintain(now_ms, bytes)
    }

    /// Closes the journal properly. `pinned`: its files stay as they are, because a backup reads them.
    pub(crate) fn close(mut self, pinned: bool) -> Result<(), JournalError> {
        self.journal.pin(pinned);
        self.journal.close()
    }
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A schedule.
    Schedule,
    /// A run in flight to its queue.
    Run,
    /// A schedule that has ended.
    Ended,
    /// The result of a job.
    Result,
    /// A flow of jobs.
    Flow,
    /// A job of a flow that has begun.
    Step,
}

/// The kind that a record states.
#[must_use]
pub fn kind(payload: &[u8]) -> Option<RecordKind> {
    match *payload.first()? {
        SCHEDULE => Some(RecordKind::Schedule),
        RUN => Some(RecordKind::Run),
        ENDED => Some(RecordKind::Ended),
        RESULT => Some(RecordKind::Result),
        FLOW => Some(RecordKind::Flow),
        STEP => Some(RecordKind::Step),
        _ => None,
    }
}

/// Parses a record as a start would.
///
/// # Errors
/// What is wrong with the record.
pub fn check(payload: &[u8], touch: Option<&[u8]>, cron: &mut FindCron<'_>) -> Result<(), String> {
    SavedSchedules::default().read(0, payload, touch, cron)
}

impl SavedSchedules {
    fn read(
        &mut self,
        sequence: u64,
        payload: &[u8],
        touch: Option<&[u8]>,
        cron: &mut FindCron<'_>,
    ) -> Result<(), String> {
        let mut reader = EntryReader(payload);
        match reader.take()? {
            [SCHEDULE] => {
                let begun = reader.take::<STATE_BYTES>()?;
                let state =
                    PlanProgress::decode(touch.unwrap_or(&begun)).map_err(|error| error.to_string())?;
                let (id, plan, run) = decode_plan(reader.0, cron).map_err(|error| error.to_string())?;
                self.schedules.push(SavedSchedule { sequence, id, plan, state, run: run.into() });
            }
            [RUN] => {
                let [fallen_back] = reader.take()?;
                let state = PlanProgress::decode(&reader.take::<STATE_BYTES>()?);
                let state = state.map_err(|error| error.to_string())?;
                let schedule = u64::from_le_bytes(reader.take()?);
                let id = EntryId(reader.take()?);
                let due_ms = u64::from_le_bytes(reader.take()?);
                let fence = u64::from_le_bytes(reader.take()?);
                let state = (state.due_ms != u64::MAX).then_some(state);
                let fallen_back = fallen_back != 0;
                let run = reader.0.into();
                let run = RunRecord { schedule, id, due_ms, fence, state, fallen_back, run };
                self.runs.push(SavedRun { number: sequence, run });
            }
            [ENDED] => {
                let (id, terms) = (EntryId(reader.take()?), reader.take()?);
                self.ended.push(EndedSchedule { sequence, id, terms });
            }
            [RESULT] => self.results.push((sequence, SavedResult::decode(reader.0)?)),
            [FLOW] => self.flows.push((sequence, decode_flow(reader.0)?)),
            [STEP] => self.steps.push((sequence, SavedStep::decode(reader.0)?)),
            [kind] => return Err(format!("a record of kind {kind} is of a later version")),
        }
        Ok(())
    }
}

struct EntryReader<'a>(&'a [u8]);

impl EntryReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};

    use super::super::draft::Crons;
    use super::*;

    fn open(disk: &MemoryStorage, now_ms: u64) -> (ScheduleJournal<MemoryStorage>, SavedSchedules) {
        let options =
            Options { now_ms, identity: now_ms, expected_identity: Some(1_000), ..Options::default() };
        let crons = Crons::default();
        let mut cron = |text: &str, zone: &str| crons.find(text, zone, jiff::tz::db());
        ScheduleJournal::open(disk.clone(), options, &mut cron, &mut |_| Ok(())).unwrap()
    }

    fn run(due_ms: u64) -> RunRecord {
        let (id, run) = (EntryId([7; 20]), Arc::from(*b"run"));
        RunRecord { schedule: 1, id, due_ms, fence: due_ms, state: None, fallen_back: false, run }
    }

    #[test]
    fn a_journal_keeps_the_identity_that_it_was_created_with() {
        let disk = MemoryStorage::new(3);
        let (journal, _) = open(&disk, 4_711);
        assert_eq!(journal.identity(), 4_711);
        journal.close(false).unwrap();
        assert_eq!(open(&disk, 9_000).0.identity(), 4_711);
    }

    #[test]
    fn a_journal_that_is_closed_during_a_backup_keeps_the_files_of_the_backup() {
        let disk = MemoryStorage::new(5);
        let (mut journal, kept) = open(&disk, 1_000);
        journal.snapshot(false).unwrap();
        let before = disk.files();
        journal.put_run(kept.next, &run(1)).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
        journal.close(true).unwrap();
        assert_eq!(disk.files()["catalog"], before["catalog"]);
        assert_eq!(open(&disk, 2_000).1.runs.len(), 1);
    }

    /// The system clock may have been set back since the last epoch began.
    #[test]
    fn a_new_epoch_is_later_than_the_last_one_whatever_the_clock_shows() {
        let disk = MemoryStorage::new(2);
        let (mut journal, _) = open(&disk, 1_000);
        journal.put_run(1, &run(1)).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
        journal.close(false).unwrap();
        disk.inject(StorageCall::Read, 0, Fault::Error, true);
        let (journal, kept) = open(&disk, 3_000);
        disk.clear_faults();
        let last = kept.epoch;
        drop(journal);
        let (_, kept) = open(&disk, 500);
        assert_eq!(kept.epoch, last + 1, "records can be read again");
    }

    /// Queues remember the largest number of an epoch that they have, and reject smaller ones as duplicates.
    #[test]
    fn runs_that_can_be_read_again_get_an_epoch_in_which_no_larger_number_was_used() {
        for after in [0, 4] {
            let disk = MemoryStorage::new(1);
            let (mut journal, kept) = open(&disk, 1_000);
            assert_eq!(kept.epoch, 1_000);
            journal.put_run(kept.next, &run(1)).unwrap();
            journal.write().unwrap();
            journal.sync().unwrap();
            journal.close(false).unwrap();
            let (journal, kept) = open(&disk, 2_000);
            assert_eq!((kept.epoch, kept.runs.len()), (1_000, 1), "nothing was unreadable");
            let first = kept.next;
            drop(journal);

            disk.inject(StorageCall::Read, after, Fault::Error, true);
            let (mut journal, kept) = open(&disk, 3_000);
            disk.clear_faults();
            assert!(kept.next > first && kept.runs.is_empty(), "{after}: {kept:?}");
            let meanwhile = kept.epoch;
            journal.put_run(kept.next, &run(2)).unwrap();
            journal.write().unwrap();
            journal.sync().unwrap();
            drop(journal);

            let (journal, kept) = open(&disk, 4_000);
            let due: Vec<u64> = kept.runs.iter().map(|kept| kept.run.due_ms).collect();
            assert_eq!(due, [1, 2], "{after}");
            assert!(kept.epoch > meanwhile && kept.epoch > 1_000, "{after}: {}", kept.epoch);
            let renewed = kept.epoch;
            drop(journal);
            let (_, kept) = open(&disk, 5_000);
            assert_eq!((kept.epoch, kept.runs.len()), (renewed, 2), "{after}");
        }
    }
}
