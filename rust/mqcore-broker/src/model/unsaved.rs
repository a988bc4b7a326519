//! Memory of messages that are only in memory, and its limits.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foldhash::{HashMap, HashMapExt};

use crate::model::entry::Entry;
use crate::model::id::Sequence;
use crate::model::message::Message;

/// Largest part of a limit by which the sum of all shards may lag behind one shard, so that shards rarely touch it.
const LAG_PART: u64 = 256;
/// The lag in bytes for large limits.
const LAG_BYTES_MAX: u64 = 256 << 10;
/// Users without messages that a shard or the broker remembers.
const IDLE_USERS_MAX: usize = 1024;

/// Limits of the memory of unsaved messages, in bytes; `u64::MAX`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsavedLimits {
    /// For all messages together.
    pub bytes_max: u64,
    /// For the messages of each user or token.
    pub per_user_max: u64,
}

impl Default for UnsavedLimits {
    /// No limits.
    fn default() -> Self {
        Self { bytes_max: u64::MAX, per_user_max: u64::MAX }
    }
}

/// Memory of the messages of a broker that are not on the disk, over all shards.
///
/// It counts messages in queues that are not saved, in whatever state, and saved messages whose records are not
/// written. A message counts once for each of its queues.
#[derive(Debug)]
pub struct UnsavedMemory {
    limits: UnsavedLimits,
    total: Arc<SharedBytes>,
    users: Mutex<HashMap<Arc<str>, Weak<SharedBytes>>>,
    /// Messages that were rejected because of a limit.
    rejected: AtomicU64,
}

impl Default for UnsavedMemory {
    /// Without limits.
    fn default() -> Self {
        Self::new(UnsavedLimits::default())
    }
}

impl UnsavedMemory {
    /// No messages yet.
    pub fn new(limits: UnsavedLimits) -> Self {
        let total = Arc::new(SharedBytes::new(limits.bytes_max));
        Self { limits, total, users: Mutex::default(), rejected: AtomicU64::new(0) }
    }

    /// The limits.
    pub fn limits(&self) -> UnsavedLimits {
        self.limits
    }

    /// Bytes of all messages. Each shard may have up to a 256th of the limit more, or less.
    pub fn bytes(&self) -> u64 {
        self.total.bytes.load(Ordering::Relaxed)
    }

    /// Messages that were rejected because of a limit.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Counts a rejected message.
    pub(crate) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    fn of_user(&self, user: &Arc<str>) -> Arc<SharedBytes> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        if users.len() >= IDLE_USERS_MAX && users.len() == users.capacity() {
            users.retain(|_, known| known.strong_count() > 0);
        }
        let bytes = Arc::new(SharedBytes::new(self.limits.per_user_max));
        users.insert(Arc::clone(user), Arc::downgrade(&bytes));
        bytes
    }
}

/// A sum over all shards.
#[derive(Debug)]
struct SharedBytes {
    bytes: AtomicU64,
    /// How far each shard may be ahead of the sum, or behind it.
    lag: u64,
}

impl SharedBytes {
    fn new(limit: u64) -> Self {
        Self { bytes: AtomicU64::new(0), lag: (limit / LAG_PART).min(LAG_BYTES_MAX) }
    }
}

/// The part of one shard in a sum.
#[derive(Debug)]
struct Share {
    bytes: u64,
    /// The part that the sum contains.
    summed: u64,
    sum: Arc<SharedBytes>,
}

impl Share {
    fn new(sum: Arc<SharedBytes>) -> Self {
        Self { bytes: 0, summed: 0, sum }
    }

    #[inline]
    fn set(&mut self, bytes: u64) {
        self.bytes = bytes;
        if bytes.abs_diff(self.summed) > self.sum.lag || bytes == 0 && self.summed > 0 {
            self.sum_up();
        }
    }

    #[cold]
    fn sum_up(&mut self) {
        // Wrapping, so that one operation adds and subtracts.
        self.sum.bytes.fetch_add(self.bytes.wrapping_sub(self.summed), Ordering::Relaxed);
        self.summed = self.bytes;
    }

    /// Bytes of all shards, of this one exactly.
    #[inline]
    fn total(&self) -> u64 {
        let sum = self.sum.bytes.load(Ordering::Relaxed);
        sum.wrapping_add(self.bytes.wrapping_sub(self.summed))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.bytes = 0;
        self.sum_up();
    }
}

/// A limit that a message would exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemoryExcess {
    /// That of the broker, and its bytes before the message.
    Broker { bytes: u64, limit: u64 },
    /// That of a user, and its bytes before the message.
    User { user: Arc<str>, bytes: u64, limit: u64 },
}

/// The part of one shard in [`UnsavedMemory`].
#[derive(Debug)]
pub(crate) struct UnsavedShare {
    total: Share,
    /// Only if there is a limit for users.
    users: HashMap<Arc<str>, Share>,
    memory: Arc<UnsavedMemory>,
    limits: UnsavedLimits,
}

impl UnsavedShare {
    pub(crate) fn new(memory: &Arc<UnsavedMemory>) -> Self {
        Self {
            total: Share::new(Arc::clone(&memory.total)),
            users: HashMap::new(),
            memory: Arc::clone(memory),
            limits: memory.limits,
        }
    }

