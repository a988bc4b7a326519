//! Limits that protect the broker: how often a client may publish, and how often an address may connect.
//!
//! Each limit counts in a store of its own that no protocol can reach: peers can neither list, change nor refill it, and keys
//! that they create do not evict its counts. The counts begin anew with the broker. The broker rejects these commands like any
//! others, in the form of each protocol.

use std::hash::RandomState;
use std::net::IpAddr;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_limiter::limiter::{Limiter, LimiterConfig};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};

pub use mqcore_broker::model::rate::{Rate as Limit, RateError as LimitError};

fn rule(limit: Limit) -> Rule {
    let nanos = u64::try_from(limit.period().as_nanos()).unwrap_or(u64::MAX);
    let period = Ttl { unit: 1, amount: nanos };
    Rule { algorithm: Algorithm::Gcra, limit: limit.count(), cost: 1, period }
}

/// Clients or addresses that one limit counts at the same time, 120 bytes each. Above it, those whose counts expire soonest
/// are forgotten.
const COUNTED_MAX: u64 = 1 << 20;

/// The limits of a server.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// For each client.
    publish: Option<Counted>,
    /// For each address.
    connect: Option<Counted>,
}

/// A limit and its counts.
#[derive(Debug)]
struct Counted {
    what: &'static str,
    rule: Rule,
    counts: Limiter,
}

impl Guard {
    /// Limits publishes of each client, and connections of each address.
    pub(crate) fn new(publish: Option<Limit>, connect: Option<Limit>) -> Self {
        Self {
            publish: publish.map(|limit| Counted::new("publish", limit)),
            connect: connect.map(|limit| Counted::new("connect", limit)),
        }
    }

    /// Whether no limit is set.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.publish.is_none() && self.connect.is_none()
    }

    /// Whether connections are limited.
    pub(crate) fn limits_connecting(&self) -> bool {
        self.connect.is_some()
    }

    /// The event with which a session learns that a command is rejected; `None`: the command passes.
    pub(crate) fn refusal(
        &self,
        client: &Client,
        address: Option<IpAddr>,
        command: &Command,
        now: Nanos,
    ) -> Option<Event> {
        match command {
            Command::Publish { queue, message } => {
                let rejection = self.publish.as_ref()?.spend(client.id.as_bytes(), now)?;
                Some(Event::PublishRefused { queue: queue.clone(), message: message.clone(), rejection })
            }
            Command::PublishTopic { answer, message, .. } => {
                let rejection = self.publish.as_ref()?.spend(client.id.as_bytes(), now)?;
                Some(match answer {
                    Some(answer) => Event::Answered(*answer, Err(rejection)),
                    None => Event::TopicRefused { message: message.clone(), rejection },
                })
            }
            Command::Introduce(_) => {
                // Peers that do not connect through the network are not counted.
                let address = address?.to_string();
                self.connect.as_ref()?.spend(address.as_bytes(), now).map(Event::Refused)
            }
            _ => None,
        }
    }
}

impl Counted {
    fn new(what: &'static str, limit: Limit) -> Self {
        let config = LimiterConfig { keys_max: COUNTED_MAX, metrics: false, ..LimiterConfig::default() };
        Self { what, rule: rule(limit), counts: Limiter::new(config, RandomState::new()) }
    }

    /// `None`: the limit was not reached.
    fn spend(&self, who: &[u8], now: Nanos) -> Option<Rejection> {
        let key = &who[..who.len().min(mqcore_limiter::limiter::KEY_BYTES_MAX)];
        let verdict = self.counts.consume(key, &self.rule, ConsumeMode::Take, 64, now).ok()?;
        if verdict.allowed {
            return None;
        }
        let seconds = verdict.retry_after as f64 / 1e9;
        let reason = format!("{} limit reached; retry after {seconds:.3} s", self.what);
        Some(Rejection::new(RejectionKind::LimitExceeded, reason))
    }
}
