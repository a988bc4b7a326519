//! Message ids as words of a line.
//!
//! Ids of other protocols may be empty, contain white space, or look like a flag. Such an id is written as `%:` and its
//! bytes, with `%` and two hexadecimal digits for white space, control characters and `%`. All other ids are written as
//! they are. An mqcore extension: the document knows only ids that are words.

use std::borrow::Cow;

const ESCAPED: &[u8] = b"%:";

/// The id as a word.
///
/// ```
/// use mqcore_wire::mqks::message_id::{read, write};
///
/// assert_eq!(&*write(b"order-7"), b"order-7");
/// assert_eq!(&*write(b"order 7"), b"%:order%207");
/// assert_eq!(&*read(b"%:order%207"), b"order 7");
/// ```
#[must_use]
pub fn write(id: &[u8]) -> Cow<'_, [u8]> {
    let is_word = !id.is_empty() && !id.starts_with(b"-") && !id.iter().copied().any(breaks);
    if is_word && !id.starts_with(ESCAPED) {
        return Cow::Borrowed(id);
    }
    let mut written = ESCAPED.to_vec();
    for byte in id {
        if breaks(*byte) || *byte == b'%' {
            written.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            written.push(*byte);
        }
    }
    Cow::Owned(written)
}

/// The id that a word stands for. A word that [`write`] does not return stands for itself.
#[must_use]
pub fn read(word: &[u8]) -> Cow<'_, [u8]> {
    let id = word.strip_prefix(ESCAPED).and_then(unescaped);
    id.map_or(Cow::Borrowed(word), Cow::Owned)
}

fn breaks(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

fn unescaped(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut id = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        text = rest;
        if *first != b'%' {
            id.push(*first);
            continue;
        }
        let (digits, rest) = rest.split_at_checked(2)?;
        let digits = str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        id.push(u8::from_str_radix(digits, 16).ok()?);
        text = rest;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_one_word_and_comes_back() {
        let ids = [
            &b""[..],
            b"a b",
            b"\t",
            b"--all",
            b"-",
            b"%:",
            b"%:a%20b",
            b"%20",
            b"50%",
            b"\xff \r\n",
            b"plain",
        ];
        let all: Vec<u8> = (0..=255).collect();
        for id in ids.into_iter().chain([&all[..255], &all[1..]]) {
            let word = write(id);
            assert!(!word.is_empty() && !word.starts_with(b"-") && !word.iter().copied().any(breaks));
            assert_eq!(&*read(&word), id);
        }
        assert_eq!(&*write(&[b' '; 255]), [&b"%:"[..], &b"%20".repeat(255)].concat());
    }

    #[test]
    fn words_of_the_original_stand_for_themselves() {
        for word in [&b"m1"[..], b"100%", b"%20", b"a%:b", b"-7"] {
            assert_eq!(&*read(word), word);
        }
        for broken in [&b"%:%"[..], b"%:%2", b"%:%zz", b"%:%+1"] {
            assert_eq!(&*read(broken), broken);
        }
    }
}
