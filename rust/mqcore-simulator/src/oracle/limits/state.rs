//! The possible states of one key, and what a request makes of them.

use crate::scenario::limits::{LimitKind, SimulatedLimit};

/// Error of times that are not whole nanoseconds.
const ROUNDING: Nanos = 2;

/// Virtual time in nanoseconds. Negative before the run began.
pub(super) type Nanos = i64;

/// A request for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitRequest {
    Insert(u64),
    Patch(u64),
    Decrease(u64),
    Query,
    /// Sets a buffer to this number.
    Set(u64),
    Get,
    Take(u64),
    Refund(u64),
    Peek,
    Purge,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitReply {
    Done(bool),
    /// The quota, or the number in a buffer, and the microseconds that are left.
    Found(Option<(u64, u64)>),
    /// Whether the cost was granted, what remains, and the nanoseconds until everything is there again.
    Verdict {
        granted: bool,
        remaining: u64,
        reset_after: u64,
    },
}

/// Bounds of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

/// A possible state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitState {
    Absent,
    /// A counter with a quota, or a buffer with a number, and when it expires.
    Value {
        value: u64,
        ends: Span,
    },
    /// A sliding window: when its period began, and what was consumed in this and the previous one.
    Sliding {
        start: Span,
        current: u64,
        previous: u64,
    },
    /// A bucket, and when it is full.
    Bucket {
        full: Span,
    },
}

impl LimitState {
    /// Appends the states that are possible after a request was executed at some time. `reply`: its answer; `None`: unknown.
    pub(super) fn step(
        self,
        terms: &SimulatedLimit,
        request: LimitRequest,
        reply: Option<LimitReply>,
        when: Span,
        after: &mut Vec<Self>,
    ) {
        match terms.kind {
            LimitKind::Counter | LimitKind::Buffer | LimitKind::Fixed => {
                for view in self.views(when) {
                    view.step_value(terms, request, reply, when, after);
                }
            }
            LimitKind::Sliding => {
                self.turned(period(terms), when, |view, unchanged| {
                    view.step_sliding(terms, request, reply, when, &unchanged, after);
                });
            }
            LimitKind::Bucket => self.step_bucket(terms, request, reply, when, after),
        }
    }

    /// The state itself, if it may still exist, and nothing, if it may have expired.
    fn views(self, when: Span) -> Vec<Self> {
        let Self::Value { value, ends } = self else { return vec![self] };
        let mut views = Vec::new();
        if let Some(ends) = ends.within(when.from + 1, Nanos::MAX) {
            views.push(Self::Value { value, ends });
        }
        if ends.from <= when.until {
            views.push(Self::Absent);
        }
        views
    }

    fn step_value(
        self,
        terms: &SimulatedLimit,
        request: LimitRequest,
        reply: Option<LimitReply>,
        when: Span,
        after: &mut Vec<Self>,
    ) {
        let fresh = |value| Self::Value { value, ends: when.plus(period(terms)) };
        let answers = |done: bool| reply.is_none_or(|reply| reply == LimitReply::Done(done));
        match (request, self) {
            (LimitRequest::Insert(quota), Self::Absent) if answers(true) => after.push(fresh(quota)),
            (LimitRequest::Insert(_), Self::Value { .. }) if answers(false) => after.push(self),
            (LimitRequest::Set(number), _) if answers(true) => after.push(fresh(number)),
            (LimitRequest::Patch(value), Self::Value { ends, .. }) if answers(true) => {
                after.push(Self::Value { value, ends });
            }
            (LimitRequest::Decrease(by), Self::Value { value, ends }) if answers(value >= by) => {
                after.push(Self::Value { value: if value >= by { value - by } else { value }, ends });
            }
            (LimitRequest::Patch(_) | LimitRequest::Decrease(_), Self::Absent) if answers(false) => {
                after.push(self);
            }
            (LimitRequest::Purge, _) if answers(self != Self::Absent) => after.push(Self::Absent),
            (LimitRequest::Query | LimitRequest::Get, _) => match (self, reply) {
                (Self::Absent, Some(LimitReply::Found(None))) | (_, None) => after.push(self),
                (Self::Value { value, ends }, Some(LimitReply::Found(Some((found, left)))))
                    if found == value =>
                {
                    // The answer has whole microseconds, without the current nanosecond.
                    let left = left as Nanos * 1000;
                    let ends = ends.within(when.from + left + 1, when.until + left + 1000);
                    after.extend(ends.map(|ends| Self::Value { value, ends }));
                }
                _ => {}
            },
            (LimitRequest::Take(_) | LimitRequest::Refund(_) | LimitRequest::Peek, _) => {
                self.step_fixed(terms, request, reply, when, after);
            }
            _ => {}
        }
    }

