//! The three messages before the first frame, and the lists of extensions in them.
//!
//! ```text
//! major version (1), minor version (1), flags (1, reserved), identity length (1), identity,
//! required length (2), required extensions, optional length (2), optional extensions
//! ```
//!
//! A list is `name[:key=value[,key=value]]`, joined by `;`.

use std::borrow::Cow;

use super::field::{decode_value, encode_value, is_encoded, is_field};
use super::{Frame, decode as decode_frame};
use crate::codec::Limits;
use crate::error::WireError;

/// Extensions that one list may name: their ids have one octet.
pub const EXTENSIONS_MAX: usize = 255;

/// Whoever waits for a handshake takes these first octets for an ERROR frame: versions 4 and 12 can never be.
const ERROR_FLAGS: [u8; 2] = [0x04, 0x0C];

/// What may come while a handshake is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening<'a> {
    /// A message of the handshake.
    Handshake(Handshake<'a>),
    /// The peer gives up; why.
    Error {
        /// Text for people.
        text: &'a [u8],
    },
}

/// One message of the handshake, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Major version.
    pub major: u8,
    /// Minor version.
    pub minor: u8,
    /// Reserved: written as 0, not looked at.
    pub flags: u8,
    /// Who says it: ASCII, opaque.
    pub identity: &'a [u8],
    /// What the peer must have.
    pub required: &'a [u8],
    /// What the peer may have.
    pub optional: &'a [u8],
}

/// An extension with its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Its name, a FIELD.
    pub name: Cow<'a, str>,
    /// Keys, and values with their percent-encoding undone.
    pub properties: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
}

impl<'a> Extension<'a> {
    /// One without properties.
    pub fn new(name: impl Into<Cow<'a, str>>) -> Self {
        Self { name: name.into(), properties: Vec::new() }
    }

    /// The value of the property that is called so; the last one, if there are several.
    pub fn property(&self, key: &str) -> Option<&[u8]> {
        self.properties.iter().rev().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// The same, owning what it borrowed.
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

/// Reads the message of the handshake at the front of `input`; tells how many octets it takes. `None`: more are needed.
///
/// # Errors
/// [`WireError::TooLarge`] for lists beyond `limits.header_bytes_max` octets each, as soon as their length is known.
pub fn decode<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<(Opening<'a>, usize)>, WireError> {
    if input.first().is_some_and(|first| ERROR_FLAGS.contains(first)) {
        let frame = decode_frame(input, 0, limits)?;
        return Ok(frame.and_then(|(frame, size)| match frame {
            Frame::Error { text } => Some((Opening::Error { text }, size)),
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
    Ok(Some((Opening::Handshake(handshake), input.len() - rest.len())))
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

/// Appends a message of the handshake.
///
/// # Panics
/// If the identity or a list is longer than its length can say: that is a fault of the caller, never of a peer.
pub fn encode(handshake: &Handshake<'_>, output: &mut Vec<u8>) {
    let identity = u8::try_from(handshake.identity.len()).expect("identities have at most 255 octets");
    output.extend_from_slice(&[handshake.major, handshake.minor, handshake.flags, identity]);
    output.extend_from_slice(handshake.identity);
    for list in [handshake.required, handshake.optional] {
        let length = u16::try_from(list.len()).expect("lists have at most 65535 octets");
        output.extend_from_slice(&length.to_be_bytes());
        output.extend_from_slice(list);
    }
}

/// Reads a list of extensions. Empty items and a `;` at the end are passed over; `key:value` is read as `key=value`.
///
/// # Errors
/// [`WireError::Malformed`] for a name or a key that is no FIELD, a value that is not percent-encoded, a name that comes
/// twice, and for more than [`EXTENSIONS_MAX`] names.
pub fn parse_list(list: &[u8]) -> Result<Vec<Extension<'_>>, WireError> {
    let mut extensions: Vec<Extension<'_>> = Vec::new();
    for item in list.split(|octet| *octet == b';').filter(|item| !item.is_empty()) {
        let extension = parse_extension(item)?;
        if extensions.iter().any(|known| known.name == extension.name) {
            return malformed("an extension may be named once in a list");
        }
        if extensions.len() == EXTENSIONS_MAX {
            return malformed("a list may name 255 extensions");
        }
        extensions.push(extension);
    }
    Ok(extensions)
}

fn malformed<T>(why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part: "extensions", why })
}

fn parse_extension(item: &[u8]) -> Result<Extension<'_>, WireError> {
    let (name, properties) = match item.iter().position(|octet| *octet == b':') {
        Some(colon) => (&item[..colon], &item[colon + 1..]),
        None => (item, &[][..]),
    };
    let mut extension = Extension::new(field(name)?);
    if properties.is_empty() {
        return Ok(extension);
    }
    for property in properties.split(|octet| *octet == b',').filter(|property| !property.is_empty()) {
        let Some(at) = property.iter().position(|octet| matches!(octet, b'=' | b':')) else {
            return malformed("a property is `key=value`");
        };
        let (key, value) = (&property[..at], &property[at + 1..]);
        if !is_encoded(value) {
            return malformed("the value of a property is percent-encoded");
        }
        extension.properties.push((key_text(key)?.into(), decode_value(value)));
    }
    Ok(extension)
}

fn field(name: &[u8]) -> Result<&str, WireError> {
    match std::str::from_utf8(name) {
        Ok(name) if is_field(name.as_bytes()) => Ok(name),
        _ => malformed("a name is made of lower-case letters, digits and hyphens"),
    }
}

/// Some peers write keys of properties with capitals.
fn key_text(key: &[u8]) -> Result<&str, WireError> {
    match std::str::from_utf8(key) {
        Ok(key) if super::field::is_key(key.as_bytes()) => Ok(key),
        _ => malformed("a key is made of letters, digits and hyphens"),
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
