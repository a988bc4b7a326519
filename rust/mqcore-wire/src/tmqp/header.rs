//! The header text of a TMQP frame ("Protocol Frame"): `key:value` lines that end with CR LF.
//!
//! The first colon separates key and value. Nothing is trimmed, so a value may begin with a space and contain colons. Keys
//! are compared case-insensitively (ASCII). A key may repeat, as `CC` does; lookups return the first match.

use crate::tmqp::HEADER_BYTES_MAX;

/// A key or value that cannot be written as a header line. Caused by the caller, never by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The key is empty. Readers skip lines that begin with a colon.
    #[error("a header key cannot be empty")]
    EmptyKey,
    /// The key contains a colon. Readers split at the first colon and would move the rest of the key into the value.
    #[error("a header key cannot contain a colon")]
    ColonInKey,
    /// The key or value contains a line break. Readers would take the text after it for another line.
    #[error("a header {part} cannot contain CR or LF")]
    LineBreak {
        /// `"key"` or `"value"`.
        part: &'static str,
    },
    /// The block would exceed its two-byte length field.
    #[error("a header block of {size} bytes exceeds the limit of {HEADER_BYTES_MAX} bytes")]
    BlockTooLarge {
        /// Size of the block including the rejected line, in bytes.
        size: usize,
    },
}

/// Appends one line to the header block in `headers`. On error, `headers` is unchanged.
///
/// Keys and values often come from peers of other protocols, in which CR, LF and colons are ordinary bytes. Rejecting them
/// here prevents header injection without relying on every caller.
///
/// # Errors
///
/// [`HeaderError`] names the rule that the line breaks.
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

/// Returns the value of the first line whose key equals `key`, ignoring ASCII case.
#[must_use]
pub fn header_value<'a>(headers: &'a [u8], key: &str) -> Option<&'a [u8]> {
    pairs(headers).find(|(name, _)| name.eq_ignore_ascii_case(key.as_bytes())).map(|(_, value)| value)
}

/// Returns the value of the last line whose key equals `key`, ignoring ASCII case. A broker appends its lines to those of
/// the message, which may have the same keys.
#[must_use]
pub fn last_header_value<'a>(headers: &'a [u8], key: &str) -> Option<&'a [u8]> {
    pairs(headers)
        .filter(|(name, _)| name.eq_ignore_ascii_case(key.as_bytes()))
        .last()
        .map(|(_, value)| value)
}

/// Iterates over the lines of `headers` in order, each split into key and value.
#[must_use]
pub const fn pairs(headers: &[u8]) -> Pairs<'_> {
    Pairs { rest: headers }
}

/// Iterator over the valid lines of a header block. It skips lines without a colon and lines with an empty key.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let line = self.next_line();
            match line.iter().position(|&byte| byte == b':') {
                None | Some(0) => {}
                Some(colon) => return Some((&line[..colon], &line[colon + 1..])),
            }
        }
        None
    }
}

impl<'a> Pairs<'a> {
    /// Takes the next line off the front and strips its CR LF, which the last line may lack.
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
    bytes.iter().any(|&byte| byte == b'\r' || byte == b'\n')
}

