//! Counters of shards and handlers as plain Python values for the dataclasses of `mqcore.broker`.

use std::time::Duration;

use mqcore_broker::model::options::QueueOptions;
use mqcore_broker::model::rejection::RejectReason;
use mqcore_broker::model::router::{Binding, RouterDefinition};
use mqcore_broker::model::stats::{
    ChannelInformation, ClientInformation, DropReason, QueueInformation, QueueStats, RouterCounts,
    ShardStats, TopicInformation,
};
use mqcore_broker::spans::Span;
use mqcore_server::schedules::ScheduleView;
use mqcore_server::server::ListenerCertificate;
use mqcore_server::stats::failures::RequestFailure;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::load::Counts;

/// The snapshot, with the field names of the dataclasses.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    survey: &ShardStats,
    handlers: &[(Box<str>, Counts)],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("channels", each(&survey.channels, |channel| channel_dict(py, channel))?)?;
    dict.set_item("queues", each(&survey.queues, |queue| queue_dict(py, queue))?)?;
    dict.set_item("clients", each(&survey.clients, |client| client_dict(py, client))?)?;
    dict.set_item("handlers", each(handlers, |handler| handler_dict(py, handler))?)?;
    dict.set_item("refused", survey.refused)?;
    dict.set_item("unknown_acks", survey.unknown_acks)?;
    dict.set_item("questions_open", survey.questions_open)?;
    dict.set_item("answers_late", survey.answers_late)?;
    dict.set_item("routers", each(&survey.routers, |router| router_dict(py, router, survey))?)?;
    dict.set_item("topics", each(&survey.topics, |topic| topic_dict(py, topic))?)?;
    Ok(dict)
}

fn each<'py, T>(
    items: &[T],
    dict: impl Fn(&T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    items.iter().map(dict).collect()
}

fn router_dict<'py>(
    py: Python<'py>,
    router: &RouterDefinition,
    survey: &ShardStats,
) -> PyResult<Bound<'py, PyDict>> {
    let counts = survey.router_counts.iter().find(|(name, _)| *name == router.name);
    let counts = counts.map(|(_, counts)| counts.clone()).unwrap_or_default();
    let dict = PyDict::new(py);
    dict.set_item("name", router.name.as_str())?;
    dict.set_item("method", router.method.as_str())?;
    dict.set_item("enabled", router.enabled)?;
    dict.set_item("bindings", each(&router.bindings, |binding| binding_dict(py, binding, &counts))?)?;
    dict.set_item("received", counts.received)?;
    dict.set_item("routed", counts.routed)?;
    dict.set_item("unrouted", counts.dropped_no_consumer)?;
    dict.set_item("errors", counts.errors)?;
    Ok(dict)
}

fn binding_dict<'py>(
    py: Python<'py>,
    binding: &Binding,
    counts: &RouterCounts,
) -> PyResult<Bound<'py, PyDict>> {
    let found = counts.bindings.iter().find(|(name, _)| *name == binding.name);
    let counts = found.map(|(_, counts)| *counts).unwrap_or_default();
    let dict = PyDict::new(py);
    dict.set_item("name", &*binding.name)?;
    dict.set_item("target", binding.target.to_string())?;
    dict.set_item("priority", binding.priority)?;
    dict.set_item("taken", counts.taken)?;
    dict.set_item("refused", counts.refused)?;
    Ok(dict)
}

fn topic_dict<'py>(py: Python<'py>, topic: &TopicInformation) -> PyResult<Bound<'py, PyDict>> {
    let dropped = PyDict::new(py);
    dropped.set_item("no-consumer", topic.stats.dropped_no_consumer)?;
    dropped.set_item("slow", topic.stats.dropped_slow)?;
    let dict = PyDict::new(py);
    dict.set_item("name", topic.topic.to_string())?;
    dict.set_item("subscribers", topic.subscribers)?;
    dict.set_item("queues", topic.queues)?;
    dict.set_item("published", topic.stats.published)?;
    dict.set_item("published_bytes", topic.stats.published_bytes)?;
    dict.set_item("delivered", topic.stats.delivered)?;
    dict.set_item("copied", topic.stats.copied)?;
    dict.set_item("dropped", dropped)?;
    Ok(dict)
}

