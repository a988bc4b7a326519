//! Terms of one message, which its producer sets in headers: a delay, an expiry and a priority.
//!
//! A property of the message says that there are such headers, so that other messages cost nothing.

use std::time::Duration;

use memchr::memchr_iter;

use crate::model::time::Timestamp;

/// Header with the milliseconds for which a queue holds the message back.
pub const DELAY: &str = "Mqcore-Delay";
/// Header with the milliseconds after which the message expires, counted from its arrival at the queue.
pub const EXPIRES_IN: &str = "Mqcore-Expires-In";
/// Header with the priority, 0 to 255; higher is sooner.
pub const PRIORITY: &str = "Mqcore-Priority";

const PREFIX: &[u8] = b"Mqcore-";
/// Maximum delay and maximum expiry in milliseconds: 100 years.
const MILLIS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// The priority of messages without one.
pub const LEVEL_NORMAL: u8 = 0;
/// The priority of messages that only say that it is high.
pub const LEVEL_HIGH: u8 = 255;
/// The lowest priority that counts as high where there are only two.
pub const LEVEL_HIGH_MIN: u8 = 128;

/// Terms of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageTerms {
    /// How long its queue holds it back.
    pub delay: Option<Duration>,
    /// How long it may wait, delay included.
    pub expires_in: Option<Duration>,
    /// Its priority.
    pub priority: Option<u8>,
}

/// Why terms are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A value that is not a number in its range.
    #[error("header {name} is {value:?}; it must be a whole number from 0 to {max}")]
    Value {
        /// The header.
        name: &'static str,
        /// Its value.
        value: String,
        /// The largest valid number.
        max: u64,
    },
    /// The message would expire before its queue delivers it.
    #[error(
        "the message expires after {expires_in:?}, but is delayed for {delay:?}; give it more time, or a shorter delay"
    )]
    ExpiresFirst {
        /// How long it may wait.
        expires_in: Duration,
        /// How long it is held back.
        delay: Duration,
    },
}

/// Whether header text may contain terms.
#[must_use]
#[inline]
pub fn has_terms(headers: &[u8]) -> bool {
    // Most messages have no headers.
    !headers.is_empty() && any_line_is_term(headers)
}

fn any_line_is_term(headers: &[u8]) -> bool {
    has_prefix(headers) || memchr_iter(b'\n', headers).any(|end| has_prefix(&headers[end + 1..]))
}

fn has_prefix(line: &[u8]) -> bool {
    line.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

fn lines(headers: &[u8]) -> impl Iterator<Item = &[u8]> {
    headers.split(|byte| *byte == b'\n')
}

impl MessageTerms {
    /// Reads the terms in header text. Of several headers with one name, the first counts.
    ///
    /// # Errors
    /// [`TermsError`].
    pub fn read(headers: &[u8]) -> Result<Self, TermsError> {
        let mut terms = Self::default();
        for line in lines(headers).filter(|line| has_prefix(line)) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            if is(DELAY) && terms.delay.is_none() {
                terms.delay = Some(Duration::from_millis(number(DELAY, value, MILLIS_MAX)?));
            } else if is(EXPIRES_IN) && terms.expires_in.is_none() {
                terms.expires_in = Some(Duration::from_millis(number(EXPIRES_IN, value, MILLIS_MAX)?));
            } else if is(PRIORITY) && terms.priority.is_none() {
                // The maximum fits.
                terms.priority = Some(number(PRIORITY, value, u8::MAX.into())? as u8);
            }
        }
        match (terms.delay, terms.expires_in) {
            (Some(delay), Some(expires_in)) if expires_in <= delay => {
                Err(TermsError::ExpiresFirst { expires_in, delay })
            }
            _ => Ok(terms),
        }
    }

    /// When its queue may deliver a message that arrived at this time.
    #[must_use]
    pub fn not_before(&self, arrived: Timestamp) -> Timestamp {
        self.delay.map_or(Timestamp(0), |delay| arrived.after(delay))
    }

    /// When a message that arrived at this time expires.
    #[must_use]
    pub fn expires(&self, arrived: Timestamp) -> Timestamp {
        self.expires_in.map_or(Timestamp::NEVER, |expires_in| arrived.after(expires_in))
    }
}

fn number(name: &'static str, value: &[u8], max: u64) -> Result<u64, TermsError> {
    let digits = value.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.filter(|number| *number <= max).ok_or_else(|| {
        let shown = &value[..value.len().min(64)];
        TermsError::Value { name, value: String::from_utf8_lossy(shown).into_owned(), max }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_from_headers_in_any_order_and_case() {
        let headers = b"A:1\r\nmqcore-priority: 200 \r\nMqcore-Delay:1500\r\nMqcore-Expires-In:60000\r\nMqcore-Delay:7\r\n";
        assert!(has_terms(headers));
        let terms = MessageTerms::read(headers).expect("valid terms");
        assert_eq!(terms.delay, Some(Duration::from_millis(1500)));
        assert_eq!(terms.expires_in, Some(Duration::from_secs(60)));
        assert_eq!(terms.priority, Some(200));
        let now = Timestamp(1000);
        assert_eq!((terms.not_before(now), terms.expires(now)), (Timestamp(2500), Timestamp(61_000)));
    }

    #[test]
    fn messages_without_terms_have_none() {
        for headers in [&b""[..], b"Delay:1\r\nX-Mqcore-Delay:2\r\n", b"Mqcore"] {
            assert!(!has_terms(headers));
            assert_eq!(MessageTerms::read(headers), Ok(MessageTerms::default()));
        }
        let none = MessageTerms::default();
        assert_eq!(
            (none.not_before(Timestamp(5)), none.expires(Timestamp(5))),
            (Timestamp(0), Timestamp::NEVER)
        );
    }

    #[test]
    fn invalid_terms_are_rejected_with_value_and_limit() {
        for (headers, said) in [
            (
                &b"Mqcore-Priority:256\r\n"[..],
                "header Mqcore-Priority is \"256\"; it must be a whole number from 0 to 255",
            ),
            (b"Mqcore-Delay:soon\r\n", "header Mqcore-Delay is \"soon\""),
            (b"Mqcore-Delay:-1\r\n", "header Mqcore-Delay is \"-1\""),
            (b"Mqcore-Expires-In:\r\n", "header Mqcore-Expires-In is \"\""),
            (b"Mqcore-Delay:99999999999999999999\r\n", "from 0 to 3153600000000"),
            (b"Mqcore-Delay:10\r\nMqcore-Expires-In:10\r\n", "expires after 10ms, but is delayed for 10ms"),
        ] {
            let error = MessageTerms::read(headers).expect_err("invalid").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
