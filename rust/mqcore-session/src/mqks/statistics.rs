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
    pub(super) fn of(self, census: &ObjectCounts) -> u64 {
        match self {
            Self::Queues => census.queues,
            Self::Consumers => census.consumers,
            Self::Clients => census.clients,
            Self::Events => census.topics,
            Self::Waiting => census.waiting,
            Self::Unsettled => census.unsettled,
            Self::Published => census.published,
            Self::Queued => census.queued,
            Self::Consumed => census.consumed,
            Self::Workers => 1,
        }
    }
}
