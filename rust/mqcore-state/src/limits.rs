//! Persistent limits: changes of the store are written in the background and restored after a restart.
//!
//! No request waits for the disk. The store tracks which entries have changed; at each interval the task fetches all
//! of them once, in their current state, and writes and syncs them together. So a crash loses the changes of one
//! interval and of the write in progress, and the pending changes are bounded by the size of the store.
//!
//! An entry is a put of the journal, under a new number each time it changes; the previous put is settled. The put of
//! an entry that has expired or was removed is settled too. All moments are Unix nanoseconds.

use std::collections::VecDeque;

use hashbrown::HashMap;
use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::snapshot::Snapshot;
use mqcore_journal::storage::Storage;
use mqcore_limiter::change::EntryChange;
use mqcore_limiter::limiter::{Limiter, SHARDS};
use mqcore_limiter::record;
use mqcore_limiter::time::Nanos;

/// The definition with the time of the last write, in Unix nanoseconds.
const WRITTEN: &[u8] = b"written";
/// Changes fetched under one lock.
const FETCHED_AT_ONCE: usize = 256;
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 << 20;
/// Rounds without a change after which housekeeping runs anyway.
const QUIET_ROUNDS: u32 = 16;

/// The journal of limits.
pub struct LimitJournal<S: Storage> {
    journal: Journal<S>,
    /// For each entry's number, the number of its last put.
    places: HashMap<u64, u64, foldhash::fast::RandomState>,
    next: u64,
    /// Changes fetched from the store and not yet in the journal.
    pending: VecDeque<EntryChange>,
    /// Puts that were replaced by later ones.
    replaced: Vec<u64>,
    /// Scratch: one encoded entry.
    bytes: Vec<u8>,
    /// Written since the last sync.
    is_unsynced: bool,
    /// The time that the journal has.
    written: Nanos,
    /// Rounds since the last one that saved something.
    quiet: u32,
    /// Segments in which housekeeping found damage that was not reported yet.
    damaged: Vec<u32>,
}

/// The result of opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoredLimits {
    /// Entries that exist again.
    pub entries: u64,
    /// Entries that expired while the broker was stopped.
    pub expired: u64,
    /// Records that cannot be read.
    pub unreadable: u64,
}

/// A record that was read: the entry's number, its put's number, and where its bytes begin and end.
type Read = (u64, u64, usize, usize);

impl<S: Storage> LimitJournal<S> {
    /// Opens or creates the journal and fills the store from it. Calls `found` with the report before it changes a file. `now`
    /// replaces the time of the options.
    ///
    /// # Errors
    /// [`JournalError`] if the journal cannot be opened, or the error of `found`.
    pub fn open(
        storage: S,
        options: Options,
        limiter: &Limiter,
        now: Nanos,
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<(Self, RestoredLimits), JournalError> {
        let options = Options { now_ms: now.0 / 1_000_000, ..options };
        let (journal, recovered) =
            Journal::open_with_observers(storage, options, &mut |_, _| {}, &mut |_, _| {}, found)?;
        if recovered.report.is_alarming() {
            tracing::error!(report = %recovered.report, "the journal of rate limits is damaged; damaged records were skipped");
        }
        let written = recovered.definitions.iter().find(|(key, _)| **key == *WRITTEN);
        let written =
            written.and_then(|(_, value)| value.first_chunk().copied()).map_or(0, u64::from_le_bytes);
        let mut opened = Self {
            journal,
            places: HashMap::default(),
            next: recovered.next_sequence.max(1),
            pending: VecDeque::new(),
            replaced: Vec::new(),
            bytes: Vec::new(),
            is_unsynced: false,
            written: Nanos(written),
            quiet: 0,
            damaged: Vec::new(),
        };
        // If the clock shows less than at the last write, it was set back: the remaining times are those at that
        // write.
        let back = written.saturating_sub(now.0);
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
        if back == 0 {
            limiter.watch_changes();
        }
        let restored = opened.restore(limiter, back, now)?;
        if back > 0 {
            // The next save states the new time, so the entries have to be saved with the times that they have now.
            limiter.watch_changes();
        }
        Ok((opened, restored))
    }

    /// The identity of the journal.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.journal.identity()
    }

    /// Restores entries in the order in which they were created, not in the order in which they were written.
    fn restore(&mut self, limiter: &Limiter, back: u64, now: Nanos) -> Result<RestoredLimits, JournalError> {
        let mut restored = RestoredLimits::default();
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
        if !gone.is_empty() && now > self.written {
            match self.end_expired(now) {
                // The next save settles them again.
                Err(JournalError::Full { .. }) => self.replaced.extend_from_slice(&gone),
                ended => ended?,
            }
        }
        Ok(restored)
    }

