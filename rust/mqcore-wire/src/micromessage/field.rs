//! Lexical rules of the protocol's texts: FIELDs and percent-encoded values.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Encodes all but the unreserved characters of RFC 3986, section 2.3.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether `name` is a FIELD: at least one lower-case letter, digit or hyphen, and nothing else.
pub fn is_field(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Whether `key` is a property key: a FIELD that may also contain upper-case letters and underscores, as some peers write
/// them.
pub fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Whether `value` is percent-encoded: every `%` is followed by two hexadecimal digits, and all bytes are printable ASCII
/// other than space.
pub fn is_encoded(value: &[u8]) -> bool {
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
        match byte {
            b'%' if !(digit(bytes.next()) && digit(bytes.next())) => return false,
            b'%' | b'!'..=b'~' => {}
            _ => return false,
        }
    }
    true
}

/// Decodes a percent-encoded value. A `+` stands for itself.
pub fn decode_value(value: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(value).into()
}

/// Appends `value` with percent-encoding.
pub fn encode_value(value: &[u8], output: &mut Vec<u8>) {
    for part in percent_encode(value, ENCODED) {
        output.extend_from_slice(part.as_bytes());
    }
}
