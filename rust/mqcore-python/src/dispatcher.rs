//! The thread of one delivery handler. It attaches to the interpreter once, and receives questions and sends answers in
//! batches.
//!
//! Attaching for each message would cost tens of microseconds for a thread state and a stack chunk. So the thread stays
//! attached and releases the interpreter only while it waits for questions. Each handler object has its own thread, so
//! a sleeping handler delays only the queues with its key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError};
use mqcore_broker::model::decision::Step;
use mqcore_broker::model::durations::{Durations, SharedDurations};
use mqcore_broker::model::effect::{Answer, HandlerFailure, Question};
use mqcore_broker::model::id::QuestionId;
use mqcore_broker::model::observation::Observation;
use mqcore_server::handler::AnswerSink;
use mqcore_server::spans::SpanBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::answers::Answers;
use crate::call::{Call, CallContext, Views};
use crate::decision_spans::DecisionSpans;
use crate::handler::{CallOutcome, Handler, Verdict};
use crate::inspector::Inspector;
use crate::leaked_threads::LeakedThread;
use crate::load::{CallTimes, Counts, Load};
use crate::pending_answers::{Entry, PendingAnswers};
use crate::stacks::thread_number;
use crate::view::QueueView;

/// Maximum answers in a batch.
const BATCH_MAX: usize = 256;
/// Maximum messages in a call of `received_many`.
const MANY_MAX: usize = 1024;
/// Maximum time to collect a batch of answers, unless a single call takes longer.
const BATCH_TIME: Duration = Duration::from_millis(1);

/// A running handler.
pub(crate) struct Dispatcher {
    /// `None` ends the thread.
    inbox: Sender<Option<Work>>,
    load: Arc<Load>,
    times: Arc<CallTimes>,
    stopping: Arc<AtomicBool>,
    /// The identifier of the thread in Python; 0: it has not begun.
    python_thread: Arc<AtomicU64>,
    /// Disconnects when the thread ends, which allows a wait with a timeout; no message is ever sent.
    ended: Receiver<()>,
}

/// Work for a handler from one batch of a shard.
enum Work {
    Questions(QuestionBatch),
    /// Notifications, which need no answer.
    Observations(Vec<Observation>),
}

/// The questions of one batch of a shard.
struct QuestionBatch {
    questions: Vec<Question>,
    sink: Arc<dyn AnswerSink>,
}

impl Dispatcher {
    /// Starts the thread. `submit(burst)` passes a burst of awaitables to the event loop.
    pub(crate) fn start(
        key: &str,
        handler: Handler,
        submit: Py<PyAny>,
        inspector: Inspector,
        spans: Option<Arc<SpanBuffer>>,
    ) -> std::io::Result<Self> {
        let (inbox, questions) = crossbeam_channel::unbounded();
        let (ending, ended) = crossbeam_channel::bounded(0);
        let (load, times) = (Arc::new(Load::default()), Arc::new(CallTimes::default()));
        let stopping = Arc::new(AtomicBool::new(false));
        let python_thread = Arc::new(AtomicU64::new(0));
        let thread_number = Arc::clone(&python_thread);
        let thread = HandlerThread {
            key: key.into(),
            handler: Arc::new(handler),
            submit,
            load: load.clone(),
            times: Arc::clone(&times),
            step_times: Vec::new(),
            called: Instant::now(),
            stopping: stopping.clone(),
            views: Views::new(inspector),
            spans: DecisionSpans::new(key, spans),
            answers: Answers::default(),
            waiting: Vec::new(),
            failures: None,
            answered: 0,
            began: Instant::now(),
        };
        std::thread::Builder::new().name("mqcore-handler".into()).spawn(move || {
            run(thread, &questions, &thread_number);
            drop(ending);
        })?;
        Ok(Self { inbox, load, times, stopping, python_thread, ended })
    }

    /// Queues questions; returns at once.
    pub(crate) fn ask(&self, mut questions: Vec<Question>, sink: &Arc<dyn AnswerSink>) {
        let taken = self.load.take(questions.len());
        let refused = questions.split_off(taken);
        if !questions.is_empty()
            && let Err(SendError(Some(Work::Questions(QuestionBatch { questions, sink })))) =
                self.inbox.send(Some(Work::Questions(QuestionBatch { questions, sink: sink.clone() })))
        {
            self.load.answered(questions.len());
            refuse(questions, &sink);
        }
        refuse(refused, sink);
    }

