//! The interface to delivery handlers, in any language.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::decision::Step;
use mqcore_broker::model::durations::Durations;
use mqcore_broker::model::effect::{Answer, Question};
use mqcore_broker::model::observation::Observation;
use tokio::sync::oneshot;

use crate::authority::port::AuthorityPort;
use crate::extension::ExtensionPort;
use crate::nodes::filter::NodeFilters;

/// Receives questions. Called by shards; must never block and never wait for Python.
pub trait HandlerPort: Send + Sync {
    /// Receives the questions of one run of a shard, in order. The answers go to `answers` when they are known, in
    /// batches of any size, from any thread. Questions with `wants_answer == false` are notifications only.
    fn ask(&self, questions: Vec<Question>, answers: &Arc<dyn AnswerSink>);

    /// Receives notifications of event handlers, in order. Must never block.
    fn observe(&self, observations: Vec<Observation>) {
        debug_assert!(observations.is_empty(), "no event handler is registered, so none can be notified");
    }

    /// The load of each handler. Must not wait for a handler.
    fn loads(&self) -> Vec<HandlerLoad> {
        Vec::new()
    }

    /// The times of each handler. Must not wait for a handler.
    fn times(&self) -> Vec<HandlerTimes> {
        Vec::new()
    }

    /// Finds out what a handler executes at this moment, for operators. Must never block.
    fn stack(&self, _key: &str) -> StackRequest {
        StackRequest::Unknown
    }

    /// Decides about logins and actions in addition to the users and tokens of the server. Called once, at the start.
    /// Default `None`.
    fn authority(&self) -> Option<Arc<dyn AuthorityPort>> {
        None
    }

    /// Handles the frames of vendor extensions. Called once, at the start. Default `None`.
    fn extensions(&self) -> Option<Arc<dyn ExtensionPort>> {
        None
    }

    /// The program's own filters for links between nodes. Called once, at the start. Default none.
    fn node_filters(&self) -> NodeFilters {
        NodeFilters::default()
    }
}

/// The questions of one handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerLoad {
    /// Its key.
    pub key: Box<str>,
    /// Questions accepted since the start.
    pub asked: u64,
    /// Accepted questions without an answer.
    pub waiting: u64,
    /// How long it may take to answer.
    pub timeout: Duration,
}

/// The answer to [`HandlerPort::stack`].
#[derive(Debug)]
pub enum StackRequest {
    /// No such handler.
    Unknown,
    /// An earlier request has no answer yet.
    Busy,
    /// The answer comes, unless the interpreter is blocked.
    Pending(oneshot::Receiver<Vec<ThreadStack>>),
}

/// The stack of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStack {
    /// The purpose of the thread.
    pub thread: String,
    /// The innermost is the last. Empty: no code of the handler.
    pub frames: Vec<StackFrame>,
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFrame {
    /// Source file.
    pub file: String,
    /// Line in the file, from 1.
    pub line: u32,
    /// Function.
    pub function: String,
    /// The source line; empty if it cannot be read.
    pub code: String,
}

/// How long the calls of one handler took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerTimes {
    /// Its key.
    pub key: Box<str>,
    /// Calls by step. A call about several messages counts once.
    pub steps: Vec<(Step, Durations)>,
    /// How long its thread waited for the interpreter after questions had arrived.
    pub gil_waits: Durations,
}

/// Receives answers for the shard that asked.
pub trait AnswerSink: Send + Sync {
    /// Passes answers on. Never blocks; answers to a stopped shard are dropped.
    fn answer(&self, answers: Vec<Answer>);
}

/// For brokers whose handlers are all ready-made policies: shards never ask.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHandlers;

impl HandlerPort for NoHandlers {
    fn ask(&self, questions: Vec<Question>, _answers: &Arc<dyn AnswerSink>) {
        debug_assert!(questions.is_empty(), "no handler is registered, so no question can be answered");
    }
}
