//! Histories of a key that keep its promises, and histories that break one.

use super::*;
use crate::scenario::limits::LimitKind;

const LINK: ConnectionId = ConnectionId(1);
const SECOND: Micros = 1_000_000;
const LIMIT: u64 = 5;

/// An oracle of one key with a period of a hundred seconds, of which the client has consumed everything at second 1.
fn spent(kind: LimitKind, persists: bool) -> SeenLimits {
    let limits = vec![SimulatedLimit { kind, limit: LIMIT, period_micros: 100 * SECOND, persists }];
    let mut oracle = SeenLimits::new(&limits);
    let reset_after = if kind == LimitKind::Sliding { 200_000_000_000 } else { 100_000_000_000 };
    let all = LimitReply::Verdict { granted: true, remaining: 0, reset_after };
    assert!(ask(&mut oracle, LimitRequest::Take(LIMIT), all, SECOND));
    oracle
}

/// Whether an answer keeps all promises.
fn ask(oracle: &mut SeenLimits, request: LimitRequest, reply: LimitReply, at: Micros) -> bool {
    oracle.requested(0, LINK, request, at - 5);
    oracle.answered(0, reply, at).is_none()
}

/// Whether everything may be there at this time, although it was spent.
fn may_be_full(oracle: &mut SeenLimits, at: Micros) -> bool {
    let full = LimitReply::Verdict { granted: true, remaining: LIMIT, reset_after: 0 };
    ask(oracle, LimitRequest::Peek, full, at)
}

const RULES: [LimitKind; 3] = [LimitKind::Fixed, LimitKind::Sliding, LimitKind::Bucket];

#[test]
fn spent_quota_returns_when_its_period_has_passed_and_not_before() {
    for kind in RULES {
        let period = if kind == LimitKind::Sliding { 200 } else { 100 };
        assert!(!may_be_full(&mut spent(kind, true), 50 * SECOND), "{kind:?}");
        assert!(may_be_full(&mut spent(kind, true), (period + 2) * SECOND), "{kind:?}");
    }
}

#[test]
fn a_crash_loses_what_was_spent_just_before_and_nothing_else() {
    for kind in RULES {
        for (is_orderly, crash, persists, expected) in [
            (false, 10 * SECOND, true, false),
            (false, 10 * SECOND, true, false),
            (false, SECOND + 100_000, true, true),
            (true, SECOND + 100_000, true, false),
            (true, 10 * SECOND, false, true),
        ] {
            let mut oracle = spent(kind, persists);
            oracle.ended(is_orderly, crash);
            oracle.started(0, crash + SECOND);
            let rule = may_be_full(&mut oracle, crash + 2 * SECOND);
            assert_eq!(rule, expected, "{kind:?}, orderly: {is_orderly}, at {crash}");
        }
    }
}

#[test]
fn a_faulty_disk_excuses_what_it_did_not_save() {
    let mut oracle = spent(LimitKind::Fixed, true);
    oracle.set_unsaved(Some(SECOND));
    oracle.ended(false, 50 * SECOND);
    oracle.started(0, 51 * SECOND);
    assert!(may_be_full(&mut oracle, 52 * SECOND));
}

#[test]
fn a_clock_set_forward_ends_limits_early_and_one_set_back_keeps_what_was_left() {
    for kind in [LimitKind::Fixed, LimitKind::Bucket] {
        for (forward, at, expected) in [
            (3600, 12, true),
            (0, 12, false),
            (-3600, 12, false),
            // Ninety seconds were left at most.
            (-3600, 111, true),
        ] {
            let mut oracle = spent(kind, true);
            oracle.ended(false, 10 * SECOND);
            oracle.started(forward * 1_000_000, 11 * SECOND);
            let rule = may_be_full(&mut oracle, at * SECOND);
            assert_eq!(rule, expected, "{kind:?}, {forward} s, at second {at}");
        }
    }
}

#[test]
fn an_unanswered_request_may_have_been_executed_or_not() {
    for remaining in [0, 3] {
        let mut oracle = spent(LimitKind::Counter, true);
        oracle.keys[0] = SeenLimit::new(SimulatedLimit { kind: LimitKind::Counter, ..oracle.keys[0].terms });
        assert!(ask(&mut oracle, LimitRequest::Insert(3), LimitReply::Done(true), SECOND));
        oracle.requested(0, LINK, LimitRequest::Decrease(3), 2 * SECOND);
        oracle.closed(LINK, 3 * SECOND);
        let found = |quota| LimitReply::Found(Some((quota, 97_000_000)));
        assert!(ask(&mut oracle, LimitRequest::Query, found(remaining), 4 * SECOND));
        assert!(!ask(&mut oracle, LimitRequest::Query, found(1), 4 * SECOND));
    }
}
