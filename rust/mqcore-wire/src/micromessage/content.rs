//! What goes with a payload: properties, what it is written in and which type it has, as header text and back.
//!
//! | header | holds |
//! |---|---|
//! | `Mm2-Properties` | the list of properties as its sender wrote it |
//! | `Mm2-Type` | the type that a `dotnet` frame named |
//! | `Content-Type` | the serializer that its sender agreed on |
//!
//! Other headers, of messages that came another way, are properties whose values are text. Both sides of a connection, and
//! consumers of other protocols, see a message by these headers.

use std::borrow::Cow;

use super::PROPERTIES_BYTES_MAX;
use super::failure::{Failure, Token};
use super::field::is_key;
use super::properties::{self, Value};

const PROPERTIES: &[u8] = b"Mm2-Properties:";
const TYPE: &[u8] = b"Mm2-Type:";
const CONTENT_TYPE: &[u8] = b"Content-Type:";
const LINE_END: &[u8] = b"\r\n";

/// Octets of header text that a message can have.
const HEADERS_BYTES_MAX: usize = 65_535;
/// Octets of a type's name at most.
const TYPE_BYTES_MAX: usize = 1024;

/// Header lines that are the same for message after message.
pub fn common_lines(serializer: Option<&str>, type_name: &[u8]) -> Vec<u8> {
    let mut lines = Vec::new();
    if let Some(serializer) = serializer {
        append(CONTENT_TYPE, serializer.as_bytes(), &mut lines);
    }
    if !type_name.is_empty() {
        append(TYPE, type_name, &mut lines);
    }
    lines
}

fn append(name: &[u8], value: &[u8], lines: &mut Vec<u8>) {
    lines.extend_from_slice(name);
    lines.extend_from_slice(value);
    lines.extend_from_slice(LINE_END);
}

/// Refuses a type's name that could not stand in a header.
///
/// # Errors
/// [`Failure`] says what is wrong with it.
pub fn check_type(name: &[u8]) -> Result<(), Failure> {
    let readable = std::str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control));
    if readable && name.len() <= TYPE_BYTES_MAX {
        return Ok(());
    }
    let why =
        format!("the name of a type is UTF-8 without control characters, {TYPE_BYTES_MAX} octets at most");
    Err(Failure::new(Token::Malformed, why))
}

/// Appends the header text of a message with these properties.
///
/// # Errors
/// [`Failure`] if they are not of their form, could end a header, or are too many for one.
pub fn write_headers(list: &[u8], common: &[u8], output: &mut Vec<u8>) -> Result<(), Failure> {
    let before = output.len();
    if !list.is_empty() {
        properties::check(list)?;
        append(PROPERTIES, list, output);
    }
    output.extend_from_slice(common);
    if output.len() - before > HEADERS_BYTES_MAX {
        return Err(Failure::new(
            Token::TooLarge,
            "properties and type together have more than 65535 octets",
        ));
    }
    Ok(())
}

/// What the header text of a message says to a peer of this protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// As a list, to be written into its frame.
    pub properties: Cow<'a, [u8]>,
    /// Empty: it has none.
    pub type_name: &'a [u8],
    /// Headers that cannot be properties, by their names or because they are too many.
    pub left_out: usize,
}

impl<'a> Content<'a> {
    /// Reads header text.
    pub fn read(headers: &'a [u8]) -> Self {
        let mut content = Self { properties: Cow::Borrowed(&[]), type_name: &[], left_out: 0 };
        let lines = headers.split(|octet| *octet == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(list) = line.strip_prefix(PROPERTIES) {
                match &mut content.properties {
                    Cow::Borrowed([]) => content.properties = Cow::Borrowed(list),
                    properties => content.left_out += add(properties, list),
                }
            } else if let Some(name) = line.strip_prefix(TYPE) {
                content.type_name = name;
            } else if !line.starts_with(CONTENT_TYPE) {
                content.left_out += add_text(&mut content.properties, line);
            }
        }
        content
    }
}

/// Appends a header as a property whose value is text; how many could not be.
fn add_text(list: &mut Cow<'_, [u8]>, line: &[u8]) -> usize {
    let Some(at) = line.iter().position(|octet| *octet == b':') else { return 1 };
    match std::str::from_utf8(line[..at].trim_ascii()) {
        Ok(key) if is_key(key.as_bytes()) => {
            let mut property = Vec::new();
            let value = Value::Text(Cow::Borrowed(line[at + 1..].trim_ascii()));
            properties::encode(key, &value, &mut property);
            add(list, &property)
        }
        _ => 1,
    }
}

/// Appends properties to a list, unless it becomes longer than its length can say; how many were left out.
fn add(list: &mut Cow<'_, [u8]>, more: &[u8]) -> usize {
    let parted = list.last().is_none_or(|last| *last == b';');
    if list.len() + usize::from(!parted) + more.len() > PROPERTIES_BYTES_MAX {
        return 1;
    }
    let list = list.to_mut();
    if !parted {
        list.push(b';');
    }
    list.extend_from_slice(more);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_and_type_come_back_as_they_were_written() {
        let mut headers = Vec::new();
        let common = common_lines(Some("json"), b"Shop.Order, Shop");
        write_headers(b"price:N1;name:THello%20world", &common, &mut headers).unwrap();
        let content = Content::read(&headers);
        assert_eq!(&*content.properties, b"price:N1;name:THello%20world");
        assert!(matches!(content.properties, Cow::Borrowed(_)), "nothing is copied for it");
        assert_eq!(content.type_name, b"Shop.Order, Shop");
    }

    #[test]
    fn headers_of_other_protocols_are_properties_of_text() {
        let content =
            Content::read(b"Schema: order 1\r\nMm2-Properties:a:N1\r\nbad key:x\r\nnothing\r\nTopic:t;1\r\n");
        assert_eq!(content.properties.escape_ascii().to_string(), "Schema:Torder%201;a:N1;Topic:Tt%3B1;");
        assert_eq!(content.left_out, 2);
    }

    #[test]
    fn properties_that_could_end_a_header_are_refused() {
        for list in [&b"a:Tb\r\nForged:yes"[..], b"a:\n", b"a:b\rc", b"a", b"a b:c"] {
            let failure = write_headers(list, b"", &mut Vec::new()).unwrap_err();
            assert_eq!(failure.token, Token::Malformed, "{}", list.escape_ascii());
        }
        for name in [&b"a\r\nForged: yes"[..], b"\xff", &[b'x'; TYPE_BYTES_MAX + 1]] {
            assert!(check_type(name).is_err());
        }
    }

    #[test]
    fn headers_that_are_too_many_for_a_list_are_left_out() {
        let line = format!("key:{}\r\n", " ;".repeat(1000));
        let headers = line.repeat(30);
        let content = Content::read(headers.as_bytes());
        assert!(content.properties.len() <= PROPERTIES_BYTES_MAX && content.properties.len() > 59_000);
        assert_eq!(content.properties.last(), Some(&b';'));
    }
}