    /// Queues notifications; returns at once. Drops and counts those beyond the limit.
    pub(crate) fn observe(&self, mut observations: Vec<Observation>) {
        observations.truncate(self.load.take(observations.len()));
        let count = observations.len();
        if count > 0 && self.inbox.send(Some(Work::Observations(observations))).is_err() {
            self.load.answered(count);
        }
    }

    /// Ends the thread after it has answered all questions so far.
    pub(crate) fn finish(&self) {
        // On an error the thread has already ended.
        let _ = self.inbox.send(None);
    }

    /// Ends the thread as soon as its current call returns. Its answers are no longer needed.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.finish();
    }

    /// How long its calls took.
    pub(crate) fn times(&self) -> (Vec<(Step, Durations)>, Durations) {
        self.times.get()
    }

    /// The identifier of its thread in Python; 0: the thread has not begun.
    pub(crate) fn python_thread(&self) -> u64 {
        self.python_thread.load(Ordering::Acquire)
    }

    /// The identifier in Python of the thread whose event loop awaits coroutines of it now; 0: there are none.
    pub(crate) fn loop_thread(&self) -> u64 {
        self.load.loop_thread()
    }

    /// Its counters.
    pub(crate) fn counts(&self) -> Counts {
        self.load.counts()
    }
}

impl LeakedThread for Dispatcher {
    fn join(&self, deadline: Instant) -> bool {
        self.ended.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout)
    }
}

/// The broker's form of an answer.
pub(crate) fn answer(id: QuestionId, result: Result<Verdict, HandlerFailure>) -> Answer {
    match result {
        Ok(Verdict { decision, targets, headers }) => Answer { id, result: Ok(decision), targets, headers },
        Err(failure) => Answer::new(id, Err(failure)),
    }
}

/// Answers that the handler makes no decision.
fn refuse(questions: Vec<Question>, sink: &Arc<dyn AnswerSink>) {
    let answers: Vec<_> = questions
        .into_iter()
        .filter(|question| question.wants_answer)
        .map(|question| Answer::new(question.id, Err(HandlerFailure::Gone)))
        .collect();
    if !answers.is_empty() {
        sink.answer(answers);
    }
}

/// Runs the thread.
fn run(mut thread: HandlerThread, inbox: &Receiver<Option<Work>>, python_thread: &AtomicU64) {
    // `None`: the interpreter is ending and must not be used.
    let ran = Python::try_attach(|py| {
        python_thread.store(thread_number(py), Ordering::Release);
        while let Some(work) = thread.next(py, inbox) {
            match work {
                Work::Questions(asked) => thread.answer(py, asked),
                Work::Observations(observations) => thread.observe(py, observations),
            }
        }
        thread.send(py);
    });
    if ran.is_none() {
        std::mem::forget(thread);
        return;
    }
    // Python objects are dropped while the thread is attached, so that PyO3 does not defer their release.
    Python::try_attach(|_| drop(thread));
}

/// Receives the answers of notifications, of which there are none.
struct NoAnswers;

impl AnswerSink for NoAnswers {
    fn answer(&self, _answers: Vec<Answer>) {}
}

/// State of the thread.
struct HandlerThread {
    key: Box<str>,
    handler: Arc<Handler>,
    submit: Py<PyAny>,
    load: Arc<Load>,
    times: Arc<CallTimes>,
    /// The times of the steps that this thread has run: a copy of the list in `times`, which needs no lock.
    step_times: Vec<(Step, Arc<SharedDurations>)>,
    /// When the last call returned, or later: the next call begins then.
    called: Instant,
    stopping: Arc<AtomicBool>,
    views: Views,
    spans: DecisionSpans,
    answers: Answers,
    waiting: Vec<Entry>,
    /// The first exception of the batch, its step, and the number of exceptions.
    failures: Option<(Step, PyErr, u64)>,
    /// Answered questions that the load still counts.
    answered: usize,
    /// Time of the first unsent answer.
    began: Instant,
}

