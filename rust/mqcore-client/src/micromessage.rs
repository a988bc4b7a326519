//! The client of MicroMessage2: binary frames and negotiated extensions, over the same connections, reconnects, consumers
//! and receipts as TMQP.
//!
//! | module | what lives there |
//! |---|---|
//! | `greeting` | the three messages of the handshake, from the side that connects |
//! | `conversation` | frames in, results out |
//! | `operations` | what only MicroMessage2 has: what was agreed on, frames of vendors' extensions |
//!
//! What both sides of a connection follow, agreeing on extensions and counting acknowledgements, is in
//! `mqcore_wire::micromessage`.

pub(crate) mod conversation;
pub(crate) mod greeting;
pub mod operations;

use mqcore_wire::micromessage::extension::{Kind, PUB_SUB, X_MQCORE, X_NACK};
use mqcore_wire::micromessage::handshake::Extension;
use mqcore_wire::micromessage::negotiation::{Lists, batch_ack};

/// Unacknowledged messages that a client agrees to if its program says nothing else, in each direction.
pub const WINDOW_DEFAULT: u16 = 1000;

/// What a client offers if its program says nothing else: `batch-ack` of [`WINDOW_DEFAULT`], `pub-sub`, `x-nack` and
/// `x-mqcore`, all of them optional.
#[must_use]
pub fn default_extensions() -> Lists {
    let optional =
        [batch_ack(WINDOW_DEFAULT)].into_iter().chain([PUB_SUB, X_NACK, X_MQCORE].map(Extension::new));
    Lists { required: Vec::new(), optional: optional.collect() }
}

/// Whether frames of an extension of this name are the program's affair.
fn is_vendors(name: &str) -> bool {
    Kind::of(name) == Some(Kind::Vendor)
}
