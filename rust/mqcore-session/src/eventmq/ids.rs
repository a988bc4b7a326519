//! Ids of the messages that the broker itself sends: UUIDs of version 4 as text, as all peers use them.

use std::fmt::Write;

use fastrand::Rng;
use mqcore_broker::model::id::ConnectionId;

/// Generates ids. They are unique but not secret: an observer can compute the next one.
#[derive(Debug, Clone)]
pub(super) struct MessageIds {
    random: Rng,
    text: String,
}

impl MessageIds {
    /// `seed` differs from run to run.
    pub(super) fn new(connection: ConnectionId, seed: u64) -> Self {
        // The fork spreads seeds that differ in few bits over the whole sequence of the generator.
        Self { random: Rng::with_seed(seed ^ connection.0).fork(), text: String::with_capacity(36) }
    }

    /// The next id, 36 bytes.
    pub(super) fn next(&mut self) -> &[u8] {
        let (high, rest) = (self.random.u64(..), self.random.u64(..));
        self.text.clear();
        let written = write!(
            self.text,
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            rest >> 48 & 0x3fff | 0x8000,
            rest & 0xffff_ffff_ffff,
        );
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_look_like_those_of_the_original_and_never_repeat() {
        let mut seen = HashSet::new();
        for connection in 0..100 {
            let mut ids = MessageIds::new(ConnectionId(connection), 7);
            for _ in 0..1000 {
                let id = String::from_utf8(ids.next().to_vec()).unwrap();
                let lengths: Vec<_> = id.split('-').map(str::len).collect();
                assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
                assert!(id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
                assert!(seen.insert(id));
            }
        }
    }
}