    fn step_fixed(
        self,
        terms: &SimulatedLimit,
        request: LimitRequest,
        reply: Option<LimitReply>,
        when: Span,
        after: &mut Vec<Self>,
    ) {
        let (there, ends) = match self {
            Self::Value { value, ends } => (value, ends),
            _ => (terms.limit, when.plus(period(terms))),
        };
        let (left, changes) = match request {
            LimitRequest::Take(cost) if cost <= there => (there - cost, true),
            LimitRequest::Refund(cost) if self != Self::Absent => {
                (there.max(terms.limit.min(there + cost)), true)
            }
            _ => (there, false),
        };
        if !is_verdict_of(request, reply, (there, there), left) {
            return;
        }
        let ends = match reply {
            Some(LimitReply::Verdict { reset_after, .. }) if left < terms.limit => {
                let reset = reset_after as Nanos;
                ends.within(when.from + reset, when.until + reset)
            }
            _ => Some(ends),
        };
        let next = |ends| if changes { Self::Value { value: left, ends } } else { self };
        after.extend(ends.map(next));
    }

    /// Calls `give` for each number of periods that may have passed since the period began, with the state in the current period
    /// and the stored state that follows from its beginning if nothing changes.
    fn turned(self, period: Nanos, when: Span, mut give: impl FnMut(Self, &dyn Fn(Span) -> Self)) {
        let Self::Sliding { start, current, previous } = self else { return give(self, &|_| self) };
        let least = (when.from - start.until).max(0) / period;
        let most = (when.until - start.from).max(0) / period;
        for periods in least.min(2)..=most.min(2) {
            if periods == 2 {
                // Nothing counts any more, and the entry has expired.
                give(Self::Absent, &|_| Self::Absent);
                continue;
            }
            let moved = start.plus(periods * period).within(when.from - period + 1, Nanos::MAX);
            let (now, before) = if periods == 0 { (current, previous) } else { (0, current) };
            if let Some(start) = moved {
                let unchanged =
                    |start: Span| Self::Sliding { start: start.plus(-periods * period), current, previous };
                give(Self::Sliding { start, current: now, previous: before }, &unchanged);
            }
        }
    }

