//! Connections over streams that tests control, on a running server.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_session::any::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::config::Config;
use crate::handler::NoHandlers;
use crate::server::Server;

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> Config {
    let queue = QueueOptions {
        status: Status::RoundRobin,
        request_acknowledge: true,
        acknowledge_timeout: 10 * PATIENCE,
        ..QueueOptions::default()
    };
    Config {
        auto_create_channels: true,
        auto_create_queues: true,
        shards: 2,
        channel: ChannelOptions { queue, ..ChannelOptions::default() },
        ..Config::default()
    }
}

async fn start(config: Config) -> Server {
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("the server starts")
}

// --- Throttr ------------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_behind_a_rejected_publish_is_answered() {
    let publish_limit = Some("1/1h".parse().expect("a limit"));
    let server = start(Config { publish_limit, ..config() }).await;
    let mut peer = server.connect_local(Protocol::Throttr);
    let publish = [0x13, 1, 1, 0, b'c', b'x'];
    let channels = [0x16];
    peer.write_all(&publish).await.expect("it reads");
    timeout(PATIENCE, peer.read_exact(&mut [0])).await.expect("in time").expect("it answers");
    peer.write_all(&[&publish[..], &channels].concat()).await.expect("it reads");
    let mut answers = [7; 1 + 9];
    timeout(PATIENCE, peer.read_exact(&mut answers)).await.expect("in time").expect("it answers");
    assert_eq!(answers, [0, 1, 0, 0, 0, 0, 0, 0, 0, 0], "the publish is rejected, and there are no channels");
    server.stop(PATIENCE).await;
}
