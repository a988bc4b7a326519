//! The three messages before the first frame, and the extension lists they contain.
//!
//! ```text
//! major version (1), minor version (1), flags (1, reserved), identity length (1), identity,
//! required length (2), required extensions, optional length (2), optional extensions
//! ```
//!
//! A list has the form `name[:key=value[,key=value]]`, with entries joined by `;`.

use std::borrow::Cow;

use super::field::{decode_value, encode_value, is_encoded, is_field};
use super::{Frame, decode as decode_frame};
use crate::codec::Limits;
use crate::error::WireError;

/// Maximum number of extensions in one list: extension ids have one byte.
pub const EXTENSIONS_MAX: usize = 255;

/// While a handshake is expected, these first bytes announce an ERROR frame. Major versions 4 and 12 will never exist.
const ERROR_FLAGS: [u8; 2] = [0x04, 0x0C];

/// Input from a peer while a handshake is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeInput<'a> {
    /// A handshake message.
    Handshake(Handshake<'a>),
    /// The peer closes the connection because of an error.
    Error {
        /// Human-readable text.
        text: &'a [u8],
    },
}

/// A handshake message, as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Major version.
    pub major: u8,
    /// Minor version.
    pub minor: u8,
    /// Reserved: written as 0, ignored when read.
    pub flags: u8,
    /// Identity of the sender: ASCII, opaque.
    pub identity: &'a [u8],
    /// Extensions that the peer must support.
    pub required: &'a [u8],
    /// Extensions that the peer may support.
    pub optional: &'a [u8],
}

/// An extension with its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Name, a FIELD.
    pub name: Cow<'a, str>,
    /// Properties: keys and percent-decoded values.
    pub properties: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
}

impl<'a> Extension<'a> {
    /// Creates an extension without properties.
    pub fn new(name: impl Into<Cow<'a, str>>) -> Self {
        Self { name: name.into(), properties: Vec::new() }
    }

    /// Returns the value of the property `key`; the last one if it repeats.
    pub fn property(&self, key: &str) -> Option<&[u8]> {
        self.properties.iter().rev().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// Converts borrowed data to owned data.
    pub fn into_owned(self) -> Extension<'static> {
        let own = |(key, value): (Cow<'_, str>, Cow<'_, [u8]>)| {
            (Cow::Owned(key.into_owned()), Cow::Owned(value.into_owned()))
        };
        Extension {
            name: Cow::Owned(self.name.into_owned()),
            properties: self.properties.into_iter().map(own).collect(),
        }
    }
}

