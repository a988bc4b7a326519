//! State that the sessions of one life of the broker share, and how they are opened.

use std::hash::RandomState;
use std::sync::Arc;

use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::limiter::{Limiter, LimiterConfig};
use mqcore_limiter::time::Nanos;
use mqcore_session::any::{AnySession, ListenerTerms};
use mqcore_session::eventmq::EventmqSession;
use mqcore_session::eventmq::shared::EventmqShared;
use mqcore_session::session::SessionConfig;
use mqcore_session::throttr::ThrottrSession;
use mqcore_session::throttr::shared::ThrottrShared;

/// State that sessions of one protocol share.
pub(crate) struct SharedSessions {
    eventmq: Arc<EventmqShared>,
    throttr: Arc<ThrottrShared>,
}

impl SharedSessions {
    /// The state of a broker that starts. `seed` makes the ids that clients see. The order of the limiter's entries is
    /// random, but no client of the simulator lists them.
    pub(crate) fn new(seed: u64, now: Timestamp) -> Self {
        let limiter = Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()));
        let origin = now.0 * 1_000_000;
        Self {
            eventmq: Arc::new(EventmqShared::new(seed, Some("at-least-once".into()))),
            throttr: Arc::new(ThrottrShared::new(limiter, origin, Nanos(0), [seed, now.0])),
        }
    }

    pub(crate) fn open(&self, terms: &ListenerTerms, config: SessionConfig, now: Timestamp) -> AnySession {
        match terms {
            ListenerTerms::Eventmq(terms) => {
                AnySession::Eventmq(Box::new(EventmqSession::new(*terms, &self.eventmq, config, now)))
            }
            ListenerTerms::Throttr(terms) => {
                let at = Nanos(now.0 * 1_000_000);
                AnySession::Throttr(ThrottrSession::new(*terms, &self.throttr, &config, at, now))
            }
            other => AnySession::new(other.protocol(), config, now),
        }
    }
}
