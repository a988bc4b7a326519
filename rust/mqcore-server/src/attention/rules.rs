//! Which findings follow from the state of the broker, and from how it changed.

mod cluster;

use std::collections::HashMap;
use std::time::Duration;

use mqcore_broker::model::options::Status;
use mqcore_broker::model::stats::{DeliveryBlock, QueueSample};
use mqcore_broker::model::time::Timestamp;

use crate::attention::finding::{Finding, FindingKind, Severity};
use crate::attention::observation::{DiskSpace, Observation};
use crate::attention::rates::{QueueTrack, QueueTracks};
use crate::attention::text::{counted, grouped, size, span};
use crate::stats::counters::ArchiveLag;
use crate::stats::tasks::BackupLag;

/// Dead-lettered messages within the last minute that are reported.
const DEAD_LETTERS_MIN: u64 = 10;

/// Change of the system clock between two rounds that is reported. Corrections of time servers are smaller.
const CLOCK_JUMP_MIN: Duration = Duration::from_secs(1);

/// Free space below which the disk is reported: this part of it, but at most [`DISK_FREE_MAX`].
const DISK_FREE_PART: u64 = 20;
const DISK_FREE_MAX: u64 = 1 << 30;

/// Time without a pull after which waiting messages of a pull queue are reported. Consumers of such queues may be programs
/// that run once a minute.
const PULL_MIN: Duration = Duration::from_secs(300);

/// Time before the end of a certificate at which it is reported.
const CERTIFICATE_DAYS: i64 = 14;
const DAY_SECONDS: i64 = 86_400;

/// The state at the previous round, as far as changes matter.
#[derive(Debug, Default)]
pub(super) struct Previous {
    clock_offset_ms: Option<i64>,
    publish_rejected: u64,
    connect_rejected: u64,
    /// For each handler: its answers, and since when it has given no other.
    answers: HashMap<Box<str>, (u64, Timestamp)>,
}

/// Everything that holds now. `tracks` contains the samples of this round.
pub(super) fn examine(seen: &Observation, tracks: &QueueTracks, previous: &mut Previous) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(seen.losses.iter().map(|loss| Finding {
        kind: FindingKind::RecordsLost,
        severity: Severity::Critical,
        subject: format!("journal {}", loss.journal),
        cause: loss.text.to_string(),
        remedy: "read the finding, then accept the loss while the broker is stopped: mqcore journal accept-loss".into(),
    }));
    found.extend(seen.refusing_shards.iter().map(|shard| refusing_journal(*shard, seen.disk.as_ref())));
    found.extend(seen.disk.as_ref().and_then(scarce_disk));
    found.extend(blocked_handlers(seen, previous));
    for sample in &seen.queues {
        if let Some(track) = tracks.get(&sample.queue) {
            examine_queue(sample, track, seen.now, &mut found);
        }
    }
    found.extend(limits(seen, previous));
    found.extend(seen.nodes.iter().filter(|node| !node.connected && !node.downstream).map(|node| Finding {
        kind: FindingKind::NodeDown,
        severity: Severity::Warning,
        subject: format!("node {}", node.name),
        cause: format!("the upstream broker {} is not connected; messages for it wait here", node.host),
        remedy: format!(
            "check that a broker answers there and that its token is valid: mqcore --url tmqp://{} client ls",
            node.host
        ),
    }));
    found.extend(clock_jump(seen.clock_offset_ms, previous));
    found.extend(seen.archive.as_ref().filter(|lag| lag.is_lagging).map(archive_lag));
    found.extend(seen.backup.as_ref().filter(|lag| lag.is_lagging).map(backup_lag));
    found.extend(certificates(seen));
    found.extend(seen.cluster.iter().flat_map(|status| cluster::examine(status)));
    found
}

fn archive_lag(lag: &ArchiveLag) -> Finding {
    let waiting = format!(
        "{} wait to be archived, the oldest for {}",
        counted(lag.pending_notes, "note"),
        span(lag.waiting_ms)
    );
    let (cause, remedy) = match &lag.failure {
        Some(failure) => (
            format!("archiving fails: {}; {waiting}", failure.error),
            "repair what the error names; the history stays in the journals until an attempt succeeds",
        ),
        None => (waiting, "the archive's disk or store is slow, or its interval too short for the traffic"),
    };
    Finding {
        kind: FindingKind::ArchiveLag,
        severity: Severity::Warning,
        subject: "archive".into(),
        cause,
        remedy: remedy.into(),
    }
}

