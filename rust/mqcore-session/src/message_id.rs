//! Ids for messages that a peer published, or the broker sends, without one.

use fastrand::Rng;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;

/// Generates ids of 32 lower-case hexadecimal digits: 16 of the session, which are random, and 16 that count.
///
/// Within a session, ids are unique. Sessions and runs of a server share an id only if their 64 random bits are the same.
/// Ids are not secret: one id reveals the next.
#[derive(Debug)]
pub(crate) struct MessageIds {
    stem: u64,
    /// Number of the last id of [`MessageIds::next`]; the first one is random.
    number: u64,
}

impl MessageIds {
    pub(crate) fn new(connection: ConnectionId, opened_at: Timestamp) -> Self {
        let mut random = Rng::with_seed(Rng::with_seed(opened_at.0).u64(..) ^ connection.0);
        Self { stem: random.u64(..), number: random.u64(..) }
    }

    /// The id of the session's message with this number, from which the number can be read again. A session must not
    /// use [`MessageIds::next`] as well.
    pub(crate) fn of(&self, number: u64) -> [u8; 32] {
        let mut id = [0; 32];
        hex(self.stem, &mut id[..16]);
        hex(number, &mut id[16..]);
        id
    }

    /// The number in an id made by [`MessageIds::of`]; `None` if another session made it.
    pub(crate) fn number_of(&self, id: &[u8]) -> Option<u64> {
        let (stem, number) = id.split_at_checked(16)?;
        let mut own = [0; 16];
        hex(self.stem, &mut own);
        let digits = std::str::from_utf8(number).ok().filter(|_| *stem == own && number.len() == 16)?;
        u64::from_str_radix(digits, 16).ok()
    }

    pub(crate) fn next(&mut self) -> [u8; 32] {
        self.number = self.number.wrapping_add(1);
        let mut id = [0; 32];
        hex(self.stem, &mut id[..16]);
        hex(self.number, &mut id[16..]);
        id
    }
}

fn hex(mut number: u64, digits: &mut [u8]) {
    for digit in digits {
        number = number.rotate_left(4);
        *digit = b"0123456789abcdef"[(number & 0xF) as usize];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_number_of_a_message_stands_in_its_id() {
        let (ids, others) =
            (MessageIds::new(ConnectionId(1), Timestamp(5)), MessageIds::new(ConnectionId(2), Timestamp(5)));
        for number in [0, 1, 0xFFFF_FFFF, u64::MAX] {
            assert_eq!(ids.number_of(&ids.of(number)), Some(number));
            assert_eq!(others.number_of(&ids.of(number)), None);
        }
        assert_eq!(ids.number_of(b"short"), None);
    }

    #[test]
    fn ids_are_hex_and_differ_within_and_between_sessions() {
        let sessions = (0..100).flat_map(|connection| [(connection, 5), (connection, 6)]);
        let mut seen = HashSet::new();
        for (connection, opened_at) in sessions {
            let mut ids = MessageIds::new(ConnectionId(connection), Timestamp(opened_at));
            for _ in 0..100 {
                let id = ids.next();
                assert!(id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
                assert!(seen.insert(id));
            }
        }
    }
}
