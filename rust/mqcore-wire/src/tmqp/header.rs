//! The header text of a TMQP frame: `key:value` lines, each ended by CR LF.
//!
//! The first colon splits a line and nothing is trimmed, so a value may begin with a space and may contain colons.
//! Keys compare without regard to ASCII case, the first match counts, and a key may repeat (`CC` does).

use crate::tmqp::HEADER_BYTES_MAX;

/// Why a key and value cannot be written as a header line. The caller's fault, never the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// A line that begins with its colon is skipped by every reader.
    #[error("a header key cannot be empty")]
    EmptyKey,
    /// Readers split at the first colon: the rest of the key would become part of the value.
    #[error("a header key cannot contain a colon")]
    ColonInKey,
    /// What follows the line break would be read as a line of its own.
    #[error("a header {part} cannot contain CR or LF")]
    LineBreak {
        /// `"key"` or `"value"`.
        part: &'static str,
    },
    /// The block would outgrow its two length octets.
    #[error("a header block of {size} octets is larger than {HEADER_BYTES_MAX}")]
    BlockTooLarge {
        /// Octets of the block with the refused line.
        size: usize,
    },
}

/// Appends one line to the header block in `headers`, which stays as it was when the line is refused.
///
/// Keys and values often come from peers of other protocols, where CR, LF and colons are ordinary octets: whatever
/// could be read as a second line is refused here, so that no caller has to remember it.
///
/// # Errors
///
/// [`HeaderError`] says which rule the line breaks.
pub fn push_header(headers: &mut Vec<u8>, key: &str, value: &[u8]) -> Result<(), HeaderError> {
    if key.is_empty() {
        return Err(HeaderError::EmptyKey);
    }
    if key.contains(':') {
        return Err(HeaderError::ColonInKey);
    }
    if has_line_break(key.as_bytes()) {
        return Err(HeaderError::LineBreak { part: "key" });
    }
    if has_line_break(value) {
        return Err(HeaderError::LineBreak { part: "value" });
    }
    let size = headers.len().saturating_add(key.len() + 1).saturating_add(value.len() + 2);
    if size > HEADER_BYTES_MAX {
        return Err(HeaderError::BlockTooLarge { size });
    }
    headers.reserve(size - headers.len());
    headers.extend_from_slice(key.as_bytes());
    headers.push(b':');
    headers.extend_from_slice(value);
    headers.extend_from_slice(b"\r\n");
    Ok(())
}

/// The value of the first line of `headers` whose key is `key`, ASCII case apart.
#[must_use]
pub fn header_value<'a>(headers: &'a [u8], key: &str) -> Option<&'a [u8]> {
    pairs(headers).find(|(name, _)| name.eq_ignore_ascii_case(key.as_bytes())).map(|(_, value)| value)
}

/// The lines of `headers` in their order, each split into key and value.
#[must_use]
pub const fn pairs(headers: &[u8]) -> Pairs<'_> {
    Pairs { rest: headers }
}

/// Iterator over the usable lines of a header block. Lines without a colon, or with it in front, are skipped.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let line = self.next_line();
            match line.iter().position(|&octet| octet == b':') {
                None | Some(0) => {}
                Some(colon) => return Some((&line[..colon], &line[colon + 1..])),
            }
        }
        None
    }
}

impl<'a> Pairs<'a> {
    /// Takes the next line off the front, its CR LF removed. The last line may lack one.
    fn next_line(&mut self) -> &'a [u8] {
        let (line, rest) = match self.rest.windows(2).position(|pair| pair == b"\r\n") {
            Some(end) => (&self.rest[..end], &self.rest[end + 2..]),
            None => (self.rest, &[][..]),
        };
        self.rest = rest;
        line
    }
}

fn has_line_break(bytes: &[u8]) -> bool {
    bytes.iter().any(|&octet| octet == b'\r' || octet == b'\n')
}

/// The keys that client and server know. Those marked 3.7 came with that release.
pub mod key {
    /// Present in a negative acknowledgement; any value makes it negative. See [`super::nack_reason`].
    pub const NACK_REASON: &str = "Nack-Reason";
    /// Channel of an event subscription; filter of the channel list.
    pub const CHANNEL_NAME: &str = "Channel-Name";
    /// Queue id, decimal.
    pub const QUEUE_ID: &str = "Queue-Id";
    /// A further queue for a copy: `channel[;queue id[;message id]]`. May repeat.
    pub const CC: &str = "CC";
    /// The id of the pull request that a pulled message answers.
    pub const REQUEST_ID: &str = "Request-Id";
    /// Which message of a pull this is, from 1.
    pub const INDEX: &str = "Index";
    /// How many messages are pulled.
    pub const COUNT: &str = "Count";
    /// In which order to pull. See [`super::pull_order`].
    pub const ORDER: &str = "Order";
    /// What to remove after a pull. See [`super::clear`].
    pub const CLEAR: &str = "Clear";
    /// Whether pulled messages shall tell what is left: [`super::YES`].
    pub const INFO: &str = "Info";
    /// How many high-priority messages are left; in a clear operation [`super::YES`].
    pub const PRIORITY_MESSAGES: &str = "Priority-Messages";
    /// How many other messages are left; in a clear operation [`super::YES`].
    pub const MESSAGES: &str = "Messages";
    /// Ends a pull and says why. See [`super::no_content`].
    pub const NO_CONTENT: &str = "No-Content";
    /// Handshake: the name that the client wants for itself.
    pub const CLIENT_ID: &str = "Client-Id";
    /// Handshake: what authenticates the client.
    pub const CLIENT_TOKEN: &str = "Client-Token";
    /// Handshake: a name that clients may share.
    pub const CLIENT_NAME: &str = "Client-Name";
    /// Handshake: a type that clients may share.
    pub const CLIENT_TYPE: &str = "Client-Type";
    /// Handshake; defined by the original, used by nobody.
    pub const CLIENT_ACCEPT: &str = "Client-Accept";
    /// 3.7: text for the reason of an answer.
    pub const REASON: &str = "Reason";
    /// 3.7: text of an error.
    pub const ERROR: &str = "Error";
    /// 3.7: which delivery handler a new queue gets.
    pub const DELIVERY_HANDLER: &str = "Delivery-Handler";
    /// 3.7: whether a new queue waits for an acknowledgement before its next message.
    pub const WAIT_FOR_ACKNOWLEDGE: &str = "Wait-For-Acknowledge";
    /// 3.7: status of a new queue, as text.
    pub const QUEUE_STATUS: &str = "Queue-Status";
    /// 3.7: tag of a new queue.
    pub const QUEUE_TAG: &str = "Queue-Tag";
    /// How much may be published to a new queue, `100/s`; an extension.
    pub const PUBLISH_LIMIT: &str = "Publish-Limit";
    /// 3.7: how a new router chooses among its bindings, a number.
    pub const ROUTE_METHOD: &str = "Route-Method";
    /// 3.7: which binding to remove.
    pub const BINDING_NAME: &str = "Binding-Name";
    /// 3.7: topic of a new channel.
    pub const CHANNEL_TOPIC: &str = "Channel-Topic";
}

