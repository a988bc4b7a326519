//! What a listener says about how its protocol is spoken, beyond which protocol it is.

use std::sync::Arc;

use crate::{eventmq, micromessage, throttr};

/// Octets of a line of MQKS, if its listener says nothing else: 1 MiB.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// The terms of one listener. Each protocol looks at its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTerms {
    /// How Throttr is spoken.
    pub throttr: throttr::terms::Terms,
    /// Octets of a line of MQKS at most, never more than a frame may have. Default [`LINE_BYTES_MAX`].
    pub line_bytes_max: u64,
    /// Who connects to a listener of EventMQ.
    pub eventmq: eventmq::terms::Terms,
    /// How MicroMessage2 is spoken.
    pub micromessage: Arc<micromessage::terms::Terms>,
}

impl Default for ListenerTerms {
    fn default() -> Self {
        Self {
            throttr: throttr::terms::Terms::default(),
            line_bytes_max: LINE_BYTES_MAX,
            eventmq: eventmq::terms::Terms::default(),
            micromessage: Arc::default(),
        }
    }
}
