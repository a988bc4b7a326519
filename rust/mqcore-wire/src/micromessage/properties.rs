//! Message properties: `key:value;key:value;`, where a value consists of a type letter and text.

use std::borrow::Cow;

use super::field::{decode_value, encode_value, is_encoded, is_key};
use crate::error::WireError;

/// Maximum number of properties in one message.
pub const PROPERTIES_MAX: usize = 256;

/// A comparable property value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `N`: an integer or a decimal number.
    Number(Number),
    /// `D`: seconds since the Unix epoch, with a fraction.
    Date(Number),
    /// `T`: text.
    Text(Cow<'a, [u8]>),
}

/// A number. Integers are kept exactly.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// An integer.
    Whole(i64),
    /// A number with a fraction.
    Fraction(f64),
}

impl Number {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
        if !plain {
            return None;
        }
        match text.parse() {
            Ok(whole) => Some(Self::Whole(whole)),
            Err(_) => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Self::Fraction),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        let rough = |number: &Self| match number {
            Self::Whole(whole) => *whole as f64,
            Self::Fraction(fraction) => *fraction,
        };
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.partial_cmp(other),
            (one, other) => rough(one).partial_cmp(&rough(other)),
        }
    }
}

/// How property values are interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Typing {
    /// The first letter `N`, `D` or `T` is the type if the rest matches it; anything else is text.
    #[default]
    Typed,
    /// All values are text, for peers that do not use types.
    Untyped,
}

/// Parses a value. A value that does not match its type letter is text.
pub fn parse_value(text: &[u8], typing: Typing) -> Value<'_> {
    match (typing, text.split_first()) {
        (Typing::Typed, Some((b'N', rest))) => Number::parse(rest).map_or_else(|| raw(text), Value::Number),
        (Typing::Typed, Some((b'D', rest))) => Number::parse(rest).map_or_else(|| raw(text), Value::Date),
        (Typing::Typed, Some((b'T', rest))) if is_encoded(rest) => Value::Text(decode_value(rest)),
        _ => raw(text),
    }
}

fn raw(text: &[u8]) -> Value<'_> {
    Value::Text(if is_encoded(text) { decode_value(text) } else { Cow::Borrowed(text) })
}

/// Checks that [`parse`] would accept these properties and that their values can be written on one line.
///
/// # Errors
/// [`WireError::Malformed`] as for [`parse`], and if a value contains a control character.
pub fn check(properties: &[u8]) -> Result<(), WireError> {
    let mut count = 0;
    for item in properties.split(|byte| *byte == b';').filter(|item| !item.is_empty()) {
        count += 1;
        match memchr::memchr(b':', item) {
            Some(at) if !is_key(&item[..at]) => {
                return malformed("a key must consist of letters, digits and hyphens");
            }
            Some(at) if item[at..].iter().any(u8::is_ascii_control) => {
                return malformed("a value must not contain control characters");
            }
            Some(_) if count > PROPERTIES_MAX => return malformed("a message has at most 256 properties"),
            Some(_) => {}
            None => return malformed("a property must have the form `key:value`"),
        }
    }
    Ok(())
}

/// Parses the properties in order. Repeated keys are preserved.
///
/// # Errors
/// [`WireError::Malformed`] if the properties do not have the form `key:value;key:value;`, or if there are more than
/// [`PROPERTIES_MAX`].
pub fn parse(properties: &[u8]) -> Result<Vec<(&str, &[u8])>, WireError> {
    let items = properties.split(|byte| *byte == b';').filter(|item| !item.is_empty());
    let mut found = Vec::new();
    for item in items {
        let Some(at) = item.iter().position(|byte| *byte == b':') else {
            return malformed("a property must have the form `key:value`");
        };
        let key = std::str::from_utf8(&item[..at]).ok().filter(|key| is_key(key.as_bytes()));
        let Some(key) = key else { return malformed("a key must consist of letters, digits and hyphens") };
        if found.len() == PROPERTIES_MAX {
            return malformed("a message has at most 256 properties");
        }
        found.push((key, &item[at + 1..]));
    }
    Ok(found)
}

fn malformed<T>(why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part: "properties", why })
}

/// Appends a property.
pub fn encode(key: &str, value: &Value<'_>, output: &mut Vec<u8>) {
    output.extend_from_slice(key.as_bytes());
    output.push(b':');
    encode_typed(value, output);
    output.push(b';');
}

/// Appends a value with its type letter.
pub fn encode_typed(value: &Value<'_>, output: &mut Vec<u8>) {
    let number = |letter: char, number: &Number| match number {
        Number::Whole(whole) => format!("{letter}{whole}"),
        Number::Fraction(fraction) => format!("{letter}{fraction}"),
    };
    match value {
        Value::Number(value) => output.extend_from_slice(number('N', value).as_bytes()),
        Value::Date(value) => output.extend_from_slice(number('D', value).as_bytes()),
        Value::Text(text) => {
            output.push(b'T');
            encode_value(text, output);
        }
    }
}
