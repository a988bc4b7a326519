//! `_eval`: the expressions that clients of the original use. Nothing is evaluated: an expression is looked up in a
//! table, and an unknown one is an error.

use mqcore_broker::model::stats::ObjectCounts;

/// A statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistic {
    Queues,
    Consumers,
    Clients,
    Events,
    Waiting,
    Unsettled,
    Published,
    Queued,
    Consumed,
    Workers,
}

/// Expressions and what they mean.
const TABLE: [(&str, Statistic); 10] = [
    ("len(state.queues)", Statistic::Queues),
    ("len(state.consumers)", Statistic::Consumers),
    ("len(state.clients)", Statistic::Clients),
    ("len(state.events)", Statistic::Events),
    ("len(state.messages)", Statistic::Waiting),
    ("len(state.unacked)", Statistic::Unsettled),
    ("state.published", Statistic::Published),
    ("state.queued", Statistic::Queued),
    ("state.consumed", Statistic::Consumed),
    ("len(config['workers'])", Statistic::Workers),
];

/// The statistic that an expression asks for.
pub(super) fn find(code: &[u8]) -> Result<Statistic, String> {
    let found = TABLE.iter().find(|(expression, _)| expression.as_bytes() == code);
    found.map(|(_, statistic)| *statistic).ok_or_else(|| {
        let known: Vec<_> = TABLE.iter().map(|(expression, _)| *expression).collect();
        format!("nothing is evaluated; known expressions: {}", known.join(", "))
    })
}

impl Statistic {
    /// The value of the statistic.
    pub(super) fn of(self, counts: &ObjectCounts) -> u64 {
        match self {
            Self::Queues => counts.queues,
            Self::Consumers => counts.consumers,
            Self::Clients => counts.clients,
            Self::Events => counts.topics,
            Self::Waiting => counts.waiting,
            Self::Unsettled => counts.unsettled,
            Self::Published => counts.published,
            Self::Queued => counts.queued,
            Self::Consumed => counts.consumed,
            Self::Workers => 1,
        }
    }
}
