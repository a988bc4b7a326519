//! Throttr: bare requests, each answered in order, from the store of limits that all connections share.
//!
//! The session asks the broker only about channels, which are topics there. Those answers come later and hold back the
//! answers behind them. The session answers every other request as soon as it reads it.
//!
//! | module | contents |
//! |---|---|
//! | [`conversation`] | the session: requests and their order |
//! | `answers` | answers from the store and about the server |
//! | `channels` | subscribing, publishing, messages of channels |
//! | [`listener`] | the options of a listener: value width, edition, metrics |
//! | [`shared`] | what all sessions share: the store, connections, channels, counters |
//! | `permission` | which permissions a request needs |
//! | `stream` | answers in fragments |
//! | `held` | answers that wait for the broker's |
//! | `peer`, `minutes` | counters of a connection and of the server |

pub mod conversation;
mod held;
pub mod listener;
mod minutes;
mod peer;
mod permission;
pub mod shared;
mod stream;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

pub use self::conversation::ThrottrSession;
use self::listener::ThrottrTerms;
use self::shared::ThrottrShared;
use crate::listener::{BadOption, ListenerOptions};
use crate::protocol::{
    EncodeDelivery, EncodePublication, Encoding, LimitUse, MetricFamily, Moment, Overload, ProtocolFactory,
    ServerParts,
};
use crate::session::SessionConfig;

/// Throttr 7.1 or 7.3.
#[derive(Debug)]
pub enum ThrottrProtocol {}

impl ProtocolFactory for ThrottrProtocol {
    const NAME: &'static str = "throttr";
    const DEFAULT_PORT: u16 = 9000;
    const OVERLOAD: Overload = Overload::PauseReads;
    // The protocol has no queues; the form of a channel's message depends on the width of its subscriber.
    const DELIVERIES: Encoding<EncodeDelivery> = Encoding::BySession;
    const PUBLICATIONS: Encoding<EncodePublication> = Encoding::BySession;

    type Terms = ThrottrTerms;
    type Shared = Arc<ThrottrShared>;
    type Session = ThrottrSession;

    fn terms(options: &mut ListenerOptions) -> Result<ThrottrTerms, BadOption> {
        ThrottrTerms::read(options)
    }

    fn limits(terms: &ThrottrTerms) -> Option<LimitUse> {
        Some(LimitUse { persist: terms.persist, metrics: terms.metrics })
    }

    fn share(server: &ServerParts) -> Arc<ThrottrShared> {
        // The store's times are Unix time, so that deadlines mean the same after a restart. The key is random, so that
        // ids of connections cannot be guessed.
        let limiter = Arc::clone(&server.limiter);
        let random = RandomState::new();
        let key = [random.hash_one(0), random.hash_one(1)];
        Arc::new(ThrottrShared::new(limiter, 0, server.started, key))
    }

    fn open(
        terms: &ThrottrTerms,
        shared: &Arc<ThrottrShared>,
        config: SessionConfig,
        now: Moment,
    ) -> ThrottrSession {
        ThrottrSession::new(*terms, shared, &config, now.nanos, now.now)
    }

    fn alone(config: SessionConfig, now: Timestamp) -> ThrottrSession {
        ThrottrSession::alone(&config, now)
    }

    fn metrics(shared: &Arc<ThrottrShared>, now: Nanos) -> Vec<MetricFamily> {
        let (requests, refused) = shared.requests(now);
        let samples = requests.into_iter().map(|(kind, count)| (Some(("request", kind)), count)).collect();
        vec![
            MetricFamily {
                name: "mqcore_limiter_requests_total",
                kind: "counter",
                help: "Requests of Throttr, by kind; those at listeners with metrics=off are not counted.",
                samples,
            },
            MetricFamily::single(
                "mqcore_limiter_rejected_total",
                "counter",
                "Of these requests, those that asked for quota and got none.",
                refused,
            ),
        ]
    }
}
