//! The thread of a member, without its process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;

use super::{Failure, MemberThread, Parts};
use crate::identity::MemberIdentity;
use crate::input::Input;
use crate::member::{MemberOptions, RestartCommand, Shared};
use crate::replicator::Replicator;
use crate::transport::{MemberCredentials, Network};

/// The only member of a group, and what it needs.
struct Alone {
    thread: MemberThread,
    inputs: Receiver<Input>,
    root: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Alone {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let options = options(root.path());
        let mut identity = MemberIdentity::open(root.path(), &options.cluster, options.node).unwrap();
        identity.generation = Some(0);
        identity.founders = BTreeMap::from([(options.node, identity.incarnation)]);
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

fn options(root: &Path) -> MemberOptions {
    MemberOptions {
        cluster: "test".to_owned(),
        node: 1,
        secret: vec![1; 16],
        tls: None,
        listen: "127.0.0.1:0".to_owned(),
        peers: BTreeMap::new(),
        is_witness: false,
        data_dir: root.to_path_buf(),
        listeners: Vec::new(),
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
