//! Rates and token buckets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::model::time::Timestamp;

/// A rate: `100/s`, `6000/1m`, `20/10s`. A token bucket: the whole count at once, then evenly.
///
/// ```
/// use std::time::Duration;
///
/// use mqcore_broker::model::rate::Rate;
///
/// let rate: Rate = "6000/1m".parse()?;
/// assert_eq!((rate.count(), rate.period()), (6000, Duration::from_secs(60)));
/// # Ok::<(), mqcore_broker::model::rate::RateError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    /// Never 0.
    period_ms: u64,
}

/// A text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a rate; write a number and a time, such as 100/s, 6000/1m or 20/10s")]
pub struct RateError {
    /// The text.
    pub text: String,
}

impl Rate {
    /// How many per period.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// Parses a change of an option: empty text and `none` remove the rate.
    ///
    /// # Errors
    /// [`RateError`].
    pub fn change(text: &str) -> Result<Option<Self>, RateError> {
        if text.is_empty() || text.eq_ignore_ascii_case("none") { Ok(None) } else { text.parse().map(Some) }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = || RateError { text: text.chars().take(64).collect() };
        let (count, period) = text.split_once('/').ok_or_else(error)?;
        let count = count.trim().parse().map_err(|_| error())?;
        let period = period.trim();
        let digits = period.len() - period.trim_start_matches(|byte: char| byte.is_ascii_digit()).len();
        let (number, unit) = period.split_at(digits);
        let number: u64 = if number.is_empty() { 1 } else { number.parse().map_err(|_| error())? };
        let millis = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?.1;
        let period_ms = number.checked_mul(millis).filter(|millis| *millis > 0).ok_or_else(error)?;
        Ok(Self { count, period_ms })
    }
}

/// Units of time in milliseconds, the largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, millis): &&(&str, u64)| self.period_ms.is_multiple_of(*millis);
        let (unit, millis) = UNITS.iter().find(whole).copied().unwrap_or(("ms", 1));
        match self.period_ms / millis {
            1 => write!(formatter, "{}/{unit}", self.count),
            number => write!(formatter, "{}/{number}{unit}", self.count),
        }
    }
}

/// How much of a rate is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    rate: Rate,
    /// Missing tokens at `at`, times the period, so that refilling is exact in integers.
    missing: u128,
    at: Timestamp,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) const fn new(rate: Rate) -> Self {
        Self { rate, missing: 0, at: Timestamp(0) }
    }

    fn missing_at(&self, now: Timestamp) -> u128 {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.missing.saturating_sub(u128::from(elapsed) * u128::from(self.rate.count))
    }

    /// Time until a token is available; zero if one is. After a change of the rate, the bucket starts
    /// full. `None`: never.
    pub(crate) fn wait(bucket: Option<&Self>, rate: Rate, now: Timestamp) -> Option<Duration> {
        if rate.count == 0 {
            return None;
        }
        let missing = bucket.filter(|bucket| bucket.rate == rate).map_or(0, |bucket| bucket.missing_at(now));
        let (count, period) = (u128::from(rate.count), u128::from(rate.period_ms));
        let beyond = (missing + period).saturating_sub(count * period);
        Some(Duration::from_millis(u64::try_from(beyond.div_ceil(count)).unwrap_or(u64::MAX)))
    }

    /// Takes a token.
    pub(crate) fn take(&mut self, rate: Rate, now: Timestamp) {
        if self.rate != rate {
            *self = Self::new(rate);
        }
        self.missing = self.missing_at(now) + u128::from(rate.period_ms);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_time_and_is_written_as_it_is_read() {
        let read = |text: &str| text.parse::<Rate>().map(|rate| (rate.count(), rate.period().as_millis()));
        assert_eq!(read("100/s").unwrap(), (100, 1_000));
        assert_eq!(read("6000/1m").unwrap(), (6_000, 60_000));
        assert_eq!(read("20/10s").unwrap(), (20, 10_000));
        assert_eq!(read("1/250ms").unwrap(), (1, 250));
        for wrong in ["", "100", "/s", "x/s", "5/", "5/0s", "5/d", "-1/s"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for text in ["100/s", "6000/m", "20/10s", "1/250ms", "7/90m", "0/h", "5/24h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!(Rate::change("none"), Ok(None));
        assert_eq!(Rate::change("3/s"), Ok(Some("3/s".parse().unwrap())));
    }

    #[test]
    fn a_bucket_gives_all_of_it_at_once_and_then_evenly_and_says_exactly_when() {
        let rate: Rate = "3/s".parse().unwrap();
        let mut bucket = TokenBucket::new(rate);
        let wait = |bucket: &TokenBucket, at| {
            TokenBucket::wait(Some(bucket), rate, Timestamp(at)).unwrap().as_millis()
        };
        for _ in 0..3 {
            assert_eq!(wait(&bucket, 1000), 0);
            bucket.take(rate, Timestamp(1000));
        }
        assert_eq!(wait(&bucket, 1000), 334);
        assert_eq!(wait(&bucket, 1333), 1);
        assert_eq!(wait(&bucket, 1334), 0);
        bucket.take(rate, Timestamp(1334));
        assert_eq!(wait(&bucket, 1334), 333);
        // However much was left, the bucket never holds more than its count.
        for _ in 0..3 {
            assert_eq!(wait(&bucket, 90_000), 0);
            bucket.take(rate, Timestamp(90_000));
        }
        assert!(wait(&bucket, 90_000) > 0);
        // Another rate has another bucket; a rate of zero never allows anything.
        let other: Rate = "1/h".parse().unwrap();
        assert_eq!(TokenBucket::wait(Some(&bucket), other, Timestamp(90_000)), Some(Duration::ZERO));
        assert_eq!(TokenBucket::wait(None, "0/s".parse().unwrap(), Timestamp(5)), None);
    }

    #[test]
    fn in_any_period_no_more_than_twice_the_rate_passes() {
        let rate: Rate = "7/100ms".parse().unwrap();
        let mut bucket = TokenBucket::new(rate);
        let mut taken = Vec::new();
        for now in 0..2_000 {
            for _ in 0..3 {
                if TokenBucket::wait(Some(&bucket), rate, Timestamp(now)) == Some(Duration::ZERO) {
                    bucket.take(rate, Timestamp(now));
                    taken.push(now);
                }
            }
        }
        assert_eq!(taken.len(), 7 + 1_999 * 7 / 100);
        let most =
            taken.iter().map(|from| taken.iter().filter(|at| **at >= *from && **at < from + 100).count());
        assert!(most.max().unwrap() <= 14);
    }
}
