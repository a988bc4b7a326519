//! `GET /policies`: options for queues that match a pattern; `POST /policies/NAME` sets a policy; `DELETE /policies/NAME`
//! removes one.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::command::Request;
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::options::{DeadLetter, Durability, QueueChanges, Status};
use mqcore_broker::model::queue_policy::{PolicyReport, QueuePattern, QueuePolicy, check_text};
use mqcore_broker::model::rate::Rate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::changes::{Body, carry_out_everywhere, may_publish, no_result};
use crate::admin::request::{Admin, Operator, PathText, bad_request, error};

/// Policies.
#[derive(Serialize, ToSchema)]
pub(crate) struct PoliciesAnswer {
    /// In the order in which they apply. Later ones replace options of earlier ones.
    policies: Vec<PolicyAnswer>,
}

/// Options for all queues that match a pattern.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyAnswer {
    name: String,
    /// The address of a queue, or the beginning of addresses with `*` behind it.
    pattern: String,
    /// Of several policies for a queue, that with the highest priority sets an option.
    priority: i32,
    /// The options that it sets.
    options: QueueOptionsBody,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyBody {
    /// The address of a queue, or the beginning of addresses with `*` behind it, such as `logs/*`.
    pattern: String,
    /// Of several policies for a queue, that with the highest priority sets an option (0).
    #[serde(default)]
    priority: i32,
    /// The options that it sets.
    options: QueueOptionsBody,
}

/// A policy is set.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyChanged {
    policy: String,
    /// Number of queues that have its options now.
    changed: u64,
    /// Queues that cannot have its options; the first 20 of each shard.
    rejected: Vec<RejectedQueue>,
    /// Number of all queues that cannot have its options.
    rejected_total: u64,
}

/// A queue that cannot have the options of a policy.
#[derive(Serialize, ToSchema)]
pub(crate) struct RejectedQueue {
    queue: String,
    why: String,
}

/// A policy is removed.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyRemoved {
    removed: String,
}

#[utoipa::path(
    get,
    path = "/policies",
    tag = "queues",
    responses(
        (status = 200, description = "Policies, in the order in which they apply", body = PoliciesAnswer),
    )
)]
pub(crate) async fn list(State(admin): State<Admin>) -> Result<Response, Response> {
    // A change that was interrupted may have reached some shards only.
    let mut policies: Vec<QueuePolicy> = Vec::new();
    for answer in carry_out_everywhere(&admin, &Request::ListPolicies).await {
        let Reply::Policies(found) = answer? else {
            return Err(no_result("the list has no result; repeat it"));
        };
        let is_new = |policy: &QueuePolicy| !policies.iter().any(|known| known.name == policy.name);
        let more: Vec<_> = found.into_iter().filter(is_new).collect();
        policies.extend(more);
    }
    policies.sort_by(|one, other| (one.priority, &one.name).cmp(&(other.priority, &other.name)));
    let policies = policies.iter().map(|policy| PolicyAnswer {
        name: policy.name.to_string(),
        pattern: policy.pattern.to_string(),
        priority: policy.priority,
        options: (&policy.options).into(),
    });
    Ok(Json(PoliciesAnswer { policies: policies.collect() }).into_response())
}

#[utoipa::path(
    post,
    path = "/policies/{name}",
    tag = "queues",
    params(("name" = String, Path, description = "The name of the policy")),
    request_body = PolicyBody,
    responses(
        (status = 200, description = "The policy is set, and applied to the queues that match it", body = PolicyChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "Its dead-letter queue does not exist", body = ErrorAnswer),
        (status = 409, description = "There are too many policies", body = ErrorAnswer),
    )
)]
pub(crate) async fn set(
    State(admin): State<Admin>,
    operator: Operator,
    PathText(name): PathText,
    Body(body): Body<PolicyBody>,
) -> Result<Response, Response> {
    check_text(&name).map_err(|refused| bad_request(&format!("the name {name:?}: {refused}")))?;
    let pattern = QueuePattern::new(&body.pattern)
        .map_err(|refused| bad_request(&format!("the pattern {:?}: {refused}", body.pattern)))?;
    let options = body.options.changes().map_err(|refused| bad_request(&refused))?;
    if options == QueueChanges::default() {
        return Err(bad_request("the policy sets no options"));
    }
    if let Some(status @ (Status::Stopped | Status::Cache)) = options.status {
        return Err(bad_request(&format!(
            "a policy cannot set the status {}, which erases messages; change it queue by queue",
            status.as_str()
        )));
    }
    if let Some(Some(DeadLetter::Queue(to))) = &options.dead_letter {
        may_publish(&admin, &operator, to).await?;
    }
    let policy = QueuePolicy { name: name.as_str().into(), pattern, priority: body.priority, options };
    let mut answer = PolicyChanged { policy: name, changed: 0, rejected: Vec::new(), rejected_total: 0 };
    let answers = carry_out_everywhere(&admin, &Request::SetPolicy(Box::new(policy))).await;
    for reply in everywhere(answers)? {
        let Reply::Policy(report) = reply else {
            return Err(no_result("the change has no result; repeat it"));
        };
        let PolicyReport { changed, rejected, unlisted } = *report;
        answer.changed += changed;
        answer.rejected_total += rejected.len() as u64 + unlisted;
        let rejected = rejected.into_iter();
        answer.rejected.extend(rejected.map(|(queue, why)| RejectedQueue { queue: queue.to_string(), why }));
    }
    Ok(Json(answer).into_response())
}

