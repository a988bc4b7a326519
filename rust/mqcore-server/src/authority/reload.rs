//! Reads users and tokens again while the server runs, and ends the connections whose rights have changed.

use std::sync::Arc;

use super::state::LOOK_INTERVAL;
use super::store::StoreError;
use crate::hub::Hub;
use crate::net::outbox::Order;
use crate::runtime::shutdown::TaskGuard;

/// Checks every [`LOOK_INTERVAL`] whether users or tokens have changed or expired, until the server has ended.
pub(crate) async fn watch(hub: Arc<Hub>, _alive: TaskGuard) {
    if hub.authority.store().is_none() && hub.authority.is_open() {
        return;
    }
    let mut reported = String::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
            () = hub.shutdown.ended() => return,
        }
        let failure = reload(&hub, false).await.err().map(|error| error.to_string()).unwrap_or_default();
        if failure != reported && !failure.is_empty() {
            tracing::error!(
                error = failure,
                "cannot reload users and tokens; the previous ones stay in force"
            );
        }
        reported = failure;
    }
}

/// Reads users and tokens again if their file has changed, or if `forced`, and ends the connections whose rights have
/// changed.
///
/// # Errors
/// [`StoreError`] if they cannot be read; the previous ones stay in force.
pub(crate) async fn reload(hub: &Arc<Hub>, forced: bool) -> Result<(), StoreError> {
    let now_ms = hub.clock.expiry_ms();
    let reader = Arc::clone(hub);
    let read = hub.runtime.spawn_blocking(move || reader.authority.reload(forced, now_ms)).await;
    let changed = match read {
        Ok(changed) => changed?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    if changed || hub.authority.any_expired(now_ms) {
        let open: Vec<_> = hub.registry.all();
        let connections: Vec<_> = open.iter().map(|outbox| outbox.connection).collect();
        let fallen = hub.authority.fallen(&connections, now_ms);
        for outbox in open.iter().filter(|outbox| fallen.contains(&outbox.connection)) {
            outbox.order(Order::Revoke);
        }
    }
    Ok(())
}