    /// Makes the settlement of expired entries durable. Otherwise they return if the broker crashes before its first save
    /// and the clock is set back meanwhile.
    fn end_expired(&mut self, now: Nanos) -> Result<(), JournalError> {
        self.state_time(now)?;
        self.journal.write()?;
        self.journal.sync()
    }

    /// Whether to save in this round. If nothing has changed, only every sixteenth round does, for housekeeping.
    pub fn is_due(&mut self, limiter: &Limiter, at_once: bool) -> bool {
        let at_once = at_once || self.is_behind(limiter);
        self.quiet = if at_once { 0 } else { (self.quiet + 1) % QUIET_ROUNDS };
        self.quiet == 0
    }

    /// Writes the changes of the store and makes them durable. Returns how many entries were put. `pinned`: no file may be
    /// removed now.
    ///
    /// # Errors
    /// [`JournalError::Full`]: pending changes stay, and the next call retries. Any other error is permanent.
    pub fn save(&mut self, limiter: &Limiter, now: Nanos, pinned: bool) -> Result<u64, JournalError> {
        let saved = self.write(limiter, now, pinned)?;
        self.sync()?;
        Ok(saved)
    }

    /// Writes the changes of the store. Returns how many entries were put. They are durable after [`LimitJournal::sync`].
    ///
    /// # Errors
    /// As those of [`LimitJournal::save`].
    pub fn write(&mut self, limiter: &Limiter, now: Nanos, pinned: bool) -> Result<u64, JournalError> {
        self.journal.pin(pinned);
        // First of all, because settling frees space on a full disk.
        let done = self.journal.maintain(now.0 / 1_000_000, HOUSEKEEPING_BYTES)?;
        self.damaged.extend(done.damaged);
        for error in done.deferred {
            tracing::warn!(%error, "cannot remove a segment of the journal of rate limits; trying again later");
        }
        let mut saved = 0;
        // A crash may lose the end of what is written. The time goes first, so that no entry is newer than it; but a time before
        // the previous one goes last, so that no entry is left that the previous time belongs to.
        if now > self.written && self.is_behind(limiter) {
            self.state_time(now)?;
        }
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
            if now != self.written {
                self.state_time(now)?;
            }
            self.journal.write()?;
            self.is_unsynced = true;
        }
        Ok(saved)
    }

    /// Records what the clock shows.
    fn state_time(&mut self, now: Nanos) -> Result<(), JournalError> {
        self.journal.define(WRITTEN, &now.0.to_le_bytes())?;
        self.written = now;
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// [`JournalError`], which is permanent.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        if std::mem::take(&mut self.is_unsynced) {
            self.journal.sync()?;
        }
        Ok(())
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

    /// The saved state as files, which stay unchanged until the next call that is not pinned.
    ///
    /// # Errors
    /// [`JournalError`] if the journal cannot be written.
    pub fn snapshot(&mut self) -> Result<Snapshot, JournalError> {
        self.journal.snapshot()
    }

    /// Segments in which housekeeping has found damage since the last call.
    pub fn take_damaged(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.damaged)
    }

    /// Closes the journal properly.
    ///
    /// # Errors
    /// [`JournalError`]: the next start reads the journal in full.
    pub fn close(self) -> Result<(), JournalError> {
        self.journal.close()
    }

    /// Whether any change is not written yet.
    #[must_use]
    pub fn is_behind(&self, limiter: &Limiter) -> bool {
        !self.pending.is_empty()
            || !self.replaced.is_empty()
            || (0..SHARDS).any(|shard| limiter.unfetched(shard) > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;
    use std::path::Path;
    use std::sync::Arc;

    use mqcore_journal::storage::{FileStorage, MemoryStorage};
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

    fn open(path: &Path, limiter: &Limiter, now: Nanos) -> (LimitJournal<FileStorage>, RestoredLimits) {
        let storage = FileStorage::open(path).unwrap();
        LimitJournal::open(storage, Options::default(), limiter, now, &mut |_| Ok(())).unwrap()
    }

    fn open_on(
        disk: &MemoryStorage,
        limiter: &Limiter,
        now: Nanos,
    ) -> (LimitJournal<MemoryStorage>, RestoredLimits) {
        let options = Options { identity: 7, ..Options::default() };
        LimitJournal::open(disk.clone(), options, limiter, now, &mut |_| Ok(())).unwrap()
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
            let (mut journal, restored) = open(scratch.path(), &limiter, now);
            assert_eq!(restored, RestoredLimits::default());
            assert!(limiter.insert(key, 5, KEPT, seconds(600), now));
            journal.save(&limiter, now, false).unwrap();
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
        let opened = open(scratch.path(), &limiter, after(2));
        assert_eq!(opened.1, RestoredLimits { entries: 2, expired: 0, unreadable: 0 });
        assert_eq!(quotas(&limiter, after(2)), [(b"before".to_vec(), 5), (b"meanwhile".to_vec(), 5)]);
    }

    #[test]
    fn what_was_saved_comes_back_in_its_order_with_what_is_left_of_its_time() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, nothing) = open(scratch.path(), &limiter, START);
        assert_eq!(nothing, RestoredLimits::default());
        for number in 0..300_u64 {
            let key = number.to_be_bytes();
            assert!(limiter.insert(&key, number, KEPT, seconds(60 + number), START));
        }
        limiter.set(b"buffer", b"value", true, seconds(100), START);
        let rule = Rule { algorithm: Algorithm::Gcra, limit: 10, cost: 4, period: seconds(1000) };
        limiter.consume(b"bucket", &rule, ConsumeMode::Take, KEPT, START).unwrap();
        journal.save(&limiter, after(1), false).unwrap();
        for number in (0..300_u64).rev() {
            limiter.adjust_quota(&number.to_be_bytes(), Adjust::Increase, 1000, after(1));
        }
        limiter.purge(&7_u64.to_be_bytes(), after(1));
        limiter.insert(&7_u64.to_be_bytes(), 77, KEPT, seconds(600), after(1));
        journal.save(&limiter, after(2), false).unwrap();
        // The process is gone; nothing was closed.
        drop(journal);

        let again = store();
        let (journal, restored) = open(scratch.path(), &again, after(30));
        assert_eq!(restored, RestoredLimits { entries: 302, expired: 0, unreadable: 0 });
        assert_eq!(quotas(&again, after(30)), quotas(&limiter, after(30)));
        assert!(again.query(&0_u64.to_be_bytes(), after(59)).is_some());
        assert!(again.query(&0_u64.to_be_bytes(), after(60)).is_none());
        let value = again.get(b"buffer", after(31), |found| found.map(|found| found.value.to_vec()));
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
        let peeked = again.consume(b"bucket", &rule, ConsumeMode::Peek, 64, after(100)).unwrap();
        assert_eq!(peeked.remaining, 7);
        drop(journal);

        // An entry that expires while no broker runs is not restored, and leaves the journal.
        let (journal, restored) = open(scratch.path(), &store(), after(160));
        assert_eq!(restored.entries + restored.expired, 302);
        assert!(restored.expired > 100);
        journal.journal.close().unwrap();
        let (journal, again) = open(scratch.path(), &store(), after(160));
        assert_eq!((again.expired, again.entries), (0, restored.entries));
        assert_eq!(journal.places.len() as u64, restored.entries);
    }

    #[test]
    fn expired_removed_and_non_persistent_entries_leave_the_journal() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) = open(scratch.path(), &limiter, START);
        for number in 0..100_u64 {
            limiter.insert(&number.to_be_bytes(), 1, KEPT, seconds(10), START);
            limiter.insert(&number.to_le_bytes()[..7], 1, 16, seconds(1000), START);
        }
        assert_eq!(journal.save(&limiter, START, false), Ok(100));
        assert_eq!(journal.journal.live().count(), 100);
        limiter.purge(&0_u64.to_be_bytes(), after(1));
        assert_eq!(journal.save(&limiter, after(1), false), Ok(0));
        assert_eq!(journal.journal.live().count(), 99);
        (0..SHARDS).for_each(|shard| while limiter.sweep(shard, after(11), 100) {});
        assert!(journal.is_behind(&limiter));
        assert_eq!(journal.save(&limiter, after(11), false), Ok(0));
        assert_eq!((journal.journal.live().count(), journal.places.len()), (0, 0));
        assert!(!journal.is_behind(&limiter));
    }

    #[test]
    fn many_changes_of_one_counter_are_written_once() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) = open(scratch.path(), &limiter, START);
        limiter.insert(b"counter", 0, KEPT, seconds(1000), START);
        for round in 0..200 {
            for _ in 0..100 {
                limiter.adjust_quota(b"counter", Adjust::Increase, 1, START);
            }
            assert_eq!(journal.save(&limiter, after(round), false), Ok(1));
        }
        assert_eq!(journal.journal.live().count(), 1);
        drop(journal);
        let again = store();
        open(scratch.path(), &again, after(300));
        assert_eq!(again.query(b"counter", after(300)).unwrap().quota, 20_000);
    }

    #[test]
    fn without_changes_only_every_sixteenth_round_saves() {
        let scratch = TempDir::new().unwrap();
        let limiter = store();
        let (mut journal, _) = open(scratch.path(), &limiter, START);
        let due: Vec<bool> = (0..2 * QUIET_ROUNDS).map(|_| journal.is_due(&limiter, false)).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 2, "{due:?}");
        limiter.insert(b"counter", 1, KEPT, seconds(60), START);
        assert!(journal.is_due(&limiter, false), "there is something to save");
        journal.save(&limiter, START, false).unwrap();
        assert!(!journal.is_due(&limiter, false) && journal.is_due(&limiter, true));
        journal.write(&limiter, after(1), false).unwrap();
        assert!(!journal.is_unsynced, "nothing has changed, so nothing needs a sync");
    }

    /// Nothing else syncs the journal: what a save only writes is lost when the power fails.
    #[test]
    fn every_save_of_a_change_survives_a_power_failure() {
        for seed in 0..20 {
            let disk = MemoryStorage::new(seed);
            let limiter = store();
            let (mut journal, _) = open_on(&disk, &limiter, START);
            for round in 1..=3 {
                let key = [round as u8];
                limiter.insert(&key, round, KEPT, seconds(600), after(round));
                journal.save(&limiter, after(round), false).unwrap();
            }
            limiter.purge(&[2], after(4));
            journal.save(&limiter, after(4), false).unwrap();
            drop(journal);
            disk.crash();
            let again = store();
            open_on(&disk, &again, after(5));
            assert_eq!(quotas(&again, after(5)), [(vec![1], 1), (vec![3], 3)], "seed {seed}");
        }
    }

    /// Saves a counter of 5 that expires after a minute, ten seconds after its start.
    fn save_counter(directory: &Path) {
        let limiter = store();
        let (mut journal, _) = open(directory, &limiter, START);
        limiter.insert(b"counter", 5, KEPT, seconds(60), START);
        journal.save(&limiter, after(10), false).unwrap();
    }

    #[test]
    fn a_clock_set_back_extends_no_limit() {
        let scratch = TempDir::new().unwrap();
        save_counter(scratch.path());
        let an_hour_ago = START.before(3_600_000_000_000);
        let again = store();
        open(scratch.path(), &again, an_hour_ago);
        let found = again.query(b"counter", an_hour_ago).unwrap();
        assert_eq!(found.deadline, an_hour_ago.after(50_000_000_000));
    }

    #[test]
    fn a_clock_set_back_extends_no_limit_whose_save_a_power_failure_interrupts() {
        let mut kept = 0;
        for seed in 0..100 {
            let disk = MemoryStorage::new(seed);
            let open = |limiter: &Limiter, now| open_on(&disk, limiter, now);
            let limiter = store();
            let (mut journal, _) = open(&limiter, START);
            journal.save(&limiter, START, false).unwrap();
            limiter.insert(b"counter", 5, KEPT, seconds(60), after(10));
            journal.write(&limiter, after(10), false).unwrap();
            drop(journal);
            disk.crash();
            let again = store();
            open(&again, START);
            if let Some(found) = again.query(b"counter", START) {
                kept += 1;
                assert_eq!(found.deadline, after(60), "seed {seed}");
            }
        }
        assert!(kept > 10, "the power failure kept the entry {kept} times");
    }

    #[test]
    fn a_clock_set_back_restores_no_limit_that_had_expired_at_an_earlier_start() {
        for seed in 0..20 {
            let disk = MemoryStorage::new(seed);
            let open = |limiter: &Limiter, now| open_on(&disk, limiter, now);
            let limiter = store();
            let (mut journal, _) = open(&limiter, START);
            limiter.insert(b"counter", 5, KEPT, seconds(60), START);
            journal.save(&limiter, START, false).unwrap();
            drop(journal);
            let (journal, restored) = open(&store(), after(61));
            assert_eq!(restored, RestoredLimits { entries: 0, expired: 1, unreadable: 0 });
            // A crash before anything is saved.
            drop(journal);
            disk.crash();
            let (_, restored) = open(&store(), after(1));
            assert_eq!(restored.entries, 0, "seed {seed}");
        }
    }

    /// The next save states the time of the clock that was set back. From then on nothing else says that the times of entries
    /// were moved.
    #[test]
    fn a_clock_set_back_extends_no_limit_that_is_restored_twice() {
        let scratch = TempDir::new().unwrap();
        save_counter(scratch.path());
        let an_hour_ago = START.before(3_600_000_000_000);
        let again = store();
        let (mut journal, _) = open(scratch.path(), &again, an_hour_ago);
        again.insert(b"other", 1, KEPT, seconds(60), an_hour_ago);
        journal.save(&again, an_hour_ago.after(1_000_000_000), false).unwrap();
        drop(journal);
        let third = store();
        let later = an_hour_ago.after(2_000_000_000);
        let (journal, restored) = open(scratch.path(), &third, later);
        assert_eq!(restored, RestoredLimits { entries: 2, expired: 0, unreadable: 0 });
        assert_eq!(third.query(b"counter", later).unwrap().deadline, an_hour_ago.after(50_000_000_000));
        assert_eq!(journal.places.len(), 2);
    }
}
