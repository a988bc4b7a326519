//! MicroMessage2: the server's side of the conversation.
//!
//! | module | contents |
//! |---|---|
//! | [`conversation`] | the session: handshake, frames, events |
//! | `commands` | subscribe, unsubscribe, ping |
//! | [`listener`] | the options of a listener |
//! | `destination` | queues and topics by name |
//! | `incoming` | messages that the peer publishes, and their acknowledgements |
//! | `outgoing` | messages for the peer, within the window that it acknowledges |
//! | `budget` | messages whose filters need too much work |
//! | `subscriptions` | the peer's subscriptions and their filters |
//!
//! The rules that both sides of a connection follow (agreeing on extensions, counting acknowledgements, properties of a
//! payload) are in `mqcore_wire::micromessage`.

pub mod budget;
mod conversation;
mod destination;
mod incoming;
pub mod listener;
mod outgoing;
mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

pub use self::budget::MicroMessageShared;
pub use self::conversation::{
    LIST_BYTES_MAX, MicroMessageSession, OPEN_COMMANDS_MAX, OPEN_FRAMES_MAX, SUBSCRIPTIONS_MAX,
};
use self::listener::MicroMessageTerms;
use crate::listener::{BadOption, ListenerOptions};
use crate::protocol::{
    EncodeDelivery, EncodePublication, Encoding, MetricFamily, Moment, Overload, ProtocolFactory, ServerParts,
};
use crate::session::SessionConfig;

/// MicroMessage2.
#[derive(Debug)]
pub enum MicroMessageProtocol {}

impl ProtocolFactory for MicroMessageProtocol {
    const NAME: &'static str = "mm2";
    const DEFAULT_PORT: u16 = 2623;
    const OVERLOAD: Overload = Overload::LimitEvents;
    // Messages are numbered for each peer and wait for its window.
    const DELIVERIES: Encoding<EncodeDelivery> = Encoding::BySession;
    const PUBLICATIONS: Encoding<EncodePublication> = Encoding::BySession;

    type Terms = Arc<MicroMessageTerms>;
    type Shared = MicroMessageShared;
    type Session = Box<MicroMessageSession>;

    fn terms(options: &mut ListenerOptions) -> Result<Self::Terms, BadOption> {
        MicroMessageTerms::read(options).map(Arc::new)
    }

    fn share(server: &ServerParts) -> Self::Shared {
        MicroMessageShared { vendors: Arc::clone(&server.extension_names), ..MicroMessageShared::default() }
    }

    fn open(
        terms: &Self::Terms,
        shared: &Self::Shared,
        config: SessionConfig,
        now: Moment,
    ) -> Box<MicroMessageSession> {
        let vendors = Arc::clone(&shared.vendors);
        let mut session = MicroMessageSession::new(config, Arc::clone(terms), vendors, now.now);
        session.share_budget(&shared.filters_over_budget);
        Box::new(session)
    }

    fn alone(config: SessionConfig, now: Timestamp) -> Box<MicroMessageSession> {
        Box::new(MicroMessageSession::new(config, Arc::default(), Arc::default(), now))
    }
    fn metrics(shared: &MicroMessageShared, _now: Nanos) -> Vec<MetricFamily> {
        vec![MetricFamily::single(
            "mqcore_micromessage_filters_over_budget_total",
            "counter",
            "Messages of topics that no filter of a connection passed within the budget of steps.",
            shared.filters_over_budget.load(Ordering::Relaxed),
        )]
    }
}
