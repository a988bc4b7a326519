//! The key of a message of which a queue has one at a time.

const HEADER: &[u8] = b"Unique-Key:";

/// Octets of a key, at most.
pub const KEY_BYTES_MAX: usize = 255;

/// The line of header text that gives a message its key, which has no control characters.
#[must_use]
pub fn header_line(key: &[u8]) -> Vec<u8> {
    [HEADER, key, b"\r\n"].concat()
}

/// The key in header text, if there is one.
#[must_use]
pub fn key_in(headers: &[u8]) -> Option<&[u8]> {
    headers.split(|octet| *octet == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(HEADER.len())?;
        name.eq_ignore_ascii_case(HEADER).then(|| value.trim_ascii())
    })
}
