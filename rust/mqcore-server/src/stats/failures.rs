//! The last failed requests of protocols whose errors contain only a number, and what that number means.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;

/// Maximum failures stored; the oldest is removed first.
pub const FAILURES_MAX: usize = 1000;

/// Maximum characters of a text that a peer can influence.
const TEXT_MAX: usize = 512;

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    /// The error number that the peer received.
    pub error: String,
    /// The request's ID as the peer wrote it, unprintable bytes escaped.
    pub request: String,
    /// The reason, and what to do.
    pub why: String,
    /// When it happened, in Unix milliseconds.
    pub at: Timestamp,
    /// The peer's client id.
    pub client: String,
    /// The peer's connection.
    pub connection: ConnectionId,
    /// The protocol of the connection.
    pub protocol: &'static str,
}

/// The last failures, in order.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kept: Mutex<VecDeque<RequestFailure>>,
}

impl Failures {
    /// Locks and allocates, which is fine because failures are rare.
    pub(crate) fn add(&self, mut failure: RequestFailure) {
        shorten(&mut failure.request);
        shorten(&mut failure.why);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == FAILURES_MAX {
            kept.pop_front();
        }
        kept.push_back(failure);
    }

    /// The last `limit` failures, the latest first.
    pub(crate) fn latest(&self, limit: usize) -> Vec<RequestFailure> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().take(limit).cloned().collect()
    }
}

fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
        text.truncate(end);
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(number: usize) -> RequestFailure {
        RequestFailure {
            error: number.to_string(),
            request: "r".into(),
            why: "\u{e9}".repeat(number),
            at: Timestamp(1),
            client: "c".into(),
            connection: ConnectionId(1),
            protocol: "mqks",
        }
    }

    #[test]
    fn the_latest_come_first_and_the_oldest_go() {
        let failures = Failures::default();
        for number in 0..FAILURES_MAX + 5 {
            failures.add(failure(number));
        }
        let numbers: Vec<_> = failures.latest(2).into_iter().map(|failure| failure.error).collect();
        assert_eq!(numbers, ["1004", "1003"]);
        let all = failures.latest(usize::MAX);
        assert_eq!((all.len(), all.last().unwrap().error.as_str()), (FAILURES_MAX, "5"));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let failures = Failures::default();
        failures.add(failure(5000));
        let why = &failures.latest(1)[0].why;
        assert_eq!(why.chars().count(), TEXT_MAX + 3);
        assert!(why.ends_with("\u{e9}..."));
    }
}
