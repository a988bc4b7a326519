//! Stops a server in order: connections first, then shards, then the threads that save.

use std::sync::Arc;

use mqcore_replication::storage::DataFiles;
use tokio::sync::mpsc;

use crate::hub::Hub;
use crate::net::outbox::{Order, Outbox};
use crate::runtime::shutdown::TaskGuard;
use crate::shard::inbox::Urgent;

/// Returns when each shard has had nothing left to do for a moment.
pub(super) async fn fence(hub: &Hub) {
    let (fence, mut quiet) = mpsc::channel(1);
    for shard in &hub.shards {
        shard.send_urgent(Urgent::Fence(fence.clone()));
    }
    drop(fence);
    quiet.recv().await;
}

/// Returns when peers have sent the results of the work that they had, and all results are where they belong.
async fn finish_work(hub: &Hub, open: &[Arc<Outbox>]) {
    // Behind this fence each connection has all work that shards have given to it.
    fence(hub).await;
    let (probe, mut finished) = mpsc::channel(1);
    for outbox in open {
        outbox.probe(probe.clone());
    }
    drop(probe);
    finished.recv().await;
    fence(hub).await;
}

/// Stops everything in order after a stop was requested.
pub(super) async fn supervise(hub: Arc<Hub>, files: DataFiles, _alive: TaskGuard) {
    hub.shutdown.begun().await;
    if let Some(replicator) = files.replicator() {
        // At once: if the node stops leading, its process would restart and forget who has stopped it.
        replicator.stop();
    }
    let open = hub.registry.stop();
    for outbox in &open {
        outbox.order(Order::PauseReads);
    }
    tokio::select! {
        () = finish_work(&hub, &open) => {}
        () = hub.shutdown.drained_long_enough() => {}
    }
    for outbox in open {
        outbox.order(Order::Goodbye);
    }
    tokio::select! {
        () = hub.registry.emptied() => {}
        () = hub.shutdown.drained_long_enough() => {}
    }
    for outbox in hub.registry.all() {
        outbox.order(Order::Abort);
    }
    hub.registry.emptied().await;
    for shard in &hub.shards {
        shard.send_urgent(Urgent::End);
    }
    hub.schedules.end();
    if let Some(forwarder) = hub.nodes.as_ref().and_then(|nodes| nodes.forwarder.as_ref()) {
        forwarder.end();
    }
    hub.shutdown.end();
}