    fn step_sliding(
        self,
        terms: &SimulatedLimit,
        request: LimitRequest,
        reply: Option<LimitReply>,
        when: Span,
        unchanged: &dyn Fn(Span) -> Self,
        after: &mut Vec<Self>,
    ) {
        let period = period(terms);
        let (start, current, previous) = match self {
            Self::Sliding { start, current, previous } => (start, current, previous),
            _ => (when, 0, 0),
        };
        if request == LimitRequest::Purge {
            if reply.is_none_or(|reply| reply == LimitReply::Done(self != Self::Absent)) {
                after.push(Self::Absent);
            }
            return;
        }
        let used = |left: Nanos, current: u64, previous: u64| {
            let counted =
                (i128::from(previous) * i128::from(left) + i128::from(period) - 1) / i128::from(period);
            current + u64::try_from(counted).unwrap_or_default()
        };
        let least_left = (period - (when.until - start.from)).clamp(0, period);
        let most_left = (period - (when.from - start.until)).clamp(0, period);
        let room = |current, previous| {
            let there = |left| terms.limit.saturating_sub(used(left, current, previous));
            (there(most_left), there(least_left))
        };
        let there = room(current, previous);
        // An answer tells how much there was; without one, both outcomes are possible.
        let granted = |cost: u64| match reply {
            Some(LimitReply::Verdict { granted, .. }) => vec![granted],
            Some(_) => Vec::new(),
            None => [(true, cost <= there.1), (false, cost > there.0)]
                .into_iter()
                .filter_map(|(granted, is_possible)| is_possible.then_some(granted))
                .collect(),
        };
        let outcomes: Vec<(u64, u64, bool)> = match request {
            LimitRequest::Take(cost) => granted(cost)
                .into_iter()
                .map(
                    |granted| {
                        if granted { (current + cost, previous, true) } else { (current, previous, false) }
                    },
                )
                .collect(),
            LimitRequest::Refund(cost) if self != Self::Absent => {
                let of_current = cost.min(current);
                vec![(current - of_current, previous.saturating_sub(cost - of_current), true)]
            }
            _ => vec![(current, previous, false)],
        };
        for (current, previous, changes) in outcomes {
            let mut start = Some(start);
            if let Some(LimitReply::Verdict { granted, remaining, reset_after }) = reply {
                let (least, most) = match request {
                    // The cost was subtracted from what there was.
                    LimitRequest::Take(cost) if granted => {
                        (there.0.max(cost) - cost, there.1.saturating_sub(cost))
                    }
                    LimitRequest::Refund(_) => room(current, previous),
                    _ => there,
                };
                if !(least..=most).contains(&remaining) || !agrees(request, reply) {
                    continue;
                }
                if current > 0 {
                    let reset = reset_after as Nanos - 2 * period;
                    start = start.and_then(|start| start.within(when.from + reset, when.until + reset));
                }
            } else if reply.is_some() {
                continue;
            }
            let next = |start| {
                if changes { Self::Sliding { start, current, previous } } else { unchanged(start) }
            };
            after.extend(start.map(next));
        }
    }

    fn step_bucket(
        self,
        terms: &SimulatedLimit,
        request: LimitRequest,
        reply: Option<LimitReply>,
        when: Span,
        after: &mut Vec<Self>,
    ) {
        let period = period(terms);
        let full = match self {
            Self::Bucket { full } => full,
            _ => Span { from: Nanos::MIN / 2, until: Nanos::MIN / 2 },
        };
        let cost_of = |tokens: u64| {
            Nanos::try_from(i128::from(tokens) * i128::from(period) / i128::from(terms.limit))
                .unwrap_or(Nanos::MAX / 4)
        };
        let tokens_of = |missing: Nanos| {
            let there = i128::from((period - missing).max(0)) * i128::from(terms.limit) / i128::from(period);
            u64::try_from(there).unwrap_or_default()
        };
        if request == LimitRequest::Purge {
            let may_exist = full.until + ROUNDING > when.from;
            let may_be_full = full.from <= when.until;
            let is_possible = match reply {
                Some(LimitReply::Done(true)) => may_exist,
                Some(LimitReply::Done(false)) => may_be_full,
                Some(_) => false,
                None => true,
            };
            if is_possible {
                after.push(Self::Absent);
            }
            return;
        }
        let missing =
            Span { from: (full.from - when.until).max(0), until: (full.until - when.from).max(0) + ROUNDING };
        let there = (tokens_of(missing.until), tokens_of(missing.from - ROUNDING));
        // From when it is full, without this request, as seen when it is executed.
        let base = Span { from: full.from.max(when.from), until: full.until.max(when.until) + ROUNDING };
        let outcomes: Vec<(Span, bool)> = match (request, reply) {
            (LimitRequest::Take(cost), Some(LimitReply::Verdict { granted: true, .. })) => {
                vec![(base.plus(cost_of(cost)), true)]
            }
            (LimitRequest::Take(cost), None) => {
                let granted = (cost <= there.1).then(|| (base.plus(cost_of(cost)), true));
                granted.into_iter().chain((cost > there.0).then_some((full, false))).collect()
            }
            (LimitRequest::Refund(cost), _) => {
                vec![(full.plus(-cost_of(cost) - ROUNDING).to(ROUNDING), true)]
            }
            _ => vec![(full, false)],
        };
        for (next, changes) in outcomes {
            let mut next = Some(next);
            if let Some(LimitReply::Verdict { granted, remaining, reset_after }) = reply {
                let (least, most) = match request {
                    LimitRequest::Take(cost) if granted => {
                        (there.0.max(cost) - cost, there.1.saturating_sub(cost))
                    }
                    LimitRequest::Refund(cost) => {
                        ((there.0 + cost).min(terms.limit), (there.1 + cost).min(terms.limit))
                    }
                    _ => there,
                };
                // A refund adds fractions of tokens to fractions.
                let slack = u64::from(matches!(request, LimitRequest::Refund(_)));
                if remaining + slack < least || remaining > most + slack || !agrees(request, reply) {
                    continue;
                }
                let reset = reset_after as Nanos;
                if reset > 0 {
                    let told = (when.from + reset - ROUNDING, when.until + reset + ROUNDING);
                    next = next.and_then(|next| next.within(told.0, told.1));
                } else if let Some(full) = next
                    && full.from > when.until
                {
                    continue;
                }
            } else if reply.is_some() {
                continue;
            }
            let kept = |full| if changes || reply.is_some() { Self::Bucket { full } } else { self };
            after.extend(next.map(kept));
        }
    }

