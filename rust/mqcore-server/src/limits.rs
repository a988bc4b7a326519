//! The store of limits: created with the server, shared by the sessions that use it, swept in the background.
//!
//! | module | contents |
//! |---|---|
//! | [`journal`] | persistent limits |

pub(crate) mod journal;

use std::hash::RandomState;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqcore_limiter::limiter::{self, Limiter, SHARDS};
use mqcore_limiter::time::Nanos;

use crate::config::Config;
use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;

/// Interval between sweeps of expired entries. Until a sweep they only use memory.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// Entries removed under one lock, which takes about ten microseconds.
const SWEPT_AT_ONCE: usize = 32;

/// How long a sweep runs before it pauses, and how long it pauses. The memory is not urgent, and a thread that never
/// pauses delays other threads of its core.
const SLICE: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_millis(1);

/// Creates the store of a server.
pub(crate) fn store(config: &Config) -> Arc<Limiter> {
    let mut uses = config.limit_uses().peekable();
    let config = limiter::LimiterConfig {
        keys_max: config.limiter_keys_max,
        bytes_max: config.limiter_bytes_max,
        keys_per_user_max: config.limiter_keys_per_user_max,
        metrics: uses.peek().is_none() || uses.any(|limits| limits.metrics),
    };
    // The hash is seeded from the system, so that clients cannot choose keys that collide.
    Arc::new(Limiter::new(config, RandomState::new()))
}

/// Sweeps until the server stops.
pub(crate) async fn sweep(hub: Arc<Hub>, _alive: TaskGuard) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = &mut stop => return,
        }
        let limiter = &hub.limiter;
        if limiter.keys() == 0 {
            continue;
        }
        let mut began = Instant::now();
        for shard in 0..SHARDS {
            while limiter.sweep(shard, Nanos(hub.clock.nanos()), SWEPT_AT_ONCE) {
                if began.elapsed() < SLICE {
                    continue;
                }
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = &mut stop => return,
                }
                began = Instant::now();
            }
        }
        tokio::task::yield_now().await;
    }
}
