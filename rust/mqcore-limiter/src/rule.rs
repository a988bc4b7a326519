//! How a quota is spent: fixed window, sliding window and GCRA, as pure functions of a state and a moment.

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
    pub(crate) period: u64,
    pub(crate) limit: u64,
    pub(crate) current: u64,
    pub(crate) previous: u64,
}

/// A bucket that refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bucket {
    pub(crate) at: Nanos,
    pub(crate) period: u64,
    pub(crate) limit: u64,
    /// What was missing at that moment, in units of 2^-64.
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
    /// `None`: nothing changes.
    pub(crate) after: Option<State>,
}

/// Bits behind the point in what a bucket misses.
const FRACTION: u32 = 64;

/// `a * b / c` rounded down; the largest number if it is more. `c` is not 0.
const fn scale(a: u64, b: u64, c: u64) -> u64 {
    let scaled = a as u128 * b as u128 / c as u128;
    if scaled > u64::MAX as u128 { u64::MAX } else { scaled as u64 }
}

/// Quotient and remainder. Most numbers fit into 64 bits, in which dividing takes a fraction of the time.
#[inline]
const fn divide(a: u128, b: u64) -> (u128, u64) {
    if a <= u64::MAX as u128 {
        let a = a as u64;
        ((a / b) as u128, a % b)
    } else {
        (a / b as u128, (a % b as u128) as u64)
    }
}

/// `a / b` rounded up.
#[inline]
const fn divide_up(a: u128, b: u64) -> u128 {
    let (quotient, remainder) = divide(a, b);
    quotient + (remainder > 0) as u128
}

impl Sliding {
    /// What counts at `now` of what was taken, having turned to the period that `now` lies in.
    fn turned(mut self, now: Nanos, period: u64, limit: u64) -> Self {
        let since = now.since(self.start);
        if since >= self.period {
            let periods = since / self.period;
            self.previous = if periods == 1 { self.current } else { 0 };
            self.current = 0;
            self.start = self.start.after(periods.saturating_mul(self.period));
        }
        if self.period != period {
            // Another period begins now, with what counts so far.
            let current = self.used(now);
            self = Self { start: now, period, limit, current, previous: 0 };
        }
        self.limit = limit;
        self
    }

    /// Rounded up, so that never more than the limit is let through.
    pub(crate) fn used(&self, now: Nanos) -> u64 {
        let left = self.period.saturating_sub(now.since(self.start));
        let product = u128::from(self.previous) * u128::from(left);
        let of_previous = divide_up(product, self.period) as u64;
        self.current.saturating_add(of_previous)
    }

    /// When nothing of it counts any more.
    pub(crate) fn deadline(&self) -> Nanos {
        self.start.after(self.period).after(self.period)
    }

    fn retry_after(&self, cost: u64, now: Nanos) -> u64 {
        let Some(room) = self.limit.checked_sub(cost) else { return u64::MAX };
        if self.used(now) <= room {
            return 0;
        }
        let left = self.period.saturating_sub(now.since(self.start));
        // How long it takes from the beginning of a period until only `room` of `taken` before it counts.
        let until = |taken: u64, room: u64| match taken {
            0 => 0,
            taken => self.period.saturating_sub(scale(room, self.period, taken)),
        };
        match room.checked_sub(self.current) {
            Some(room) => until(self.previous, room).saturating_sub(self.period - left),
            None => left.saturating_add(until(self.current, room)),
        }
    }

