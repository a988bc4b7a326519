//! Hexadecimal encoding of ids and hashes.

use std::fmt::Write;

/// Encodes bytes as lower-case hexadecimal digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// Decodes exactly `2 * N` hexadecimal digits of either case.
pub(crate) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_survive_a_round_trip_and_anything_else_is_rejected() {
        assert_eq!(encode(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(decode::<3>("00abFF"), Some([0, 0xab, 0xff]));
        for text in ["00abf", "00abff00", "+0abff", "00abfg", "€€"] {
            assert_eq!(decode::<3>(text), None, "{text}");
        }
    }
}
