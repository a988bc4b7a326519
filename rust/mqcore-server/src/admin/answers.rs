//! The bodies of answers, except those that belong to one page, with their documentation: the schema in `/openapi.json` is made
//! from these types.

use std::collections::BTreeMap;

use mqcore_broker::model::options::{DeadLetter, QueueOptions};
use mqcore_broker::model::rejection::RejectReason;
use mqcore_broker::model::stats::{DropReason, QueueStats};
use serde::Serialize;
use utoipa::ToSchema;

use crate::attention::rates::QueueRates;
use crate::attention::state::Reported;
use crate::stats::totals::TotalsAt;

/// Every answer with a status of 400 or more.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorAnswer {
    error: ErrorDescription,
}

/// An error.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorDescription {
    /// A word for programs: `not-found`, `forbidden`, `bad-request`, `busy`, ...
    code: String,
    /// The problem, and what to do.
    message: String,
}

impl ErrorAnswer {
    pub(crate) fn new(code: &str, message: &str) -> Self {
        Self { error: ErrorDescription { code: code.into(), message: message.into() } }
    }
}

/// Whether the process runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveAnswer {
    pub(crate) status: &'static str,
}

/// Users and tokens are read again.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReloadAnswer {
    pub(crate) status: &'static str,
}

/// Whether the broker is healthy.
#[derive(Serialize, ToSchema)]
pub(crate) struct HealthAnswer {
    /// `healthy`, `warning`, `critical`, or `starting` before the first check.
    pub(crate) status: &'static str,
    /// The state in one sentence.
    pub(crate) summary: String,
}

/// Permissions of the caller.
#[derive(Serialize, ToSchema)]
pub(crate) struct AccessAnswer {
    /// The name of the token or user; null while there are no users.
    pub(crate) user: Option<String>,
    /// Whether there are no users yet: then anyone may read, and nothing can be changed.
    pub(crate) open: bool,
    /// The parts that it may administer, such as `queues`: all that change something, `audit`, `handlers` and `users`.
    pub(crate) administers: Vec<&'static str>,
    /// Whether it may read messages.
    pub(crate) messages: bool,
    /// Whether the broker belongs to a cluster, whose nodes `/cluster` lists.
    pub(crate) cluster: bool,
}

/// Findings about the broker.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttentionAnswer {
    /// `healthy`, `warning`, `critical`, or `starting` before the first check.
    pub(crate) status: &'static str,
    /// The state in one sentence.
    pub(crate) summary: String,
    /// Time of the check in Unix milliseconds.
    pub(crate) checked_at_ms: u64,
    /// Number of all findings.
    pub(crate) total: usize,
    /// Numbers of findings by kind.
    pub(crate) counts: BTreeMap<&'static str, usize>,
    /// The most severe findings first.
    pub(crate) findings: Vec<FindingAnswer>,
    pub(crate) limit: usize,
}

/// Something that needs an operator's attention.
#[derive(Serialize, ToSchema)]
pub(crate) struct FindingAnswer {
    kind: &'static str,
    /// `critical`, `warning` or `info`.
    severity: &'static str,
    /// Its subject, such as `queue orders/1001`.
    subject: String,
    cause: String,
    remedy: String,
    /// Its first observation, in Unix milliseconds.
    since_ms: u64,
}

impl From<&Reported> for FindingAnswer {
    fn from(reported: &Reported) -> Self {
        let finding = &reported.finding;
        Self {
            kind: finding.kind.as_str(),
            severity: finding.severity.as_str(),
            subject: finding.subject.clone(),
            cause: finding.cause.clone(),
            remedy: finding.remedy.clone(),
            since_ms: reported.since.0,
        }
    }
}

/// Rates of a queue, per second.
#[derive(Serialize, ToSchema)]
pub(crate) struct RatesAnswer {
    received: f64,
    delivered: f64,
    /// Positive and negative acknowledgements.
    settled: f64,
    /// The change of its contents.
    growth: f64,
}

impl From<&QueueRates> for RatesAnswer {
    fn from(rates: &QueueRates) -> Self {
        let QueueRates { received, delivered, settled, growth, .. } = *rates;
        Self { received, delivered, settled, growth }
    }
}

/// Counters of a queue since the start of the broker.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountersAnswer {
    received: u64,
    /// Not accepted, because a limit was reached.
    rejected: u64,
    /// Delivered messages; each counts once.
    sent: u64,
    /// Deliveries, one for each consumer.
    deliveries: u64,
    acks: u64,
    /// Negative acknowledgements, and acknowledgements that timed out.
    negative_acks: u64,
    /// Expired messages.
    timed_out: u64,
    saved: u64,
    save_failed: u64,
    /// Messages that left the queue for good.
    removed: u64,
    /// Requeued messages.
    put_back: u64,
    dead_lettered: u64,
    /// Moved to another queue by an operator.
    moved: u64,
    /// Failed, late and missing answers of handlers.
    errors: u64,
    /// Rejected messages by reason; the sum is `rejected`.
    rejected_by: BTreeMap<&'static str, u64>,
    /// Dropped messages by reason.
    dropped: BTreeMap<&'static str, u64>,
    /// Arrival of the last message in Unix milliseconds; 0: never.
    last_received_ms: u64,
    /// The last delivery in Unix milliseconds; 0: never.
    last_sent_ms: u64,
}

