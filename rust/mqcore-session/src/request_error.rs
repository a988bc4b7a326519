//! Failed requests, for the log: some protocols send their peer only an error number, so the reason is recorded here.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use fastrand::Rng;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The error number that the peer received: 24 characters.
    pub number: String,
    /// The id of the request, as the peer wrote it.
    pub request: Box<[u8]>,
    /// The mistake and its remedy.
    pub reason: String,
}

/// Makes error numbers: the time in UTC as 20 digits, then four random letters or digits.
#[derive(Debug, Clone)]
pub(crate) struct ErrorNumbers {
    random: Rng,
    /// The time in microseconds, if the server has set it.
    micros: u64,
}

impl ErrorNumbers {
    pub(crate) fn new(connection: ConnectionId) -> Self {
        // Random for each start, so that numbers of different runs differ.
        static SEED: OnceLock<u64> = OnceLock::new();
        let seed = SEED.get_or_init(|| RandomState::new().hash_one(0));
        Self { random: Rng::with_seed(seed ^ connection.0).fork(), micros: 0 }
    }

    /// Sets the time, which is more exact than that of the next call.
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.micros = now.0 / 1000;
    }

    pub(crate) fn next(&mut self, now: Timestamp) -> String {
        let mut text = digits(self.micros.max(now.0.saturating_mul(1000)));
        text.extend((0..4).map(|_| self.random.alphanumeric()));
        text
    }
}

/// `YYYYMMDDhhmmssffffff` of a time in Unix microseconds.
fn digits(micros: u64) -> String {
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{micros:06}")
}

/// The date this many days after 1970-01-01. Eras of 400 years begin in March, so that leap days come last.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_is_the_time_in_utc_and_four_characters() {
        let mut numbers = ErrorNumbers::new(ConnectionId(7));
        let (one, two) =
            (numbers.next(Timestamp(1_795_216_278_989)), numbers.next(Timestamp(1_795_216_278_989)));
        assert!(one.starts_with("20261120231118989000"), "{one}");
        assert_eq!(one.len(), 24);
        assert_ne!(one, two);
        numbers.set_time(Nanos(1_795_216_278_989_123_456));
        let exact = numbers.next(Timestamp(1_795_216_278_989));
        assert!(exact.starts_with("20261120231118989123"), "{exact}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, wanted) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (19_782, (2024, 2, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), wanted);
        }
    }
}