    /// Bytes of this shard.
    pub(crate) fn bytes(&self) -> u64 {
        self.total.bytes
    }

    /// An unsaved message arrived in a queue.
    #[inline]
    pub(crate) fn enter(&mut self, entry: &mut Entry) {
        entry.counted = true;
        let bytes = entry.message.memory_bytes() as u64;
        self.add(bytes);
        if self.limits_users() {
            self.enter_of_user(&entry.message, bytes);
        }
    }

    // Not inlined, nor are the other parts for users, so that the callers stay small: most brokers limit no users.
    #[inline(never)]
    fn enter_of_user(&mut self, message: &Message, bytes: u64) {
        if let Some(user) = user_of(message) {
            let share = self.user(user);
            share.set(share.bytes + bytes);
        }
    }

    /// A message left its queue, or was saved. No effect if it does not count.
    #[inline]
    pub(crate) fn leave(&mut self, entry: &mut Entry) {
        self.left(entry);
        entry.counted = false;
    }

    /// A message left its queue for good. No effect if it does not count.
    #[inline]
    pub(crate) fn left(&mut self, entry: &Entry) {
        if !entry.counted {
            return;
        }
        let bytes = entry.message.memory_bytes() as u64;
        self.subtract(bytes);
        if self.limits_users() {
            self.left_of_user(&entry.message, bytes);
        }
    }

    #[inline(never)]
    fn left_of_user(&mut self, message: &Message, bytes: u64) {
        if let Some(share) = user_of(message).and_then(|user| self.users.get_mut(user)) {
            share.set(share.bytes.saturating_sub(bytes));
        }
    }

    /// Replaces a message by one of another size.
    pub(crate) fn replace(&mut self, entry: &mut Entry, message: Message) {
        let counted = entry.counted;
        self.leave(entry);
        entry.message = message;
        if counted {
            self.enter(entry);
        }
    }

    /// Counts bytes that belong to no entry.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.total.set(self.total.bytes + bytes);
    }

    /// Gives back bytes that belong to no entry.
    #[inline]
    pub(crate) fn subtract(&mut self, bytes: u64) {
        self.total.set(self.total.bytes.saturating_sub(bytes));
    }

    /// The limit that another message in a queue that does not save would exceed.
    #[inline]
    pub(crate) fn excess(&self, message: &Message) -> Option<MemoryExcess> {
        let (more, limit) = (message.memory_bytes() as u64, self.limits.bytes_max);
        let bytes = self.total.total();
        if bytes.saturating_add(more) > limit {
            return Some(MemoryExcess::Broker { bytes, limit });
        }
        if self.limits_users() { self.excess_of_user(message, more) } else { None }
    }

    #[inline(never)]
    fn excess_of_user(&self, message: &Message, more: u64) -> Option<MemoryExcess> {
        let user = user_of(message)?;
        let bytes = match self.users.get(user) {
            Some(share) => share.total(),
            None => self.memory.of_user(user).bytes.load(Ordering::Relaxed),
        };
        let limit = self.limits.per_user_max;
        (bytes.saturating_add(more) > limit).then(|| MemoryExcess::User {
            user: Arc::clone(user),
            bytes,
            limit,
        })
    }

    /// Whether there is a limit for the messages of each user.
    #[inline]
    fn limits_users(&self) -> bool {
        self.limits.per_user_max != u64::MAX
    }

    fn user(&mut self, user: &Arc<str>) -> &mut Share {
        if !self.users.contains_key(user) {
            if self.users.len() >= IDLE_USERS_MAX && self.users.len() == self.users.capacity() {
                self.users.retain(|_, share| share.bytes > 0);
            }
            let share = Share::new(self.memory.of_user(user));
            self.users.insert(Arc::clone(user), share);
        }
        self.users.get_mut(user).expect("it was just added")
    }

    /// Notes that a message was rejected.
    pub(crate) fn count_rejected(&self) {
        self.memory.count_rejected();
    }
}

/// The user or token that published a message; `None` without authentication.
fn user_of(message: &Message) -> Option<&Arc<str>> {
    message.producer()?.user.as_ref()
}

/// Saved messages in memory whose records nothing waits for and that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Lagging {
    /// The last record of each group, by ascending sequence, and the bytes of its messages.
    groups: VecDeque<(Sequence, u64)>,
    bytes: u64,
}

/// Bytes above which a group of records is complete.
const GROUP_BYTES: u64 = 64 << 10;

impl Lagging {
    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the message of the latest record.
    pub(crate) fn add(&mut self, sequence: Sequence, bytes: u64) {
        self.bytes += bytes;
        match self.groups.back_mut() {
            Some((last, sum)) if *sum < GROUP_BYTES => {
                *last = sequence;
                *sum += bytes;
            }
            _ => self.groups.push_back((sequence, bytes)),
        }
    }

    /// Removes those whose records are written, and returns their bytes.
    pub(crate) fn written(&mut self, up_to: Sequence) -> u64 {
        let done = self.groups.partition_point(|(last, _)| *last <= up_to);
        let bytes = self.groups.drain(..done).map(|(_, bytes)| bytes).sum();
        self.bytes -= bytes;
        bytes
    }

