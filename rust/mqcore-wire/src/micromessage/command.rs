//! The payload of a COMMAND frame: `name;key=value,key=value`.

use std::borrow::Cow;

use super::field::{decode_value, encode_value, is_encoded, is_field, is_key};
use crate::error::WireError;

/// Maximum number of arguments in one command.
pub const ARGUMENTS_MAX: usize = 64;

/// A parsed COMMAND payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandPayload<'a> {
    /// Command name, in lower case.
    pub name: String,
    /// Arguments: keys and percent-decoded values.
    pub arguments: Vec<(&'a str, Cow<'a, [u8]>)>,
}

impl CommandPayload<'_> {
    /// Returns the value of the argument `key`; the last one if it repeats.
    pub fn argument(&self, key: &str) -> Option<&[u8]> {
        self.arguments.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| &**value)
    }
}

/// Parses the payload of a COMMAND frame. Command names are case-insensitive.
///
/// # Errors
/// [`WireError::Malformed`] if the payload does not have the form `name;key=value,key=value`, or has more than
/// [`ARGUMENTS_MAX`] arguments.
pub fn parse(payload: &[u8]) -> Result<CommandPayload<'_>, WireError> {
    let (name, arguments) = match payload.iter().position(|byte| *byte == b';') {
        Some(at) => (&payload[..at], &payload[at + 1..]),
        None => (payload, &[][..]),
    };
    let name = name.to_ascii_lowercase();
    if !is_field(&name) {
        return malformed("a name must consist of letters, digits and hyphens");
    }
    let name = String::from_utf8(name).or_else(|_| malformed("a name must be ASCII"))?;
    let mut command = CommandPayload { name, arguments: Vec::new() };
    for argument in arguments.split(|byte| *byte == b',').filter(|argument| !argument.is_empty()) {
        if command.arguments.len() == ARGUMENTS_MAX {
            return malformed("a command has at most 64 arguments");
        }
        command.arguments.push(parse_argument(argument)?);
    }
    Ok(command)
}

fn parse_argument(argument: &[u8]) -> Result<(&str, Cow<'_, [u8]>), WireError> {
    let Some(at) = argument.iter().position(|byte| *byte == b'=') else {
        return malformed("an argument must have the form `key=value`");
    };
    let (key, value) = (&argument[..at], &argument[at + 1..]);
    match std::str::from_utf8(key) {
        Ok(key) if is_key(key.as_bytes()) && is_encoded(value) => Ok((key, decode_value(value))),
        Ok(key) if is_key(key.as_bytes()) => malformed("the value of an argument must be percent-encoded"),
        _ => malformed("the key of an argument must consist of letters, digits and hyphens"),
    }
}

fn malformed<T>(why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part: "command", why })
}

/// Appends the payload of a COMMAND frame.
pub fn encode(name: &str, arguments: &[(&str, &[u8])], output: &mut Vec<u8>) {
    output.extend_from_slice(name.as_bytes());
    for (place, (key, value)) in arguments.iter().enumerate() {
        output.push(if place == 0 { b';' } else { b',' });
        output.extend_from_slice(key.as_bytes());
        output.push(b'=');
        encode_value(value, output);
    }
}
