//! Persistent limits: changes of the store are written in the background and restored after a restart.
//!
//! No request waits for the disk. The store tracks which entries have changed; at each interval the task fetches all
//! of them once, in their current state, and writes and syncs them together. So a crash loses the changes of one
//! interval and of the write in progress, and the pending changes are bounded by the size of the store.
//!
//! An entry is a put of the journal, under a new number each time it changes; the previous put is settled. The put of
//! an entry that has expired or was removed is settled too. All moments are Unix nanoseconds.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::HashMap;
use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::storage::FileStorage;
use mqcore_limiter::change::EntryChange;
use mqcore_limiter::limiter::{Limiter, SHARDS};
use mqcore_limiter::record;
use mqcore_limiter::time::Nanos;

use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;
use crate::storage::backup::{Pin, WriterBarrier};
use crate::storage::data_dir::{DataDir, DataDirError, RECORD_BYTES_MAX, SideJournal};

/// The definition with the time of the last write, in Unix nanoseconds.
const WRITTEN: &[u8] = b"written";
/// Changes fetched under one lock.
const FETCHED_AT_ONCE: usize = 256;
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 << 20;
/// Intervals without a change after which housekeeping runs anyway.
const QUIET_INTERVALS: u32 = 16;

/// The journal of limits.
#[derive(Debug)]
pub(crate) struct LimitJournal {
    journal: Journal<FileStorage>,
    /// For each entry's number, the number of its last put.
    places: HashMap<u64, u64, foldhash::fast::RandomState>,
    next: u64,
    /// Changes fetched from the store and not yet in the journal.
    pending: VecDeque<EntryChange>,
    /// Puts that were replaced by later ones.
    replaced: Vec<u64>,
    /// Scratch: one encoded entry.
    bytes: Vec<u8>,
    /// Alive while a backup needs the files unchanged.
    pin: Weak<Pin>,
    /// Segments in which housekeeping found damage that was not reported yet.
    damaged: Vec<u32>,
}

/// The result of opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) entries: u64,
    /// Entries that expired while the broker was stopped.
    pub(crate) expired: u64,
    pub(crate) unreadable: u64,
}

/// A record that was read: the entry's number, its put's number, and where its bytes begin and end.
type Read = (u64, u64, usize, usize);