fn channel_dict<'py>(py: Python<'py>, channel: &ChannelInformation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", channel.channel.as_str())?;
    dict.set_item("queues", &channel.queues)?;
    dict.set_item("clients", channel.active_clients)?;
    Ok(dict)
}

pub(crate) fn queue_dict<'py>(py: Python<'py>, queue: &QueueInformation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("address", queue.queue.to_string())?;
    dict.set_item("options", options_dict(py, &queue.options)?)?;
    dict.set_item("high_priority", queue.high_priority)?;
    dict.set_item("normal", queue.normal)?;
    dict.set_item("missing_handler", queue.missing_handler.as_deref())?;
    dict.set_item("consumers", queue.consumers)?;
    dict.set_item("delayed", queue.delayed)?;
    let next = queue.next_attempt_ms;
    dict.set_item("next_attempt", (next > 0).then(|| Duration::from_millis(next).as_secs_f64()))?;
    dict.set_item("in_flight", queue.in_flight)?;
    dict.set_item("undecided", queue.undecided)?;
    dict.set_item("unsettled", queue.unsettled)?;
    dict.set_item("memory_bytes", queue.memory_bytes)?;
    counters(&dict, &queue.stats)?;
    Ok(dict)
}

fn options_dict<'py>(py: Python<'py>, options: &QueueOptions) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    // generated by tools/generate_options.py
    dict.set_item("status", options.status.as_str())?;
    dict.set_item("only_first_acquirer", options.only_first_acquirer)?;
    dict.set_item("request_acknowledge", options.request_acknowledge)?;
    dict.set_item("acknowledge_timeout", options.acknowledge_timeout.as_secs_f64())?;
    dict.set_item("message_timeout", options.message_timeout.as_secs_f64())?;
    dict.set_item("use_message_id", options.use_message_id)?;
    dict.set_item("wait_for_acknowledge", options.wait_for_acknowledge)?;
    dict.set_item("hide_client_names", options.hide_client_names)?;
    dict.set_item("message_limit", options.message_limit)?;
    dict.set_item("message_size_limit", options.message_size_limit)?;
    dict.set_item("tag", options.tag.as_deref())?;
    dict.set_item("delivery_handler", options.delivery_handler.as_deref())?;
    dict.set_item("put_back_limit", options.put_back_limit)?;
    dict.set_item("retry_delay", options.retry_delay.as_ref().map(Duration::as_secs_f64))?;
    dict.set_item("retry_delay_max", options.retry_delay_max.as_secs_f64())?;
    dict.set_item("dead_letter", options.dead_letter.as_ref().map(ToString::to_string))?;
    dict.set_item("durability", options.durability.as_str())?;
    dict.set_item("deduplication_window", options.deduplication_window.as_secs_f64())?;
    dict.set_item("publish_limit", options.publish_limit.as_ref().map(ToString::to_string))?;
    // end generated
    Ok(dict)
}

fn counters(dict: &Bound<'_, PyDict>, stats: &QueueStats) -> PyResult<()> {
    dict.set_item("received", stats.received)?;
    dict.set_item("rejected", stats.rejected)?;
    let rejected = PyDict::new(dict.py());
    for reason in RejectReason::ALL {
        rejected.set_item(reason.as_str(), stats.rejected_by[reason as usize])?;
    }
    dict.set_item("rejected_by", rejected)?;
    dict.set_item("sent", stats.sent)?;
    dict.set_item("deliveries", stats.deliveries)?;
    dict.set_item("acks", stats.acks)?;
    dict.set_item("negative_acks", stats.negative_acks)?;
    dict.set_item("timed_out", stats.timed_out)?;
    dict.set_item("saved", stats.saved)?;
    dict.set_item("save_failed", stats.save_failed)?;
    dict.set_item("removed", stats.removed)?;
    dict.set_item("put_back", stats.requeued)?;
    dict.set_item("dead_lettered", stats.dead_lettered)?;
    dict.set_item("moved", stats.moved)?;
    dict.set_item("errors", stats.errors)?;
    let dropped = PyDict::new(dict.py());
    for reason in DropReason::ALL {
        dropped.set_item(reason.as_str(), stats.dropped[reason as usize])?;
    }
    dict.set_item("dropped", dropped)
}

