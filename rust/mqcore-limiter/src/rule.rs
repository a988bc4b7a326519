//! Rate limit algorithms: fixed window, sliding window and GCRA, as pure functions of a state and a time.

use crate::divisor::Divisor;
use crate::time::{Nanos, Ttl};

/// A rate limit algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The first request opens a period in which `limit` may be consumed. The state is an ordinary counter of the remaining
    /// quota. Up to twice the limit may be consumed around the boundary of two periods.
    FixedWindow,
    /// Consumption in the previous period counts in proportion to its overlap with the last `period`.
    SlidingWindow,
    /// The generic cell rate algorithm: a bucket of `limit` tokens that refills evenly within one period. For a bucket of
    /// `burst` tokens that refills at `rate` tokens per second, use limit `burst` and period `burst / rate` seconds.
    Gcra,
}

/// A rate limit and the requested cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Maximum consumption per period.
    pub limit: u64,
    /// Requested amount.
    pub cost: u64,
    /// Length of a period, with the unit in which remaining times are reported.
    pub period: Ttl,
}

/// The effect of a request on the quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConsumeMode {
    /// Subtracts the cost if enough quota is available.
    Take,
    /// Subtracts nothing; reports whether a cost of 1 would be allowed.
    Peek,
    /// Subtracts nothing; reports what [`ConsumeMode::Take`] would return.
    DryRun,
    /// Returns the cost to the quota, but not more than was consumed.
    Refund,
}

/// The decision on one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitDecision {
    /// Whether enough quota was available.
    pub allowed: bool,
    /// Limit in force.
    pub limit: u64,
    /// Quota available now.
    pub remaining: u64,
    /// Nanoseconds until enough quota is available if no other request consumes it: 0 if it is available now, `u64::MAX` if
    /// it never will be.
    pub retry_after: u64,
    /// Nanoseconds until the full limit is available if no request consumes quota.
    pub reset_after: u64,
}

/// Why a rule was not applied. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The period is 0.
    #[error("the period of a limit must be longer than 0")]
    NoPeriod,
    /// The key belongs to a buffer, or to a counter of another algorithm.
    #[error("the key belongs to a buffer or to another algorithm; purge it, or use another key")]
    OtherKind,
    /// One request names a key twice.
    #[error("a request must not name a key twice")]
    KeyTwice,
    /// One request names too many keys.
    #[error("a request names at most {max} keys")]
    TooMany {
        /// Maximum number of keys.
        max: usize,
    },
    /// The owner of new keys may have no more of them.
    #[error("the client may have no more keys; purge some of them, or raise limiter_keys_per_user_max")]
    OwnerFull,
}

/// State of a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sliding {
    pub(crate) start: Nanos,
    /// In nanoseconds; never 0.
    pub(crate) period: Divisor,
    pub(crate) limit: u64,
    pub(crate) current: u64,
    pub(crate) previous: u64,
}

/// State of a token bucket. Packed, because a cell of the store has 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(Rust, packed(8))]
pub(crate) struct Bucket {
    pub(crate) at: Nanos,
    /// In nanoseconds; never 0.
    pub(crate) period: Divisor,
    pub(crate) limit: Divisor,
    /// Missing tokens at the time `at`, in units of 1/`period` token. In these units, exactly `limit` are refilled per
    /// nanosecond.
    pub(crate) missing: u128,
}

/// The state of a key under a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleState {
    Fixed { left: u64, deadline: Nanos },
    Sliding(Sliding),
    Bucket(Bucket),
}

/// The decision of a rule, and the state that results from it.
pub(crate) struct Evaluation {
    pub(crate) verdict: LimitDecision,
    /// New state, and the deadline after which it equals no state; `None`: nothing changes.
    pub(crate) after: Option<(RuleState, Nanos)>,
}

/// The product of two 64-bit numbers, which always fits.
#[inline]
const fn product(a: u64, b: u64) -> u128 {
    a as u128 * b as u128
}

impl Sliding {
    pub(crate) const fn new(start: Nanos, period: u64, limit: u64) -> Self {
        Self { start, period: Divisor::new(period), limit, current: 0, previous: 0 }
    }

