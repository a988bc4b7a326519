//! Answers that the event loop must await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::HandlerFailure;
use mqcore_broker::model::id::QuestionId;
use mqcore_server::handler::AnswerSink;
use pyo3::prelude::*;

use crate::answers::Answers;
use crate::call::CallContext;
use crate::decision_spans::DecisionSpan;
use crate::dispatcher::answer;
use crate::handler::{CallOutcome, Handler, Verdict};
use crate::load::Load;
use crate::stacks::thread_number;

/// A batch of awaitables for the event loop, with the replies for their answers.
///
/// Each question is answered at most once. Dropping the batch fails its unanswered questions.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct PendingAnswers {
    handler: Arc<Handler>,
    load: Arc<Load>,
    entries: Vec<Entry>,
    answers: Mutex<Answers>,
}

/// One waiting question.
pub(crate) struct Entry {
    /// The awaitable.
    awaitable: Py<PyAny>,
    /// The step, or `ExceptionThrown` if that method is awaited.
    step: Step,
    /// For `exception_thrown`.
    about: CallContext,
    /// The question.
    id: QuestionId,
    /// The receiver of the answer.
    sink: Arc<dyn AnswerSink>,
    /// `false`: a notification without an answer.
    wants_answer: bool,
    /// The span of the decision, if its message is traced.
    span: Mutex<Option<DecisionSpan>>,
    /// Whether awaiting has started.
    taken: AtomicBool,
    /// Whether it was answered.
    settled: AtomicBool,
}

impl Entry {
    /// Creates a question that waits for `awaitable`.
    pub(crate) fn new(
        awaitable: Py<PyAny>,
        step: Step,
        about: CallContext,
        (id, wants_answer): (QuestionId, bool),
        sink: Arc<dyn AnswerSink>,
        span: Option<DecisionSpan>,
    ) -> Self {
        let (taken, settled) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { awaitable, step, about, id, sink, wants_answer, span: Mutex::new(span), taken, settled }
    }

    /// Closes a coroutine that will not be awaited, so that Python does not warn about it.
    fn discard(&self, py: Python<'_>) {
        if self.taken.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Ok(Some(close)) = self.awaitable.bind(py).getattr_opt("close")
            && let Err(broken) = close.call0()
        {
            broken.write_unraisable(py, Some(&close));
        }
    }
}

impl PendingAnswers {
    /// Creates a batch of `entries`, whose questions `load` already counts as waiting.
    pub(crate) fn new(handler: Arc<Handler>, load: Arc<Load>, entries: Vec<Entry>) -> Self {
        Self { handler, load, entries, answers: Mutex::default() }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this is the first answer since the last `flush`.
    fn settle(&self, entry: &Entry, result: Result<Verdict, HandlerFailure>) -> bool {
        if entry.settled.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.load.settled(1);
        if let Some(span) = entry.span.lock().unwrap_or_else(PoisonError::into_inner).take() {
            span.end(result.as_ref().err().copied());
        }
        if !entry.wants_answer {
            return false;
        }
        let mut answers = self.answers();
        let first = answers.is_empty();
        answers.push(&entry.sink, answer(entry.id, result));
        first
    }

    fn settle_rest(&self, failure: HandlerFailure) {
        for entry in &self.entries {
            self.settle(entry, Err(failure));
        }
        self.answers().send();
    }
}

#[pymethods]
impl PendingAnswers {
    fn __len__(&self) -> usize {
        self.entries.len()
    }

    /// Takes the awaitable of entry `index`, which the caller then awaits.
    fn awaitable(&self, py: Python<'_>, index: usize) -> &Py<PyAny> {
        self.load.on_loop(|| thread_number(py));
        self.entries[index].taken.store(true, Ordering::Release);
        &self.entries[index].awaitable
    }

    /// The name of the awaited method.
    fn method(&self, index: usize) -> &'static str {
        self.entries[index].step.method()
    }

    /// Settles with the awaited method's result. True if the caller must schedule a `flush`.
    fn decide(&self, index: usize, result: &Bound<'_, PyAny>) -> PyResult<bool> {
        let entry = &self.entries[index];
        let verdict = self.handler.awaited(entry.step, result)?;
        let recovered = entry.step == Step::ExceptionThrown;
        let verdict = if recovered { entry.about.recovered(verdict.decision).into() } else { verdict };
        Ok(self.settle(entry, Ok(verdict)))
    }

    /// Settles with the awaited answer of `exception_thrown`. True if the caller must schedule a `flush`.
    fn recover(&self, index: usize, result: &Bound<'_, PyAny>) -> PyResult<bool> {
        let entry = &self.entries[index];
        let verdict = self.handler.awaited(Step::ExceptionThrown, result)?;
        Ok(self.settle(entry, Ok(entry.about.recovered(verdict.decision).into())))
    }

    /// Calls `exception_thrown` for the awaited method's exception. Returns true or false like `decide`, or an
    /// awaitable for `recover`. Raises unhandled exceptions.
    fn thrown<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        exception: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let entry = &self.entries[index];
        let exception = PyErr::from_value(exception);
        if entry.step == Step::ExceptionThrown {
            return Err(exception);
        }
        match self.handler.exception_thrown(py, exception, entry.about.clone_ref(py)) {
            CallOutcome::Decided(verdict) => {
                let first = self.settle(entry, Ok(verdict));
                Ok(first.into_pyobject(py)?.to_owned().into_any())
            }
            CallOutcome::Waiting(_, awaitable, _) => Ok(awaitable.into_bound(py)),
            CallOutcome::Failed(unhandled) => Err(unhandled),
        }
    }

    /// Fails the question: the handler's fallback applies. True if the caller must schedule a `flush`.
    fn fail(&self, index: usize) -> bool {
        self.load.failed(1);
        self.settle(&self.entries[index], Err(HandlerFailure::Raised))
    }

    /// Sends the answers so far to the shards that asked.
    fn flush(&self) {
        self.answers().send();
    }

    /// Fails the batch, because its event loop is closed.
    fn abandon(&self) {
        self.settle_rest(HandlerFailure::Gone);
        // `None`: the interpreter is ending, so there is no warning to avoid.
        Python::try_attach(|py| self.entries.iter().for_each(|entry| entry.discard(py)));
    }
}

impl Drop for PendingAnswers {
    fn drop(&mut self) {
        self.settle_rest(HandlerFailure::Gone);
        // `None`: the interpreter is ending, so there is no warning to avoid.
        Python::try_attach(|py| self.entries.iter().for_each(|entry| entry.discard(py)));
    }
}