    /// Removes all, because the journal refuses records, and returns their bytes.
    pub(crate) fn give_up(&mut self) -> u64 {
        self.groups.clear();
        mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::client::Client;
    use crate::model::id::ConnectionId;
    use crate::model::message::Properties;
    use crate::model::time::Timestamp;

    fn entry_of(user: Option<&str>, body: &[u8]) -> Entry {
        let client = Client {
            connection: ConnectionId(1),
            id: "c".into(),
            authenticated: false,
            name: None,
            kind: None,
            protocol: "tmqp",
            user: user.map(Into::into),
            admin: false,
            connected_at: Timestamp(0),
            data: None,
        };
        let message = Message::from_parts(b"", b"", body, Properties::default(), Some(Arc::new(client)));
        Entry::new(message, Timestamp::NEVER)
    }

    fn limits(bytes_max: u64, per_user_max: u64) -> Arc<UnsavedMemory> {
        Arc::new(UnsavedMemory::new(UnsavedLimits { bytes_max, per_user_max }))
    }

    #[test]
    fn sum_follows_shards_within_the_lag_and_returns_to_zero() {
        let limit = 10 << 20;
        let memory = limits(limit, u64::MAX);
        let mut shards = [UnsavedShare::new(&memory), UnsavedShare::new(&memory)];
        for round in 1..=100 {
            for shard in &mut shards {
                shard.add(40_000);
            }
            assert!(memory.bytes().abs_diff(round * 80_000) <= 2 * limit / LAG_PART);
        }
        for shard in &mut shards {
            for _ in 0..100 {
                shard.subtract(40_000);
            }
        }
        assert_eq!(memory.bytes(), 0);
        shards[0].add(limit);
        drop(shards);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn each_user_has_a_limit_over_all_shards() {
        let memory = limits(u64::MAX, 3000);
        let mut shards = [UnsavedShare::new(&memory), UnsavedShare::new(&memory)];
        let (mut mine, mut yours) = (entry_of(Some("ann"), &[0; 2000]), entry_of(Some("bob"), &[0; 2000]));
        let bytes = mine.message.memory_bytes() as u64;
        assert_eq!(shards[0].excess(&mine.message), None);
        shards[0].enter(&mut mine);
        let excess = MemoryExcess::User { user: "ann".into(), bytes, limit: 3000 };
        for shard in &shards {
            assert_eq!(shard.excess(&mine.message), Some(excess.clone()));
            assert_eq!(shard.excess(&yours.message), None);
            assert_eq!(shard.excess(&entry_of(None, &[0; 4000]).message), None);
        }
        shards[1].enter(&mut yours);
        shards[0].leave(&mut mine);
        shards[0].leave(&mut mine);
        assert_eq!(shards[1].excess(&mine.message), None);
        assert_eq!((shards[0].bytes(), shards[1].bytes()), (0, bytes));
        shards[1].left(&yours);
        assert_eq!((shards[1].bytes(), memory.bytes()), (0, 0));
    }

    #[test]
    fn a_replaced_message_counts_with_its_new_size() {
        let memory = limits(u64::MAX - 1, u64::MAX);
        let mut shard = UnsavedShare::new(&memory);
        let mut entry = entry_of(None, b"short");
        shard.replace(&mut entry, entry_of(None, b"not counted").message);
        assert_eq!(shard.bytes(), 0);
        shard.enter(&mut entry);
        shard.replace(&mut entry, entry_of(None, &[0; 500]).message);
        assert_eq!(shard.bytes(), entry.message.memory_bytes() as u64);
        shard.left(&entry);
        assert_eq!(shard.bytes(), 0);
    }

    #[test]
    fn idle_users_are_forgotten() {
        let memory = limits(u64::MAX, 1 << 20);
        let mut shard = UnsavedShare::new(&memory);
        for number in 0..10 * IDLE_USERS_MAX {
            let mut entry = entry_of(Some(&format!("user-{number}")), b"text");
            shard.enter(&mut entry);
            shard.left(&entry);
        }
        // The tables grow by doubling, and the shard keeps some idle users alive in the table of the broker.
        assert!(shard.users.len() <= 4 * IDLE_USERS_MAX);
        assert!(memory.users.lock().unwrap().len() <= 8 * IDLE_USERS_MAX);
    }

    #[test]
    fn lagging_messages_count_until_their_records_are_written() {
        let mut lagging = Lagging::default();
        for sequence in 1..=10 {
            lagging.add(Sequence(sequence), GROUP_BYTES / 2);
        }
        assert_eq!(lagging.bytes(), 5 * GROUP_BYTES);
        assert_eq!(lagging.written(Sequence(4)), 2 * GROUP_BYTES);
        assert_eq!(lagging.written(Sequence(10)), 3 * GROUP_BYTES);
        lagging.add(Sequence(11), 7);
        assert_eq!(lagging.give_up(), 7);
        assert_eq!((lagging.bytes(), lagging.written(Sequence(11))), (0, 0));
    }
}
