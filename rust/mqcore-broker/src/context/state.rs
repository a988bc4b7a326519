//! The state that all queues and routers of a shard share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use foldhash::HashMap;

use crate::context::commits::Commits;
use crate::context::confirmations::Confirmations;
use crate::context::questions::{OpenQuestion, Questions};
use crate::history::log::HistoryLog;
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::decision::Step;
use crate::model::durations::Durations;
use crate::model::id::{ConnectionId, HandlerId, QuestionId, QueueAddress, QueueRef};
use crate::model::intake::Intake;
use crate::model::memory::MemoryGauge;
use crate::model::observation::Observers;
use crate::model::options::ChannelOptions;
use crate::model::policy;
use crate::model::queue_policy::QueuePolicies;
use crate::model::stats::{BodyStats, QueueStats};
use crate::model::time::Timestamp;
use crate::model::unsaved::UnsavedShare;
use crate::spans::SpanLog;

/// Consumers whose output buffers are full.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    /// Their connections, and since when.
    pub(crate) since: HashMap<ConnectionId, Timestamp>,
    /// Grows with every change of `since`.
    pub(crate) changes: u64,
}

/// Which queues the shard has to look at.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Queues that have messages to deliver.
    pub(crate) work: VecDeque<QueueRef>,
    /// Queues that have something to do at a time.
    pub(crate) timers: BTreeSet<(Timestamp, QueueRef)>,
}

/// Bodies in memory, and bodies on their way from the journal.
#[derive(Debug, Default)]
pub(crate) struct Paging {
    /// Bytes of saved messages that wait in memory.
    pub(crate) memory: MemoryGauge,
    /// Queues with bodies that may leave memory.
    pub(crate) backlogs: VecDeque<QueueRef>,
    /// Bodies that were requested from the journal and have not arrived.
    pub(crate) loading: u64,
    pub(crate) bodies: BodyStats,
}

/// Counters of the shard that belong to no queue.
#[derive(Debug, Default)]
pub(crate) struct ShardCounters {
    /// Commands and requests that were rejected.
    pub(crate) refused: u64,
    /// Acknowledgements of messages that are not in flight.
    pub(crate) unknown_acks: u64,
    /// How long consumers had the messages that they acknowledged positively.
    pub(crate) processed_in: Durations,
    /// Handler answers that arrived after their deadline.
    pub(crate) answers_late: u64,
    /// The sums of the counters of removed queues.
    pub(crate) retired: QueueStats,
    /// Channels and queues that a limit for users did not admit.
    pub(crate) creations_rejected: u64,
    /// Effects that forwarded something to a shard.
    pub(crate) forwards: u64,
}

/// The state that all queues and routers of a shard share.
pub(crate) struct ShardState {
    pub(crate) config: BrokerConfig,
    pub(crate) handlers: Vec<HandlerSpec>,
    pub(crate) questions: Questions,
    pub(crate) congestion: Congestion,
    pub(crate) schedule: Schedule,
    pub(crate) commits: Commits,
    /// Answers to producers that wait for the queues of a topic.
    pub(crate) confirmations: Confirmations,
    pub(crate) paging: Paging,
    /// Memory of messages that are not saved.
    pub(crate) unsaved: UnsavedShare,
    /// Messages that downstream brokers passed on.
    pub(crate) intake: Intake,
    /// Options for queues that match a pattern.
    pub(crate) policies: QueuePolicies,
    /// The connection of each downstream broker, by its id.
    pub(crate) links: HashMap<Arc<str>, ConnectionId>,
    /// The lifecycle of messages; `None` if this broker records no history.
    pub(crate) history: Option<Box<HistoryLog>>,
    /// Spans of traced messages; `None` if this broker records none.
    pub(crate) spans: Option<Box<SpanLog>>,
    pub(crate) counters: ShardCounters,
    /// Queues that were removed since the last step of a collection of statistics, with their counters; `None`: statistics
    /// are not being collected.
    pub(crate) removed_queues: Option<Vec<(Arc<QueueAddress>, QueueStats)>>,
    /// Queues whose delivery handler is not registered, each with the handler's key. Health checks read it, so it is not a
    /// search through all queues.
    pub(crate) without_handler: BTreeMap<Arc<QueueAddress>, Box<str>>,
    /// The serial of the latest queue.
    serial: u64,
    /// Source of message ids and client ids.
    random: Rng,
}

impl ShardState {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let handlers: Vec<_> = policy::ALL.into_iter().map(HandlerSpec::of_policy).collect();
        Self {
            random: Rng::with_seed(config.seed),
            history: config.history.map(|options| Box::new(HistoryLog::new(options))),
            spans: config.spans.then(Box::default),
            unsaved: UnsavedShare::new(&config.unsaved),
            config,
            questions: Questions::new(handlers.len()),
            handlers,
            congestion: Congestion::default(),
            schedule: Schedule::default(),
            commits: Commits::default(),
            confirmations: Confirmations::default(),
            paging: Paging::default(),
            intake: Intake::new(),
            policies: QueuePolicies::default(),
            links: HashMap::default(),
            without_handler: BTreeMap::new(),
            counters: ShardCounters::default(),
            removed_queues: None,
            serial: 0,
        }
    }

    /// Adds a handler, or replaces the handler that has the same key.
    pub(crate) fn register(&mut self, spec: HandlerSpec) -> HandlerId {
        if let Some(index) = self.handlers.iter().position(|known| known.key == spec.key) {
            // Open questions keep their deadlines: a shorter timeout would break the order of the list.
            self.handlers[index] = spec;
            return HandlerId(index as u16);
        }
        assert!(
            self.handlers.len() < usize::from(u16::MAX),
            "handlers are registered by the program, not by peers"
        );
        self.handlers.push(spec);
        self.questions.add_handler();
        HandlerId((self.handlers.len() - 1) as u16)
    }

    pub(crate) fn handler(&self, key: &str) -> Option<HandlerId> {
        self.handlers.iter().position(|spec| &*spec.key == key).map(|index| HandlerId(index as u16))
    }

    /// The event handlers of a channel with these options.
    pub(crate) fn observers(&self, options: &ChannelOptions) -> Observers {
        let find = |key: Option<&str>| key.and_then(|key| self.handler(&HandlerSpec::event_handler_key(key)));
        Observers::new(find(self.config.event_handler.as_deref()), find(options.event_handler.as_deref()))
    }

    /// Those of a channel's event handlers that hear about its messages.
    pub(crate) fn message_observers(&self, observers: Observers) -> Observers {
        observers.only(|handler| self.spec(handler).overrides.contains(Step::MessageProduced))
    }

    pub(crate) fn spec(&self, handler: HandlerId) -> &HandlerSpec {
        &self.handlers[usize::from(handler.0)]
    }

    /// Registers a question, whose deadline is the timeout of its handler.
    pub(crate) fn ask(&mut self, question: OpenQuestion, now: Timestamp) -> QuestionId {
        let deadline = now.after(self.spec(question.handler).timeout);
        self.questions.ask(question, deadline)
    }

    /// A number that no other queue of this shard has had.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A new message id or client id: 32 lower-case hexadecimal digits.
    ///
    /// Its 128 random bits make the id unique; shards and starts have different seeds. Ids are not secret: an observer can
    /// compute the next one.
    pub(crate) fn next_id(&mut self) -> String {
        format!("{:016x}{:016x}", self.random.u64(..), self.random.u64(..))
    }
}