/// Header keys known to client and server. Keys marked "3.7" were added in that release of Twino MQ.
pub mod key {
    /// Marks an acknowledgement as negative, whatever its value. See [`super::nack_reason`].
    pub const NACK_REASON: &str = "Nack-Reason";
    /// mqcore extension: in a negative acknowledgement, the delay before the message is redelivered, in seconds: `2.5`.
    pub const RETRY_AFTER: &str = "Retry-After";
    /// mqcore extension: in a pull, [`super::VALUE_YES`] asks for the number of the attempt; in a message, that number from 1.
    pub const ATTEMPT: &str = "Delivery-Attempt";
    /// Channel of an event subscription, or the filter of the channel list.
    pub const CHANNEL_NAME: &str = "Channel-Name";
    /// Queue id, decimal.
    pub const QUEUE_ID: &str = "Queue-Id";
    /// An additional queue that receives a copy: `channel[;queue id[;message id]]`. May repeat.
    pub const CC: &str = "CC";
    /// Id of the pull request that a pulled message answers.
    pub const REQUEST_ID: &str = "Request-Id";
    /// Position of a message within a pull, from 1.
    pub const INDEX: &str = "Index";
    /// Number of messages to pull.
    pub const COUNT: &str = "Count";
    /// Pull order. See [`super::pull_order`].
    pub const ORDER: &str = "Order";
    /// Messages to remove after a pull. See [`super::clear`].
    pub const CLEAR: &str = "Clear";
    /// Whether pulled messages report the number of remaining messages: [`super::VALUE_YES`].
    pub const INFO: &str = "Info";
    /// Number of remaining high-priority messages; in a clear operation [`super::VALUE_YES`].
    pub const PRIORITY_MESSAGES: &str = "Priority-Messages";
    /// Number of remaining normal messages; in a clear operation [`super::VALUE_YES`].
    pub const MESSAGES: &str = "Messages";
    /// Ends a pull and states the reason. See [`super::no_content`].
    pub const NO_CONTENT: &str = "No-Content";
    /// Handshake: client id that the client requests.
    pub const CLIENT_ID: &str = "Client-Id";
    /// Handshake: access token.
    pub const CLIENT_TOKEN: &str = "Client-Token";
    /// Handshake: client name, which several clients may share.
    pub const CLIENT_NAME: &str = "Client-Name";
    /// Handshake: client type, which several clients may share.
    pub const CLIENT_TYPE: &str = "Client-Type";
    /// Handshake: defined by the original, never used.
    pub const CLIENT_ACCEPT: &str = "Client-Accept";
    /// 3.7: reason for a response, as text.
    pub const REASON: &str = "Reason";
    /// 3.7: error message.
    pub const ERROR: &str = "Error";
    /// 3.7: delivery handler of a new queue.
    pub const DELIVERY_HANDLER: &str = "Delivery-Handler";
    /// 3.7: whether a new queue waits for an acknowledgement before it delivers the next message.
    pub const WAIT_FOR_ACKNOWLEDGE: &str = "Wait-For-Acknowledge";
    /// 3.7: status of a new queue, as text.
    pub const QUEUE_STATUS: &str = "Queue-Status";
    /// 3.7: tag of a new queue.
    pub const QUEUE_TAG: &str = "Queue-Tag";
    /// mqcore extension: publish rate limit of a new queue, for example `100/s`.
    pub const PUBLISH_LIMIT: &str = "Publish-Limit";
    /// mqcore extension: ids of the queues to consume when joining a channel, decimal, separated by commas.
    pub const QUEUE_IDS: &str = "Queue-Ids";
    /// mqcore extension: maximum number of unsettled messages of each joined queue, decimal; 0: no limit.
    pub const PREFETCH: &str = "Prefetch";
    /// mqcore extension: time to acknowledge a message of each joined queue, in milliseconds, separated by commas; 0: the
    /// queue requests no acknowledgement.
    pub const ACKNOWLEDGE_TIMEOUTS: &str = "Acknowledge-Timeouts";
    /// mqcore extension: in a negative acknowledgement, [`super::VALUE_YES`] returns a message that the consumer's program did
    /// not get.
    pub const UNSTARTED: &str = "Unstarted";
    /// mqcore extension: milliseconds for which the queue of a message holds it back, decimal.
    pub const DELAY: &str = "Mqcore-Delay";
    /// mqcore extension: milliseconds after which a message expires, decimal.
    pub const EXPIRES_IN: &str = "Mqcore-Expires-In";
    /// mqcore extension: priority of a message from 0 to 255, decimal. It replaces the high-priority bit, which is set
    /// from 128 on.
    pub const PRIORITY: &str = "Mqcore-Priority";
    /// 3.7: numeric code of the method by which a new router selects bindings.
    pub const ROUTE_METHOD: &str = "Route-Method";
    /// mqcore extension: whether to enable a router, `yes` or `no`.
    pub const ENABLED: &str = "Enabled";
    /// 3.7: name of the binding to remove.
    pub const BINDING_NAME: &str = "Binding-Name";
    /// mqcore extension: maximum items of one page of a list, decimal. The answer has only this page.
    pub const PAGE_SIZE: &str = "Page-Size";
    /// mqcore extension: the [`NEXT_PAGE`] of the page before.
    pub const PAGE_AFTER: &str = "Page-After";
    /// mqcore extension: in the answer, the cursor of the next page. Absent after the last page.
    pub const NEXT_PAGE: &str = "Next-Page";
    /// 3.7: topic of a new channel.
    pub const CHANNEL_TOPIC: &str = "Channel-Topic";
}

/// The value that enables a boolean header.
pub const VALUE_YES: &str = "yes";

/// Values of [`key::NACK_REASON`] with a defined meaning. The broker forwards all other values.
pub mod nack_reason {
    /// Rejected without a reason.
    pub const NONE: &str = "none";
    /// No acknowledgement arrived in time.
    pub const TIMEOUT: &str = "timeout";
    /// No consumer was available.
    pub const NO_CONSUMERS: &str = "no-consumers";
    /// 3.7: a consumer or handler failed.
    pub const ERROR: &str = "error";
}

/// Values of [`key::NO_CONTENT`]. A client treats any value as the end of its pull.
pub mod no_content {
    /// The queue is empty.
    pub const EMPTY: &str = "Empty";
    /// All requested messages were sent before this frame.
    pub const END: &str = "End";
    /// The client may not pull from this queue, or it has not joined the channel.
    pub const UNAUTHORIZED: &str = "Unauthorized";
    /// The request does not suit this queue.
    pub const UNACCEPTABLE: &str = "Unacceptable";
    /// The channel does not exist (document only).
    pub const NO_CHANNEL: &str = "No-Channel";
    /// The queue does not exist (document only).
    pub const NO_QUEUE: &str = "No-Queue";
    /// The request has no message id (document only).
    pub const ID_REQUIRED: &str = "Id-Required";
}

/// Values of [`key::ORDER`]. Default: oldest first.
pub mod pull_order {
    /// Oldest first.
    pub const FIFO: &str = "FIFO";
    /// Newest first.
    pub const LIFO: &str = "LIFO";
}

/// Values of [`key::CLEAR`], compared case-insensitively.
pub mod clear {
    /// All remaining messages.
    pub const ALL: &str = "all";
    /// High-priority messages.
    pub const HIGH_PRIORITY: &str = "High-Priority";
    /// Normal messages.
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
    fn lone_cr_or_lf_does_not_end_a_line() {
        assert_eq!(collect(b"k:a\nb\rc\r\r\nl:1\r"), [(&b"k"[..], &b"a\nb\rc\r"[..]), (b"l", b"1\r")]);
    }

    #[test]
    fn first_match_wins_without_regard_to_case() {
        assert_eq!(header_value(b"cc:1\r\nCC:2\r\n", key::CC), Some(&b"1"[..]));
        assert_eq!(header_value(b"cc:1\r\n", key::COUNT), None);
    }

    #[test]
    fn line_break_or_colon_is_rejected_to_prevent_header_injection() {
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
    fn header_block_is_limited_by_its_length_field() {
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
