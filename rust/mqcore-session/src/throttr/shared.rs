//! The state that all Throttr sessions of a server share: the store, connections, subscriptions and counters.
//!
//! Locks are held for a few steps each, never while waiting. A listing visits its entries one fragment at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mqcore_broker::model::id::ConnectionId;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::owner::KeyOwner;
use mqcore_limiter::time::Nanos;
use mqcore_wire::throttr::ID_BYTES;
use siphasher::sip::SipHasher13;

use super::minutes::{KINDS, Minutes, TALLIES, Tallies, Tally};
use super::peer::{Counted, Peer, PeerAddress};

/// Number of stripes for the sessions' counts, so that sessions do not wait for each other.
const STRIPES: usize = 16;

/// Maximum channels that one connection may subscribe to.
pub const SUBSCRIPTIONS_MAX: usize = 16_384;

/// Shared by all Throttr sessions of a server.
#[derive(Debug)]
pub struct ThrottrShared {
    limiter: Arc<Limiter>,
    /// Unix time at [`Nanos`] 0, in nanoseconds.
    unix_origin: u64,
    /// When the server started.
    started: Nanos,
    /// The key from which ids are made.
    key: [u64; 2],
    /// By connection id, so in the order in which they connected.
    peers: Mutex<BTreeMap<ConnectionId, Arc<Peer>>>,
    channels: Mutex<Channels>,
    /// The owners of keys, by user.
    owners: Mutex<HashMap<Arc<str>, Weak<KeyOwner>>>,
    stripes: [Stripe; STRIPES],
    /// Bytes read from and written to current connections.
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    /// Messages that a subscriber's width could not express.
    inexpressible: AtomicU64,
}

/// Aligned so that no two stripes share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe(Mutex<Minutes>);

#[derive(Debug, Default)]
struct Channels {
    /// Subscriptions by channel name; no list is empty.
    names: BTreeMap<Box<[u8]>, Vec<Arc<Subscription>>>,
    subscriptions: u64,
}