impl LimitJournal {
    /// Opens or creates the journal and fills the store from it. `expected_identity` is that of the existing journal. Calls
    /// `found` with the report before it changes a file.
    pub(crate) fn open(
        path: &Path,
        expected_identity: Option<u64>,
        limiter: &Limiter,
        now: Nanos,
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<(Self, Restored), DataDirError> {
        let failed = |source| DataDirError::Limits { source };
        let directory = path.to_path_buf();
        let storage =
            FileStorage::open(path).map_err(|source| DataDirError::Io { path: directory, source })?;
        let options = Options {
            shard: SideJournal::Limits.shard(),
            now_ms: now.0 / 1_000_000,
            max_record_bytes: RECORD_BYTES_MAX as u32,
            expected_identity,
            ..Options::default()
        };
        let (journal, recovered) =
            Journal::open_with_observers(storage, options, &mut |_, _| {}, &mut |_, _| {}, found)
                .map_err(failed)?;
        if recovered.report.is_alarming() {
            tracing::error!(report = %recovered.report, "the journal of rate limits is damaged; damaged records were skipped");
        }
        let written = recovered.definitions.iter().find(|(key, _)| **key == *WRITTEN);
        let written = written.and_then(|(_, value)| value.first_chunk().copied());
        let mut opened = Self {
            journal,
            places: HashMap::default(),
            next: recovered.next_sequence.max(1),
            pending: VecDeque::new(),
            replaced: Vec::new(),
            bytes: Vec::new(),
            pin: Weak::new(),
            damaged: Vec::new(),
        };
        // If the clock shows less than at the last write, it was set back: the remaining times are those at that
        // write.
        let back = written.map_or(0, u64::from_le_bytes).saturating_sub(now.0);
        if back > 0 {
            tracing::warn!(
                seconds = back / 1_000_000_000,
                "the clock was set back since rate limits were saved"
            );
        }
        if recovered.report.has_unreadable() {
            // Entries that a later start can read must not have the sequences of new ones.
            limiter.skip_sequences(now.0);
        }
        limiter.watch_changes();
        let restored = opened.restore(limiter, back, now).map_err(failed)?;
        Ok((opened, restored))
    }

    /// The identity of the journal.
    pub(crate) fn identity(&self) -> u64 {
        self.journal.identity()
    }

    /// Restores entries in the order in which they were created, not in the order in which they were written.
    fn restore(&mut self, limiter: &Limiter, back: u64, now: Nanos) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut bytes = Vec::new();
        let mut entries: Vec<Read> = Vec::new();
        self.journal.each_live(0, &mut |number, live| {
            let payload = live.ok().map(|live| live.payload);
            match payload.and_then(|payload| Some((record::sequence(payload).ok()?, payload))) {
                Some((sequence, payload)) => {
                    let begin = bytes.len();
                    bytes.extend_from_slice(payload);
                    entries.push((sequence, number, begin, bytes.len()));
                }
                None => restored.unreadable += 1,
            }
        });
        entries.sort_unstable();
        let mut gone = Vec::new();
        for (index, (sequence, number, begin, end)) in entries.iter().copied().enumerate() {
            // A crash between a put and the settlement of the previous one leaves both; the later one is valid.
            let replaced = entries.get(index + 1).is_some_and(|next| next.0 == sequence);
            match record::decode(&bytes[begin..end]) {
                Ok(kept) if !replaced && limiter.restore(&kept.clone().earlier(back), now) => {
                    self.places.insert(sequence, number);
                    restored.entries += 1;
                }
                Ok(_) => {
                    restored.expired += u64::from(!replaced);
                    gone.push(number);
                }
                Err(error) => {
                    tracing::error!(number, %error, "cannot read a saved rate limit; it starts anew");
                    restored.unreadable += 1;
                }
            }
        }
        self.journal.settle(&gone)?;
        Ok(restored)
    }

    /// Writes the changes of the store and makes them durable. Returns how many entries were put.
    ///
    /// # Errors
    /// [`JournalError::Full`]: pending changes stay, and the next call retries. Any other error is permanent.
    fn save(&mut self, limiter: &Limiter, now: Nanos) -> Result<u64, JournalError> {
        self.journal.pin(self.pin.strong_count() > 0);
        // First of all, because settling frees space on a full disk.
        let done = self.journal.maintain(now.0 / 1_000_000, HOUSEKEEPING_BYTES)?;
        self.damaged.extend(done.damaged);
        for error in done.deferred {
            tracing::warn!(%error, "cannot remove a segment of the journal of rate limits; trying again later");
        }
        let mut saved = 0;
        let mut changed = self.drain(&mut saved)?;
        for shard in 0..SHARDS {
            // Changes that arrive meanwhile wait for the next call; otherwise a busy entry could keep this loop
            // running forever.
            let mut waiting = limiter.unfetched(shard);
            while waiting > 0 {
                let pending = &mut self.pending;
                let more = limiter.fetch_changes(shard, FETCHED_AT_ONCE, |change| pending.push_back(change));
                waiting = if more { waiting.saturating_sub(pending.len().max(1)) } else { 0 };
                changed |= self.drain(&mut saved)?;
                self.journal.write()?;
            }
        }
        if changed {
            self.journal.define(WRITTEN, &now.0.to_le_bytes())?;
            self.journal.write()?;
            self.journal.sync()?;
        }
        Ok(saved)
    }