    fn reset_after(&self, now: Nanos) -> u64 {
        if self.current > 0 {
            self.deadline().since(now)
        } else if self.previous > 0 {
            self.start.after(self.period).since(now)
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
    fn turned(mut self, now: Nanos, period: u64, limit: u64) -> Self {
        self.missing = self.missing_at(now);
        (self.at, self.period, self.limit) = (now, period, limit);
        self
    }

    pub(crate) fn missing_at(&self, now: Nanos) -> u128 {
        let (whole, rest) = divide(u128::from(now.since(self.at)) * u128::from(self.limit), self.period);
        if self.missing == 0 || whole >= u128::from(self.limit) {
            return 0;
        }
        // Rounded up: otherwise what is refilled after a whole number of nanoseconds would come one later.
        let part = divide_up(u128::from(rest) << FRACTION, self.period);
        self.missing.saturating_sub((whole << FRACTION).saturating_add(part))
    }

    /// What can be taken.
    pub(crate) fn remaining(&self, missing: u128) -> u64 {
        ((u128::from(self.limit) << FRACTION).saturating_sub(missing) >> FRACTION) as u64
    }

    /// How long it takes to refill so much, rounded up.
    fn time_for(&self, missing: u128) -> u64 {
        if missing == 0 {
            return 0;
        }
        if self.limit == 0 {
            return u64::MAX;
        }
        let period = u128::from(self.period);
        let whole = (missing >> FRACTION) * period;
        let part = ((missing & ((1 << FRACTION) - 1)) * period).div_ceil(1 << FRACTION);
        u64::try_from(divide_up(whole.saturating_add(part), self.limit)).unwrap_or(u64::MAX)
    }

    /// When it is full again.
    pub(crate) fn deadline(&self) -> Nanos {
        self.at.after(self.time_for(self.missing))
    }

    fn retry_after(&self, cost: u64) -> u64 {
        if cost > self.limit {
            return u64::MAX;
        }
        let there = (u128::from(self.limit) << FRACTION).saturating_sub(self.missing);
        self.time_for((u128::from(cost) << FRACTION).saturating_sub(there))
    }
}

impl State {
    /// What nobody has taken anything of yet.
    fn fresh(rule: &Rule, now: Nanos) -> Self {
        let (period, limit) = (rule.period.nanos(), rule.limit);
        match rule.algorithm {
            Algorithm::FixedWindow => Self::Fixed { left: limit, deadline: now.after(period) },
            Algorithm::SlidingWindow => {
                Self::Sliding(Sliding { start: now, period, limit, current: 0, previous: 0 })
            }
            Algorithm::Gcra => Self::Bucket(Bucket { at: now, period, limit, missing: 0 }),
        }
    }

    /// When it is as good as none.
    pub(crate) fn deadline(&self) -> Nanos {
        match self {
            Self::Fixed { deadline, .. } => *deadline,
            Self::Sliding(sliding) => sliding.deadline(),
            Self::Bucket(bucket) => bucket.deadline(),
        }
    }

    /// When `cost` can be taken.
    #[inline]
    fn retry_after(&self, cost: u64, limit: u64, now: Nanos) -> u64 {
        match self {
            Self::Fixed { left, deadline } => match cost {
                cost if cost <= *left => 0,
                cost if cost <= limit => deadline.since(now),
                _ => u64::MAX,
            },
            Self::Sliding(sliding) => sliding.retry_after(cost, now),
            Self::Bucket(bucket) => bucket.retry_after(cost),
        }
    }

    /// What can be taken, and when everything can be.
    #[inline]
    fn rest(&self, limit: u64, now: Nanos) -> (u64, u64) {
        match self {
            Self::Fixed { left, deadline } => (*left, if *left < limit { deadline.since(now) } else { 0 }),
            Self::Sliding(sliding) => {
                (sliding.limit.saturating_sub(sliding.used(now)), sliding.reset_after(now))
            }
            Self::Bucket(bucket) => (bucket.remaining(bucket.missing), bucket.time_for(bucket.missing)),
        }
    }

    #[inline]
    fn take(&mut self, cost: u64) {
        match self {
            Self::Fixed { left, .. } => *left -= cost,
            Self::Sliding(sliding) => sliding.current = sliding.current.saturating_add(cost),
            Self::Bucket(bucket) => {
                bucket.missing = bucket.missing.saturating_add(u128::from(cost) << FRACTION)
            }
        }
    }

    fn refund(&mut self, cost: u64, limit: u64) {
        match self {
            Self::Fixed { left, .. } => *left = left.saturating_add(cost).min(limit).max(*left),
            Self::Sliding(sliding) => sliding.refund(cost),
            Self::Bucket(bucket) => {
                bucket.missing = bucket.missing.saturating_sub(u128::from(cost) << FRACTION);
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
        let retry_after = state.retry_after(cost, self.limit, now);
        let allowed = retry_after == 0;
        let changes = match mode {
            Mode::Take => allowed && cost > 0,
            Mode::Refund => known.is_some() && self.cost > 0,
            Mode::Peek | Mode::DryRun => false,
        };
        if changes {
            if mode == Mode::Refund {
                state.refund(self.cost, self.limit);
            } else {
                state.take(cost);
            }
        }
        let (remaining, reset_after) = state.rest(self.limit, now);
        // A fixed window that nobody has opened has no end.
        let verdict = Verdict { allowed, limit: self.limit, remaining, retry_after, reset_after };
        Judged { verdict, after: changes.then_some(state) }
    }
}
