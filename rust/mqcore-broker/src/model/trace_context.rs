//! The W3C trace context that a message carries in its headers.
//!
//! The producer writes `traceparent: 00-<trace>-<span>-<flags>` ([W3C Trace Context, 3.2]). Two protocols have their own
//! headers inside one header of the message:
//!
//! ```text
//! EventMQ-Headers: reply-requested,traceparent:00-...-01,retry-count:2
//! Mm2-Properties:color:Tred;traceparent:T00-...-01;                        T: the property is a text
//! ```
//!
//! [W3C Trace Context, 3.2]: https://www.w3.org/TR/trace-context/#traceparent-header

use memchr::memchr_iter;

const KEY: &[u8] = b"traceparent";
/// The header with the headers of a job.
const JOB_HEADERS: &[u8] = b"EventMQ-Headers:";
/// The header with the properties of a message of MicroMessage2.
const PROPERTIES: &[u8] = b"Mm2-Properties:";
/// Bytes of a value of version 00.
const VALUE_BYTES: usize = 55;
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// The trace of a message, and the span that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The id of the trace.
    pub trace: [u8; 16],
    /// The id of the span that published the message.
    pub span: [u8; 8],
}

impl TraceContext {
    /// The context in header text, if its trace is recorded. An invalid one counts as none, as the specification demands.
    #[must_use]
    pub fn sampled(headers: &[u8]) -> Option<Self> {
        memchr_iter(b':', headers).find_map(|colon| {
            let (before, key) = headers[..colon].split_at_checked(colon.checked_sub(KEY.len())?)?;
            if !key.eq_ignore_ascii_case(KEY) {
                return None;
            }
            let value = headers[colon + 1..].trim_ascii_start();
            let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
            if line.is_empty() || is_in(line, JOB_HEADERS, b',') {
                Self::parse(value)
            } else if is_in(line, PROPERTIES, b';') {
                Self::parse(value.strip_prefix(b"T")?)
            } else {
                None
            }
        })
    }

    /// Reads a value. Later versions may have more fields behind the known ones.
    fn parse(text: &[u8]) -> Option<Self> {
        let (value, rest) = text.split_at_checked(VALUE_BYTES)?;
        let fields = [&value[..2], &value[3..35], &value[36..52], &value[53..]];
        if [2, 35, 52].iter().any(|at| value[*at] != b'-') {
            return None;
        }
        let (version, flags) = (hex::<1>(fields[0])?[0], hex::<1>(fields[3])?[0]);
        let ends = matches!(rest.first(), None | Some(b'\r' | b'\n' | b',' | b';' | b' '));
        if version == 0xff || !(ends || version > 0 && rest[0] == b'-') || flags & SAMPLED == 0 {
            return None;
        }
        let context = Self { trace: hex(fields[1])?, span: hex(fields[2])? };
        (context.trace != [0; 16] && context.span != [0; 8]).then_some(context)
    }
}

/// Whether the beginning of a line ends where a header inside `outer` begins.
fn is_in(line: &[u8], outer: &[u8], separator: u8) -> bool {
    let inner = line.strip_prefix(outer).map(<[u8]>::trim_ascii_end);
    inner.is_some_and(|inner| inner.last().is_none_or(|last| *last == separator))
}

/// Bytes from lower-case hexadecimal digits.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn found(headers: &str) -> bool {
        let found = TraceContext::sampled(headers.as_bytes());
        if let Some(context) = found {
            assert_eq!((context.trace[0], context.trace[15]), (0x0a, 0x9c));
            assert_eq!(context.span, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        }
        found.is_some()
    }

    #[test]
    fn a_context_is_found_wherever_headers_may_have_it() {
        for headers in [
            format!("traceparent:{VALUE}\r\n"),
            format!("A:1\r\nTraceParent: {VALUE}\r\nB:2\r\n"),
            format!("EventMQ-Headers: reply-requested,traceparent:{VALUE},retry-count:2\r\n"),
            format!("traceparent:{}-later fields\r\n", VALUE.replacen("00-", "01-", 1)),
            format!("traceparent:{}\r\n", VALUE.replace("-01", "-03")),
            format!("traceparent:{VALUE}"),
            format!("EventMQ-Headers:traceparent:{VALUE},retry-count:2\r\n"),
            format!("EventMQ-Headers:retry-count:1, traceparent:{VALUE}\r\n"),
            format!("Mm2-Properties:traceparent:T{VALUE};\r\n"),
            format!("Mm2-Properties:color:Tred;traceparent:T{VALUE};size:I3;\r\n"),
        ] {
            assert!(found(&headers), "{headers}");
        }
    }

    #[test]
    fn what_is_not_sampled_or_not_valid_counts_as_none() {
        for headers in [
            String::new(),
            format!("x-traceparent:{VALUE}\r\n"),
            format!("note:traceparent:{VALUE}\r\n"),
            format!("note:traceparent:T{VALUE};\r\n"),
            format!("note:a;traceparent:T{VALUE};\r\n"),
            format!("note:a,traceparent:{VALUE}\r\n"),
            format!("Mm2-Properties:color:Tred;traceparent:B{VALUE};\r\n"),
            format!("traceparent:{}\r\n", VALUE.replace("-01", "-00")),
            format!("traceparent:{}\r\n", VALUE.replacen("00-", "ff-", 1)),
            format!("traceparent:{VALUE}-later\r\n"),
            format!("traceparent:{}\r\n", VALUE.to_uppercase()),
            format!("traceparent:{}\r\n", &VALUE[..54]),
            format!("traceparent:{}\r\n", VALUE.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32))),
            format!("traceparent:{}\r\n", VALUE.replace("b7ad6b7169203331", &"0".repeat(16))),
        ] {
            assert!(!found(&headers), "{headers}");
        }
    }
}
