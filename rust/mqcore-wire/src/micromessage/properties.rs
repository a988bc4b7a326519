//! Properties of messages: `key:value;key:value;`, where a value is a letter for its type and its text.

use std::borrow::Cow;

use super::field::{decode_value, encode_value, is_encoded, is_key};
use crate::error::WireError;

/// Properties that one message may have.
pub const PROPERTIES_MAX: usize = 256;

/// A value that can be compared.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `N`: a whole number, or one with a fraction.
    Number(Number),
    /// `D`: seconds since 1970 in UTC, with a fraction.
    Date(Number),
    /// `T`: text.
    Text(Cow<'a, [u8]>),
}

/// A number: whole ones stay exact.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// Without a fraction.
    Whole(i64),
    /// With one.
    Fraction(f64),
}

impl Number {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let plain = text.bytes().all(|octet| octet.is_ascii_digit() || matches!(octet, b'-' | b'.'));
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

/// How the texts of values are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Typing {
    /// A first letter `N`, `D` or `T` is the type if what follows fits; anything else is text.
    #[default]
    Typed,
    /// Everything is text: for peers that know no types.
    Untyped,
}

/// Reads a value. What does not fit its type is text.
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

/// Looks whether [`parse`] would read these properties, and whether their values can stand in a line of text.
///
/// # Errors
/// As [`parse`], and for a value with a control character.
pub fn check(properties: &[u8]) -> Result<(), WireError> {
    let mut count = 0;
    for item in properties.split(|octet| *octet == b';').filter(|item| !item.is_empty()) {
        count += 1;
        match memchr::memchr(b':', item) {
            Some(at) if !is_key(&item[..at]) => {
                return malformed("a key is made of letters, digits and hyphens");
            }
            Some(at) if item[at..].iter().any(u8::is_ascii_control) => {
                return malformed("a value has no control characters");
            }
            Some(_) if count > PROPERTIES_MAX => return malformed("a message has at most 256 properties"),
            Some(_) => {}
            None => return malformed("a property is `key:value`"),
        }
    }
    Ok(())
}

/// The properties of a message, in their order; a key that comes twice comes twice.
///
/// # Errors
/// [`WireError::Malformed`] if they are not of the form above, or if there are more than [`PROPERTIES_MAX`].
pub fn parse(properties: &[u8]) -> Result<Vec<(&str, &[u8])>, WireError> {
    let items = properties.split(|octet| *octet == b';').filter(|item| !item.is_empty());
    let mut found = Vec::new();
    for item in items {
        let Some(at) = item.iter().position(|octet| *octet == b':') else {
            return malformed("a property is `key:value`");
        };
        let key = std::str::from_utf8(&item[..at]).ok().filter(|key| is_key(key.as_bytes()));
        let Some(key) = key else { return malformed("a key is made of letters, digits and hyphens") };
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

/// Appends a value with the letter of its type.
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
