//! The client of MicroMessage2: binary frames and negotiated extensions, with the same connections, reconnects,
//! consumers and receipts as TMQP.
//!
//! | module | content |
//! |---|---|
//! | `greeting` | the three messages of the handshake, on the client side |
//! | `conversation` | turns frames into results |
//! | `operations` | operations of MicroMessage2: agreed extensions, frames of vendors' extensions |
//!
//! `mqcore_wire::micromessage` has the rules for both sides: negotiation of extensions, and the acknowledgement window.

pub(crate) mod conversation;
pub(crate) mod greeting;
pub mod operations;

use mqcore_wire::micromessage::extension::{ExtensionKind, PUB_SUB, X_MQCORE, X_NACK};
use mqcore_wire::micromessage::handshake::Extension;
use mqcore_wire::micromessage::negotiation::{Lists, batch_ack};

/// Default number of unacknowledged messages in each direction.
pub const WINDOW_DEFAULT: u16 = 1000;

/// The default extensions of a client: `batch-ack` with [`WINDOW_DEFAULT`], `pub-sub`, `x-nack` and `x-mqcore`, all
/// optional.
#[must_use]
pub fn default_extensions() -> Lists {
    let optional =
        [batch_ack(WINDOW_DEFAULT)].into_iter().chain([PUB_SUB, X_NACK, X_MQCORE].map(Extension::new));
    Lists { required: Vec::new(), optional: optional.collect() }
}

/// Whether the program handles frames of this extension.
fn is_vendors(name: &str) -> bool {
    ExtensionKind::of(name) == Some(ExtensionKind::Vendor)
}
