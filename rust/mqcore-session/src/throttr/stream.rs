//! Answers in fragments: LIST, STATS, CONNECTIONS and CHANNELS, written a piece at a time.
//!
//! The number of fragments precedes the first one. LIST and STATS therefore walk through the store twice: once to
//! count, once to write. Entries that expire in between make the end of the answer shorter. It is never longer, because
//! later entries are left out. If fewer entries are left than announced, the last fragments are empty.

use std::sync::Arc;

use mqcore_broker::model::id::ConnectionId;
use mqcore_limiter::limiter::Usage as Counts;
use mqcore_limiter::listing::{ListedEntry, Listing};
use mqcore_limiter::time::Nanos;
use mqcore_wire::throttr::answer::{
    self, CHANNELS_RECORD_BYTES, ConnectionRecord, FRAGMENT_BYTES, STATS_RECORD_BYTES, UsageCounts,
};
use mqcore_wire::throttr::{Dialect, KeyType};

use super::listener::ThrottrTerms;
use super::shared::ThrottrShared;

/// Entries that are counted before the session yields to others.
const COUNTED_AT_ONCE: usize = 4096;

/// An answer in fragments.
#[derive(Debug)]
pub(super) enum Stream {
    Keys(Box<Keys>),
    Connections { number: u64, fragments: u64, last: Option<ConnectionId> },
    Channels { number: u64, fragments: u64, last: Option<Box<[u8]>> },
}

/// LIST or STATS.
#[derive(Debug)]
pub(super) struct Keys {
    what: ListKind,
    listing: Listing,
    /// The walk that counts, over the same entries.
    counting: Option<Counting>,
    number: u64,
    fragments: u64,
    /// The entry that did not fit into the previous fragment.
    next: Option<ListedEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    List,
    Stats,
}

#[derive(Debug)]
struct Counting {
    listing: Listing,
    /// Bytes of the current fragment; 0 if there is none.
    filled: usize,
}

impl ListKind {
    fn weight(self, listed: &ListedEntry, dialect: Dialect) -> usize {
        match self {
            Self::List => answer::list_weight(listed.key.len(), dialect),
            Self::Stats => STATS_RECORD_BYTES + listed.key.len(),
        }
    }
}

impl Stream {
    pub(super) fn keys(what: ListKind, directory: &ThrottrShared) -> Self {
        let listing = directory.limiter().list();
        let counting = Counting { listing: listing.again(), filled: 0 };
        let keys = Keys { what, listing, counting: Some(counting), number: 0, fragments: 0, next: None };
        Self::Keys(Box::new(keys))
    }

    pub(super) fn connections(directory: &ThrottrShared, terms: &ThrottrTerms, output: &mut Vec<u8>) -> Self {
        let each = FRAGMENT_BYTES / ConnectionRecord::weight(terms.dialect.family);
        let fragments = directory.peers().div_ceil(each as u64);
        answer::fragments(fragments, output);
        Self::Connections { number: 0, fragments, last: None }
    }

    pub(super) fn channels(directory: &ThrottrShared, output: &mut Vec<u8>) -> Self {
        let each = FRAGMENT_BYTES / CHANNELS_RECORD_BYTES;
        let fragments = directory.channel_counts().0.div_ceil(each as u64);
        answer::fragments(fragments, output);
        Self::Channels { number: 0, fragments, last: None }
    }

    /// Writes the next fragment, or continues to count. False when everything is written.
    pub(super) fn step(
        &mut self,
        directory: &Arc<ThrottrShared>,
        terms: &ThrottrTerms,
        now: Nanos,
        output: &mut Vec<u8>,
    ) -> bool {
        match self {
            Self::Keys(keys) => keys.step(directory, terms, now, output),
            Self::Connections { number, fragments, last } => {
                if number == fragments {
                    return false;
                }
                *number += 1;
                let family = terms.dialect.family;
                let peers = directory.peers_behind(*last, FRAGMENT_BYTES / ConnectionRecord::weight(family));
                answer::fragment(*number, peers.len() as u64, output);
                for (connection, peer) in peers {
                    let mut record = peer.record();
                    if !terms.metrics {
                        record.numbers = Default::default();
                    }
                    record.write(family, output);
                    *last = Some(connection);
                }
                number != fragments
            }
            Self::Channels { number, fragments, last } => {
                if number == fragments {
                    return false;
                }
                *number += 1;
                let each = FRAGMENT_BYTES / CHANNELS_RECORD_BYTES;
                let channels = directory.channels_behind(last.as_deref(), each);
                answer::fragment(*number, channels.len() as u64, output);
                for (name, [read, written, subscriptions]) in &channels {
                    let [read, written] = if terms.metrics { [*read, *written] } else { [0, 0] };
                    answer::channels_record(name.len() as u8, read, written, *subscriptions, output);
                }
                for (name, _) in channels {
                    output.extend_from_slice(&name);
                    *last = Some(name);
                }
                number != fragments
            }
        }
    }
}

impl Keys {
    fn step(
        &mut self,
        directory: &Arc<ThrottrShared>,
        terms: &ThrottrTerms,
        now: Nanos,
        output: &mut Vec<u8>,
    ) -> bool {
        if let Some(mut counting) = self.counting.take() {
            for _ in 0..COUNTED_AT_ONCE {
                let Some(listed) = counting.listing.next(now, false) else {
                    answer::fragments(self.fragments, output);
                    return self.fragments > 0;
                };
                let weight = self.what.weight(&listed, terms.dialect);
                if counting.filled == 0 || counting.filled + weight > FRAGMENT_BYTES {
                    self.fragments += 1;
                    counting.filled = 0;
                }
                counting.filled += weight;
            }
            self.counting = Some(counting);
            return true;
        }
        self.number += 1;
        let mut records = Vec::with_capacity(64);
        let mut filled = 0;
        while let Some(listed) = self.next.take().or_else(|| self.listing.next(now, true)) {
            let weight = self.what.weight(&listed, terms.dialect);
            if filled > 0 && filled + weight > FRAGMENT_BYTES {
                self.next = Some(listed);
                break;
            }
            filled += weight;
            records.push(listed);
        }
        self.write(&records, directory, terms, output);
        self.number < self.fragments
    }

    fn write(
        &self,
        records: &[ListedEntry],
        directory: &ThrottrShared,
        terms: &ThrottrTerms,
        output: &mut Vec<u8>,
    ) {
        answer::fragment(self.number, records.len() as u64, output);
        let width = terms.dialect.width;
        for listed in records {
            let key_bytes = listed.key.len() as u8;
            match self.what {
                ListKind::List => {
                    let (key_type, used) = match listed.buffer_bytes {
                        None => (KeyType::Counter, width.bytes() as u64),
                        Some(bytes) => (KeyType::Buffer, bytes),
                    };
                    let deadline = directory.unix(listed.deadline);
                    answer::list_record(key_bytes, key_type, listed.unit, deadline, used, width, output);
                }
                ListKind::Stats => answer::stats_record(key_bytes, &uses(listed.uses, terms), output),
            }
        }
        for listed in records {
            output.extend_from_slice(&listed.key);
        }
    }
}

/// The use counts of an entry; zeros if they are not counted.
pub(super) fn uses(counts: Counts, terms: &ThrottrTerms) -> UsageCounts {
    if !terms.metrics {
        return UsageCounts::default();
    }
    UsageCounts {
        reads_per_minute: counts.reads_per_minute,
        writes_per_minute: counts.writes_per_minute,
        reads: counts.reads,
        writes: counts.writes,
    }
}