impl From<&QueueStats> for CountersAnswer {
    fn from(stats: &QueueStats) -> Self {
        // Destructured, so that a new counter cannot be forgotten here.
        let QueueStats {
            received,
            rejected,
            rejected_by,
            sent,
            deliveries,
            acks,
            negative_acks,
            timed_out,
            saved,
            save_failed,
            removed,
            requeued,
            dead_lettered,
            moved,
            errors,
            dropped,
            last_received_ms,
            last_sent_ms,
        } = *stats;
        Self {
            received,
            rejected,
            sent,
            deliveries,
            acks,
            negative_acks,
            timed_out,
            saved,
            save_failed,
            removed,
            put_back: requeued,
            dead_lettered,
            moved,
            errors,
            rejected_by: RejectReason::ALL
                .into_iter()
                .map(|reason| (reason.as_str(), rejected_by[reason as usize]))
                .collect(),
            dropped: DropReason::ALL
                .into_iter()
                .map(|reason| (reason.as_str(), dropped[reason as usize]))
                .collect(),
            last_received_ms,
            last_sent_ms,
        }
    }
}

/// A page of queues.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueuesAnswer {
    /// Number of all queues.
    pub(crate) total: usize,
    /// Number of queues that match the filter.
    pub(crate) matched: usize,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
    pub(crate) queues: Vec<QueueRow>,
}

/// A queue in a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueRow {
    /// Its address, `channel/id`.
    pub(crate) queue: String,
    pub(crate) status: &'static str,
    pub(crate) delivery_handler: Option<String>,
    /// The delivery handler, if it is not registered.
    pub(crate) missing_handler: Option<String>,
    /// The queue of its dead letters, or `drop`; null: that of its channel.
    pub(crate) dead_letter: Option<String>,
    pub(crate) ready: u64,
    pub(crate) delayed: u64,
    pub(crate) in_flight: u64,
    /// Messages that wait for a decision of the handler.
    pub(crate) undecided: u64,
    pub(crate) consumers: u64,
    /// Age of the oldest message.
    pub(crate) oldest_seconds: Option<f64>,
    /// Why the next message is not delivered now.
    pub(crate) block: Option<&'static str>,
    pub(crate) memory_bytes: u64,
    pub(crate) rates: RatesAnswer,
    pub(crate) messages: CountersAnswer,
}

/// One queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueAnswer {
    /// Its address, `channel/id`.
    pub(crate) queue: String,
    pub(crate) status: &'static str,
    /// The delivery handler, if it is not registered.
    pub(crate) missing_handler: Option<String>,
    pub(crate) ready: u64,
    /// Messages of high priority, including delayed ones.
    pub(crate) high_priority: u64,
    pub(crate) delayed: u64,
    /// End of the first delay in Unix milliseconds.
    pub(crate) next_attempt_ms: Option<u64>,
    pub(crate) in_flight: u64,
    /// Messages that wait for a decision of the handler.
    pub(crate) undecided: u64,
    pub(crate) consumers: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) options: OptionsAnswer,
    pub(crate) messages: CountersAnswer,
    pub(crate) rates: RatesAnswer,
    pub(crate) findings: Vec<FindingAnswer>,
}

/// Options of a queue. Times are seconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct OptionsAnswer {
    status: &'static str,
    only_first_acquirer: bool,
    request_acknowledge: bool,
    acknowledge_timeout: f64,
    message_timeout: f64,
    use_message_id: bool,
    wait_for_acknowledge: bool,
    hide_client_names: bool,
    message_limit: u64,
    message_size_limit: u64,
    tag: Option<String>,
    delivery_handler: Option<String>,
    put_back_limit: u16,
    retry_delay: Option<f64>,
    retry_delay_max: f64,
    dead_letter: Option<String>,
    durability: &'static str,
    deduplication_window: f64,
    publish_limit: Option<String>,
}

