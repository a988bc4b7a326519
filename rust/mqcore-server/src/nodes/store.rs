//! The journal of a node: its identity, and the messages for upstream brokers.
//!
//! It is the directory `nodes/` in the data directory. The number of a message is its number there.

use std::path::Path;

use mqcore_cluster::log::{UPSTREAMS_MAX, UpstreamSet};
use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::maintenance::Maintenance;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_replication::storage::{DataFiles, DataStorage};

use crate::nodes::config::UpstreamConfig;
use crate::storage::data_dir::{DataDirError, RECORD_BYTES_MAX, SideJournal};

/// Bytes before the frame: its upstream brokers, and when it was accepted.
const HEAD_BYTES: usize = 12;
/// The key of a definition that exists if the disk could not read a segment at the last opening.
const UNREADABLE: &str = "unreadable";

/// A node's ID and epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) id: String,
    pub(crate) epoch: u64,
}

/// A saved message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SavedForward {
    pub(crate) number: u64,
    pub(crate) upstreams: UpstreamSet,
    pub(crate) bytes: u32,
    pub(crate) taken_ms: u64,
}

/// The journal.
#[derive(Debug)]
pub(crate) struct ForwardJournal {
    journal: Journal<DataStorage>,
    /// The bit of each upstream broker in the journal; it stays the same when the configuration changes.
    slots: Vec<usize>,
}

/// The result of opening.
pub(crate) struct OpenedStore {
    pub(crate) store: ForwardJournal,
    pub(crate) identity: NodeIdentity,
    pub(crate) kept: Vec<SavedForward>,
    pub(crate) next: u64,
}

