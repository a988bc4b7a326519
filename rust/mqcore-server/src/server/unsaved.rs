//! Logs that the memory of unsaved messages has reached its limit.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;

/// Time between two log lines while messages are rejected.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Longest delay of the first line.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks every second until the server stops.
pub(super) async fn watch(hub: Arc<Hub>, _alive: TaskGuard) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let (unsaved, mut logged) = (&hub.unsaved, 0);
    let limits = unsaved.limits();
    tracing::debug!(bytes_max = limits.bytes_max, "limit of memory for unsaved messages");
    let mut pause = CHECK_INTERVAL;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = &mut stop => return,
        }
        let rejected = unsaved.rejected();
        if rejected == logged {
            pause = CHECK_INTERVAL;
            continue;
        }
        tracing::warn!(
            rejected = rejected - logged,
            bytes = unsaved.bytes(),
            bytes_max = limits.bytes_max,
            per_user_max = limits.per_user_max,
            "rejecting messages, because unsaved messages have reached unsaved_memory_max or \
             unsaved_memory_per_user_max; let consumers catch up, save messages, or raise the limit"
        );
        (logged, pause) = (rejected, LOG_INTERVAL);
    }
}
