//! Decisions for Python.

use std::sync::Arc;

use mqcore_broker::model::decision::{Acknowledge, Decision as BrokerDecision, PutBack, Step};
use mqcore_broker::model::policy;
use mqcore_broker::model::policy::Policy;
use mqcore_broker::model::unique::KEY;
use mqcore_wire::tmqp::header::{self, push_header};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PyString};

use crate::message::text;

/// The answer of a delivery handler. Immutable, compared by value.
#[pyclass(frozen, eq, hash, module = "mqcore._core")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Decision {
    /// The broker's decision.
    pub(crate) decision: BrokerDecision,
    /// Header lines to add to the message.
    pub(crate) headers: Option<Arc<[u8]>>,
}

impl From<BrokerDecision> for Decision {
    fn from(decision: BrokerDecision) -> Self {
        Self { decision, headers: None }
    }
}

#[pymethods]
impl Decision {
    #[new]
    #[pyo3(signature = (allow=true, save=false, *, put_back=None, acknowledge=None, headers=None))]
    fn new(
        allow: bool,
        save: bool,
        put_back: Option<&Bound<'_, PyAny>>,
        acknowledge: Option<&Bound<'_, PyAny>>,
        headers: Option<&Bound<'_, PyMapping>>,
    ) -> PyResult<Self> {
        let put_back = put_back.map(put_back_from).transpose()?.unwrap_or_default();
        let acknowledge = acknowledge.map(acknowledge_from).transpose()?.unwrap_or_default();
        let headers = headers.map(header_lines).transpose()?.filter(|lines| !lines.is_empty());
        Ok(Self { decision: BrokerDecision { allow, save, put_back, acknowledge }, headers })
    }

    #[getter]
    fn allow(&self) -> bool {
        self.decision.allow
    }

    #[getter]
    fn save(&self) -> bool {
        self.decision.save
    }

    #[getter]
    fn put_back<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        CLASS.import(py, "mqcore.handlers", "PutBack")?.call1((put_back_str(self.decision.put_back),))
    }

    #[getter]
    fn acknowledge<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        CLASS.import(py, "mqcore.handlers", "SendAck")?.call1((acknowledge_str(self.decision.acknowledge),))
    }

    /// Headers to add to the message.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in header::pairs(self.headers.as_deref().unwrap_or_default()) {
            dict.set_item(text(py, key), text(py, value))?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let flag = |value: bool| if value { "True" } else { "False" };
        let BrokerDecision { allow, save, put_back, acknowledge } = self.decision;
        let headers = match &self.headers {
            None => String::new(),
            Some(lines) => format!(", headers={} bytes", lines.len()),
        };
        format!(
            "Decision(allow={}, save={}, put_back='{}', acknowledge='{}'{headers})",
            flag(allow),
            flag(save),
            put_back_str(put_back),
            acknowledge_str(acknowledge),
        )
    }
}

/// The headers as lines of a message.
fn header_lines(headers: &Bound<'_, PyMapping>) -> PyResult<Arc<[u8]>> {
    let mut lines = Vec::new();
    for pair in headers.items()? {
        let (key, value): (String, String) = pair.extract()?;
        if key.eq_ignore_ascii_case(KEY) {
            return Err(PyValueError::new_err(format!(
                "a handler cannot set the header {KEY}, which is checked before the handler is asked"
            )));
        }
        push_header(&mut lines, &key, value.as_bytes())
            .map_err(|broken| PyValueError::new_err(format!("header {key:?}: {broken}")))?;
    }
    Ok(lines.into())
}

const fn put_back_str(put_back: PutBack) -> &'static str {
    match put_back {
        PutBack::No => "no",
        PutBack::Start => "start",
        PutBack::End => "end",
    }
}

const fn acknowledge_str(acknowledge: Acknowledge) -> &'static str {
    match acknowledge {
        Acknowledge::None => "none",
        Acknowledge::Always => "always",
        Acknowledge::IfSaved => "if-saved",
        Acknowledge::Negative => "negative",
    }
}

fn put_back_from(value: &Bound<'_, PyAny>) -> PyResult<PutBack> {
    Ok(match word(value, "put_back")?.to_str()? {
        "no" => PutBack::No,
        "start" => PutBack::Start,
        "end" => PutBack::End,
        other => return Err(unknown("put_back", other, "'no', 'start' or 'end'")),
    })
}

fn acknowledge_from(value: &Bound<'_, PyAny>) -> PyResult<Acknowledge> {
    Ok(match word(value, "acknowledge")?.to_str()? {
        "none" => Acknowledge::None,
        "always" => Acknowledge::Always,
        "if-saved" => Acknowledge::IfSaved,
        "negative" => Acknowledge::Negative,
        other => return Err(unknown("acknowledge", other, "'none', 'always', 'if-saved' or 'negative'")),
    })
}

fn word<'a, 'py>(value: &'a Bound<'py, PyAny>, argument: &str) -> PyResult<&'a Bound<'py, PyString>> {
    value.cast::<PyString>().map_err(|_| {
        let kind = value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        pyo3::exceptions::PyTypeError::new_err(format!(
            "{argument} takes a mqcore.{}, not {kind}",
            if argument == "put_back" { "PutBack" } else { "SendAck" }
        ))
    })
}

fn unknown(argument: &str, given: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{argument} is {known}, not {given:?}"))
}

/// The predefined policy with this key.
pub(crate) fn policy_of(key: &str) -> PyResult<Policy> {
    policy::ALL.into_iter().find(|policy| policy.key == key).ok_or_else(|| {
        let known: Vec<_> = policy::ALL.iter().map(|policy| policy.key).collect();
        PyValueError::new_err(format!("unknown policy {key:?}; use one of: {}", known.join(", ")))
    })
}

/// The step with this method name.
pub(crate) fn step_of(method: &str) -> PyResult<Step> {
    Step::ALL
        .into_iter()
        .find(|step| step.method() == method)
        .ok_or_else(|| PyValueError::new_err(format!("{method:?} is not a step of a delivery")))
}

/// The decision of the predefined policy `policy` at `step`.
#[pyfunction]
#[pyo3(signature = (policy, step, *, positive=true))]
pub(crate) fn policy_decision(policy: &str, step: &str, positive: bool) -> PyResult<Decision> {
    Ok(policy_of(policy)?.decide(step_of(step)?, positive).into())
}

/// The keys of the predefined policies.
#[pyfunction]
pub(crate) fn policies() -> Vec<&'static str> {
    policy::ALL.iter().map(|policy| policy.key).collect()
}
