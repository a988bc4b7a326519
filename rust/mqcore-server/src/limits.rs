//! The store of limits: made with the server, shared by every session that answers from it, swept in the background.
//!
//! | module | what lives there |
//! |---|---|
//! | [`journal`] | what is written down of it, and comes back after a restart |

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

/// How often what has expired is taken away. Until then it is memory, and nothing else.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// Entries that are taken away under one lock: some ten microseconds.
const SWEPT_AT_ONCE: usize = 32;

/// How long a sweep goes on before it pauses, and for how long. Nobody needs the memory at once, and a thread that works on
/// without a pause keeps those waiting that share its core.
const SLICE: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_millis(1);

/// The store of a server that is about to start.
pub(crate) fn store(config: &Config) -> Arc<Limiter> {
    let mut uses = config.limit_uses().peekable();
    let config = limiter::LimiterConfig {
        keys_max: config.limiter_keys_max,
        bytes_max: config.limiter_bytes_max,
        metrics: uses.peek().is_none() || uses.any(|limits| limits.metrics),
    };
    // The hash is seeded with the system's randomness, so that nobody outside can choose keys that collide.
    Arc::new(Limiter::new(config, RandomState::new()))
}

/// Gives memory back until the server stops.
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
