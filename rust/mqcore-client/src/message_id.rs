//! Ids of messages and requests, unique across clients.

use smallvec::SmallVec;

use crate::random::random_u64;

/// A message id, inline when it is one of ours.
pub type MessageId = SmallVec<[u8; 32]>;

/// Generates ids of 32 lower-case hex digits: 16 random ones of this client and a counter of 16.
#[derive(Debug)]
pub(crate) struct MessageIds {
    last: [u8; 32],
}

impl MessageIds {
    pub(crate) fn new() -> Self {
        let mut last = [b'0'; 32];
        last[..16].copy_from_slice(format!("{:016x}", random_u64()).as_bytes());
        Self { last }
    }

    pub(crate) fn next(&mut self) -> MessageId {
        // Counts in the digits: most of the time only the last one changes.
        for digit in self.last[16..].iter_mut().rev() {
            match *digit {
                b'9' => *digit = b'a',
                b'f' => {
                    *digit = b'0';
                    continue;
                }
                other => *digit = other + 1,
            }
            break;
        }
        MessageId::from_buf(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_in_hex_behind_a_prefix_of_the_client() {
        let mut ids = MessageIds::new();
        let first = ids.next();
        let texts: Vec<String> =
            (2..70_000_u64).map(|_| String::from_utf8(ids.next().to_vec()).unwrap()).collect();
        let prefix = std::str::from_utf8(&first[..16]).unwrap();
        assert!(u64::from_str_radix(prefix, 16).is_ok());
        assert_eq!(first[16..], *b"0000000000000001");
        let expected = (2..70_000_u64).map(|count| format!("{prefix}{count:016x}"));
        assert!(texts.iter().cloned().eq(expected));
    }
}
