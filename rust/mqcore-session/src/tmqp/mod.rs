//! TMQP/2.0: preamble, Hello, then frames in both directions until one side closes the connection.
//!
//! | module | contents |
//! |---|---|
//! | [`conversation`] | the session: stages of the conversation |
//! | `handshake` | the preamble and the first frame, and the answers to them |
//! | `keep_alive` | time of the last input, pings |
//! | `exchange` | frames to commands, events to frames |
//! | `publish`, `topic`, `routers`, `pull`, `operation`, `subscription` | frames of one kind, as commands |
//! | `passing` | a peer that is another broker |
//! | [`forwards`] | commands of clients as frames for other brokers |
//! | [`uplink`] | the connection of this broker to another one that it forwards to |
//! | `lists` | lists, page by page |
//! | `options` | the JSON that clients send |
//! | `pending` | requests that are not answered yet |
//! | `answer`, `delivery` | frames that answer, frames that deliver |
//! | `information`, `occurrence` | the JSON that clients receive |
//! | `binding_type` | numbers and words that both kinds of JSON have |

mod answer;
mod binding_type;
pub mod conversation;
mod delivery;
mod exchange;
pub mod forwards;
mod frame;
mod handshake;
mod information;
mod keep_alive;
mod lists;
mod occurrence;
mod operation;
mod options;
mod passing;
mod pending;
mod publish;
mod pull;
mod routers;
mod subscription;
mod topic;
pub mod uplink;

use mqcore_broker::model::time::Timestamp;

pub use self::conversation::{
    COPIES_MAX, HELLO_BYTES_MAX, OPEN_LISTS_MAX, OPEN_REQUESTS_MAX, OPTIONS_BYTES_MAX, TmqpSession,
};
pub use self::delivery::{delivery_size, encode_delivery, encode_publication};
use crate::listener::{BadOption, ListenerOptions};
use crate::protocol::{EncodeDelivery, EncodePublication, Encoding, Moment, ProtocolFactory, ServerParts};
use crate::session::SessionConfig;

/// TMQP/2.0 (Twino MQ 3.0).
#[derive(Debug)]
pub enum TmqpProtocol {}

impl ProtocolFactory for TmqpProtocol {
    const NAME: &'static str = "tmqp";
    const DEFAULT_PORT: u16 = 2622;
    const DELIVERIES: Encoding<EncodeDelivery> = Encoding::Shared(encode_delivery);
    const PUBLICATIONS: Encoding<EncodePublication> = Encoding::Shared(encode_publication);

    type Terms = ();
    type Shared = ();
    type Session = TmqpSession;

    fn terms(_options: &mut ListenerOptions) -> Result<(), BadOption> {
        Ok(())
    }

    fn share(_server: &ServerParts) {}

    fn open((): &(), (): &(), config: SessionConfig, now: Moment) -> TmqpSession {
        TmqpSession::new(config, now.now)
    }

    fn alone(config: SessionConfig, now: Timestamp) -> TmqpSession {
        TmqpSession::new(config, now)
    }
}
