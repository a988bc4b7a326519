//! Types of bindings, read from clients and shown to them.

use mqcore_broker::model::router::Target;

/// The type of a binding's target, by the numbers of the original; the last two are mqcore's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BindingType {
    Direct = 0,
    Queue = 1,
    Http = 2,
    Tag = 3,
    Topic = 4,
    Handler = 5,
}

impl BindingType {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Direct, "direct"),
        (Self::Queue, "queue"),
        (Self::Http, "http"),
        (Self::Tag, "tag"),
        (Self::Topic, "topic"),
        (Self::Handler, "handler"),
    ];

    pub(super) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().map(|(kind, _)| kind).find(|kind| *kind as u64 == number)
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(_, word)| word.eq_ignore_ascii_case(text));
        found.map(|(kind, _)| kind)
    }

    pub(super) fn of(target: &Target) -> Self {
        match target {
            Target::Client(_) => Self::Direct,
            Target::Queue(_) => Self::Queue,
            Target::Topic(_) => Self::Topic,
            Target::Handler(_) => Self::Handler,
        }
    }
}