    /// Writes pending changes to the journal. A removal precedes later changes under the same key, and a put precedes
    /// the settlement of the one that it replaces. So a crash restores no older state, and loses no entry.
    fn drain(&mut self, saved: &mut u64) -> Result<bool, JournalError> {
        let changed = !self.pending.is_empty() || !self.replaced.is_empty();
        let removed = self.pending.iter().filter_map(|change| match change {
            EntryChange::Remove(sequence) => self.places.get(sequence).copied(),
            EntryChange::Put(_) => None,
        });
        let removed: Vec<u64> = removed.collect();
        self.journal.settle(&removed)?;
        while let Some(change) = self.pending.front() {
            match change {
                EntryChange::Remove(sequence) => drop(self.places.remove(sequence)),
                EntryChange::Put(kept) => {
                    self.bytes.clear();
                    record::encode(kept, &mut self.bytes);
                    self.journal.put(self.next, 0, &[&self.bytes])?;
                    self.replaced.extend(self.places.insert(kept.sequence, self.next));
                    self.next += 1;
                    *saved += 1;
                }
            }
            self.pending.pop_front();
        }
        self.bytes.shrink_to(64 * 1024);
        self.journal.settle(&self.replaced)?;
        self.replaced.clear();
        Ok(changed)
    }

    /// Takes part in a backup: reports the files, and waits until all writers have done so.
    fn wait_at_barrier(&mut self, writer: usize, barrier: &WriterBarrier) {
        let snapshot = self.journal.snapshot();
        self.pin = barrier.pin();
        barrier.arrive(writer, snapshot.map_err(|error| error.to_string()));
    }

    /// Whether any change is not written yet.
    fn is_behind(&self, limiter: &Limiter) -> bool {
        !self.pending.is_empty()
            || !self.replaced.is_empty()
            || (0..SHARDS).any(|shard| limiter.unfetched(shard) > 0)
    }
}

/// Writes changes every `interval` until the server has stopped; then once more.
pub(crate) async fn keep(
    hub: Arc<Hub>,
    mut journal: LimitJournal,
    interval: Duration,
    directory: Arc<DataDir>,
    alive: TaskGuard,
) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut ended = pin!(shutdown.ended());
    let mut quiet = 0;
    loop {
        let last = tokio::select! {
            () = tokio::time::sleep(interval) => false,
            () = hub.backups.asked(SideJournal::Limits) => false,
            () = &mut ended => true,
        };
        let barrier = hub.backups.take_beside(SideJournal::Limits);
        let at_once = last || barrier.is_some() || journal.is_behind(&hub.limiter);
        quiet = if at_once { 0 } else { (quiet + 1) % QUIET_INTERVALS };
        if quiet > 0 {
            continue;
        }
        let here = Arc::clone(&hub);
        let saving = tokio::task::spawn_blocking(move || {
            let outcome = journal.save(&here.limiter, Nanos(here.clock.nanos()));
            if let Some((writer, barrier)) = barrier {
                journal.wait_at_barrier(writer, &barrier);
            }
            (journal, outcome)
        });
        let outcome = match saving.await {
            Ok((back, outcome)) => {
                journal = back;
                outcome
            }
            Err(error) => {
                hub.limiter.forget_changes();
                std::panic::resume_unwind(error.into_panic());
            }
        };
        let damaged = std::mem::take(&mut journal.damaged);
        hub.counters.journal.add_damage(SideJournal::Limits.as_str(), &damaged);
        let goes_on = note(&hub, outcome);
        if last || !goes_on {
            break;
        }
    }
    hub.limiter.forget_changes();
    let closed = tokio::task::spawn_blocking(move || {
        let closed = journal.journal.close();
        // Releases the directory for the next broker before this one counts as stopped.
        drop(directory);
        closed
    });
    if let Ok(Err(error)) = closed.await {
        tracing::error!(%error, "cannot close the journal of rate limits; the next start reads it in full");
    }
    drop(alive);
}

