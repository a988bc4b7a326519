//! Ids of messages and requests, unique across clients.

use smallvec::SmallVec;

use crate::random::random_u64;

/// A message id, inline when it is one of ours.
pub type MessageId = SmallVec<[u8; 32]>;

/// Generates ids of 32 lower-case hex digits: 16 random ones of this client and a counter of 16.
#[derive(Debug)]
pub(crate) struct MessageIds {
    prefix: u64,
    count: u64,
}

impl MessageIds {
    pub(crate) fn new() -> Self {
        Self { prefix: random_u64(), count: 0 }
    }

    pub(crate) fn next(&mut self) -> MessageId {
        self.count += 1;
        let mut id = [0; 32];
        for (half, number) in id.chunks_exact_mut(16).zip([self.prefix, self.count]) {
            for (index, digit) in half.iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(number >> (60 - 4 * index)) as usize & 0xF];
            }
        }
        MessageId::from_buf(id)
    }
}
