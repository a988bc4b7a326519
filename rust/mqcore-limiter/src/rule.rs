//! How a quota is spent: fixed window, sliding window and GCRA, as pure functions of a state and a moment.

use crate::divisor::Divisor;
use crate::time::{Nanos, Ttl};

/// How taking is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The first that is taken opens a period, in which `limit` may be taken. The state is an ordinary counter of what is
    /// left. Up to twice the limit fits around the border of two periods.
    FixedWindow,
    /// What was taken in the period before counts in proportion to how much of it lies in the last `period`.
    SlidingWindow,
    /// A bucket of `limit` that refills evenly, all of it in a period; the generic cell rate algorithm. For a bucket of
    /// `burst` that refills `rate` each second, the limit is `burst` and the period `burst / rate` seconds.
    Gcra,
}

/// What is asked for, and under which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// How.
    pub algorithm: Algorithm,
    /// How much may be taken in a period.
    pub limit: u64,
    /// How much is asked for.
    pub cost: u64,
    /// How long a period is, and in which unit that is told.
    pub period: Ttl,
}

/// What becomes of what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It is taken, if there is enough.
    Take,
    /// Nothing is; tells whether one could be.
    Peek,
    /// Nothing is; tells what [`Mode::Take`] would.
    DryRun,
    /// It is given back; no more than was taken.
    Refund,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Whether there was enough.
    pub allowed: bool,
    /// The limit.
    pub limit: u64,
    /// What can be taken now.
    pub remaining: u64,
    /// Nanoseconds after which there is enough if nobody else takes anything: 0 if there is, the largest number if
    /// there never will be.
    pub retry_after: u64,
    /// Nanoseconds after which everything can be taken again if nobody takes anything.
    pub reset_after: u64,
}

/// Why a rule was not applied. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A period of nothing.
    #[error("the period of a limit must be longer than 0")]
    NoPeriod,
    /// The key is taken by a buffer or by another algorithm.
    #[error("the key holds something that this algorithm does not count with; purge it, or use another key")]
    OtherKind,
    /// One request names a key twice.
    #[error("a key can stand only once in a request for several")]
    KeyTwice,
    /// One request names too many.
    #[error("a request can name at most {max} keys")]
    TooMany {
        /// How many it can.
        max: usize,
    },
}

/// A window that slides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sliding {
    pub(crate) start: Nanos,
    /// Nanoseconds; never 0.
    pub(crate) period: Divisor,
    pub(crate) limit: u64,
    pub(crate) current: u64,
    pub(crate) previous: u64,
}

/// A bucket that refills. Packed, because a cell of the store has 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(Rust, packed(8))]
pub(crate) struct Bucket {
    pub(crate) at: Nanos,
    /// Nanoseconds; never 0.
    pub(crate) period: Divisor,
    pub(crate) limit: Divisor,
    /// What was missing at that moment, in units of the `period`-th part of one: what comes back in a nanosecond is
    /// exactly `limit` of them.
    pub(crate) missing: u128,
}

/// What a rule has to remember of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Fixed { left: u64, deadline: Nanos },
    Sliding(Sliding),
    Bucket(Bucket),
}

/// What a state tells to whoever asks at a moment.
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    /// `None`: nothing changes. Otherwise the new state, and when it is as good as none.
    pub(crate) after: Option<(State, Nanos)>,
}

/// The product of two numbers always fits.
#[inline]
const fn product(a: u64, b: u64) -> u128 {
    a as u128 * b as u128
}

impl Sliding {
    pub(crate) const fn new(start: Nanos, period: u64, limit: u64) -> Self {
        Self { start, period: Divisor::new(period), limit, current: 0, previous: 0 }
    }

