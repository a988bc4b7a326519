//! Variable-length integers, as in the files of a journal.

/// Appends a variable-length integer: seven bits per byte, lowest first; the highest bit announces another byte.
pub fn push(body: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        body.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    body.push(value as u8);
}

/// Reads a variable-length integer from the beginning of `rest`, which then begins behind it. `None`: it is cut off, or too
/// large.
pub fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
