//! Stops a server in order: connections first, then shards, then the threads that save.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::hub::Hub;
use crate::net::outbox::Order;
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

/// Stops everything in order after a stop was requested.
pub(super) async fn supervise(hub: Arc<Hub>, _alive: TaskGuard) {
    hub.shutdown.begun().await;
    let open = hub.registry.stop();
    for outbox in &open {
        outbox.order(Order::PauseReads);
    }
    tokio::select! {
        () = fence(&hub) => {}
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
