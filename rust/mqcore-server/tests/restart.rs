//! A server that is stopped, or killed in effect, and started again on the same data directory.

use crate::peer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqcore_archive::manifest::Manifest;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_server::config::history::{ArchiveConfig, HistoryConfig};
use mqcore_server::config::{Config, Protocol};
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::{Server, StartError};
use mqcore_server::storage::data_dir::DataDirError;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::Hello;
use mqcore_wire::tmqp::{Frame, Kind};
use peer::{Directory, PATIENCE, Peer, Received};
use tokio::io::DuplexStream;

async fn start(path: &Path, shards: usize) -> Result<Server, StartError> {
    start_with(path, shards, None).await
}

async fn start_with(
    path: &Path,
    shards: usize,
    history: Option<HistoryConfig>,
) -> Result<Server, StartError> {
    let queue = QueueOptions {
        status: Status::RoundRobin,
        request_acknowledge: true,
        delivery_handler: Some("at-least-once".into()),
        ..QueueOptions::default()
    };
    let config = Config {
        shards,
        data_dir: Some(path.to_path_buf()),
        history,
        channel: ChannelOptions { queue, ..ChannelOptions::default() },
        auto_create_channels: true,
        auto_create_queues: true,
        ..Config::default()
    };
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await
}

async fn connect(server: &Server) -> Peer<DuplexStream> {
    Peer::welcome(server.connect_local(Protocol::Tmqp), &Hello::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_saved_messages_and_not_acknowledged_ones() {
    let directory = Directory::new();
    let server = start(&directory, 2).await.expect("it starts");
    let mut peer = connect(&server).await;
    for number in 0..50 {
        peer.publish_confirmed("a", &format!("a{number}")).await;
        peer.publish_confirmed("b", &format!("b{number}")).await;
    }
    peer.join("a").await;
    for number in 0..20 {
        let Received { kind, id, .. } = peer.frame().await;
        assert_eq!((kind, id), (Kind::QUEUE, format!("a{number}").into_bytes()));
        peer.acknowledge("a", &format!("a{number}")).await;
    }
    server.settle().await;
    server.stop(Duration::from_secs(5)).await;

    // The number of shards that was asked for first stays.
    let server = start(&directory, 4).await.expect("it starts again at once");
    let snapshot = server.snapshot().await;
    let mut stored: Vec<_> = snapshot
        .queues
        .iter()
        .map(|queue| (queue.queue.to_string(), queue.normal, queue.options.request_acknowledge))
        .collect();
    stored.sort();
    assert_eq!(stored, [("a/0".to_owned(), 30, true), ("b/0".to_owned(), 50, true)]);
    let mut peer = connect(&server).await;
    peer.join("a").await;
    for number in 20..50 {
        assert_eq!(peer.frame().await.id, format!("a{number}").as_bytes(), "in the old order");
    }
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_cannot_share_a_data_directory() {
    let directory = Directory::new();
    let server = start(&directory, 1).await.expect("it starts");
    match start(&directory, 1).await {
        Err(StartError::Data(DataDirError::Locked { path })) => assert_eq!(path, *directory),
        other => panic!("expected to be kept out, got {other:?}"),
    }
    server.stop(Duration::ZERO).await;
    start(&directory, 1).await.expect("it is free again").stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_something_else_is_refused_and_left_alone() {
    let directory = Directory::new();
    std::fs::create_dir_all(&*directory).unwrap();
    let format = directory.join("format");
    std::fs::write(&format, "mqcore data 9, shards 1\n").unwrap();
    match start(&directory, 1).await {
        Err(StartError::Data(DataDirError::Format { found, .. })) => assert!(found.contains("data 9")),
        other => panic!("expected to be refused, got {other:?}"),
    }
    assert_eq!(std::fs::read_to_string(&format).unwrap(), "mqcore data 9, shards 1\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settle_waits_for_pending_writes() {
    let directory = Directory::new();
    let server = start(&directory, 1).await.expect("it starts");
    let mut peer = connect(&server).await;
    for number in 0..100 {
        let id = format!("m{number}");
        let frame = Frame { id: id.as_bytes(), target: b"q", ..Frame::new(Kind::QUEUE) };
        peer.send(&frame).await;
    }
    server.settle().await;
    let waiting = server.waiting(QueueAddress::parse("q").unwrap(), 1000).await.expect("it was made");
    assert_eq!(waiting.len(), 100);
    assert!(waiting.iter().all(|message| message.saved));
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_message_that_a_peer_can_send_is_saved_like_any_other() {
    let directory = Directory::new();
    let server = start(&directory, 1).await.expect("it starts");
    let mut peer = connect(&server).await;
    let mut frame = Frame { id: b"big", target: b"q", pending_acknowledge: true, ..Frame::new(Kind::QUEUE) };
    let head = frame.head_size(u64::from(u32::MAX));
    let payload = vec![7; (Limits::default().frame_bytes_max - head as u64) as usize];
    frame.payload = &payload;
    peer.send(&frame).await;
    peer.acknowledged("big").await;
    peer.publish_confirmed("q", "small").await;
    server.stop(Duration::from_secs(5)).await;
    let server = start(&directory, 1).await.expect("it starts again");
    let waiting = server.waiting(QueueAddress::parse("q").unwrap(), 10).await.expect("it came back");
    let sizes: Vec<_> =
        waiting.iter().filter_map(|waiting| Some(waiting.message.as_ref()?.body().len())).collect();
    assert_eq!(sizes, [payload.len(), b"small".len()]);
    server.stop(Duration::ZERO).await;
}

/// Rows of the archive, as its newest manifest has them: messages and steps.
fn archived(directory: &Path) -> (u64, u64) {
    let Ok(manifests) = std::fs::read_dir(directory.join("archive/_manifests")) else { return (0, 0) };
    let newest = manifests.filter_map(|entry| Some(entry.ok()?.path())).max();
    // Old ones are removed while this looks: then there is a newer one at the next look.
    let Some(bytes) = newest.and_then(|path| std::fs::read(path).ok()) else { return (0, 0) };
    let manifest = Manifest::parse(&bytes).expect("a manifest is whole or not there");
    let rows = |table: &str| {
        let files = manifest.files.iter().filter(|file| file.table == table);
        files
            .map(|file| {
                let length =
                    std::fs::metadata(directory.join("archive").join(&file.path)).expect("it is there").len();
                assert_eq!(length, file.bytes);
                file.rows
            })
            .sum()
    };
    (rows("messages"), rows("steps"))
}

/// Waits until the archive has so many rows, and makes sure that it is not one more.
async fn archive_reaches(directory: &Path, rows: (u64, u64)) {
    let limit = std::time::Instant::now() + PATIENCE;
    loop {
        let found = archived(directory);
        assert!(found.0 <= rows.0 && found.1 <= rows.1, "{found:?} are more than {rows:?}");
        if found == rows {
            return;
        }
        assert!(std::time::Instant::now() < limit, "{found:?} instead of {rows:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_of_every_message_is_archived_once_also_over_a_restart() {
    let directory = Directory::new();
    let archive = ArchiveConfig { interval: Duration::ZERO, ..ArchiveConfig::default() };
    let history = HistoryConfig { archive: Some(archive), ..HistoryConfig::default() };
    let server = start_with(&directory, 2, Some(history.clone())).await.expect("it starts");
    let mut peer = connect(&server).await;
    for number in 0..20 {
        peer.publish_confirmed("a", &format!("a{number}")).await;
    }
    for number in 0..5 {
        peer.publish_confirmed("b", &format!("b{number}")).await;
    }
    // Each shard has started; each message was produced and saved.
    archive_reaches(&directory, (25, 2 + 50)).await;
    peer.join("a").await;
    for number in 0..20 {
        peer.receive().await;
        peer.acknowledge("a", &format!("a{number}")).await;
    }
    archive_reaches(&directory, (25, 52 + 40)).await;
    server.settle().await;
    server.stop(Duration::from_secs(5)).await;

    // Both shards start again, and the five messages of one queue are restored. The archive continues where it was.
    let server = start_with(&directory, 2, Some(history)).await.expect("it starts again");
    archive_reaches(&directory, (25, 92 + 2 + 1)).await;
    server.stop(Duration::from_secs(5)).await;
    assert_eq!(archived(&directory), (25, 95));
}