/// The value that switches something on.
pub const YES: &str = "yes";

/// Values of [`key::NACK_REASON`] with a meaning of their own; others are passed on.
pub mod nack_reason {
    /// Refused, no reason given.
    pub const NONE: &str = "none";
    /// Nobody acknowledged in time.
    pub const TIMEOUT: &str = "timeout";
    /// Nobody was there to take it.
    pub const NO_CONSUMERS: &str = "no-consumers";
    /// 3.7: something went wrong in a consumer or handler.
    pub const ERROR: &str = "error";
}

/// Values of [`key::NO_CONTENT`]. A client takes any of them for the end of its pull.
pub mod no_content {
    /// Nothing is stored.
    pub const EMPTY: &str = "Empty";
    /// The messages before this frame were all.
    pub const END: &str = "End";
    /// The client may not pull from this queue, or has not joined its channel.
    pub const UNAUTHORIZED: &str = "Unauthorized";
    /// The request makes no sense for this queue.
    pub const UNACCEPTABLE: &str = "Unacceptable";
    /// No such channel (document only).
    pub const NO_CHANNEL: &str = "No-Channel";
    /// No such queue (document only).
    pub const NO_QUEUE: &str = "No-Queue";
    /// The request lacks a message id (document only).
    pub const ID_REQUIRED: &str = "Id-Required";
}

/// Values of [`key::ORDER`]; oldest first without it.
pub mod pull_order {
    /// Oldest first.
    pub const FIFO: &str = "FIFO";
    /// Newest first.
    pub const LIFO: &str = "LIFO";
}

/// Values of [`key::CLEAR`], compared without regard to case.
pub mod clear {
    /// Everything that is left.
    pub const ALL: &str = "all";
    /// What has high priority.
    pub const HIGH_PRIORITY: &str = "High-Priority";
    /// What has none.
    pub const DEFAULT_PRIORITY: &str = "Default-Priority";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(headers: &[u8]) -> Vec<(&[u8], &[u8])> {
        pairs(headers).collect()
    }

    #[test]
    fn first_colon_splits_and_nothing_is_trimmed() {
        assert_eq!(collect(b"a:b:c\r\n d : e \r\n"), [(&b"a"[..], &b"b:c"[..]), (&b" d "[..], &b" e "[..])]);
    }

    #[test]
    fn lines_without_a_key_are_skipped() {
        assert_eq!(
            collect(b"nothing\r\n:empty\r\n\r\nk:\r\nlast:1"),
            [(&b"k"[..], &b""[..]), (b"last", b"1")]
        );
    }

    #[test]
    fn a_lone_cr_or_lf_ends_no_line() {
        assert_eq!(collect(b"k:a\nb\rc\r\r\nl:1\r"), [(&b"k"[..], &b"a\nb\rc\r"[..]), (b"l", b"1\r")]);
    }

    #[test]
    fn first_match_wins_without_regard_to_case() {
        assert_eq!(header_value(b"cc:1\r\nCC:2\r\n", key::CC), Some(&b"1"[..]));
        assert_eq!(header_value(b"cc:1\r\n", key::COUNT), None);
    }

    #[test]
    fn a_second_line_cannot_be_smuggled_in() {
        let mut headers = b"a:b\r\n".to_vec();
        for (key, value, error) in [
            ("", &b"v"[..], HeaderError::EmptyKey),
            ("k:x", b"v", HeaderError::ColonInKey),
            ("k\r\nx", b"v", HeaderError::LineBreak { part: "key" }),
            ("k", b"v\nNack-Reason:none", HeaderError::LineBreak { part: "value" }),
            ("k", b"v\r", HeaderError::LineBreak { part: "value" }),
        ] {
            assert_eq!(push_header(&mut headers, key, value), Err(error));
        }
        assert_eq!(headers, b"a:b\r\n");
    }

    #[test]
    fn a_block_ends_where_its_length_octets_do() {
        let mut headers = Vec::new();
        let longest = vec![b'v'; HEADER_BYTES_MAX - 4];
        assert_eq!(
            push_header(&mut headers, "kk", &longest),
            Err(HeaderError::BlockTooLarge { size: HEADER_BYTES_MAX + 1 })
        );
        assert_eq!(push_header(&mut headers, "k", &longest), Ok(()));
        assert_eq!(headers.len(), HEADER_BYTES_MAX);
    }
}