fn backup_lag(lag: &BackupLag) -> Finding {
    let latest = match lag.stored_ms {
        Some(_) => format!("the latest restore point is {} old", span(lag.age_ms)),
        None => format!("there is no restore point since the start, {} ago", span(lag.age_ms)),
    };
    let (cause, remedy) = match (&lag.failure, lag.upload) {
        (Some(failure), _) => (
            format!("the continuous backup fails: {}; {latest}", failure.error),
            "repair what the error names; the broker tries again every five seconds",
        ),
        (None, Some((done, total))) => (
            format!("{latest}; {} of {} are uploaded", size(done), size(total)),
            "wait, or give the broker a faster way to the object store",
        ),
        (None, None) => {
            (latest, "the data directory or the object store is slow; the log may name the cause")
        }
    };
    Finding {
        kind: FindingKind::BackupLag,
        severity: Severity::Warning,
        subject: "continuous backup".into(),
        cause,
        remedy: remedy.into(),
    }
}

fn refusing_journal(shard: usize, disk: Option<&DiskSpace>) -> Finding {
    let space = match disk {
        Some(DiskSpace { directory, free, .. }) => {
            format!("; {} has {} free", directory.display(), size(*free))
        }
        None => String::new(),
    };
    Finding {
        kind: FindingKind::DiskFull,
        severity: Severity::Critical,
        subject: format!("journal of shard {shard}"),
        cause: format!("it cannot write, so durable messages are rejected{space}"),
        remedy: "free space on that disk; the journal continues by itself. The log has the error of the disk"
            .into(),
    }
}

fn scarce_disk(disk: &DiskSpace) -> Option<Finding> {
    let DiskSpace { directory, free, total } = disk;
    if *free >= (total / DISK_FREE_PART).min(DISK_FREE_MAX) {
        return None;
    }
    Some(Finding {
        kind: FindingKind::DiskFull,
        severity: Severity::Warning,
        subject: format!("disk of {}", directory.display()),
        cause: format!("{} of {} are free", size(*free), size(*total)),
        remedy:
            "free space, or reclaim it from the journals while the broker is stopped: mqcore journal compact"
                .into(),
    })
}

fn blocked_handlers(seen: &Observation, previous: &mut Previous) -> Vec<Finding> {
    let mut answers = HashMap::with_capacity(seen.handlers.len());
    let mut found = Vec::new();
    for handler in &seen.handlers {
        let answered = handler.asked.saturating_sub(handler.waiting);
        let since = match previous.answers.get(&handler.key) {
            Some((before, since)) if *before == answered && handler.waiting > 0 => *since,
            _ => seen.now,
        };
        answers.insert(handler.key.clone(), (answered, since));
        let silent = seen.now.since(since);
        if silent >= FindingKind::BlockedHandler.grace() {
            let (waiting, time) = (counted(handler.waiting, "question"), span(silent.as_millis() as u64));
            // A handler may take as long as its timeout, but its queues stand still meanwhile.
            let is_late = silent >= handler.timeout;
            let reason = if is_late {
                "one of its methods does not return".into()
            } else {
                format!("it may take {} for an answer", span(handler.timeout.as_millis() as u64))
            };
            found.push(Finding {
                kind: FindingKind::BlockedHandler,
                severity: if is_late { Severity::Critical } else { Severity::Warning },
                subject: format!("handler {}", handler.key),
                cause: format!("it has answered nothing for {time} while {waiting} wait: {reason}"),
                remedy: format!(
                    "see where it hangs: mqcore stack {}; move slow work into a consumer, or make the method async",
                    handler.key
                ),
            });
        }
    }
    previous.answers = answers;
    found
}

