//! The task that looks at the broker every second.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attention::observation::Observation;
use crate::attention::rules::{Previous, examine};
use crate::attention::state::{Memory, Report};
use crate::handler::HandlerPort;
use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;
use crate::stats::snapshot;

/// Time between two rounds, unless they take so long that they would slow down the shards.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause.
const INTERVAL_MAX: Duration = Duration::from_secs(5);
/// A round takes at most this part of the time: so many pauses as long as the round follow it.
const PAUSES: u32 = 50;

/// How long a queue without messages stays in the samples after it moved one.
const QUIET_FOR: Duration = Duration::from_secs(15);

/// Every so many rounds all queues are sampled, to forget those that were removed.
const FULL_ROUND: u64 = 60;

/// Every so many rounds the history of totals is saved.
const SAVE_ROUND: u64 = 60;

/// Looks until the server stops.
pub(crate) async fn watch(
    hub: Arc<Hub>,
    port: Arc<dyn HandlerPort>,
    data_dir: Option<PathBuf>,
    _alive: TaskGuard,
) {
    if let Some(directory) = &data_dir {
        hub.totals.load(directory);
    }
    run(&hub, &*port, data_dir.as_deref()).await;
    save_totals(&hub, data_dir.as_deref()).await;
}

async fn run(hub: &Arc<Hub>, port: &dyn HandlerPort, data_dir: Option<&Path>) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let (mut memory, mut previous) = (Memory::default(), Previous::default());
    let mut rounds = 0;
    loop {
        let began = Instant::now();
        let is_full = rounds % FULL_ROUND == 0;
        let samples = tokio::select! {
            samples = snapshot::samples(hub, (!is_full).then_some(QUIET_FOR)) => samples,
            () = &mut stop => return,
        };
        let Some(samples) = samples else { return };
        let mut seen = Observation::of_server(hub, port.loads(), data_dir);
        seen.nodes = snapshot::nodes(hub).await;
        seen.queues = samples;
        let findings = {
            let mut tracks = hub.attention.tracks();
            if is_full {
                tracks.keep_only(&seen.queues);
            }
            let totals = tracks.update(&seen.queues, seen.now);
            hub.totals.push(seen.now, totals);
            examine(&seen, &tracks, &mut previous)
        };
        let findings = memory.round(findings, seen.now);
        hub.attention.publish(Report { made_at: seen.now, findings });
        rounds += 1;
        if rounds % SAVE_ROUND == 0 {
            save_totals(hub, data_dir).await;
        }
        let pause = (began.elapsed() * PAUSES).clamp(INTERVAL, INTERVAL_MAX);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = &mut stop => return,
        }
    }
}

/// Saves the history of totals. It is for charts only, so a failure is not an error.
async fn save_totals(hub: &Arc<Hub>, data_dir: Option<&Path>) {
    let Some(directory) = data_dir.map(Path::to_path_buf) else { return };
    let hub = Arc::clone(hub);
    let saved = tokio::task::spawn_blocking(move || hub.totals.save(&directory)).await;
    if let Ok(Err(error)) = saved {
        tracing::debug!(%error, "cannot save the history of rates");
    }
}