impl HandlerThread {
    /// Returns the next work. Sends ready answers before it waits. `None`: no further work.
    fn next(&mut self, py: Python<'_>, inbox: &Receiver<Option<Work>>) -> Option<Work> {
        match inbox.try_recv() {
            Ok(work) => return work,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => self.send(py),
        }
        let (work, arrived) = py.detach(|| (inbox.recv().ok().flatten(), Instant::now()));
        self.called = Instant::now();
        self.times.waited(self.called - arrived);
        work
    }

    fn answer(&mut self, py: Python<'_>, asked: QuestionBatch) {
        let QuestionBatch { questions, sink } = asked;
        let mut questions = questions.into_iter();
        while let Some(question) = questions.next() {
            if self.stopping.load(Ordering::Acquire) {
                let rest: Vec<_> = std::iter::once(question).chain(questions).collect();
                self.load.answered(rest.len());
                refuse(rest, &sink);
                return;
            }
            if self.handler.decides_many(question.step) {
                let mut run = vec![question];
                while let Some(next) = questions.as_slice().first()
                    && next.step == run[0].step
                    && next.queue == run[0].queue
                    && run.len() < MANY_MAX
                {
                    run.extend(questions.next());
                }
                let step = run[0].step;
                self.answer_many(py, run, &sink);
                self.count_call(step);
            } else {
                let step = question.step;
                self.answer_one(py, question, &sink);
                self.count_call(step);
            }
            let ready = self.answered + self.waiting.len();
            if ready >= BATCH_MAX || self.called - self.began >= BATCH_TIME {
                self.send(py);
                self.called = Instant::now();
            }
        }
    }

    /// Counts the time of a call that has just returned.
    fn count_call(&mut self, step: Step) {
        let now = Instant::now();
        let micros = (now - self.called).as_micros() as u64;
        self.called = now;
        if let Some((_, times)) = self.step_times.iter().find(|(known, _)| *known == step) {
            return times.add(micros);
        }
        let times = self.times.add_step(step);
        times.add(micros);
        self.step_times.push((step, times));
    }

    fn observe(&mut self, py: Python<'_>, observations: Vec<Observation>) {
        let sink: Arc<dyn AnswerSink> = Arc::new(NoAnswers);
        let mut left = observations.len();
        for observation in observations {
            if self.stopping.load(Ordering::Acquire) {
                self.load.answered(left);
                return;
            }
            left -= 1;
            if self.answered + self.waiting.len() == 0 {
                self.began = self.called;
            }
            let step = observation.step;
            let outcome = match Call::observed(py, &observation, &mut self.views) {
                Ok(call) => self.handler.answer(py, call),
                Err(broken) => CallOutcome::Failed(broken),
            };
            match outcome {
                CallOutcome::Waiting(step, awaitable, about) => {
                    let notification = (QuestionId(0), false);
                    self.waiting.push(Entry::new(awaitable, step, about, notification, sink.clone(), None));
                }
                CallOutcome::Decided(_) => self.answered += 1,
                CallOutcome::Failed(exception) => {
                    self.remember(step, exception);
                    self.answered += 1;
                }
            }
            self.count_call(step);
            let ready = self.answered + self.waiting.len();
            if ready >= BATCH_MAX || self.called - self.began >= BATCH_TIME {
                self.send(py);
                self.called = Instant::now();
            }
        }
    }

    fn answer_one(&mut self, py: Python<'_>, question: Question, sink: &Arc<dyn AnswerSink>) {
        if self.answered + self.waiting.len() == 0 {
            self.began = self.called;
        }
        let (id, step, wants_answer) = (question.id, question.step, question.wants_answer);
        let span = self.spans.begin(&question);
        let outcome = match Call::new(py, question, &mut self.views) {
            Ok(call) => self.handler.answer(py, call),
            Err(broken) => CallOutcome::Failed(broken),
        };
        let result = match outcome {
            CallOutcome::Decided(verdict) => Ok(verdict),
            CallOutcome::Failed(exception) => {
                self.remember(step, exception);
                Err(HandlerFailure::Raised)
            }
            CallOutcome::Waiting(step, awaitable, about) => {
                let question = (id, wants_answer);
                self.waiting.push(Entry::new(awaitable, step, about, question, sink.clone(), span));
                return;
            }
        };
        if let Some(span) = span {
            span.end(result.as_ref().err().copied());
        }
        self.answered += 1;
        if wants_answer {
            self.answers.push(sink, answer(id, result));
        }
    }