    /// The earliest time at which this state may have been made.
    pub(super) fn changed_after(self, terms: &SimulatedLimit) -> Nanos {
        match self {
            Self::Absent => Nanos::MAX,
            Self::Value { ends, .. } => ends.from - period(terms),
            Self::Sliding { start, .. } => start.from,
            // A bucket lacks at most all its tokens when it changes.
            Self::Bucket { full } => full.from - period(terms),
        }
    }

    /// Moves all times back by some time between bounds.
    pub(super) fn shift(&mut self, by: Span) {
        match self {
            Self::Absent => {}
            Self::Value { ends: span, .. }
            | Self::Sliding { start: span, .. }
            | Self::Bucket { full: span } => {
                *span = Span { from: span.from - by.until, until: span.until - by.from };
            }
        }
    }
}

/// Whether an answer can belong to a request, given what there was before it and what is left after it.
fn is_verdict_of(request: LimitRequest, reply: Option<LimitReply>, there: (u64, u64), left: u64) -> bool {
    match reply {
        None => true,
        Some(LimitReply::Verdict { granted, remaining, .. }) => {
            let cost = match request {
                LimitRequest::Take(cost) => cost,
                LimitRequest::Peek => 1,
                _ => 0,
            };
            granted == (cost <= there.0) && remaining == left
        }
        Some(_) => false,
    }
}

/// Whether an answer agrees with itself.
fn agrees(request: LimitRequest, reply: Option<LimitReply>) -> bool {
    match (request, reply) {
        (LimitRequest::Take(cost), Some(LimitReply::Verdict { granted: false, remaining, .. })) => {
            cost > remaining
        }
        (LimitRequest::Peek, Some(LimitReply::Verdict { granted, remaining, .. })) => {
            granted == (remaining > 0)
        }
        (LimitRequest::Refund(_), Some(LimitReply::Verdict { granted, .. })) => granted,
        _ => true,
    }
}

impl Span {
    fn plus(self, nanos: Nanos) -> Self {
        Self { from: self.from + nanos, until: self.until + nanos }
    }

    /// Extends it by an error in both directions.
    fn to(self, error: Nanos) -> Self {
        Self { from: self.from - error, until: self.until + 2 * error }
    }

    /// Its part within bounds.
    fn within(self, from: Nanos, until: Nanos) -> Option<Self> {
        let both = Self { from: self.from.max(from), until: self.until.min(until) };
        (both.from <= both.until).then_some(both)
    }
}

fn period(terms: &SimulatedLimit) -> Nanos {
    terms.period_micros as Nanos * 1000
}