/// A subscription to a channel.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: [u8; ID_BYTES],
    /// In Unix nanoseconds.
    pub(super) since: u64,
    /// Bytes sent to it.
    pub(super) read_bytes: AtomicU64,
    /// Bytes that its owner published to the channel.
    pub(super) write_bytes: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThrottrShared {
    /// For a store whose time 0 is `unix_origin` in Unix nanoseconds, and a server that started at `started`. Ids
    /// cannot be guessed by a peer that does not know `key`.
    #[must_use]
    pub fn new(limiter: Arc<Limiter>, unix_origin: u64, started: Nanos, key: [u64; 2]) -> Self {
        Self {
            limiter,
            unix_origin,
            started,
            key,
            peers: Mutex::default(),
            channels: Mutex::default(),
            owners: Mutex::default(),
            stripes: [const { Stripe(Mutex::new(Minutes::new())) }; STRIPES],
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            inexpressible: AtomicU64::new(0),
        }
    }

    /// The store that every listener answers from.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Messages that were not delivered because the subscriber's listener cannot express their size in its width.
    #[must_use]
    pub fn inexpressible(&self) -> u64 {
        self.inexpressible.load(Ordering::Relaxed)
    }

    /// When the server started, in Unix nanoseconds.
    pub(super) fn running_since(&self) -> u64 {
        self.unix(self.started)
    }

    /// Requests at listeners that count, by kind, and how many requests for quota were rejected.
    #[must_use]
    pub fn requests(&self, now: Nanos) -> (Vec<(&'static str, u64)>, u64) {
        let (total, _) = self.counted(now);
        let kinds = KINDS.iter().map(|(name, tally)| (*name, total[*tally as usize])).collect();
        (kinds, total[Tally::Refused as usize])
    }

    pub(super) fn count_inexpressible(&self) {
        self.inexpressible.fetch_add(1, Ordering::Relaxed);
    }

    /// Converts a time to Unix nanoseconds.
    #[must_use]
    pub fn unix(&self, moment: Nanos) -> u64 {
        self.unix_origin.saturating_add(moment.0)
    }

    /// The owner of the keys that a client creates: its user, or the connection alone if it has none.
    pub(super) fn owner_of(&self, user: Option<&Arc<str>>) -> Arc<KeyOwner> {
        let new = || Arc::new(KeyOwner::new(self.limiter.config().keys_per_user_max));
        let Some(user) = user else { return new() };
        let mut owners = lock(&self.owners);
        if let Some(known) = owners.get(user).and_then(Weak::upgrade) {
            return known;
        }
        if owners.len() == owners.capacity() {
            // Users without connections and keys.
            owners.retain(|_, owner| owner.strong_count() > 0);
        }
        let owner = new();
        owners.insert(Arc::clone(user), Arc::downgrade(&owner));
        owner
    }

    // --- connections --------------------------------------------------------------------------------------------

    pub(super) fn join(&self, connection: ConnectionId, origin: PeerAddress, now: Nanos) -> Arc<Peer> {
        let peer = Arc::new(Peer::new(self.id(connection), origin, self.unix(now)));
        lock(&self.peers).insert(connection, Arc::clone(&peer));
        peer
    }

    /// A random UUID of version 4, a different one for each connection.
    fn id(&self, connection: ConnectionId) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        for (half, part) in id.chunks_exact_mut(8).enumerate() {
            let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
            (connection.0, half).hash(&mut hasher);
            part.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        id[6] = id[6] & 0x0F | 0x40;
        id[8] = id[8] & 0x3F | 0x80;
        id
    }

    pub(super) fn leave(&self, connection: ConnectionId) {
        let Some(peer) = lock(&self.peers).remove(&connection) else { return };
        self.read_bytes.fetch_sub(peer.get(Counted::ReadBytes), Ordering::Relaxed);
        self.write_bytes.fetch_sub(peer.get(Counted::WriteBytes), Ordering::Relaxed);
    }

    pub(super) fn peers(&self) -> u64 {
        lock(&self.peers).len() as u64
    }

    /// The connection with this id. Requests for it are rare, so a linear search is fast enough.
    pub(super) fn peer(&self, id: &[u8; ID_BYTES]) -> Option<Arc<Peer>> {
        lock(&self.peers).values().find(|peer| peer.id == *id).cloned()
    }

    /// Up to `max` connections after `last`.
    pub(super) fn peers_behind(
        &self,
        last: Option<ConnectionId>,
        max: usize,
    ) -> Vec<(ConnectionId, Arc<Peer>)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let peers = lock(&self.peers);
        peers.range((from, Bound::Unbounded)).take(max).map(|(id, peer)| (*id, Arc::clone(peer))).collect()
    }

    // --- channels -----------------------------------------------------------------------------------------------

    pub(super) fn subscribe(&self, channel: &[u8], id: [u8; ID_BYTES], now: Nanos) -> Arc<Subscription> {
        let subscription = Arc::new(Subscription {
            id,
            since: self.unix(now),
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
        });
        let mut channels = lock(&self.channels);
        channels.subscriptions += 1;
        let subscriptions = match channels.names.entry(channel.into()) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Vec::new()),
        };
        subscriptions.push(Arc::clone(&subscription));
        subscription
    }

    pub(super) fn unsubscribe(&self, channel: &[u8], subscription: &Arc<Subscription>) {
        let mut channels = lock(&self.channels);
        let Some(subscriptions) = channels.names.get_mut(channel) else { return };
        let Some(place) = subscriptions.iter().position(|known| Arc::ptr_eq(known, subscription)) else {
            return;
        };
        subscriptions.remove(place);
        if subscriptions.is_empty() {
            channels.names.remove(channel);
        }
        channels.subscriptions -= 1;
    }

    /// Subscriptions of a channel, in the order in which they began.
    pub(super) fn subscriptions(&self, channel: &[u8]) -> Vec<Arc<Subscription>> {
        lock(&self.channels).names.get(channel).cloned().unwrap_or_default()
    }

    /// Number of channels, and of all their subscriptions.
    pub(super) fn channel_counts(&self) -> (u64, u64) {
        let channels = lock(&self.channels);
        (channels.names.len() as u64, channels.subscriptions)
    }

    /// Up to `max` channels after `last`: name, bytes read, bytes written, subscriptions.
    pub(super) fn channels_behind(&self, last: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, [u64; 3])> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let channels = lock(&self.channels);
        let behind = channels.names.range::<[u8], _>((from, Bound::Unbounded)).take(max);
        behind
            .map(|(name, subscriptions)| {
                let sum = |number: fn(&Subscription) -> &AtomicU64| {
                    subscriptions.iter().map(|one| number(one).load(Ordering::Relaxed)).sum()
                };
                let read = sum(|subscription| &subscription.read_bytes);
                let written = sum(|subscription| &subscription.write_bytes);
                (name.clone(), [read, written, subscriptions.len() as u64])
            })
            .collect()
    }

    // --- numbers ------------------------------------------------------------------------------------------------

    pub(super) fn count(&self, connection: ConnectionId, tallies: &Tallies, bytes: (u64, u64), now: Nanos) {
        let stripe = &self.stripes[connection.0 as usize % STRIPES];
        lock(&stripe.0).add(tallies, now.minute());
        self.read_bytes.fetch_add(bytes.0, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes.1, Ordering::Relaxed);
    }

    /// Counts in total, and in the last whole minute.
    pub(super) fn counted(&self, now: Nanos) -> (Tallies, Tallies) {
        let (mut total, mut last) = ([0; TALLIES], [0; TALLIES]);
        for stripe in &self.stripes {
            let mut stripe = lock(&stripe.0);
            let (in_all, of_minute) = stripe.read(now.minute());
            for index in 0..TALLIES {
                total[index] += in_all[index];
                last[index] += of_minute[index];
            }
        }
        (total, last)
    }

    /// Bytes read from and written to current connections.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.read_bytes.load(Ordering::Relaxed), self.write_bytes.load(Ordering::Relaxed))
    }
}
