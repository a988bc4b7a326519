//! Bytes as digits, for ids and hashes.

use std::fmt::Write;

/// Two lower-case digits for each byte.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text can be written to");
        text
    })
}

/// The bytes of lower-case or upper-case digits, if there are exactly `N` of them.
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
    fn digits_come_back_as_bytes_and_nothing_else_does() {
        assert_eq!(encode(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(decode::<3>("00abFF"), Some([0, 0xab, 0xff]));
        for text in ["00abf", "00abff00", "+0abff", "00abfg", "€€"] {
            assert_eq!(decode::<3>(text), None, "{text}");
        }
    }
}
