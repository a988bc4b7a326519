//! Maps the properties, serializer and type of a MicroMessage2 payload to header text and back.
//!
//! | header | content |
//! |---|---|
//! | `Mm2-Properties` | the property list as the producer sent it |
//! | `Mm2-Type` | the type name from a `dotnet` frame |
//! | `Content-Type` | the serializer that the producer negotiated |
//!
//! All other headers, of messages from other protocols, become text properties. Both sides of a connection, and consumers
//! of other protocols, see a message through these headers.

use std::borrow::Cow;

use super::PROPERTIES_BYTES_MAX;
use super::failure::{ErrorToken, ProtocolFailure};
use super::field::is_key;
use super::properties::{self, Value};

const PROPERTIES: &[u8] = b"Mm2-Properties:";
const TYPE: &[u8] = b"Mm2-Type:";
const CONTENT_TYPE: &[u8] = b"Content-Type:";
const LINE_END: &[u8] = b"\r\n";

/// Maximum size of a message's header text in bytes.
const HEADERS_BYTES_MAX: usize = 65_535;
/// Maximum size of a type name in bytes.
const TYPE_BYTES_MAX: usize = 1024;

/// Returns the header lines that all messages of a sender share.
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

/// Rejects a type name that cannot be written as a header.
///
/// # Errors
/// [`ProtocolFailure`] if the name is not UTF-8, contains control characters or is longer than 1024 bytes.
pub fn check_type(name: &[u8]) -> Result<(), ProtocolFailure> {
    let readable = std::str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control));
    if readable && name.len() <= TYPE_BYTES_MAX {
        return Ok(());
    }
    let why = format!("a type name must be UTF-8 without control characters, at most {TYPE_BYTES_MAX} bytes");
    Err(ProtocolFailure::new(ErrorToken::Malformed, why))
}

/// Appends the header text of a message with the property list `list` and the shared lines `common`.
///
/// # Errors
/// [`ProtocolFailure`] if the properties are malformed, contain a line break, or exceed the maximum header size.
pub fn write_headers(list: &[u8], common: &[u8], output: &mut Vec<u8>) -> Result<(), ProtocolFailure> {
    let before = output.len();
    if !list.is_empty() {
        properties::check(list)?;
        append(PROPERTIES, list, output);
    }
    output.extend_from_slice(common);
    if output.len() - before > HEADERS_BYTES_MAX {
        return Err(ProtocolFailure::new(
            ErrorToken::TooLarge,
            "properties and type together exceed 65535 bytes",
        ));
    }
    Ok(())
}

/// A message's header text, as a MicroMessage2 peer sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// Property list, as written into a frame.
    pub properties: Cow<'a, [u8]>,
    /// Type name; empty if there is none.
    pub type_name: &'a [u8],
    /// Number of headers that cannot be properties, because of their names or the size limit.
    pub left_out: usize,
}

impl<'a> Content<'a> {
    /// Parses header text.
    pub fn read(headers: &'a [u8]) -> Self {
        let mut content = Self { properties: Cow::Borrowed(&[]), type_name: &[], left_out: 0 };
        let lines = headers.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
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

/// Appends a header line as a text property. Returns the number of properties left out.
fn add_text(list: &mut Cow<'_, [u8]>, line: &[u8]) -> usize {
    let Some(at) = line.iter().position(|byte| *byte == b':') else { return 1 };
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

/// Appends properties to a list unless it would exceed its length field. Returns the number of properties left out.
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
    fn properties_and_type_survive_a_round_trip_through_headers() {
        let mut headers = Vec::new();
        let common = common_lines(Some("json"), b"Shop.Order, Shop");
        write_headers(b"price:N1;name:THello%20world", &common, &mut headers).unwrap();
        let content = Content::read(&headers);
        assert_eq!(&*content.properties, b"price:N1;name:THello%20world");
        assert!(matches!(content.properties, Cow::Borrowed(_)), "the list is not copied");
        assert_eq!(content.type_name, b"Shop.Order, Shop");
    }

    #[test]
    fn headers_of_other_protocols_become_text_properties() {
        let content =
            Content::read(b"Schema: order 1\r\nMm2-Properties:a:N1\r\nbad key:x\r\nnothing\r\nTopic:t;1\r\n");
        assert_eq!(content.properties.escape_ascii().to_string(), "Schema:Torder%201;a:N1;Topic:Tt%3B1;");
        assert_eq!(content.left_out, 2);
    }

    #[test]
    fn properties_with_line_breaks_are_rejected() {
        for list in [&b"a:Tb\r\nForged:yes"[..], b"a:\n", b"a:b\rc", b"a", b"a b:c"] {
            let failure = write_headers(list, b"", &mut Vec::new()).unwrap_err();
            assert_eq!(failure.token, ErrorToken::Malformed, "{}", list.escape_ascii());
        }
        for name in [&b"a\r\nForged: yes"[..], b"\xff", &[b'x'; TYPE_BYTES_MAX + 1]] {
            assert!(check_type(name).is_err());
        }
    }

    #[test]
    fn headers_beyond_the_property_limit_are_left_out() {
        let line = format!("key:{}\r\n", " ;".repeat(1000));
        let headers = line.repeat(30);
        let content = Content::read(headers.as_bytes());
        assert!(content.properties.len() <= PROPERTIES_BYTES_MAX && content.properties.len() > 59_000);
        assert_eq!(content.properties.last(), Some(&b';'));
    }
}