impl ForwardJournal {
    /// Opens or creates the journal. With `keeps`, message numbers continue; otherwise they start again in a new
    /// epoch. `expected_identity` is that of the existing journal. `fresh_id` becomes the node's ID if it has none yet. Calls
    /// `found` with the report before it changes a file.
    pub(crate) fn open(
        (path, files): (&Path, &DataFiles),
        expected_identity: Option<u64>,
        upstreams: &[UpstreamConfig],
        keeps: bool,
        fresh_id: &str,
        now_ms: u64,
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<OpenedStore, DataDirError> {
        let failed = |source| DataDirError::Nodes { source };
        let directory = path.to_path_buf();
        let storage = files.open(path).map_err(|source| DataDirError::Io { path: directory, source })?;
        let options = Options {
            shard: SideJournal::Nodes.shard(),
            now_ms,
            max_record_bytes: RECORD_BYTES_MAX as u32,
            expected_identity,
            ..Options::default()
        };
        let (mut journal, recovered) =
            Journal::open_with_observers(storage, options, &mut |_, _| {}, &mut |_, _| {}, found)
                .map_err(failed)?;
        if recovered.report.is_alarming() {
            tracing::error!(report = %recovered.report, "the journal of messages for upstream brokers is damaged; damaged records were skipped");
        }
        let text = |key: &str| {
            let value = recovered.definitions.iter().find(|(known, _)| **known == *key.as_bytes());
            value.and_then(|(_, value)| String::from_utf8(value.to_vec()).ok())
        };
        let id = text("id").unwrap_or_else(|| fresh_id.to_owned());
        let before: Option<u64> = text("epoch").and_then(|epoch| epoch.parse().ok());
        // Saved messages keep their numbers, and so their epoch. Without them, numbers start again. Messages that can be read
        // again have smaller numbers than messages that were sent meanwhile: in the same epoch, upstream brokers would ignore
        // them as duplicates.
        let had_unreadable = text(UNREADABLE).is_some();
        let epoch = match before {
            Some(epoch) if keeps && !had_unreadable => epoch,
            before => now_ms.max(before.unwrap_or(0) + 1),
        };
        let known = (0..UPSTREAMS_MAX).map(|slot| text(&format!("master {slot}"))).collect();
        let slots = allot(known, upstreams);
        journal.define(b"id", id.as_bytes()).map_err(failed)?;
        journal.define(b"epoch", epoch.to_string().as_bytes()).map_err(failed)?;
        let marked = if recovered.report.has_unreadable() {
            journal.define(UNREADABLE.as_bytes(), b"")
        } else {
            journal.undefine(UNREADABLE.as_bytes())
        };
        marked.map_err(failed)?;
        for (slot, upstream) in slots.iter().zip(upstreams) {
            journal
                .define(format!("master {slot}").as_bytes(), upstream.address.as_bytes())
                .map_err(failed)?;
        }
        let store = Self { journal, slots };
        let (kept, gone) = store.read_kept(keeps);
        let next = store.journal.next_sequence().max(1);
        let mut opened = OpenedStore { store, identity: NodeIdentity { id, epoch }, kept, next };
        opened.store.journal.settle(&gone).map_err(failed)?;
        opened.store.commit().map_err(failed)?;
        Ok(opened)
    }

    /// The identity of the journal.
    pub(crate) fn identity(&self) -> u64 {
        self.journal.identity()
    }

    /// The saved messages, and the numbers of messages that are no longer needed.
    fn read_kept(&self, keeps: bool) -> (Vec<SavedForward>, Vec<u64>) {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        self.journal.each_live(0, &mut |number, live| {
            let payload = live.ok().map(|live| live.payload);
            let head =
                payload.and_then(|payload| Some((payload.len(), payload.first_chunk::<HEAD_BYTES>()?)));
            match head {
                Some((length, head)) if keeps => {
                    let upstreams = self.configured(u32::from_le_bytes([head[0], head[1], head[2], head[3]]));
                    let mut taken = [0; 8];
                    taken.copy_from_slice(&head[4..]);
                    let (bytes, taken_ms) = ((length - HEAD_BYTES) as u32, u64::from_le_bytes(taken));
                    if upstreams.is_empty() {
                        gone.push(number);
                    } else {
                        kept.push(SavedForward { number, upstreams, bytes, taken_ms });
                    }
                }
                _ => gone.push(number),
            }
        });
        (kept, gone)
    }

    /// The configured upstream brokers with these slots.
    fn configured(&self, slots: u32) -> UpstreamSet {
        let mut upstreams = UpstreamSet::default();
        for (index, slot) in self.slots.iter().enumerate() {
            if slots & (1 << slot) != 0 {
                upstreams.insert(index);
            }
        }
        upstreams
    }

    /// Buffers a message.
    pub(crate) fn put(
        &mut self,
        number: u64,
        upstreams: UpstreamSet,
        taken_ms: u64,
        frame: &[u8],
    ) -> Result<(), JournalError> {
        let slots = self.slots.iter().enumerate().filter(|(index, _)| upstreams.contains(*index));
        let slots = slots.fold(0_u32, |bits, (_, slot)| bits | (1 << slot));
        self.journal.put(number, 0, &[&slots.to_le_bytes(), &taken_ms.to_le_bytes(), frame])
    }

    /// Buffers the settlement of messages.
    pub(crate) fn settle(&mut self, numbers: &[u64]) -> Result<(), JournalError> {
        self.journal.settle(numbers)
    }

    /// Makes buffered changes durable.
    pub(crate) fn commit(&mut self) -> Result<(), JournalError> {
        self.journal.write()?;
        self.journal.sync()
    }

    /// Reclaims space.
    pub(crate) fn keep_house(&mut self, now_ms: u64, bytes: usize) -> Result<Maintenance, JournalError> {
        self.journal.maintain(now_ms, bytes)
    }

    /// The frame of a message.
    pub(crate) fn read(&self, number: u64) -> Result<Vec<u8>, JournalError> {
        let mut payload = self.journal.read(number)?;
        payload.drain(..HEAD_BYTES.min(payload.len()));
        Ok(payload)
    }

    /// Closes the journal properly.
    pub(crate) fn close(self) -> Result<(), JournalError> {
        self.journal.close()
    }
}

/// Assigns each upstream broker its previous slot, an unused one, or the slot of a broker that is no longer
/// configured.
fn allot(known: Vec<Option<String>>, upstreams: &[UpstreamConfig]) -> Vec<usize> {
    let had = |address: &str| known.iter().position(|known| known.as_deref() == Some(address));
    let mut slots: Vec<Option<usize>> = upstreams.iter().map(|upstream| had(&upstream.address)).collect();
    for index in 0..slots.len() {
        if slots[index].is_some() {
            continue;
        }
        let taken = |slot: usize| slots.contains(&Some(slot));
        let free = (0..UPSTREAMS_MAX).filter(|slot| !taken(*slot));
        slots[index] = free.min_by_key(|slot| (known[*slot].is_some(), *slot));
    }
    slots.into_iter().map(|slot| slot.unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams(addresses: &[&str]) -> Vec<UpstreamConfig> {
        let url = |address| format!("tmqp://{address}").parse().expect("an upstream broker");
        addresses.iter().map(url).collect()
    }

    /// A broker that has confirmed larger numbers of an epoch ignores smaller ones.
    #[test]
    fn messages_that_can_be_read_again_get_an_epoch_in_which_no_larger_number_was_used() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path().join("nodes");
        let upstreams = upstreams(&["a:1"]);
        let open = |now_ms: u64| {
            ForwardJournal::open(
                (&path, &DataFiles::Local),
                None,
                &upstreams,
                true,
                "fresh",
                now_ms,
                &mut |_| Ok(()),
            )
            .unwrap()
        };
        let put = |opened: &mut OpenedStore| {
            opened.store.put(opened.next, UpstreamSet::one(0), 1, b"frame").unwrap();
            opened.store.commit().unwrap();
        };
        let mut opened = open(1_000);
        put(&mut opened);
        let first = opened.next;
        assert_eq!(opened.identity.epoch, 1_000);
        drop(opened);
        // A file that cannot be opened to read and write.
        let (segment, aside) = (path.join("0000000001.segment"), path.join("aside"));
        std::fs::rename(&segment, &aside).unwrap();
        std::fs::create_dir(&segment).unwrap();
        let mut opened = open(2_000);
        assert!(opened.kept.is_empty() && opened.next > first);
        let meanwhile = opened.identity.epoch;
        put(&mut opened);
        let second = opened.next;
        drop(opened);
        std::fs::remove_dir(&segment).unwrap();
        std::fs::rename(&aside, &segment).unwrap();
        let opened = open(3_000);
        let kept: Vec<u64> = opened.kept.iter().map(|kept| kept.number).collect();
        assert_eq!(kept, [first, second]);
        assert!(opened.identity.epoch > meanwhile);
        let renewed = opened.identity.clone();
        drop(opened);
        assert_eq!(open(4_000).identity, renewed, "everything was readable");
    }

    #[test]
    fn a_master_keeps_its_slot_wherever_it_stands_in_the_configuration() {
        let mut known = vec![None; UPSTREAMS_MAX];
        known[0] = Some("a:1".to_owned());
        known[2] = Some("b:1".to_owned());
        assert_eq!(allot(known.clone(), &upstreams(&["new:1", "b:1", "a:1"])), [1, 2, 0]);
        known.fill(Some("gone:1".to_owned()));
        assert_eq!(allot(known, &upstreams(&["new:1", "newer:1"])), [0, 1]);
    }
}
