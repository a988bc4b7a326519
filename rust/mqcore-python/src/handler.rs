//! Calls the overridden methods of a delivery handler written in Python, and reads their answers.

use std::sync::Arc;

use mqcore_broker::model::decision::{Decision as BrokerDecision, Step, Steps};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::router::Binding;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PySequence, PyString};

use crate::call::{Call, CallContext};
use crate::decision::{Decision, step_of};
use crate::message_batch::{Decisions, MessageBatch, decisions};
use crate::routing;
use crate::view::QueueView;

/// The method that decides about several messages at once. It is not a step of its own.
const RECEIVED_MANY: &str = "received_many";

/// The user's handler, with all methods looked up at registration.
pub(crate) struct Handler {
    /// `module.Class`, for errors.
    name: Box<str>,
    /// The overridden bound methods by step number.
    methods: [Option<Py<PyAny>>; Step::ALL.len()],
    /// The method that decides about messages that arrived together, instead of `received_from_producer`.
    many: Option<Py<PyAny>>,
}

/// The answer of a method.
pub(crate) struct Verdict {
    pub(crate) decision: BrokerDecision,
    /// The targets of a router.
    pub(crate) targets: Option<Box<[Binding]>>,
    /// Header lines to add to the message.
    pub(crate) headers: Option<Arc<[u8]>>,
}

impl From<Decision> for Verdict {
    fn from(Decision { decision, headers }: Decision) -> Self {
        Self { headers, ..Self::from(decision) }
    }
}

impl From<BrokerDecision> for Verdict {
    fn from(decision: BrokerDecision) -> Self {
        Self { decision, targets: None, headers: None }
    }
}

/// The result of a call.
pub(crate) enum CallOutcome {
    /// An answer; any exception is handled.
    Decided(Verdict),
    /// An exception without a decision of `exception_thrown`.
    Failed(PyErr),
    /// An awaitable for the answer, and its step.
    Waiting(Step, Py<PyAny>, CallContext),
}

impl Handler {
    /// `methods` are the overridden methods, each with its step's name.
    pub(crate) fn new(name: &str, methods: Vec<(String, Py<PyAny>)>) -> PyResult<Self> {
        let mut table = [const { None }; Step::ALL.len()];
        let mut many = None;
        for (step, method) in methods {
            if step == RECEIVED_MANY {
                many = Some(method);
            } else {
                table[step_of(&step)? as usize] = Some(method);
            }
        }
        Ok(Self { name: name.into(), methods: table, many })
    }

    /// The steps that are overridden.
    pub(crate) fn overrides(&self) -> Steps {
        Step::ALL
            .into_iter()
            .filter(|step| self.methods[*step as usize].is_some() || self.decides_many(*step))
            .fold(Steps::NONE, Steps::with)
    }

    /// Whether it decides a step for several messages at once.
    pub(crate) fn decides_many(&self, step: Step) -> bool {
        step == Step::ReceivedFromProducer && self.many.is_some()
    }

    /// Calls the method of the call's step.
    pub(crate) fn answer(&self, py: Python<'_>, call: Call) -> CallOutcome {
        let Call { step, arguments, about } = call;
        let Some(method) = &self.methods[step as usize] else {
            // The question was for a handler that this one has replaced.
            let name = &self.name;
            return CallOutcome::Failed(PyTypeError::new_err(format!(
                "{name} does not decide {}",
                step.method()
            )));
        };
        match method.bind(py).call1(arguments.into_bound(py)).and_then(|result| self.read(step, result)) {
            Ok(Reading::Answer(verdict)) => CallOutcome::Decided(verdict),
            Ok(Reading::Awaitable(awaitable)) => CallOutcome::Waiting(step, awaitable.unbind(), about),
            Err(exception) => self.exception_thrown(py, exception, about),
        }
    }