/// A failed request, with the field names of `mqcore.admin.FailedRequest`.
pub(crate) fn failure_dict<'py>(py: Python<'py>, failure: &RequestFailure) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", &failure.error)?;
    dict.set_item("request", &failure.request)?;
    dict.set_item("why", &failure.why)?;
    dict.set_item("at_ms", failure.at.0)?;
    dict.set_item("client", &failure.client)?;
    dict.set_item("connection", failure.connection.0)?;
    dict.set_item("protocol", failure.protocol)?;
    Ok(dict)
}

pub(crate) fn certificate_dict<'py>(
    py: Python<'py>,
    certificate: ListenerCertificate,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("listener", certificate.url)?;
    dict.set_item("subject", certificate.subject)?;
    dict.set_item("names", certificate.names)?;
    dict.set_item("fingerprint", certificate.fingerprint)?;
    dict.set_item("not_after", certificate.not_after)?;
    dict.set_item("expires_in", certificate.expires_in)?;
    Ok(dict)
}

pub(crate) fn span_dicts<'py>(py: Python<'py>, spans: &[Span]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    spans.iter().map(|span| span_dict(py, span)).collect()
}

fn span_dict<'py>(py: Python<'py>, span: &Span) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("trace_id", u128::from_be_bytes(span.context.trace))?;
    dict.set_item("parent_id", u64::from_be_bytes(span.context.span))?;
    dict.set_item("kind", span.kind.as_str())?;
    dict.set_item("queue", span.queue.to_string())?;
    dict.set_item("message_id", String::from_utf8_lossy(&span.message_id))?;
    dict.set_item("attempt", span.attempt)?;
    dict.set_item("start_micros", span.start_micros)?;
    dict.set_item("end_micros", span.end_micros)?;
    dict.set_item("subject", &*span.subject)?;
    dict.set_item("outcome", span.outcome)?;
    dict.set_item("failure", span.failure.as_deref())?;
    Ok(dict)
}

pub(crate) fn schedule_dict<'py>(py: Python<'py>, schedule: &ScheduleView) -> PyResult<Bound<'py, PyDict>> {
    let (cron, timezone) = schedule.cron.as_ref().map(|(cron, timezone)| (cron, timezone)).unzip();
    let dict = PyDict::new(py);
    dict.set_item("id", schedule.id.to_string())?;
    dict.set_item("queue", &schedule.queue)?;
    dict.set_item("headers", &schedule.headers)?;
    dict.set_item("job", &schedule.job)?;
    dict.set_item("interval_ms", schedule.interval_ms)?;
    dict.set_item("cron", cron)?;
    dict.set_item("timezone", timezone)?;
    dict.set_item("catch_up", schedule.catch_up)?;
    dict.set_item("due_ms", schedule.due_ms)?;
    dict.set_item("runs", schedule.runs)?;
    dict.set_item("left", schedule.left)?;
    Ok(dict)
}

fn client_dict<'py>(py: Python<'py>, client: &ClientInformation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", &*client.client.id)?;
    dict.set_item("name", client.client.name.as_deref())?;
    dict.set_item("kind", client.client.kind.as_deref())?;
    dict.set_item("admin", client.client.admin)?;
    dict.set_item("online", std::time::Duration::from_millis(client.online_ms).as_secs_f64())?;
    Ok(dict)
}

fn handler_dict<'py>(py: Python<'py>, (key, counts): &(Box<str>, Counts)) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("key", &**key)?;
    dict.set_item("asked", counts.asked)?;
    dict.set_item("failed", counts.failed)?;
    dict.set_item("refused", counts.refused)?;
    dict.set_item("waiting", counts.waiting)?;
    Ok(dict)
}
