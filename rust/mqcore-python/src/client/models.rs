//! Converts the client's results to the dataclasses of `mqcore.client.models`.

use mqcore_client::client::{ClientState, ClientStats};
use mqcore_client::event::{Event, Subject};
use mqcore_client::models::{
    Binding, ChannelInformation, ClientInformation, Interaction, NodeInformation, QueueInformation,
    RouteMethod, RouterInformation, RouterStep, RouterTest,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// A result with a Python dataclass.
pub(super) trait Model {
    /// The dataclass with these values.
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

/// A result that becomes a dataclass when Python gets it.
pub(super) struct Modelled<T>(pub(super) T);

impl<'py, T: Model> IntoPyObject<'py> for Modelled<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        self.0.to_python(py)
    }
}

impl<T: Model> Model for Vec<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let list = pyo3::types::PyList::empty(py);
        for each in self {
            list.append(each.to_python(py)?)?;
        }
        Ok(list.into_any())
    }
}

/// Calls a dataclass, which is imported once, with fields by name.
macro_rules! dataclass {
    ($py:ident, $module:literal, $name:literal, { $($field:ident: $value:expr),* $(,)? }) => {{
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let fields = PyDict::new($py);
        $(fields.set_item(pyo3::intern!($py, stringify!($field)), $value)?;)*
        CLASS.import($py, $module, $name)?.call((), Some(&fields))
    }};
    ($py:ident, $name:literal, $fields:tt) => { dataclass!($py, "mqcore.client.models", $name, $fields) };
}

impl Model for ChannelInformation {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let allowed = self.allowed_queues.as_ref().map(|queues| PyTuple::new(py, queues)).transpose()?;
        dataclass!(py, "ChannelInformation", {
            name: &self.name,
            queues: PyTuple::new(py, &self.queues)?,
            allow_multiple_queues: self.allow_multiple_queues,
            allowed_queues: allowed,
            only_first_acquirer: self.only_first_acquirer,
            request_acknowledge: self.request_acknowledge,
            acknowledge_timeout: seconds(self.acknowledge_timeout),
            message_timeout: seconds(self.message_timeout),
            use_message_id: self.use_message_id,
            wait_for_acknowledge: self.wait_for_acknowledge,
            hide_client_names: self.hide_client_names,
            active_clients: self.active_clients,
            client_limit: self.client_limit,
            queue_limit: self.queue_limit,
            destroy_when_empty: self.destroy_when_empty,
        })
    }
}

impl Model for QueueInformation {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "QueueInformation", {
            channel: &self.channel,
            id: self.id,
            tag_name: self.tag_name.as_deref(),
            status: &self.status,
            priority_messages: self.priority_messages,
            messages: self.messages,
            only_first_acquirer: self.only_first_acquirer,
            request_acknowledge: self.request_acknowledge,
            acknowledge_timeout: seconds(self.acknowledge_timeout),
            message_timeout: seconds(self.message_timeout),
            use_message_id: self.use_message_id,
            wait_for_acknowledge: self.wait_for_acknowledge,
            hide_client_names: self.hide_client_names,
            received_messages: self.received_messages,
            sent_messages: self.sent_messages,
            deliveries: self.deliveries,
            acks: self.acks,
            negative_acks: self.negative_acks,
            timeout_messages: self.timeout_messages,
            saved_messages: self.saved_messages,
            removed_messages: self.removed_messages,
            errors: self.errors,
            last_message_received: instant(self.last_message_received),
            last_message_sent: instant(self.last_message_sent),
            message_limit: self.message_limit,
            message_size_limit: self.message_size_limit,
            publish_limit: self.publish_limit.as_deref(),
        })
    }
}

impl Model for ClientInformation {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "ClientInformation", {
            id: &self.id,
            name: self.name.as_deref(),
            kind: self.kind.as_deref(),
            online: seconds(self.online),
            is_authenticated: self.is_authenticated,
        })
    }
}

impl Model for NodeInformation {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "NodeInformation", {
            id: &self.id,
            name: &self.name,
            host: &self.host,
            downstream: self.downstream,
            connected: self.connected,
            lifetime: seconds(self.lifetime),
        })
    }
}

impl Model for RouterInformation {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "RouterInformation", {
            name: &self.name,
            method: route_method(py, self.method)?,
            enabled: self.is_enabled,
        })
    }
}

