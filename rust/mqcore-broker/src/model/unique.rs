//! The unique key of a message.

/// The name of the header that has the key.
pub const KEY: &str = "Unique-Key";

const HEADER: &[u8] = b"Unique-Key:";

/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The header line with this key, which must not contain control characters.
#[must_use]
pub fn header_line(key: &[u8]) -> Vec<u8> {
    [HEADER, key, b"\r\n"].concat()
}

/// The key in header text.
#[must_use]
pub fn key_in(headers: &[u8]) -> Option<&[u8]> {
    headers.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(HEADER.len())?;
        name.eq_ignore_ascii_case(HEADER).then(|| value.trim_ascii())
    })
}
