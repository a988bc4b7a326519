//! The leaders that a member has known.

use std::time::Instant;

/// The leaders since the process started.
#[derive(Debug)]
pub(crate) struct LeadershipHistory {
    /// The last one, and its term.
    last: Option<(u32, u64)>,
    changes: u64,
    /// Since when no leader is known. `None`: one is.
    unknown_since: Option<Instant>,
}

impl LeadershipHistory {
    pub(crate) fn new(now: Instant) -> Self {
        Self { last: None, changes: 0, unknown_since: Some(now) }
    }

    /// The leader at the moment, if one is known.
    pub(crate) fn note(&mut self, leader: Option<u32>, term: u64, now: Instant) {
        let Some(leader) = leader else {
            self.unknown_since.get_or_insert(now);
            return;
        };
        self.unknown_since = None;
        let found = Some((leader, term));
        if self.last.is_some() && self.last != found {
            self.changes += 1;
        }
        self.last = found;
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// For how long no leader has been known, in milliseconds.
    pub(crate) fn leaderless_ms(&self, now: Instant) -> u64 {
        self.unknown_since.map_or(0, |since| now.saturating_duration_since(since).as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_change_is_another_leader_or_another_term_of_the_same_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = LeadershipHistory::new(start);
        assert_eq!((history.changes(), history.leaderless_ms(at(2))), (0, 2_000));
        for (leader, term) in [(Some(1), 1), (None, 1), (Some(1), 1)] {
            history.note(leader, term, at(3));
        }
        assert_eq!((history.changes(), history.leaderless_ms(at(9))), (0, 0), "the first one is no change");
        history.note(None, 2, at(10));
        history.note(None, 3, at(11));
        assert_eq!(history.leaderless_ms(at(12)), 2_000);
        history.note(Some(1), 3, at(12));
        history.note(Some(2), 4, at(13));
        assert_eq!((history.changes(), history.leaderless_ms(at(14))), (2, 0));
    }
}
