//! MQKS: text lines in both directions, from the first byte on.
//!
//! | module | contents |
//! |---|---|
//! | [`conversation`] | the session |
//! | [`listener`] | the options of a listener |
//! | `names` | queues and events as the broker knows them |
//! | `consumers` | the consumers of this connection |
//! | `pending` | requests that are not answered yet |
//! | `statistics` | the expressions that `_eval` knows; none of them is evaluated as code |
//! | `delivery` | messages as lines |
//!
//! A consumer is a subscription of the broker whose name is the consumer's id, so any client may acknowledge for it, as the
//! original allows. There is no handshake: the peer becomes a client with its first line. If that line is
//! `{id} auth {token}`, an extension of mqcore, the token identifies the client; otherwise the client is anonymous.

mod consumers;
pub mod conversation;
mod delivery;
pub mod listener;
mod names;
mod pending;
mod statistics;

use mqcore_broker::model::time::Timestamp;
use mqcore_wire::codec::Limits;

pub use self::conversation::{CONSUMERS_MAX, MqksSession, OPEN_REQUESTS_MAX};
pub use self::delivery::{delivery_size, encode_delivery};
use self::listener::MqksTerms;
use crate::listener::{BadOption, ListenerOptions};
use crate::protocol::{EncodeDelivery, EncodePublication, Encoding, Moment, ProtocolFactory, ServerParts};
use crate::session::SessionConfig;

/// MQKS.
#[derive(Debug)]
pub enum MqksProtocol {}

impl ProtocolFactory for MqksProtocol {
    const NAME: &'static str = "mqks";
    const DEFAULT_PORT: u16 = 25_000;
    const DELIVERIES: Encoding<EncodeDelivery> = Encoding::Shared(encode_delivery);
    // Its clients consume queues that are bound to events, and never subscribe to a topic itself.
    const PUBLICATIONS: Encoding<EncodePublication> = Encoding::BySession;

    type Terms = MqksTerms;
    type Shared = ();
    type Session = MqksSession;

    fn terms(options: &mut ListenerOptions) -> Result<MqksTerms, BadOption> {
        MqksTerms::read(options)
    }

    fn share(_server: &ServerParts) {}

    fn open(terms: &MqksTerms, (): &(), config: SessionConfig, now: Moment) -> MqksSession {
        let longest = config.limits.frame_bytes_max.min(terms.line_bytes_max);
        let limits = Limits { frame_bytes_max: longest, ..config.limits };
        MqksSession::new(SessionConfig { limits, ..config }, now.now)
    }

    fn alone(config: SessionConfig, now: Timestamp) -> MqksSession {
        MqksSession::new(config, now)
    }
}