    /// Asks once about messages of one queue that arrived together.
    fn answer_many(&mut self, py: Python<'_>, run: Vec<Question>, sink: &Arc<dyn AnswerSink>) {
        if self.answered + self.waiting.len() == 0 {
            self.began = self.called;
        }
        let Some(first) = run.first() else { return };
        let (step, queue) = (first.step, self.views.queue(py, Arc::clone(&first.queue), first.status));
        let asked: Vec<_> = run.iter().map(|question| (question.id, question.wants_answer)).collect();
        let spans: Vec<_> = run.iter().filter_map(|question| self.spans.begin(question)).collect();
        let messages = run.into_iter().filter_map(|question| question.message).collect();
        let verdicts = queue.and_then(|queue| {
            let decided = self.handler.answer_many(py, &queue, messages);
            decided.or_else(|exception| self.recover_many(py, step, queue, exception, asked.len()))
        });
        let results: Vec<_> = match verdicts {
            Ok(verdicts) => verdicts.into_iter().map(Ok).collect(),
            Err(exception) => {
                self.remember(step, exception);
                asked.iter().map(|_| Err(HandlerFailure::Raised)).collect()
            }
        };
        let failed = results.iter().find_map(|result| result.as_ref().err().copied());
        spans.into_iter().for_each(|span| span.end(failed));
        self.answered += asked.len();
        for ((id, wants_answer), result) in asked.into_iter().zip(results) {
            if wants_answer {
                self.answers.push(sink, answer(id, result));
            }
        }
    }

    /// Lets `exception_thrown` decide about all messages of a call that raised.
    fn recover_many(
        &self,
        py: Python<'_>,
        step: Step,
        queue: Py<QueueView>,
        exception: PyErr,
        count: usize,
    ) -> PyResult<Vec<Verdict>> {
        let about = CallContext { step, queue: Some(queue), message: None };
        match self.handler.exception_thrown(py, exception, about) {
            CallOutcome::Decided(verdict) => Ok((0..count).map(|_| verdict.decision.into()).collect()),
            CallOutcome::Failed(exception) => Err(exception),
            CallOutcome::Waiting(..) => {
                Err(PyTypeError::new_err("exception_thrown of a handler with received_many cannot be async"))
            }
        }
    }

    fn remember(&mut self, step: Step, exception: PyErr) {
        self.load.failed(1);
        match &mut self.failures {
            Some((_, _, count)) => *count += 1,
            None => self.failures = Some((step, exception, 1)),
        }
    }

    /// Sends answers to the shards, awaitables to the event loop, and failures to the log.
    fn send(&mut self, py: Python<'_>) {
        self.answers.send();
        self.load.answered(std::mem::take(&mut self.answered));
        self.send_waiting(py);
        if let Some((step, exception, count)) = self.failures.take() {
            self.report(py, step, &exception, count);
        }
    }

    fn send_waiting(&mut self, py: Python<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.waiting);
        self.load.awaited(entries.len());
        let burst = PendingAnswers::new(self.handler.clone(), self.load.clone(), entries);
        if let Err(broken) = Bound::new(py, burst).and_then(|burst| self.submit.bind(py).call1((burst,))) {
            self.report(py, Step::ExceptionThrown, &broken, 1);
        }
        while self.load.is_full() && !self.stopping.load(Ordering::Acquire) {
            py.detach(|| self.load.wait_for_room(Duration::from_millis(100)));
        }
    }

    /// Logs the failures of a batch, once.
    fn report(&self, py: Python<'_>, step: Step, exception: &PyErr, count: u64) {
        static REPORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let reported = REPORT
            .import(py, "mqcore.handlers", "_report")
            .and_then(|report| report.call1((&*self.key, step.method(), exception.value(py), count)));
        if let Err(broken) = reported {
            broken.write_unraisable(py, None);
        }
    }
}