    /// Calls `received_many` for messages of one queue. Returns a verdict for each, in order.
    pub(crate) fn answer_many(
        &self,
        py: Python<'_>,
        queue: &Py<QueueView>,
        messages: Vec<Message>,
    ) -> PyResult<Vec<Verdict>> {
        let count = messages.len();
        let Some(method) = &self.many else {
            return Err(PyTypeError::new_err(format!("{} has no {RECEIVED_MANY}", self.name)));
        };
        let result = method.bind(py).call1((queue, MessageBatch::new(messages)))?;
        if let Ok(one) = result.cast::<Decision>() {
            return Ok((0..count).map(|_| one.get().clone().into()).collect());
        }
        let verdicts: Vec<Verdict> = if let Ok(decisions) = result.cast::<Decisions>() {
            let Decisions { choices, index } = decisions.get();
            index.iter().map(|place| choices[usize::from(*place)].clone().into()).collect()
        } else if let Ok(sequence) = result.cast::<PySequence>() {
            decisions(sequence)?.into_iter().map(Verdict::from).collect()
        } else {
            let given = result.repr()?;
            return Err(PyTypeError::new_err(format!(
                "{}.{RECEIVED_MANY} returned {given}, not a mqcore.Decision, a sequence of them, or mqcore.Decisions",
                self.name
            )));
        };
        if verdicts.len() != count {
            return Err(PyValueError::new_err(format!(
                "{}.{RECEIVED_MANY} returned {} decisions for {count} messages",
                self.name,
                verdicts.len()
            )));
        }
        Ok(verdicts)
    }

    /// Calls `exception_thrown` for `exception`, if it is overridden. Not for exceptions such as `SystemExit`, which its
    /// signature excludes.
    pub(crate) fn exception_thrown(
        &self,
        py: Python<'_>,
        exception: PyErr,
        about: CallContext,
    ) -> CallOutcome {
        let step = Step::ExceptionThrown;
        let Some(method) = &self.methods[step as usize] else { return CallOutcome::Failed(exception) };
        if !exception.is_instance_of::<PyException>(py) {
            return CallOutcome::Failed(exception);
        }
        let arguments = (&about.queue, &about.message, exception.value(py));
        match method.bind(py).call1(arguments).and_then(|result| self.read(step, result)) {
            Ok(Reading::Answer(verdict)) => CallOutcome::Decided(about.recovered(verdict.decision).into()),
            Ok(Reading::Awaitable(awaitable)) => CallOutcome::Waiting(step, awaitable.unbind(), about),
            Err(second) => CallOutcome::Failed(second),
        }
    }

    /// Reads the result of an awaited method.
    pub(crate) fn awaited(&self, step: Step, result: &Bound<'_, PyAny>) -> PyResult<Verdict> {
        answer(step, result)?.ok_or_else(|| self.no_answer(step, result))
    }

    fn read<'py>(&self, step: Step, result: Bound<'py, PyAny>) -> PyResult<Reading<'py>> {
        if let Some(verdict) = answer(step, &result)? {
            return Ok(Reading::Answer(verdict));
        }
        if result.get_type().hasattr(pyo3::intern!(result.py(), "__await__"))? {
            return Ok(Reading::Awaitable(result));
        }
        Err(self.no_answer(step, &result))
    }

    fn no_answer(&self, step: Step, result: &Bound<'_, PyAny>) -> PyErr {
        let wanted = match step {
            Step::SaveMessage => "a bool",
            Step::Authenticate => "a bool",
            step if step.is_notification() => "None",
            Step::Route => "targets, a bool, or None",
            _ => "a mqcore.Decision",
        };
        let given = result.repr().unwrap_or_else(|_| PyString::new(result.py(), "something unprintable"));
        PyTypeError::new_err(format!("{}.{} returned {given}, not {wanted}", self.name, step.method()))
    }
}

enum Reading<'py> {
    Answer(Verdict),
    Awaitable(Bound<'py, PyAny>),
}

fn answer(step: Step, result: &Bound<'_, PyAny>) -> PyResult<Option<Verdict>> {
    let decision = match step {
        Step::SaveMessage | Step::Authenticate => result
            .cast::<PyBool>()
            .ok()
            .map(|saved| BrokerDecision { allow: saved.is_true(), ..BrokerDecision::ALLOW }),
        // A notification without a decision.
        step if step.is_notification() => result.is_none().then_some(BrokerDecision::ALLOW),
        Step::Route => return routing::verdict(result),
        _ => {
            let Ok(decision) = result.cast::<Decision>() else { return Ok(None) };
            let Decision { decision, headers } = decision.get().clone();
            if headers.is_some() && !matches!(step, Step::ReceivedFromProducer | Step::BeginSend) {
                return Err(PyValueError::new_err(format!(
                    "headers can be added in received_from_producer and begin_send, not in {}",
                    step.method()
                )));
            }
            return Ok(Some(Verdict { headers, ..Verdict::from(decision) }));
        }
    };
    Ok(decision.map(Verdict::from))
}
