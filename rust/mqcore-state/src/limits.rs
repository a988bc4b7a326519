//! Persistent limits: changes of the store are written in the background and restored after a restart.
//!
//! No request waits for the disk. The store tracks which entries have changed; at each interval the task fetches all
//! of them once, in their current state, and writes and syncs them together. So a crash loses the changes of one
//! interval and of the write in progress, and the pending changes are bounded by the size of the store.
//!
//! An entry is a put of the journal, under a new number each time it changes; the previous put is settled. The put of
//! an entry that has expired or was removed is settled too. All moments are Unix nanoseconds.
//!
//! The journal also has the time of the last write. If the clock shows less at a start, it was set back. Then the
//! entries keep the time that was left at that write, and all of them are written again with their new times. Until the
//! last one is, the definition of the time also says which puts have times of the earlier clock: a crash may leave
//! puts of both.

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

/// The definition with the time of the last write, see [`Written`].
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
    /// The time that the journal has. A later one than the clock shows, until a clock that was set back is recorded.
    written: Written,
    /// Rounds since the last one that saved something.
    quiet: u32,
    /// Segments in which housekeeping found damage that was not reported yet.
    damaged: Vec<u32>,
}

/// When the journal was last written, and by which clocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Written {
    /// The time of the last write.
    at: Nanos,
    /// For each time that the clock was set back since all entries were written: the first put after it, and by how many
    /// nanoseconds the times of earlier puts are too late.
    set_back: Vec<(u64, u64)>,
}

impl Written {
    /// Eight bytes of time, then sixteen for each time that the clock was set back.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.at.0.to_le_bytes().to_vec();
        for (number, back) in &self.set_back {
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&back.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes are too few.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk()?;
        let pairs = rest.chunks_exact(16).filter_map(|pair| {
            let (number, back) = pair.split_first_chunk()?;
            Some((u64::from_le_bytes(*number), u64::from_le_bytes(*back.first_chunk()?)))
        });
        Some(Self { at: Nanos(u64::from_le_bytes(*at)), set_back: pairs.collect() })
    }

    /// By how many nanoseconds the times of the put with this number are too late.
    fn back_of(&self, number: u64) -> u64 {
        let later = self.set_back.iter().filter(|(first, _)| number < *first);
        later.fold(0, |sum, (_, back)| sum.saturating_add(*back))
    }
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
        let mut written = written.and_then(|(_, value)| Written::decode(value)).unwrap_or_default();
        let next = recovered.next_sequence.max(1);
        // If the clock shows less than at the last write, it was set back: the remaining times are those at that write.
        let back = written.at.0.saturating_sub(now.0);
        if back > 0 {
            tracing::warn!(
                seconds = back / 1_000_000_000,
                "the clock was set back since rate limits were saved"
            );
            written.set_back.push((next, back));
        }
        let was_set_back = !written.set_back.is_empty();
        let mut opened = Self {
            journal,
            places: HashMap::default(),
            next,
            pending: VecDeque::new(),
            replaced: Vec::new(),
            bytes: Vec::new(),
            is_unsynced: false,
            written,
            quiet: 0,
            damaged: Vec::new(),
        };
        if recovered.report.has_unreadable() {
            // Entries that a later start can read must not have the sequences of new ones.
            limiter.skip_sequences(now.0);
        }
        if !was_set_back {
            limiter.watch_changes();
        }
        let restored = opened.restore(limiter, now)?;
        if was_set_back {
            // All entries are written again, with the times that they have now.
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
    fn restore(&mut self, limiter: &Limiter, now: Nanos) -> Result<RestoredLimits, JournalError> {
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
            let back = self.written.back_of(number);
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
        if !gone.is_empty() && now > self.written.at {
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
            tracing::warn!(%error, "cannot read or remove a segment of the journal of rate limits; trying again later");
        }
        let mut saved = 0;
        // A crash may lose the end of what is written. The time goes first, so that no entry is newer than it.
        if now != self.written.at && self.is_behind(limiter) {
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
            if now != self.written.at {
                self.state_time(now)?;
            }
            self.forget_set_back(now)?;
            self.journal.write()?;
            self.is_unsynced = true;
        }
        Ok(saved)
    }

    /// Records what the clock shows, and which entries have times of an earlier clock.
    fn state_time(&mut self, now: Nanos) -> Result<(), JournalError> {
        let written = Written { at: now, set_back: self.written.set_back.clone() };
        self.journal.define(WRITTEN, &written.encode())?;
        self.written = written;
        Ok(())
    }

    /// Once no entry has times of an earlier clock, the journal need not know that there was one. That goes last: a crash that
    /// loses it loses nothing.
    fn forget_set_back(&mut self, now: Nanos) -> Result<(), JournalError> {
        let Some(newest) = self.written.set_back.last().map(|(first, _)| *first) else { return Ok(()) };
        if self.places.values().all(|number| *number >= newest) {
            self.written.set_back.clear();
            self.state_time(now)?;
        }
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

    /// Closes the journal properly. `pinned`: its files stay as they are, because a backup reads them.
    ///
    /// # Errors
    /// [`JournalError`]: the next start reads the journal in full.
    pub fn close(mut self, pinned: bool) -> Result<(), JournalError> {
        self.journal.pin(pinned);
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
mod tests;