    /// Advances to the period that contains `now`, and to the current rule's period and limit.
    #[inline]
    fn turned(mut self, now: Nanos, period: u64, limit: u64) -> Self {
        let since = now.since(self.start);
        if since >= self.period.number() {
            let periods = since / self.period.number();
            self.previous = if periods == 1 { self.current } else { 0 };
            self.current = 0;
            self.start = self.start.after(periods.saturating_mul(self.period.number()));
        }
        if self.period.number() != period {
            // A new period length begins now, with the consumption that counts so far.
            self = Self { current: self.used(now), ..Self::new(now, period, limit) };
        }
        self.limit = limit;
        self
    }

    /// Nanoseconds until the end of the period.
    #[inline]
    fn left(&self, now: Nanos) -> u64 {
        self.period.number().saturating_sub(now.since(self.start))
    }

    /// Consumption that counts at `now`. Rounded up, so that the limit is never exceeded.
    #[inline]
    pub(crate) fn used(&self, now: Nanos) -> u64 {
        let of_previous = match self.previous {
            0 => 0,
            previous => self.period.ceil(product(previous, self.left(now))),
        };
        self.current.saturating_add(of_previous)
    }

    /// Time from which no consumption counts any more.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.start.after(self.period.number()).after(self.period.number())
    }

    fn retry_after(&self, cost: u64, now: Nanos) -> u64 {
        let Some(room) = self.limit.checked_sub(cost) else { return u64::MAX };
        let period = self.period.number();
        let left = self.left(now);
        // Nanoseconds from the beginning of a period until at most `room` of the previous period's `taken` counts.
        let until = |taken: u64, room: u64| match taken {
            0 => 0,
            taken => period.saturating_sub(Divisor::new(taken).floor(product(room, period))),
        };
        match room.checked_sub(self.current) {
            Some(room) => until(self.previous, room).saturating_sub(period - left),
            None => left.saturating_add(until(self.current, room)),
        }
    }

    #[inline]
    fn reset_after(&self, now: Nanos) -> u64 {
        if self.current > 0 {
            self.deadline().since(now)
        } else if self.previous > 0 {
            self.start.after(self.period.number()).since(now)
        } else {
            0
        }
    }

    fn refund(&mut self, cost: u64) {
        let of_current = cost.min(self.current);
        self.current -= of_current;
        self.previous = self.previous.saturating_sub(cost - of_current);
    }
}

impl Bucket {
    pub(crate) const fn full(at: Nanos, period: u64, limit: u64) -> Self {
        Self { at, period: Divisor::new(period), limit: Divisor::new(limit), missing: 0 }
    }

    #[inline]
    fn turned(mut self, now: Nanos, period: u64, limit: u64) -> Self {
        self.missing = self.missing_at(now);
        self.at = now;
        if self.period.number() != period {
            self.missing = self.converted(period);
            self.period = Divisor::new(period);
        }
        if self.limit.number() != limit {
            self.limit = Divisor::new(limit);
        }
        self
    }

    /// Converts the missing amount to another period, rounded up.
    fn converted(&self, period: u64) -> u128 {
        let (missing, parts) = (self.missing, u128::from(self.period.number()));
        let (whole, rest) = (missing / parts, missing % parts);
        let rest = (rest * u128::from(period)).div_ceil(parts);
        whole.saturating_mul(u128::from(period)).saturating_add(rest)
    }

    #[inline]
    pub(crate) fn missing_at(&self, now: Nanos) -> u128 {
        self.missing.saturating_sub(product(now.since(self.at), self.limit.number()))
    }

    /// Available tokens.
    #[inline]
    pub(crate) fn remaining(&self, missing: u128) -> u64 {
        self.period.floor(product(self.limit.number(), self.period.number()).saturating_sub(missing))
    }

    /// Nanoseconds until this amount is refilled.
    #[inline]
    fn time_for(&self, missing: u128) -> u64 {
        if missing == 0 { 0 } else { self.limit.ceil(missing) }
    }

    fn retry_after(&self, cost: u64) -> u64 {
        let (limit, period) = (self.limit.number(), self.period.number());
        if cost > limit {
            return u64::MAX;
        }
        let whole = product(limit - cost, period);
        self.time_for(self.missing.saturating_sub(whole))
    }
}

