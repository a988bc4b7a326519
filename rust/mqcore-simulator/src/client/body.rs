//! Ids and bodies of messages, from which clients recognize each message and its copies.

/// The id of a message, or of one of its copies.
pub(super) fn message_id(label: u32, part: usize) -> String {
    if part == 0 { format!("m{label}") } else { format!("m{label}.{part}") }
}

/// The message and the copy that an id names.
pub(super) fn label_of(id: &[u8]) -> Option<(u32, usize)> {
    let id = std::str::from_utf8(id).ok()?.strip_prefix('m')?;
    let (label, part) = id.split_once('.').unwrap_or((id, "0"));
    Some((label.parse().ok()?, part.parse().ok()?))
}

/// The body of a message: its number and size, and filler that follows from them.
pub(super) fn body(label: u32, size: usize) -> String {
    let filler = char::from(b'a' + (label % 26) as u8);
    format!("{label}:{size}:{}", filler.to_string().repeat(size))
}

/// The message that a body belongs to, and whether the body is unchanged.
pub(super) fn read(found: &[u8]) -> (u32, bool) {
    let text = std::str::from_utf8(found).unwrap_or_default();
    let mut parts = text.split(':');
    let label = parts.next().and_then(|label| label.parse().ok());
    let size = parts.next().and_then(|size| size.parse().ok());
    match (label, size) {
        (Some(label), Some(size)) => (label, body(label, size) == text),
        _ => (u32::MAX, false),
    }
}