impl From<&QueueOptions> for OptionsAnswer {
    fn from(options: &QueueOptions) -> Self {
        // Destructured, so that a new option cannot be forgotten here.
        let QueueOptions {
            status,
            only_first_acquirer,
            request_acknowledge,
            acknowledge_timeout,
            message_timeout,
            use_message_id,
            wait_for_acknowledge,
            hide_client_names,
            message_limit,
            message_size_limit,
            tag,
            delivery_handler,
            put_back_limit,
            retry_delay,
            retry_delay_max,
            dead_letter,
            durability,
            deduplication_window,
            publish_limit,
        } = options;
        Self {
            status: status.as_str(),
            only_first_acquirer: *only_first_acquirer,
            request_acknowledge: *request_acknowledge,
            acknowledge_timeout: acknowledge_timeout.as_secs_f64(),
            message_timeout: message_timeout.as_secs_f64(),
            use_message_id: *use_message_id,
            wait_for_acknowledge: *wait_for_acknowledge,
            hide_client_names: *hide_client_names,
            message_limit: *message_limit,
            message_size_limit: *message_size_limit,
            tag: tag.as_deref().map(Into::into),
            delivery_handler: delivery_handler.as_deref().map(Into::into),
            put_back_limit: *put_back_limit,
            retry_delay: retry_delay.map(|delay| delay.as_secs_f64()),
            retry_delay_max: retry_delay_max.as_secs_f64(),
            dead_letter: dead_letter.as_ref().map(DeadLetter::to_string),
            durability: durability.as_str(),
            deduplication_window: deduplication_window.as_secs_f64(),
            publish_limit: publish_limit.map(|limit| limit.to_string()),
        }
    }
}

/// The next messages of a queue, which stay in it.
#[derive(Serialize, ToSchema)]
pub(crate) struct MessagesAnswer {
    pub(crate) queue: String,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
    pub(crate) messages: Vec<MessageAnswer>,
}

/// A message. If its body cannot be read, only the first three members are present.
#[derive(Serialize, ToSchema)]
pub(crate) struct MessageAnswer {
    /// Deliveries so far.
    pub(crate) attempts: u16,
    /// Requeues so far.
    pub(crate) put_backs: u16,
    /// Whether it is durable.
    pub(crate) saved: bool,
    #[serde(flatten)]
    pub(crate) content: Option<ContentAnswer>,
}

/// The content of a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct ContentAnswer {
    pub(crate) id: String,
    pub(crate) producer: String,
    /// Arrival in Unix milliseconds.
    pub(crate) received_ms: u64,
    pub(crate) priority: u8,
    /// Names and values. A name may occur twice.
    pub(crate) headers: Vec<(String, String)>,
    /// The size of the whole body.
    pub(crate) body_bytes: usize,
    /// Whether a rule hides the body or parts of it.
    pub(crate) masked: bool,
    /// The beginning of the body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The beginning of the body in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
}

/// A page of clients.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConnectionsAnswer {
    /// Number of all clients.
    pub(crate) total: usize,
    /// Number of clients that match the filter.
    pub(crate) matched: usize,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
    /// The longest connected first.
    pub(crate) connections: Vec<ConnectionAnswer>,
}

/// A connected client.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConnectionAnswer {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) r#type: Option<String>,
    pub(crate) protocol: &'static str,
    pub(crate) user: Option<String>,
    /// The number of the connection.
    pub(crate) connection: u64,
    pub(crate) online_seconds: f64,
}

/// Rates and contents of the broker over time.
#[derive(Serialize, ToSchema)]
pub(crate) struct TotalsAnswer {
    /// Milliseconds between two samples.
    pub(crate) step_ms: u64,
    /// The oldest first.
    pub(crate) totals: Vec<TotalsAt>,
}

/// An event of the stream.
#[derive(Serialize, ToSchema)]
pub(crate) struct TickAnswer {
    pub(crate) attention: AttentionAnswer,
    /// Samples since the previous event; in the first one, those of the last ten minutes.
    pub(crate) totals: Vec<TotalsAt>,
    /// With `topic=queues`; null while the shards do not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<Option<QueuesAnswer>>,
    /// With `topic=queue`; null while the queue does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<Option<QueueAnswer>>,
}

/// The result of a move.
#[derive(Serialize, ToSchema)]
pub(crate) struct MoveAnswer {
    pub(crate) queue: String,
    /// Messages that are durable in their new queues, or removed.
    pub(crate) moved: u64,
    /// Messages that stay, because no header names the queue that they come from.
    pub(crate) without_origin: u64,
    /// Messages that wait in the queue now.
    pub(crate) left: u64,
    /// Why not all were moved: a queue rejects a message.
    pub(crate) rejection: Option<String>,
}

/// A change of a queue that was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueChanged {
    pub(crate) queue: String,
    /// `purged`, `removed`, or the new status.
    pub(crate) result: &'static str,
}

/// A client whose connections were closed.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClientDisconnected {
    pub(crate) client: String,
}

/// The broker drains.
#[derive(Serialize, ToSchema)]
pub(crate) struct DrainAnswer {
    /// Whether this request is the first one.
    pub(crate) begun: bool,
    /// The time after which the broker ends in any case.
    pub(crate) seconds: f64,
}
