//! Since when each finding has held.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::time::Timestamp;

use crate::attention::finding::{Finding, FindingKind, Severity};
use crate::attention::rates::QueueTracks;

/// A finding that has held for its grace period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) finding: Finding,
    /// Since when it holds.
    pub(crate) since: Timestamp,
}

/// The result of a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// When it was made; `Timestamp(0)`: not yet.
    pub(crate) made_at: Timestamp,
    /// The worst first.
    pub(crate) findings: Vec<Reported>,
}

impl Report {
    /// The severity of the worst finding.
    pub(crate) fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|reported| reported.finding.severity).max()
    }

    /// How many findings there are of a kind.
    pub(crate) fn count(&self, kind: FindingKind) -> usize {
        self.findings.iter().filter(|reported| reported.finding.kind == kind).count()
    }
}

/// The findings of the last round, for all admin pages.
#[derive(Debug, Default)]
pub(crate) struct AttentionState {
    report: Mutex<Arc<Report>>,
    tracks: Mutex<QueueTracks>,
}

impl AttentionState {
    pub(crate) fn report(&self) -> Arc<Report> {
        Arc::clone(&self.report.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How fast queues move. Never held across an `await`.
    pub(crate) fn tracks(&self) -> MutexGuard<'_, QueueTracks> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, report: Report) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(report);
    }
}

/// Findings of the rounds so far.
#[derive(Debug, Default)]
pub(super) struct Memory {
    known: HashMap<(FindingKind, String), Known>,
}

#[derive(Debug)]
struct Known {
    finding: Finding,
    first_seen: Timestamp,
    last_seen: Timestamp,
}

impl Memory {
    /// Adds the findings of a round, forgets those that no longer hold, and returns those to report, the worst first.
    pub(super) fn round(&mut self, found: Vec<Finding>, now: Timestamp) -> Vec<Reported> {
        for finding in found {
            let key = (finding.kind, finding.subject.clone());
            let first_seen = self.known.get(&key).map_or(now, |known| known.first_seen);
            self.known.insert(key, Known { finding, first_seen, last_seen: now });
        }
        self.known.retain(|(kind, _), known| now.since(known.last_seen) <= kind.linger());
        let ripe = self
            .known
            .values()
            .filter(|known| known.last_seen.since(known.first_seen) >= known.finding.kind.grace());
        let mut reported: Vec<_> =
            ripe.map(|known| Reported { finding: known.finding.clone(), since: known.first_seen }).collect();
        reported.sort_unstable_by(|left, right| {
            let rank =
                |reported: &Reported| (std::cmp::Reverse(reported.finding.severity), reported.finding.kind);
            rank(left).cmp(&rank(right)).then_with(|| left.finding.subject.cmp(&right.finding.subject))
        });
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kind: FindingKind, severity: Severity, subject: &str) -> Finding {
        Finding { kind, severity, subject: subject.into(), cause: "c".into(), remedy: "r".into() }
    }

    fn reported(memory: &mut Memory, found: Vec<Finding>, seconds: u64) -> Vec<(FindingKind, String, u64)> {
        let round = memory.round(found, Timestamp(seconds * 1000));
        round.into_iter().map(|each| (each.finding.kind, each.finding.subject, each.since.0 / 1000)).collect()
    }

    #[test]
    fn a_finding_is_reported_after_its_grace_period_and_no_longer_than_it_holds() {
        let mut memory = Memory::default();
        let stuck = || vec![finding(FindingKind::NoConsumer, Severity::Warning, "queue a/1")];
        assert_eq!(reported(&mut memory, stuck(), 10), []);
        assert_eq!(reported(&mut memory, stuck(), 12), []);
        assert_eq!(reported(&mut memory, stuck(), 13), [(FindingKind::NoConsumer, "queue a/1".into(), 10)]);
        assert_eq!(reported(&mut memory, vec![], 14), []);
        assert_eq!(reported(&mut memory, stuck(), 15), [], "it begins anew");
    }

    #[test]
    fn an_event_stays_for_a_while() {
        let mut memory = Memory::default();
        let jump = vec![finding(FindingKind::ClockJump, Severity::Warning, "system clock")];
        assert_eq!(reported(&mut memory, jump, 10).len(), 1);
        assert_eq!(reported(&mut memory, vec![], 600).len(), 1);
        assert_eq!(reported(&mut memory, vec![], 611).len(), 0);
    }

    #[test]
    fn the_worst_comes_first_and_then_the_order_of_kinds_and_names() {
        let mut memory = Memory::default();
        let found = vec![
            finding(FindingKind::PausedQueue, Severity::Info, "queue a/1"),
            finding(FindingKind::DeadLetters, Severity::Warning, "queue c/1"),
            finding(FindingKind::DeadLetters, Severity::Warning, "queue b/1"),
            finding(FindingKind::DiskFull, Severity::Critical, "shard 0"),
        ];
        let subjects: Vec<_> =
            reported(&mut memory, found, 1).into_iter().map(|(_, subject, _)| subject).collect();
        assert_eq!(subjects, ["shard 0", "queue b/1", "queue c/1", "queue a/1"]);
    }
}