impl Model for Binding {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Its constructor parses the names of enums.
        dataclass!(py, "mqcore.config", "Binding", {
            target: &self.target,
            name: self.name.as_deref(),
            priority: self.priority,
            interaction: self.interaction.as_str(),
            content_type: self.content_type,
            method: self.method.as_str(),
        })
    }
}

impl Model for RouterTest {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let steps: PyResult<Vec<_>> = self.steps.iter().map(|step| step.to_python(py)).collect();
        dataclass!(py, "RouterTest", {
            method: route_method(py, self.method)?,
            taken: self.taken,
            refusal: self.refusal.as_deref(),
            steps: PyTuple::new(py, steps?)?,
            skipped: PyTuple::new(py, &self.skipped)?,
        })
    }
}

impl Model for RouterStep {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "RouterStep", {
            binding: self.binding.as_deref(),
            target: &self.target,
            takes: self.takes,
            why: &self.why,
        })
    }
}

impl Model for ClientState {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let status = self.as_str();
        match self {
            Self::Connecting { attempt } => dataclass!(py, "State", { status: status, attempt: attempt }),
            Self::Connected { address, client_id } => {
                dataclass!(py, "State", { status: status, address: &**address, client_id: &**client_id })
            }
            Self::Waiting { cause, attempt, retry_in } => dataclass!(py, "State", {
                status: status,
                cause: &**cause,
                attempt: attempt,
                retry_in: retry_in.as_secs_f64(),
            }),
            Self::Closed { cause } => dataclass!(py, "State", { status: status, cause: &**cause }),
            _ => dataclass!(py, "State", { status: status }),
        }
    }
}

impl Model for ClientStats {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dataclass!(py, "ClientCounters", {
            connects: self.connects,
            unclaimed: self.unclaimed,
            unclaimed_direct: self.unclaimed_direct,
            stale_settlements: self.stale_settlements,
            stale_discarded: self.stale_discarded,
            dropped_events: self.dropped_events,
            late_answers: self.late_answers,
            refused_unconfirmed: self.refused_unconfirmed,
            late_pulled: self.late_pulled,
        })
    }
}

impl Model for Event {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (kind, channel, queue) = (self.kind.as_str(), self.channel.as_deref(), self.queue);
        match &self.subject {
            Subject::Client { id, name, kind: program } => dataclass!(py, "Event", {
                kind: kind, channel: channel, queue: queue,
                client_id: id, client_name: name.as_deref(), client_kind: program.as_deref(),
            }),
            Subject::Channel { active_clients, client_limit, .. } => dataclass!(py, "Event", {
                kind: kind, channel: channel, queue: queue,
                active_clients: active_clients, client_limit: client_limit,
            }),
            Subject::Queue { tag, status, high_priority, normal } => dataclass!(py, "Event", {
                kind: kind, channel: channel, queue: queue,
                tag: tag.as_deref(), status: status, priority_messages: high_priority, messages: normal,
            }),
            Subject::Message { id, saved, producer } => dataclass!(py, "Event", {
                kind: kind, channel: channel, queue: queue,
                message_id: id, saved: saved, producer_id: producer.as_deref(),
            }),
        }
    }
}

/// Reads a `mqcore.Binding`.
pub(super) fn binding(binding: &Bound<'_, PyAny>) -> PyResult<Binding> {
    let word = |name: &str| binding.getattr(name)?.extract::<String>();
    let (method, interaction) = (word("method")?, word("interaction")?);
    Ok(Binding {
        name: binding.getattr("name")?.extract()?,
        target: word("target")?,
        priority: binding.getattr("priority")?.extract()?,
        interaction: Interaction::ALL
            .into_iter()
            .find(|each| each.as_str() == interaction)
            .unwrap_or_default(),
        content_type: binding.getattr("content_type")?.extract()?,
        method: RouteMethod::ALL.into_iter().find(|each| each.as_str() == method).unwrap_or_default(),
    })
}

/// The `mqcore.RouteMethod`.
fn route_method(py: Python<'_>, method: RouteMethod) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "mqcore.config", "RouteMethod")?.call1((method.as_str(),))
}

/// Seconds of milliseconds, as Python divides them.
#[allow(clippy::cast_precision_loss, reason = "exact up to 285,000 years")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Unix seconds; the broker's 0 means never.
fn instant(unix_ms: u64) -> Option<f64> {
    (unix_ms != 0).then(|| seconds(unix_ms))
}
