//! Limits: a model of each key, from the requests and answers of its only client.
//!
//! The model does not know when the broker executes a request, only that it is between the request and its answer, and not
//! which of the latest states a crash leaves. So it has several states of a key that are possible, each with times between
//! bounds, and an answer removes those that contradict it. An answer that contradicts all of them breaks a promise.

mod state;

use mqcore_broker::model::id::ConnectionId;

use self::state::{LimitState, Nanos, Span};
use crate::scenario::limits::SimulatedLimit;
use crate::time::Micros;

pub(crate) use self::state::{LimitReply, LimitRequest};

/// Maximum time between a change and the moment when it is saved: the interval of saving, two syncs, and what a task takes
/// until it runs.
const SAVED_AFTER: Nanos = 260_000_000;
/// More states than this tell nothing any more.
const STATES_MAX: usize = 64;

/// The knowledge of a key.
#[derive(Debug)]
struct SeenLimit {
    terms: SimulatedLimit,
    /// Sets of possible states, and the times of the answers after which they were possible; the current one last.
    past: Vec<(Nanos, Vec<LimitState>)>,
    /// The request that is not answered, its connection, and when it was sent.
    open: Option<(ConnectionId, LimitRequest, Nanos)>,
    /// Nothing is known any more.
    is_unknown: bool,
}

/// All keys.
#[derive(Debug)]
pub(crate) struct SeenLimits {
    keys: Vec<SeenLimit>,
    /// Since when changes may not be saved because of a faulty disk.
    unsaved_since: Option<Nanos>,
    /// When the broker ended last.
    ended_at: Nanos,
    /// When the broker started with a clock that was set back, if it may not have saved since that entries end earlier.
    set_back_at: Option<Nanos>,
}

impl SeenLimits {
    pub(super) fn new(limits: &[SimulatedLimit]) -> Self {
        let keys = limits.iter().map(|limit| SeenLimit::new(*limit)).collect();
        Self { keys, unsaved_since: None, ended_at: 0, set_back_at: None }
    }

    /// The client of a key sends a request.
    pub(crate) fn requested(&mut self, key: usize, link: ConnectionId, request: LimitRequest, now: Micros) {
        self.keys[key].open = Some((link, request, nanos(now)));
    }

    /// It receives the answer. Returns the finding if that breaks a promise.
    pub(crate) fn answered(&mut self, key: usize, reply: LimitReply, now: Micros) -> Option<String> {
        let seen = &mut self.keys[key];
        let Some((_, request, sent)) = seen.open.take() else {
            return Some(format!("key {key} is answered without a request"));
        };
        let when = Span { from: sent, until: nanos(now) };
        let before = seen.current().to_vec();
        let mut after: Vec<LimitState> = Vec::new();
        for state in &before {
            state.step(&seen.terms, request, Some(reply), when, &mut after);
        }
        let is_possible = !after.is_empty() || seen.is_unknown;
        seen.advance(nanos(now), after);
        let text = || format!("key {key} answers {request:?} with {reply:?}, possible were {before:?}");
        (!is_possible).then(text)
    }

    /// The connection of a client ended. Its open request may have been executed.
    pub(super) fn closed(&mut self, link: ConnectionId, now: Micros) {
        for seen in &mut self.keys {
            let Some((_, request, sent)) = seen.open.take_if(|(of, ..)| *of == link) else { continue };
            let when = Span { from: sent, until: nanos(now) };
            let mut after = seen.current().to_vec();
            for state in seen.current().to_vec() {
                state.step(&seen.terms, request, None, when, &mut after);
            }
            seen.advance(nanos(now), after);
        }
    }

    /// The broker ended. Unless it was stopped in order, it may lose the latest changes; after a fault of a disk, all changes
    /// since then.
    pub(super) fn ended(&mut self, is_orderly: bool, now: Micros) {
        let unsaved_since = self.unsaved_since;
        for seen in &mut self.keys {
            if !seen.terms.persists {
                seen.past = vec![(nanos(now), vec![LimitState::Absent])];
                continue;
            }
            let saved = match unsaved_since {
                None if is_orderly => nanos(now),
                since => nanos(now).min(since.unwrap_or(Nanos::MAX)) - SAVED_AFTER,
            };
            // A state is lost for certain if the next one was saved.
            let first = seen.past.iter().rposition(|(at, _)| *at <= saved).unwrap_or_default();
            let mut possible = Vec::new();
            seen.past.drain(first..).for_each(|(_, states)| possible.extend(states));
            seen.past.clear();
            seen.advance(nanos(now), possible);
        }
        self.ended_at = nanos(now);
    }

    /// The broker starts with a clock that was set forward by this much while it was down.
    pub(crate) fn started(&mut self, forward_micros: i64, now: Micros) {
        let (ended, forward) = (self.ended_at, forward_micros * 1000);
        // Entries whose times were moved back are saved anew. Until then they keep the time that was left at the last write.
        let is_moved = |at: &Nanos| ended - at < SAVED_AFTER || self.unsaved_since.is_some();
        let kept = self.set_back_at.filter(is_moved).map_or(0, |at| nanos(now) - at + forward.max(0));
        let mut is_back = false;
        // Entries keep the time that was left at the last write if the clock shows less than then.
        let shown = nanos(now) + forward;
        for seen in &mut self.keys {
            let mut states = seen.current().to_vec();
            for state in &mut states {
                let back = Span {
                    from: (state.changed_after(&seen.terms).min(ended) - shown).max(0),
                    until: (ended - shown).max(0),
                };
                is_back |= back.until > 0 && *state != LimitState::Absent;
                state.shift(Span { from: forward + back.from - kept, until: forward + back.until });
            }
            let began = seen.past.last().map_or(0, |(at, _)| *at);
            seen.past.clear();
            seen.advance(began, states);
        }
        self.set_back_at = (is_back || kept > 0).then_some(nanos(now));
    }

    /// Disks have faults from now on, so that limits are not saved, or no longer (`None`).
    pub(super) fn set_unsaved(&mut self, since: Option<Micros>) {
        self.unsaved_since = since.map(|now| self.unsaved_since.unwrap_or(nanos(now)));
    }

    /// The disk may have lost anything without a trace.
    pub(crate) fn doubt(&mut self) {
        self.keys.iter_mut().for_each(|seen| seen.is_unknown = true);
    }
}

impl SeenLimit {
    fn new(terms: SimulatedLimit) -> Self {
        Self { terms, past: vec![(Nanos::MIN, vec![LimitState::Absent])], open: None, is_unknown: false }
    }

    fn current(&self) -> &[LimitState] {
        self.past.last().map_or(&[], |(_, states)| states)
    }

    fn advance(&mut self, now: Nanos, states: Vec<LimitState>) {
        let mut distinct: Vec<LimitState> = Vec::new();
        for state in states {
            if !distinct.contains(&state) {
                distinct.push(state);
            }
        }
        self.is_unknown |= distinct.len() > STATES_MAX;
        distinct.truncate(STATES_MAX);
        self.past.push((now, distinct));
    }
}

fn nanos(micros: Micros) -> Nanos {
    micros as Nanos * 1000
}

#[cfg(test)]
mod tests;
