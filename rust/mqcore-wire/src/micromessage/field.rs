//! The two spellings that texts of this protocol are made of: FIELDs, and percent-encoded values.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Everything but `A-Z a-z 0-9 - . _ ~` is encoded, as RFC 3986 recommends.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether `name` is a FIELD: lower-case letters, digits and hyphens, one at least.
pub fn is_field(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|octet| matches!(octet, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Whether `key` can be the key of a property: a FIELD, or one with upper-case letters or underscores in it, which some
/// peers write and nobody should.
pub fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_'))
}

/// Whether every `%` in `value` is followed by two hexadecimal digits and nothing in it is a space, a control character or
/// beyond ASCII.
pub fn is_encoded(value: &[u8]) -> bool {
    let mut octets = value.iter();
    while let Some(octet) = octets.next() {
        let digit = |octet: Option<&u8>| octet.is_some_and(u8::is_ascii_hexdigit);
        match octet {
            b'%' if !(digit(octets.next()) && digit(octets.next())) => return false,
            b'%' | b'!'..=b'~' => {}
            _ => return false,
        }
    }
    true
}

/// The octets that a percent-encoded value means. A `+` means itself.
pub fn decode_value(value: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(value).into()
}

/// Appends `value`, percent-encoded.
pub fn encode_value(value: &[u8], output: &mut Vec<u8>) {
    for part in percent_encode(value, ENCODED) {
        output.extend_from_slice(part.as_bytes());
    }
}
