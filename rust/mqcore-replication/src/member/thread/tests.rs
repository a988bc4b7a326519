//! The thread of a member, without its process.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqcore_consensus::log::ReplicatedLog as _;
use mqcore_consensus::replica::ReplicaRole;
use tempfile::TempDir;
use tokio::sync::watch;

use super::{Copying, Failure, Grouped, MemberThread, Pace, Parts, REPEATED_BYTES};
use crate::identity::MemberIdentity;
use crate::input::{Copied, DamageScope, FoundDamage, Input};
use crate::member::{MemberOptions, RestartCommand, Shared};
use crate::operation::{FileOperation, begin_entry};
use crate::replicator::Replicator;
use crate::status::MemberRole;
use crate::transport::{MemberCredentials, Network};

/// A member of a group whose other members do not answer, and what it needs.
struct Alone {
    thread: MemberThread,
    inputs: Receiver<Input>,
    root: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Alone {
    fn new() -> Self {
        Self::among(1)
    }

    fn among(nodes: u32) -> Self {
        let root = TempDir::new().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = options(root.path(), nodes);
        let mut identity = MemberIdentity::open(root.path(), &options.cluster, options.node).unwrap();
        identity.generation = Some(0);
        identity.founders = (1..=nodes).map(|node| (node, u64::from(node))).collect();
        let credentials = Arc::new(MemberCredentials {
            cluster: options.cluster.clone(),
            node: options.node,
            secret: options.secret.clone(),
            tls: None,
        });
        let (sender, inputs) = channel();
        let shared = Arc::new(Shared::default());
        let parts = Parts {
            network: Network::start(runtime.handle(), &credentials, &options.peers),
            identity,
            credentials,
            replicator: Replicator::new(root.path(), sender.clone(), shared.latest.clone()),
            inputs: sender,
            shared,
            leader: watch::channel(None).0,
            runtime: runtime.handle().clone(),
            options,
        };
        Self { thread: MemberThread::new(parts).unwrap(), inputs, root, _runtime: runtime }
    }
}

fn options(root: &Path, nodes: u32) -> MemberOptions {
    // Nothing listens there.
    let peers = (2..=nodes).map(|node| (node, "127.0.0.1:1".to_owned())).collect();
    MemberOptions {
        cluster: "test".to_owned(),
        node: 1,
        secret: vec![1; 16],
        tls: None,
        listen: "127.0.0.1:0".to_owned(),
        peers,
        is_witness: false,
        data_dir: root.to_path_buf(),
        listeners: Vec::new(),
        connections_max: 1,
        tick: Duration::from_millis(1),
        verify_interval: Duration::ZERO,
        restart: RestartCommand::default(),
        before_end: || {},
    }
}

#[test]
fn a_member_tries_until_it_can_open_its_files() {
    let mut alone = Alone::new();
    let place = MemberIdentity::directory(alone.root.path()).join("applied");
    // Nothing can be read from it.
    fs::create_dir(&place).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            fs::remove_dir(&place).unwrap();
        });
        let failure = Failure::Sync(io::Error::other("no file descriptor"));
        assert_eq!(alone.thread.handle_failure(failure, &alone.inputs), Ok(()));
        assert!(!place.exists());
    });
}

/// An entry that writes so many bytes.
fn entry(length: usize) -> Bytes {
    let mut entry = Vec::new();
    begin_entry(&mut entry);
    let write =
        FileOperation::Write { name: "shard-0/a".to_owned(), offset: 0, bytes: vec![1; length].into() };
    write.encode(&mut entry);
    entry.into()
}

/// A group whose member leads, and gets a copy of the files of another one.
fn copying(alone: &mut Alone) -> Grouped {
    let mut group = alone.thread.open_group().unwrap();
    group.copying = Copying::Runs;
    while group.replica.role() != ReplicaRole::Leader {
        group.replica.tick();
        alone.thread.advance(&mut group).unwrap();
    }
    group
}

#[test]
fn a_member_hears_others_while_it_repeats_what_it_held_during_a_copy() {
    let mut alone = Alone::new();
    let mut group = copying(&mut alone);
    let base = group.replica.log().base().0;
    for _ in 0..3 * (REPEATED_BYTES >> 20) {
        group.replica.propose(entry(1 << 20)).unwrap();
    }
    alone.thread.advance(&mut group).unwrap();
    let (last, term) = (group.replica.log().last_index(), group.replica.term());
    assert_eq!(group.held, last);
    let copied = Input::Copied(alone.thread.copies, Ok(Copied { begun: base, complete: last }));
    alone.thread.take(&mut group, copied).unwrap();
    let mut pace = Pace { next_tick: Instant::now(), told: None };
    let mut statuses = Vec::new();
    while group.copying != Copying::No {
        let (answer, mut status) = tokio::sync::oneshot::channel();
        alone.thread.parts.inputs.send(Input::Status(answer)).unwrap();
        let before = pace.next_tick;
        assert!(alone.thread.work_once(&mut group, &alone.inputs, &mut pace).unwrap());
        assert!(pace.next_tick > before, "a tick");
        statuses.push(status.try_recv().unwrap());
        assert!(statuses.len() < 100, "{:?}", group.copying);
    }
    assert_eq!(alone.thread.applier.applied(), last);
    let earlier: Vec<_> = statuses.iter().filter(|status| status.role == MemberRole::Copying).collect();
    assert!(earlier.len() > 2, "{} answers meanwhile", earlier.len());
    assert!(earlier.is_sorted_by(|first, second| first.applied < second.applied));
    assert_eq!(group.replica.term(), term);
}

#[test]
fn an_entry_that_is_committed_after_a_copy_waits_for_those_that_were_held() {
    let mut alone = Alone::new();
    let mut group = copying(&mut alone);
    let base = group.replica.log().base().0;
    for length in [1, 2] {
        group.replica.propose(entry(length)).unwrap();
    }
    alone.thread.advance(&mut group).unwrap();
    let held = group.held;
    let copied = Input::Copied(alone.thread.copies, Ok(Copied { begun: base, complete: base + 1 }));
    alone.thread.take(&mut group, copied).unwrap();
    group.replica.propose(entry(3)).unwrap();
    alone.thread.advance(&mut group).unwrap();
    assert_eq!((alone.thread.applier.applied(), group.held), (base, held + 1));
    alone.thread.repeat_held(&mut group).unwrap();
    assert_eq!((alone.thread.applier.applied(), group.copying), (held + 1, Copying::No));
    assert_eq!(fs::read(alone.root.path().join("shard-0/a")).unwrap(), [1; 3]);
}

#[test]
fn all_readers_of_a_damaged_file_get_the_outcome_of_one_comparison() {
    let mut alone = Alone::among(3);
    let mut group = alone.thread.open_group().unwrap();
    let damage = |answer| FoundDamage { name: "shard-0/a".to_owned(), what: "damage".to_owned(), answer };
    let (first, first_scope) = sync_channel(1);
    let (second, second_scope) = sync_channel(1);
    for answer in [Some(first.clone()), Some(second), None, None] {
        alone.thread.take(&mut group, Input::Damaged(damage(answer))).unwrap();
    }
    assert_eq!(group.comparing["shard-0/a"].len(), 1, "verifications do not wait");
    let compared = Input::DamageCompared(damage(Some(first)), DamageScope::AllMembers);
    alone.thread.take(&mut group, compared).unwrap();
    assert_eq!(first_scope.try_recv(), Ok(DamageScope::AllMembers));
    assert_eq!(second_scope.try_recv(), Ok(DamageScope::AllMembers));
    assert!(group.comparing.is_empty());
}