#[utoipa::path(
    delete,
    path = "/policies/{name}",
    tag = "queues",
    params(("name" = String, Path, description = "The name of the policy")),
    responses(
        (status = 200, description = "The policy is removed, and queues keep their options", body = PolicyRemoved),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn remove(
    State(admin): State<Admin>,
    PathText(name): PathText,
) -> Result<Response, Response> {
    let request = Request::RemovePolicy { name: name.as_str().into() };
    let mut answers = carry_out_everywhere(&admin, &request).await;
    // After a change that was interrupted, some shards may not have had it.
    if answers.iter().any(Result::is_ok) {
        answers.retain(|answer| !answer.as_ref().is_err_and(|error| error.status() == StatusCode::NOT_FOUND));
    }
    everywhere(answers)?;
    Ok(Json(PolicyRemoved { removed: name }).into_response())
}

/// The answers of all shards. If only some have made a change, the error has their number.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
fn everywhere(answers: Vec<Result<Reply, Response>>) -> Result<Vec<Reply>, Response> {
    let (all, made) = (answers.len(), answers.iter().filter(|answer| answer.is_ok()).count());
    if made > 0 && made < all {
        let message =
            format!("{made} of {all} shards have made the change; repeat it when no journal rejects records");
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, "busy", &message));
    }
    answers.into_iter().collect()
}

fn status(name: &str, value: Option<String>) -> Result<Option<Status>, String> {
    let read = |text: String| {
        Status::from_text(&text).ok_or_else(|| unknown(name, &text, Status::ALL.map(Status::as_str)))
    };
    value.map(read).transpose()
}

fn durability(name: &str, value: Option<String>) -> Result<Option<Durability>, String> {
    let read = |text: String| {
        Durability::from_text(&text)
            .ok_or_else(|| unknown(name, &text, Durability::ALL.map(Durability::as_str)))
    };
    value.map(read).transpose()
}

fn unknown<const COUNT: usize>(name: &str, text: &str, known: [&'static str; COUNT]) -> String {
    format!("{name}: {text:?} does not exist; use one of {}", known.join(", "))
}

fn duration(name: &str, seconds: Option<f64>) -> Result<Option<Duration>, String> {
    let read = |seconds| match Duration::try_from_secs_f64(seconds) {
        // The journal has milliseconds of 64 bits.
        Ok(duration) if u64::try_from(duration.as_millis()).is_ok() => Ok(duration),
        Ok(_) => Err(format!("{name}: {seconds} s is too long")),
        Err(refused) => Err(format!("{name}: {refused}")),
    };
    seconds.map(read).transpose()
}

fn delay(name: &str, seconds: Option<f64>) -> Result<Option<Option<Duration>>, String> {
    duration(name, seconds).map(|delay| delay.map(Some))
}

/// Empty text removes it, so that failed messages go to the dead-letter queue of their channel.
fn dead_letter(name: &str, value: Option<String>) -> Result<Option<Option<DeadLetter>>, String> {
    let read = |text: String| match text.as_str() {
        "" => Ok(None),
        text => DeadLetter::parse(text).map(Some).map_err(|refused| format!("{name}: {text:?}: {refused}")),
    };
    value.map(read).transpose()
}

/// Empty text and `none` remove it.
fn rate(name: &str, value: Option<String>) -> Result<Option<Option<Rate>>, String> {
    let read = |text: String| match text.as_str() {
        "" | "none" => Ok(None),
        text => text.parse().map(Some).map_err(|refused| format!("{name}: {refused}")),
    };
    value.map(read).transpose()
}

fn text(name: &str, value: Option<String>) -> Result<Option<Box<str>>, String> {
    let read = |text: String| match check_text(&text) {
        Ok(()) => Ok(text.into()),
        Err(refused) => Err(format!("{name}: {text:?}: {refused}")),
    };
    value.map(read).transpose()
}

// generated by tools/generate_options.py
/// Options of queues. Times are seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QueueOptionsBody {
    /// How the queue delivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Deliver each message to the first free consumer only.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_first_acquirer: Option<bool>,
    /// Consumers must acknowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_acknowledge: Option<bool>,
    /// Time to acknowledge a delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledge_timeout: Option<f64>,
    /// How long a message may wait; 0: forever.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_timeout: Option<f64>,
    /// Assign ids to messages that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    use_message_id: Option<bool>,
    /// Deliver a message only after the previous one is acknowledged or timed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_for_acknowledge: Option<bool>,
    /// Hide the producer's identity from consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    hide_client_names: Option<bool>,
    /// Maximum number of stored messages; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_limit: Option<u64>,
    /// Maximum size of a body; 0: limited by the frame only.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_size_limit: Option<u64>,
    /// Label for people; shown in queue information.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Handler or ready-made policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_handler: Option<String>,
    /// How often a message may be requeued before it is dead-lettered or dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    put_back_limit: Option<u16>,
    /// Delay before a rejected or timed-out message is redelivered; it doubles with every requeue.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_delay: Option<f64>,
    /// Maximum delay before a redelivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_delay_max: Option<f64>,
    /// Queue for messages that were requeued too often or waited too long; drop: drop them.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<String>,
    /// When a message counts as saved: at once, handed to the operating system, or on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<String>,
    /// Time in which a message with the id of an accepted one is a duplicate; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplication_window: Option<f64>,
    /// Publish rate of all producers together, such as 100/s; none: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    publish_limit: Option<String>,
}