    /// What counts at `now` of what was taken, having turned to the period that `now` lies in.
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
            // Another period begins now, with what counts so far.
            self = Self { current: self.used(now), ..Self::new(now, period, limit) };
        }
        self.limit = limit;
        self
    }

    /// Nanoseconds until the period is over.
    #[inline]
    fn left(&self, now: Nanos) -> u64 {
        self.period.number().saturating_sub(now.since(self.start))
    }

    /// Rounded up, so that never more than the limit is let through.
    #[inline]
    pub(crate) fn used(&self, now: Nanos) -> u64 {
        let of_previous = match self.previous {
            0 => 0,
            previous => self.period.ceil(product(previous, self.left(now))),
        };
        self.current.saturating_add(of_previous)
    }

    /// When nothing of it counts any more.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.start.after(self.period.number()).after(self.period.number())
    }

    fn retry_after(&self, cost: u64, now: Nanos) -> u64 {
        let Some(room) = self.limit.checked_sub(cost) else { return u64::MAX };
        let period = self.period.number();
        let left = self.left(now);
        // How long it takes from the beginning of a period until only `room` of `taken` before it counts.
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

    /// What is missing in parts of another period, rounded up.
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

    /// What can be taken.
    #[inline]
    pub(crate) fn remaining(&self, missing: u128) -> u64 {
        self.period.floor(product(self.limit.number(), self.period.number()).saturating_sub(missing))
    }

    /// How long it takes to refill so much.
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

impl State {
    /// What nobody has taken anything of yet.
    fn fresh(rule: &Rule, now: Nanos) -> Self {
        let (period, limit) = (rule.period.nanos(), rule.limit);
        match rule.algorithm {
            Algorithm::FixedWindow => Self::Fixed { left: limit, deadline: now.after(period) },
            Algorithm::SlidingWindow => Self::Sliding(Sliding::new(now, period, limit)),
            Algorithm::Gcra => Self::Bucket(Bucket::full(now, period, limit)),
        }
    }

    /// What can be taken.
    #[inline]
    fn there(&self, now: Nanos) -> u64 {
        match self {
            Self::Fixed { left, .. } => *left,
            Self::Sliding(sliding) => sliding.limit.saturating_sub(sliding.used(now)),
            Self::Bucket(bucket) => bucket.remaining(bucket.missing),
        }
    }

    /// When `cost` can be taken, which cannot be now.
    fn retry_after(&self, cost: u64, limit: u64, now: Nanos) -> u64 {
        match self {
            Self::Fixed { deadline, .. } if cost <= limit => deadline.since(now),
            Self::Fixed { .. } => u64::MAX,
            Self::Sliding(sliding) => sliding.retry_after(cost, now),
            Self::Bucket(bucket) => bucket.retry_after(cost),
        }
    }

    /// When everything can be taken again, and when this is as good as none.
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
    /// # Errors
    /// [`RuleError::NoPeriod`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), RuleError> {
        if self.period.nanos() == 0 { Err(RuleError::NoPeriod) } else { Ok(()) }
    }

    /// Judges by what is known of the key; `known` belongs to the same algorithm.
    #[inline]
    pub(crate) fn judge(&self, known: Option<State>, mode: Mode, now: Nanos) -> Judged {
        let mut state = match known {
            None => State::fresh(self, now),
            Some(State::Sliding(sliding)) => {
                State::Sliding(sliding.turned(now, self.period.nanos(), self.limit))
            }
            Some(State::Bucket(bucket)) => State::Bucket(bucket.turned(now, self.period.nanos(), self.limit)),
            Some(fixed) => fixed,
        };
        let cost = match mode {
            Mode::Take | Mode::DryRun => self.cost,
            Mode::Peek => 1,
            Mode::Refund => 0,
        };
        let there = state.there(now);
        let allowed = cost <= there;
        let retry_after = if allowed { 0 } else { state.retry_after(cost, self.limit, now) };
        let (changes, remaining) = match mode {
            Mode::Take if allowed && cost > 0 => {
                state.take(cost);
                (true, there - cost)
            }
            Mode::Refund if known.is_some() && self.cost > 0 => {
                state.refund(self.cost, self.limit);
                (true, state.there(now))
            }
            _ => (false, there),
        };
        let (reset_after, deadline) = state.ends(self.limit, now);
        let verdict = Verdict { allowed, limit: self.limit, remaining, retry_after, reset_after };
        Judged { verdict, after: changes.then_some((state, deadline)) }
    }
}