/// Decodes the handshake message at the front of `input` and returns it with its size in bytes, or `None` if more bytes are
/// needed.
///
/// # Errors
/// [`WireError::TooLarge`] if a list exceeds `limits.header_bytes_max`, as soon as its length has arrived.
pub fn decode<'a>(
    input: &'a [u8],
    limits: &Limits,
) -> Result<Option<(HandshakeInput<'a>, usize)>, WireError> {
    if input.first().is_some_and(|first| ERROR_FLAGS.contains(first)) {
        let frame = decode_frame(input, 0, limits)?;
        return Ok(frame.and_then(|(frame, size)| match frame {
            Frame::Error { text } => Some((HandshakeInput::Error { text }, size)),
            _ => None,
        }));
    }
    let Some(([major, minor, flags, length], mut rest)) = input.split_first_chunk().map(|(a, b)| (*a, b))
    else {
        return Ok(None);
    };
    let Some(identity) = take(&mut rest, length.into()) else { return Ok(None) };
    let Some(required) = list(&mut rest, "required extensions", limits)? else { return Ok(None) };
    let Some(optional) = list(&mut rest, "optional extensions", limits)? else { return Ok(None) };
    let handshake = Handshake { major, minor, flags, identity, required, optional };
    Ok(Some((HandshakeInput::Handshake(handshake), input.len() - rest.len())))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn list<'a>(rest: &mut &'a [u8], part: &'static str, limits: &Limits) -> Result<Option<&'a [u8]>, WireError> {
    let Some(length) = take(rest, 2) else { return Ok(None) };
    let length = u16::from_be_bytes([length[0], length[1]]);
    if u32::from(length) > limits.header_bytes_max {
        let (size, max) = (length.into(), limits.header_bytes_max.into());
        return Err(WireError::TooLarge { part, size, max });
    }
    Ok(take(rest, length.into()))
}

/// Appends a handshake message.
///
/// # Panics
/// If the identity or a list exceeds what its length field can express. That is a bug in the caller and never caused by a
/// peer.
pub fn encode(handshake: &Handshake<'_>, output: &mut Vec<u8>) {
    let identity = u8::try_from(handshake.identity.len()).expect("identities have at most 255 bytes");
    output.extend_from_slice(&[handshake.major, handshake.minor, handshake.flags, identity]);
    output.extend_from_slice(handshake.identity);
    for list in [handshake.required, handshake.optional] {
        let length = u16::try_from(list.len()).expect("lists have at most 65535 bytes");
        output.extend_from_slice(&length.to_be_bytes());
        output.extend_from_slice(list);
    }
}

/// Parses a list of extensions. Skips empty entries, including one after a trailing `;`, and reads `key:value` as
/// `key=value`.
///
/// # Errors
/// [`WireError::Malformed`] if a name or key is invalid, a value is not percent-encoded, a name repeats, or there are more
/// than [`EXTENSIONS_MAX`] names.
pub fn parse_list(list: &[u8]) -> Result<Vec<Extension<'_>>, WireError> {
    let mut extensions: Vec<Extension<'_>> = Vec::new();
    for item in list.split(|byte| *byte == b';').filter(|item| !item.is_empty()) {
        let extension = parse_extension(item)?;
        if extensions.iter().any(|known| known.name == extension.name) {
            return malformed("an extension must not appear twice in a list");
        }
        if extensions.len() == EXTENSIONS_MAX {
            return malformed("a list has at most 255 extensions");
        }
        extensions.push(extension);
    }
    Ok(extensions)
}

fn malformed<T>(why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part: "extensions", why })
}

fn parse_extension(item: &[u8]) -> Result<Extension<'_>, WireError> {
    let (name, properties) = match item.iter().position(|byte| *byte == b':') {
        Some(colon) => (&item[..colon], &item[colon + 1..]),
        None => (item, &[][..]),
    };
    let mut extension = Extension::new(field(name)?);
    if properties.is_empty() {
        return Ok(extension);
    }
    for property in properties.split(|byte| *byte == b',').filter(|property| !property.is_empty()) {
        let Some(at) = property.iter().position(|byte| matches!(byte, b'=' | b':')) else {
            return malformed("a property must have the form `key=value`");
        };
        let (key, value) = (&property[..at], &property[at + 1..]);
        if !is_encoded(value) {
            return malformed("the value of a property must be percent-encoded");
        }
        extension.properties.push((key_text(key)?.into(), decode_value(value)));
    }
    Ok(extension)
}

fn field(name: &[u8]) -> Result<&str, WireError> {
    match std::str::from_utf8(name) {
        Ok(name) if is_field(name.as_bytes()) => Ok(name),
        _ => malformed("a name must consist of lower-case letters, digits and hyphens"),
    }
}

/// Validates a property key. Some peers write keys with upper-case letters.
fn key_text(key: &[u8]) -> Result<&str, WireError> {
    match std::str::from_utf8(key) {
        Ok(key) if super::field::is_key(key.as_bytes()) => Ok(key),
        _ => malformed("a key must consist of letters, digits and hyphens"),
    }
}

/// Appends a list of extensions.
pub fn encode_list(extensions: &[Extension<'_>], output: &mut Vec<u8>) {
    for (place, extension) in extensions.iter().enumerate() {
        if place > 0 {
            output.push(b';');
        }
        output.extend_from_slice(extension.name.as_bytes());
        for (place, (key, value)) in extension.properties.iter().enumerate() {
            output.push(if place == 0 { b':' } else { b',' });
            output.extend_from_slice(key.as_bytes());
            output.push(b'=');
            encode_value(value, output);
        }
    }
}
