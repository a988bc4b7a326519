//! `_eval`: the expressions that clients of the original and its `stats.py` use. Nothing is evaluated: an expression, or
//! each expression of a list, is looked up in a table, and an unknown one is an error.

use mqcore_broker::model::stats::ObjectCounts;

/// A statistic, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statistics {
    One(Statistic),
    /// `[expression, expression]`.
    List(Vec<Statistic>),
    /// The addresses of all workers; see [`WORKERS`].
    Workers,
}

/// A statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistic {
    Queues,
    ConsumedQueues,
    BoundQueues,
    RemovableQueues,
    Consumers,
    ConsumingClients,
    Clients,
    Events,
    Waiting,
    Unsettled,
    Published,
    Queued,
    Consumed,
    /// Commands between workers, and responses that wait for clients, which this broker does not count.
    NotCounted,
    /// The number of workers.
    WorkerCount,
}

/// Expressions and what they mean.
const TABLE: [(&str, Statistic); 24] = [
    ("len(state.queues)", Statistic::Queues),
    ("len([u for u in state.queues_used.itervalues() if u.is_set()])", Statistic::ConsumedQueues),
    ("len(state.events_by_queues)", Statistic::BoundQueues),
    ("len(state.queues_to_delete_when_unused)", Statistic::RemovableQueues),
    ("len(state.consumers)", Statistic::Consumers),
    ("len(state.queues_by_consumer_ids)", Statistic::Consumers),
    ("sum(len(cs) for cs in state.consumers_by_queues.itervalues())", Statistic::Consumers),
    ("len(state.consumer_ids_by_clients)", Statistic::ConsumingClients),
    ("len(set(state.clients_by_consumer_ids.itervalues()))", Statistic::ConsumingClients),
    ("len(state.clients)", Statistic::Clients),
    ("len(state.socks_by_clients)", Statistic::Clients),
    ("len(state.events)", Statistic::Events),
    ("len(state.queues_by_events)", Statistic::Events),
    ("len(state.messages)", Statistic::Waiting),
    ("sum(q.qsize() for q in state.queues.itervalues())", Statistic::Waiting),
    ("len(state.unacked)", Statistic::Unsettled),
    ("sum(len(ms) for ms in state.messages_by_consumer_ids.itervalues())", Statistic::Unsettled),
    ("state.published", Statistic::Published),
    ("state.queued", Statistic::Queued),
    ("state.consumed", Statistic::Consumed),
    ("state.commands_put", Statistic::NotCounted),
    ("state.commands_got", Statistic::NotCounted),
    ("sum(c.qsize() for c in state.commands_to_workers.itervalues())", Statistic::NotCounted),
    ("sum(q.qsize() for q in state.responses_by_clients.itervalues())", Statistic::NotCounted),
];
/// Expressions for the number of workers.
const WORKER_COUNTS: [&str; 2] = ["WORKERS", "len(config['workers'])"];
/// The expression for the addresses of the workers, with spaces between.
const WORKER_ADDRESSES: &str = "' '.join(config['workers'])";
/// The address of the only worker in the form of the original, `host:port:port`. A session does not know the real one,
/// and `stats.py` prints the host as a title only.
const WORKER: &str = "mqcore:0:0";

/// The statistics that an expression asks for.
pub(super) fn find(code: &[u8]) -> Result<Statistics, String> {
    let known = || {
        let expressions = TABLE.iter().map(|(expression, _)| *expression).chain(WORKER_COUNTS);
        let known: Vec<_> = expressions.chain([WORKER_ADDRESSES]).collect();
        format!("nothing is evaluated; known expressions: {}, and lists of them", known.join(", "))
    };
    let text = str::from_utf8(code).map_err(|_| known())?;
    if text == WORKER_ADDRESSES {
        return Ok(Statistics::Workers);
    }
    if let Some(statistic) = find_one(text) {
        return Ok(Statistics::One(statistic));
    }
    let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let all = list.and_then(|list| list.split(", ").map(find_one).collect());
    all.map(Statistics::List).ok_or_else(known)
}

fn find_one(expression: &str) -> Option<Statistic> {
    if WORKER_COUNTS.contains(&expression) {
        return Some(Statistic::WorkerCount);
    }
    TABLE.iter().find(|(known, _)| *known == expression).map(|(_, statistic)| *statistic)
}

impl Statistics {
    /// The values as the original writes them.
    pub(super) fn of(&self, counts: &ObjectCounts) -> String {
        match self {
            Self::One(statistic) => statistic.of(counts).to_string(),
            Self::List(all) => {
                let values: Vec<_> = all.iter().map(|statistic| statistic.of(counts).to_string()).collect();
                format!("[{}]", values.join(", "))
            }
            Self::Workers => WORKER.to_owned(),
        }
    }
}

impl Statistic {
    fn of(self, counts: &ObjectCounts) -> u64 {
        match self {
            Self::Queues => counts.queues,
            Self::ConsumedQueues => counts.consumed_queues,
            Self::BoundQueues => counts.bound_queues,
            Self::RemovableQueues => counts.removable_queues,
            Self::Consumers => counts.consumers,
            Self::ConsumingClients => counts.consuming_clients.len() as u64,
            Self::Clients => counts.clients,
            Self::Events => counts.topics,
            Self::Waiting => counts.waiting,
            Self::Unsettled => counts.unsettled,
            Self::Published => counts.published,
            Self::Queued => counts.queued,
            Self::Consumed => counts.consumed,
            Self::NotCounted => 0,
            Self::WorkerCount => 1,
        }
    }
}
