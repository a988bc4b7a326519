//! Ids of the messages that the broker itself sends, in the form of a UUID, as all peers use them.

use std::fmt::Write;

use mqcore_broker::model::id::ConnectionId;

/// Makes ids. They are unique, not secret.
#[derive(Debug, Clone)]
pub(super) struct MessageIds {
    seed: u64,
    count: u64,
    text: String,
}

/// The finalizer of SplitMix64, a bijection.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl MessageIds {
    /// `seed` differs from run to run.
    pub(super) fn new(connection: ConnectionId, seed: u64) -> Self {
        Self { seed: seed ^ mixed(connection.0), count: 0, text: String::with_capacity(36) }
    }

    /// 36 bytes in the form of a UUID of version 4.
    pub(super) fn next(&mut self) -> &[u8] {
        self.count += 1;
        let (high, low) = (mixed(self.seed), mixed(self.seed ^ self.count.rotate_left(32)));
        self.text.clear();
        let written = write!(
            self.text,
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            low >> 52,
            low >> 36 & 0x3fff | 0x8000,
            self.count << 16 & 0xffff_ffff_ffff | low & 0xffff,
        );
        debug_assert!(written.is_ok(), "writing to a text does not fail");
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
