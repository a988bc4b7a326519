//! `_eval`: what clients of the original ask for, by the very expressions. Nothing is evaluated: an expression is looked up
//! in a table, and what does not stand there is a mistake.

use mqcore_broker::model::stats::ObjectCounts;

/// A number that can be asked for.
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
    /// Its value.
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
