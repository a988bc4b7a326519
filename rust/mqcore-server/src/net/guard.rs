//! Limits that protect the broker: how often a client may publish, and how often an address may connect.
//!
//! They use the same store as the limits of clients, under keys that clients do not use by accident: they begin with
//! a byte 0. The broker rejects these commands like any others, in the form of each protocol.

use std::net::IpAddr;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};

pub use mqcore_broker::model::rate::{Rate as Limit, RateError as LimitError};

fn rule(limit: Limit) -> Rule {
    let nanos = u64::try_from(limit.period().as_nanos()).unwrap_or(u64::MAX);
    let period = Ttl { unit: 1, amount: nanos };
    Rule { algorithm: Algorithm::Gcra, limit: limit.count(), cost: 1, period }
}

/// The limits of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guard {
    /// For each client.
    pub(crate) publish: Option<Limit>,
    /// For each address.
    pub(crate) connect: Option<Limit>,
}

impl Guard {
    /// Whether no limit is set.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.publish.is_none() && self.connect.is_none()
    }

    /// The event with which a session learns that a command is rejected; `None`: the command passes.
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
                // Peers that do not connect through the network are not counted.
                let address = address?.to_string();
                spend(limiter, self.connect?, "connect", address.as_bytes(), now).map(Event::Refused)
            }
            _ => None,
        }
    }
}

/// `None`: the limit was not reached.
fn spend(limiter: &Limiter, limit: Limit, what: &str, who: &[u8], now: Nanos) -> Option<Rejection> {
    let mut key = [b"\0", what.as_bytes(), b":", who].concat();
    key.truncate(mqcore_limiter::limiter::KEY_BYTES_MAX);
    let verdict = limiter.consume(&key, &rule(limit), ConsumeMode::Take, 64, now).ok()?;
    if verdict.allowed {
        return None;
    }
    let seconds = verdict.retry_after as f64 / 1e9;
    let reason = format!("{what} limit reached; retry after {seconds:.3} s");
    Some(Rejection::new(RejectionKind::LimitExceeded, reason))
}