/// Counts and logs the result of a save. False: retrying is useless.
fn note(hub: &Hub, outcome: Result<u64, JournalError>) -> bool {
    let counters = &hub.counters.limits;
    let failing = &counters.failing;
    match outcome {
        Ok(saved) => {
            counters.saved.add(saved);
            if failing.swap(0, Ordering::Relaxed) != 0 {
                tracing::warn!("rate limits are saved again");
            }
            true
        }
        Err(error @ JournalError::Full { .. }) => {
            if failing.swap(1, Ordering::Relaxed) == 0 {
                tracing::error!(%error, "cannot save rate limits; they stay in force, but a crash would lose their changes; free disk space");
            }
            true
        }
        Err(error) => {
            failing.store(1, Ordering::Relaxed);
            hub.backups.ended(SideJournal::Limits, error.to_string());
            tracing::error!(%error, "cannot save rate limits until the next start; they stay in force; check the disk and restart the broker");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use mqcore_limiter::limiter::{Adjust, EntryProperties, LimiterConfig};
    use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
    use mqcore_limiter::time::Ttl;
    use tempfile::TempDir;

    use super::*;

    const KEPT: EntryProperties = EntryProperties { bits: 16, kept: true };
    const START: Nanos = Nanos(1_800_000_000_000_000_000);

    fn store() -> Arc<Limiter> {
        Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()))
    }

    fn seconds(amount: u64) -> Ttl {
        Ttl { unit: 4, amount }
    }

    fn after(seconds: u64) -> Nanos {
        START.after(seconds * 1_000_000_000)
    }

    fn quotas(limiter: &Arc<Limiter>, now: Nanos) -> Vec<(Vec<u8>, u64)> {
        let mut listing = limiter.list();
        std::iter::from_fn(|| listing.next(now, false)).map(|one| (one.key.to_vec(), one.quota)).collect()
    }

    #[test]
    fn limits_that_can_be_read_again_are_restored_beside_those_of_the_meantime() {
        let scratch = TempDir::new().unwrap();
        let insert = |key: &[u8], now: Nanos| {
            let limiter = store();
            let (mut journal, restored) =
                LimitJournal::open(scratch.path(), None, &limiter, now, &mut |_| Ok(())).unwrap();
            assert_eq!(restored, Restored::default());
            assert!(limiter.insert(key, 5, KEPT, seconds(600), now));
            journal.save(&limiter, now).unwrap();
        };
        insert(b"before", START);
        // A file that cannot be opened to read and write.
        let (segment, aside) = (scratch.path().join("0000000001.segment"), scratch.path().join("aside"));
        std::fs::rename(&segment, &aside).unwrap();
        std::fs::create_dir(&segment).unwrap();
        insert(b"meanwhile", after(1));
        std::fs::remove_dir(&segment).unwrap();
        std::fs::rename(&aside, &segment).unwrap();
        let limiter = store();
        let opened = LimitJournal::open(scratch.path(), None, &limiter, after(2), &mut |_| Ok(())).unwrap();
        assert_eq!(opened.1, Restored { entries: 2, expired: 0, unreadable: 0 });
        assert_eq!(quotas(&limiter, after(2)), [(b"before".to_vec(), 5), (b"meanwhile".to_vec(), 5)]);
    }

    #[test]
    fn what_was_saved_comes_back_in_its_order_with_what_is_left_of_its_time() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, nothing) =
            LimitJournal::open(scratch.path(), None, &limiter, START, &mut |_| Ok(())).unwrap();
        assert_eq!(nothing, Restored::default());
        for number in 0..300_u64 {
            let key = number.to_be_bytes();
            assert!(limiter.insert(&key, number, KEPT, seconds(60 + number), START));
        }
        limiter.set(b"buffer", b"value", true, seconds(100), START);
        let rule = Rule { algorithm: Algorithm::Gcra, limit: 10, cost: 4, period: seconds(1000) };
        limiter.consume(b"bucket", &rule, ConsumeMode::Take, KEPT, START).unwrap();
        journal.save(&limiter, after(1)).unwrap();
        for number in (0..300_u64).rev() {
            limiter.adjust_quota(&number.to_be_bytes(), Adjust::Increase, 1000, after(1));
        }
        limiter.purge(&7_u64.to_be_bytes(), after(1));
        limiter.insert(&7_u64.to_be_bytes(), 77, KEPT, seconds(600), after(1));
        journal.save(&limiter, after(2)).unwrap();
        // The process is gone; nothing was closed.
        drop(journal);

        let again = store();
        let (journal, restored) =
            LimitJournal::open(scratch.path(), None, &again, after(30), &mut |_| Ok(())).unwrap();
        assert_eq!(restored, Restored { entries: 302, expired: 0, unreadable: 0 });
        assert_eq!(quotas(&again, after(30)), quotas(&limiter, after(30)));
        assert!(again.query(&0_u64.to_be_bytes(), after(59)).is_some());
        assert!(again.query(&0_u64.to_be_bytes(), after(60)).is_none());
        let value = again.get(b"buffer", after(31), |found| found.map(|found| found.value.to_vec()));
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
        let peeked = again.consume(b"bucket", &rule, ConsumeMode::Peek, 64, after(100)).unwrap();
        assert_eq!(peeked.remaining, 7);
        drop(journal);

        // An entry that expires while no broker runs is not restored, and leaves the journal.
        let (journal, restored) =
            LimitJournal::open(scratch.path(), None, &store(), after(160), &mut |_| Ok(())).unwrap();
        assert_eq!(restored.entries + restored.expired, 302);
        assert!(restored.expired > 100);
        journal.journal.close().unwrap();
        let (journal, again) =
            LimitJournal::open(scratch.path(), None, &store(), after(160), &mut |_| Ok(())).unwrap();
        assert_eq!((again.expired, again.entries), (0, restored.entries));
        assert_eq!(journal.places.len() as u64, restored.entries);
    }

    #[test]
    fn expired_removed_and_non_persistent_entries_leave_the_journal() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) =
            LimitJournal::open(scratch.path(), None, &limiter, START, &mut |_| Ok(())).unwrap();
        for number in 0..100_u64 {
            limiter.insert(&number.to_be_bytes(), 1, KEPT, seconds(10), START);
            limiter.insert(&number.to_le_bytes()[..7], 1, 16, seconds(1000), START);
        }
        assert_eq!(journal.save(&limiter, START), Ok(100));
        assert_eq!(journal.journal.live().count(), 100);
        limiter.purge(&0_u64.to_be_bytes(), after(1));
        assert_eq!(journal.save(&limiter, after(1)), Ok(0));
        assert_eq!(journal.journal.live().count(), 99);
        (0..SHARDS).for_each(|shard| while limiter.sweep(shard, after(11), 100) {});
        assert!(journal.is_behind(&limiter));
        assert_eq!(journal.save(&limiter, after(11)), Ok(0));
        assert_eq!((journal.journal.live().count(), journal.places.len()), (0, 0));
        assert!(!journal.is_behind(&limiter));
    }

    #[test]
    fn many_changes_of_one_counter_are_written_once() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) =
            LimitJournal::open(scratch.path(), None, &limiter, START, &mut |_| Ok(())).unwrap();
        limiter.insert(b"counter", 0, KEPT, seconds(1000), START);
        for round in 0..200 {
            for _ in 0..100 {
                limiter.adjust_quota(b"counter", Adjust::Increase, 1, START);
            }
            assert_eq!(journal.save(&limiter, after(round)), Ok(1));
        }
        assert_eq!(journal.journal.live().count(), 1);
        drop(journal);
        let again = store();
        LimitJournal::open(scratch.path(), None, &again, after(300), &mut |_| Ok(())).unwrap();
        assert_eq!(again.query(b"counter", after(300)).unwrap().quota, 20_000);
    }

    #[test]
    fn a_clock_set_back_extends_no_limit() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) =
            LimitJournal::open(scratch.path(), None, &limiter, START, &mut |_| Ok(())).unwrap();
        limiter.insert(b"counter", 5, KEPT, seconds(60), START);
        journal.save(&limiter, after(10)).unwrap();
        drop(journal);
        let an_hour_ago = START.before(3_600_000_000_000);
        let again = store();
        LimitJournal::open(scratch.path(), None, &again, an_hour_ago, &mut |_| Ok(())).unwrap();
        let found = again.query(b"counter", an_hour_ago).unwrap();
        assert_eq!(found.deadline, an_hour_ago.after(50_000_000_000));
    }
}