fn examine_queue(sample: &QueueSample, track: &QueueTrack, now: Timestamp, found: &mut Vec<Finding>) {
    let subject = || format!("queue {}", sample.queue);
    if let Some(key) = &sample.missing_handler {
        found.push(Finding {
            kind: FindingKind::MissingHandler,
            severity: Severity::Critical,
            subject: subject(),
            cause: format!("its delivery handler {key:?} is not registered, so it neither takes nor delivers messages"),
            remedy: format!("start the program that registers {key:?}, or name another: mqcore queue set {} --handler KEY", sample.queue),
        });
    }
    if sample.status == Status::Paused {
        found.push(Finding {
            kind: FindingKind::PausedQueue,
            severity: Severity::Info,
            subject: subject(),
            cause: format!("it is paused; {} wait{}", counted(sample.ready, "message"), oldest(sample, now)),
            remedy: format!(
                "give it its earlier status again, for example: mqcore queue status {} push",
                sample.queue
            ),
        });
    }
    found.extend(waiting(sample, track, now).map(|(kind, cause, remedy)| Finding {
        kind,
        severity: Severity::Warning,
        subject: subject(),
        cause,
        remedy,
    }));
    let dead = track.dead_lettered.get();
    if dead >= DEAD_LETTERS_MIN {
        found.push(Finding {
            kind: FindingKind::DeadLetters,
            severity: Severity::Warning,
            subject: subject(),
            cause: format!("{} were dead-lettered within a minute", counted(dead, "message")),
            remedy: "the header Dead-Letter-Reason of the messages in its dead-letter queue says why; repair the consumer first".into(),
        });
    }
    let failures = track.failures.get();
    if failures > 0 {
        let handler = sample.handler.as_deref().map_or_else(String::new, |key| format!(" {key:?}"));
        found.push(Finding {
            kind: FindingKind::FailingHandler,
            severity: Severity::Warning,
            subject: subject(),
            cause: format!(
                "its delivery handler{handler} failed or was late {} within a minute",
                times(failures)
            ),
            remedy: "the log has the exception; until it is repaired, the fallback decides".into(),
        });
    }
    if track.rejected > 0 {
        found.push(Finding {
            kind: FindingKind::LimitReached,
            severity: Severity::Warning,
            subject: subject(),
            cause: format!(
                "it rejected {} within a second: {}",
                counted(track.rejected, "message"),
                limit(sample)
            ),
            remedy: format!(
                "let consumers catch up, slow producers down, or raise the limit: mqcore queue set {} --help",
                sample.queue
            ),
        });
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{} times", grouped(count)) }
}

fn oldest(sample: &QueueSample, now: Timestamp) -> String {
    match sample.oldest_ms {
        0 => String::new(),
        at => format!(", the oldest for {}", span(now.0.saturating_sub(at))),
    }
}

fn limit(sample: &QueueSample) -> String {
    match (sample.publish_limit, sample.message_limit) {
        (_, limit) if limit > 0 && sample.ready + sample.delayed >= limit => {
            format!("its message limit is {}", grouped(limit))
        }
        (Some(rate), _) => format!("its publish limit is {rate}"),
        _ => "a limit of message size or storage, or the queue is stopped".into(),
    }
}

/// Why messages of a queue wait, if that is a reason to act.
fn waiting(
    sample: &QueueSample,
    track: &QueueTrack,
    now: Timestamp,
) -> Option<(FindingKind, String, String)> {
    let backlog = || format!("{} wait{}", counted(sample.ready, "message"), oldest(sample, now));
    match sample.block? {
        DeliveryBlock::NoConsumers => Some((
            FindingKind::NoConsumer,
            format!("{}, and it has no consumer", backlog()),
            format!(
                "start a consumer, for example: mqcore consume {}; or discard them: mqcore queue clear {0}",
                sample.queue
            ),
        )),
        DeliveryBlock::NotPulled => {
            let waited = now.since(Timestamp(sample.oldest_ms.max(sample.stats.last_sent_ms)));
            (sample.oldest_ms > 0 && waited >= PULL_MIN).then(|| {
                let silent = span(waited.as_millis() as u64);
                (
                    FindingKind::NoConsumer,
                    format!("{}, and no consumer has pulled for {silent}", backlog()),
                    format!(
                        "pull them: mqcore pull {}; or discard them: mqcore queue clear {0}",
                        sample.queue
                    ),
                )
            })
        }
        block @ (DeliveryBlock::PrefetchReached
        | DeliveryBlock::ConsumersCongested
        | DeliveryBlock::AwaitsAcknowledgement) => {
            let is_silent = now.since(track.settled_at) >= FindingKind::SlowConsumer.grace();
            if !is_silent && track.rates.growth <= 0.0 {
                return None;
            }
            Some((
                FindingKind::SlowConsumer,
                slow_consumer(sample, track, block, is_silent, now),
                repair_of(sample, block),
            ))
        }
        // Paused queues, missing and blocked handlers have findings of their own.
        DeliveryBlock::Paused | DeliveryBlock::MissingHandler | DeliveryBlock::HandlerBusy => None,
    }
}

fn slow_consumer(
    sample: &QueueSample,
    track: &QueueTrack,
    block: DeliveryBlock,
    is_silent: bool,
    now: Timestamp,
) -> String {
    let consumers = counted(sample.consumers.into(), "consumer");
    let names: Vec<&str> =
        sample.blocking.iter().map(|client| client.name.as_deref().unwrap_or(&client.id)).collect();
    let who = if names.is_empty() { consumers } else { format!("{consumers} ({})", names.join(", ")) };
    let state = match block {
        DeliveryBlock::ConsumersCongested => "not reading fast enough",
        DeliveryBlock::AwaitsAcknowledgement => "one message at a time",
        _ => "at the prefetch limit",
    };
    let pace = if is_silent {
        format!("nothing acknowledged for {}", span(now.since(track.settled_at).as_millis() as u64))
    } else {
        format!("{:.0}/s acknowledged, {:.0}/s published", track.rates.settled, track.rates.received)
    };
    let (ready, in_flight) = (counted(sample.ready, "message"), grouped(sample.in_flight));
    format!("{ready} wait and {in_flight} are in flight; {who}, {state}: {pace}")
}

fn repair_of(sample: &QueueSample, block: DeliveryBlock) -> String {
    match block {
        DeliveryBlock::AwaitsAcknowledgement => format!(
            "let it deliver several at a time: mqcore queue set {} --no-wait; or make the consumer faster",
            sample.queue
        ),
        _ => "start more consumers, raise their prefetch, or find what their handlers wait for".into(),
    }
}

fn limits(seen: &Observation, previous: &mut Previous) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut reached = |before: &mut u64, now: u64, what: &str, option: &str| {
        let rejected = now.saturating_sub(*before);
        *before = now;
        if rejected > 0 {
            found.push(Finding {
                kind: FindingKind::LimitReached,
                severity: Severity::Warning,
                subject: format!("limit {option}"),
                cause: format!("{} were rejected within a second", counted(rejected, what)),
                remedy: format!("find the client that exceeds it: mqcore client ls; or raise {option} in the configuration"),
            });
        }
    };
    reached(&mut previous.publish_rejected, seen.publish_rejected, "message", "publish_limit");
    reached(&mut previous.connect_rejected, seen.connect_rejected, "connection", "connect_limit");
    found
}

