//! Checks the promise of the message decoder about arbitrary bytes, as one function.
//!
//! Shared by the tests of this crate and by the fuzz target `consensus_message`, so that an input found by either can be added
//! to the corpus as a regression test. It panics where the promise is broken.

use bytes::Bytes;
use mqcore_consensus::message::ReplicaMessage;

/// Decodes `input`. A message that is accepted survives its encoding.
pub(crate) fn check(input: &[u8]) {
    if let Ok(message) = ReplicaMessage::decode(&Bytes::copy_from_slice(input)) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert!(encoded.len() <= input.len(), "the encoding of this crate is the shortest");
        assert_eq!(ReplicaMessage::decode(&encoded.into()), Ok(message));
    }
}