impl RuleState {
    /// The state of an unused key.
    fn fresh(rule: &Rule, now: Nanos) -> Self {
        let (period, limit) = (rule.period.nanos(), rule.limit);
        match rule.algorithm {
            Algorithm::FixedWindow => Self::Fixed { left: limit, deadline: now.after(period) },
            Algorithm::SlidingWindow => Self::Sliding(Sliding::new(now, period, limit)),
            Algorithm::Gcra => Self::Bucket(Bucket::full(now, period, limit)),
        }
    }

    /// Available quota.
    #[inline]
    fn there(&self, now: Nanos) -> u64 {
        match self {
            Self::Fixed { left, .. } => *left,
            Self::Sliding(sliding) => sliding.limit.saturating_sub(sliding.used(now)),
            Self::Bucket(bucket) => bucket.remaining(bucket.missing),
        }
    }

    /// Nanoseconds until `cost` is available, given that it is not available now.
    fn retry_after(&self, cost: u64, limit: u64, now: Nanos) -> u64 {
        match self {
            Self::Fixed { deadline, .. } if cost <= limit => deadline.since(now),
            Self::Fixed { .. } => u64::MAX,
            Self::Sliding(sliding) => sliding.retry_after(cost, now),
            Self::Bucket(bucket) => bucket.retry_after(cost),
        }
    }

    /// Nanoseconds until the full limit is available, and the deadline after which the state equals none.
    #[inline]
    fn ends(&self, limit: u64, now: Nanos) -> (u64, Nanos) {
        match self {
            Self::Fixed { left, deadline } => {
                (if *left < limit { deadline.since(now) } else { 0 }, *deadline)
            }
            Self::Sliding(sliding) => (sliding.reset_after(now), sliding.deadline()),
            Self::Bucket(bucket) => {
                let reset_after = bucket.time_for(bucket.missing);
                (reset_after, now.after(reset_after))
            }
        }
    }

    #[inline]
    fn take(&mut self, cost: u64) {
        match self {
            Self::Fixed { left, .. } => *left -= cost,
            Self::Sliding(sliding) => sliding.current = sliding.current.saturating_add(cost),
            Self::Bucket(bucket) => {
                bucket.missing = bucket.missing.saturating_add(product(cost, bucket.period.number()));
            }
        }
    }

    fn refund(&mut self, cost: u64, limit: u64) {
        match self {
            Self::Fixed { left, .. } => *left = left.saturating_add(cost).min(limit).max(*left),
            Self::Sliding(sliding) => sliding.refund(cost),
            Self::Bucket(bucket) => {
                bucket.missing = bucket.missing.saturating_sub(product(cost, bucket.period.number()));
            }
        }
    }
}

impl Rule {
    /// Validates the rule.
    ///
    /// # Errors
    /// [`RuleError::NoPeriod`] if the period is 0.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), RuleError> {
        if self.period.nanos() == 0 { Err(RuleError::NoPeriod) } else { Ok(()) }
    }

    /// Evaluates the rule. `known` is the key's state, of the same algorithm.
    #[inline]
    pub(crate) fn judge(&self, known: Option<RuleState>, mode: ConsumeMode, now: Nanos) -> Evaluation {
        let mut state = match known {
            None => RuleState::fresh(self, now),
            Some(RuleState::Sliding(sliding)) => {
                RuleState::Sliding(sliding.turned(now, self.period.nanos(), self.limit))
            }
            Some(RuleState::Bucket(bucket)) => {
                RuleState::Bucket(bucket.turned(now, self.period.nanos(), self.limit))
            }
            Some(fixed) => fixed,
        };
        let cost = match mode {
            ConsumeMode::Take | ConsumeMode::DryRun => self.cost,
            ConsumeMode::Peek => 1,
            ConsumeMode::Refund => 0,
        };
        let there = state.there(now);
        let allowed = cost <= there;
        let retry_after = if allowed { 0 } else { state.retry_after(cost, self.limit, now) };
        let (changes, remaining) = match mode {
            ConsumeMode::Take if allowed && cost > 0 => {
                state.take(cost);
                (true, there - cost)
            }
            ConsumeMode::Refund if known.is_some() && self.cost > 0 => {
                state.refund(self.cost, self.limit);
                (true, state.there(now))
            }
            _ => (false, there),
        };
        let (reset_after, deadline) = state.ends(self.limit, now);
        let verdict = LimitDecision { allowed, limit: self.limit, remaining, retry_after, reset_after };
        Evaluation { verdict, after: changes.then_some((state, deadline)) }
    }
}