fn clock_jump(offset_ms: i64, previous: &mut Previous) -> Option<Finding> {
    let before = previous.clock_offset_ms.replace(offset_ms)?;
    let jump = offset_ms - before;
    if jump.unsigned_abs() < CLOCK_JUMP_MIN.as_millis() as u64 {
        return None;
    }
    let (by, direction) = (span(jump.unsigned_abs()), if jump > 0 { "forward" } else { "back" });
    let or_slept = if jump > 0 { ", or the machine slept" } else { "" };
    Some(Finding {
        kind: FindingKind::ClockJump,
        severity: Severity::Warning,
        subject: "system clock".into(),
        cause: format!("it was set {direction} by {by}{or_slept}"),
        remedy: "run a time service (chrony, systemd-timesyncd). Delays and timeouts are not affected; schedules and the expiry of tokens follow the clock".into(),
    })
}

fn certificates(seen: &Observation) -> impl Iterator<Item = Finding> {
    let soon = seen.certificates.iter().filter(|each| each.expires_in < CERTIFICATE_DAYS * DAY_SECONDS);
    soon.map(|certificate| {
        let is_over = certificate.expires_in <= 0;
        let time = span(certificate.expires_in.unsigned_abs() * 1000);
        Finding {
            kind: FindingKind::CertificateExpiry,
            severity: if is_over { Severity::Critical } else { Severity::Warning },
            subject: format!("listener {}", certificate.url),
            cause: if is_over {
                format!("its certificate expired {time} ago, so clients refuse to connect")
            } else {
                format!("its certificate expires in {time}")
            },
            remedy: "replace the files, then send SIGHUP to the broker".into(),
        }
    })
}

#[cfg(test)]
mod tests;
