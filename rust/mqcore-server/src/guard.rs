//! Limits that guard the broker itself: how often one client may publish, and one address connect.
//!
//! They are spent from the same store as everybody's limits, under keys that no Throttr peer can name by accident: theirs
//! begin with an octet 0. What is refused is refused as any other command is, so each protocol says it in its own form.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use mqcore_broker::client::Client;
use mqcore_broker::command::Command;
use mqcore_broker::effect::Event;
use mqcore_broker::rejection::{Rejection, RejectionKind};
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::rule::{Algorithm, Mode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};

/// How much may be done in which time: `100/s`, `6000/1m`, `20/10s`. A bucket: all of it at once, then evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    count: u64,
    period: Duration,
}

/// A text that is no limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no limit; write a number and a time, such as 100/s, 6000/1m or 20/10s")]
pub struct LimitError {
    /// What was given.
    pub text: String,
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let error = || LimitError { text: text.into() };
        let (count, period) = text.split_once('/').ok_or_else(error)?;
        let count = count.trim().parse().map_err(|_| error())?;
        let period = period.trim();
        let digits = period.len() - period.trim_start_matches(|octet: char| octet.is_ascii_digit()).len();
        let (number, unit) = period.split_at(digits);
        let number: u64 = if number.is_empty() { 1 } else { number.parse().map_err(|_| error())? };
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(error()),
        };
        let period = number.checked_mul(millis).filter(|millis| *millis > 0).ok_or_else(error)?;
        Ok(Self { count, period: Duration::from_millis(period) })
    }
}

impl Limit {
    fn rule(&self) -> Rule {
        let nanos = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        let period = Ttl { unit: 1, amount: nanos };
        Rule { algorithm: Algorithm::Gcra, limit: self.count, cost: 1, period }
    }
}

/// What guards a server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guard {
    /// Of one client.
    pub(crate) publish: Option<Limit>,
    /// Of one address.
    pub(crate) connect: Option<Limit>,
}

impl Guard {
    /// Whether there is anything to look at.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.publish.is_none() && self.connect.is_none()
    }

    /// Why a command is refused, as its session is told; `None`: it is not.
    pub(crate) fn refusal(
        &self,
        limiter: &Limiter,
        client: &Client,
        address: Option<IpAddr>,
        command: &Command,
        now: Nanos,
    ) -> Option<Event> {
        match command {
            Command::Publish { queue, message } => {
                let rejection = spend(limiter, self.publish?, "publish", client.id.as_bytes(), now)?;
                Some(Event::PublishRefused { queue: queue.clone(), message: message.clone(), rejection })
            }
            Command::PublishTopic { answer, message, .. } => {
                let rejection = spend(limiter, self.publish?, "publish", client.id.as_bytes(), now)?;
                Some(match answer {
                    Some(answer) => Event::Answered(*answer, Err(rejection)),
                    None => Event::TopicRefused { message: message.clone(), rejection },
                })
            }
            Command::Introduce(_) => {
                // Whoever needs no network to come is not counted.
                let address = address?.to_string();
                spend(limiter, self.connect?, "connect", address.as_bytes(), now).map(Event::Refused)
            }
            _ => None,
        }
    }
}

/// `None`: there was enough.
fn spend(limiter: &Limiter, limit: Limit, what: &str, who: &[u8], now: Nanos) -> Option<Rejection> {
    let mut key = [b"\0", what.as_bytes(), b":", who].concat();
    key.truncate(mqcore_limiter::limiter::KEY_BYTES_MAX);
    let verdict = limiter.consume(&key, &limit.rule(), Mode::Take, 64, now).ok()?;
    if verdict.allowed {
        return None;
    }
    let seconds = verdict.retry_after as f64 / 1e9;
    let reason = format!("{what} limit reached; retry after {seconds:.3} s");
    Some(Rejection::new(RejectionKind::LimitExceeded, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_and_a_time() {
        let read = |text: &str| text.parse::<Limit>().map(|limit| (limit.count, limit.period.as_millis()));
        assert_eq!(read("100/s").unwrap(), (100, 1_000));
        assert_eq!(read("6000/1m").unwrap(), (6_000, 60_000));
        assert_eq!(read("20/10s").unwrap(), (20, 10_000));
        assert_eq!(read("1/250ms").unwrap(), (1, 250));
        for wrong in ["", "100", "/s", "x/s", "5/", "5/0s", "5/d", "-1/s"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