impl QueueOptionsBody {
    fn changes(self) -> Result<QueueChanges, String> {
        Ok(QueueChanges {
            status: status("status", self.status)?,
            only_first_acquirer: self.only_first_acquirer,
            request_acknowledge: self.request_acknowledge,
            acknowledge_timeout: duration("acknowledge_timeout", self.acknowledge_timeout)?,
            message_timeout: duration("message_timeout", self.message_timeout)?,
            use_message_id: self.use_message_id,
            wait_for_acknowledge: self.wait_for_acknowledge,
            hide_client_names: self.hide_client_names,
            message_limit: self.message_limit,
            message_size_limit: self.message_size_limit,
            tag: text("tag", self.tag)?,
            delivery_handler: text("delivery_handler", self.delivery_handler)?,
            put_back_limit: self.put_back_limit,
            retry_delay: delay("retry_delay", self.retry_delay)?,
            retry_delay_max: duration("retry_delay_max", self.retry_delay_max)?,
            dead_letter: dead_letter("dead_letter", self.dead_letter)?,
            durability: durability("durability", self.durability)?,
            deduplication_window: duration("deduplication_window", self.deduplication_window)?,
            publish_limit: rate("publish_limit", self.publish_limit)?,
        })
    }
}

impl From<&QueueChanges> for QueueOptionsBody {
    fn from(changes: &QueueChanges) -> Self {
        Self {
            status: changes.status.map(|value| value.as_str().to_owned()),
            only_first_acquirer: changes.only_first_acquirer,
            request_acknowledge: changes.request_acknowledge,
            acknowledge_timeout: changes.acknowledge_timeout.map(|value| value.as_secs_f64()),
            message_timeout: changes.message_timeout.map(|value| value.as_secs_f64()),
            use_message_id: changes.use_message_id,
            wait_for_acknowledge: changes.wait_for_acknowledge,
            hide_client_names: changes.hide_client_names,
            message_limit: changes.message_limit,
            message_size_limit: changes.message_size_limit,
            tag: changes.tag.as_deref().map(Into::into),
            delivery_handler: changes.delivery_handler.as_deref().map(Into::into),
            put_back_limit: changes.put_back_limit,
            retry_delay: changes.retry_delay.flatten().map(|value| value.as_secs_f64()),
            retry_delay_max: changes.retry_delay_max.map(|value| value.as_secs_f64()),
            dead_letter: changes
                .dead_letter
                .as_ref()
                .map(|value| value.as_ref().map_or_else(String::new, ToString::to_string)),
            durability: changes.durability.map(|value| value.as_str().to_owned()),
            deduplication_window: changes.deduplication_window.map(|value| value.as_secs_f64()),
            publish_limit: changes
                .publish_limit
                .as_ref()
                .map(|value| value.as_ref().map_or_else(String::new, ToString::to_string)),
        }
    }
}
// end generated
