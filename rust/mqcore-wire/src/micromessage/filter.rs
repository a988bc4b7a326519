//! Subscription filters ("Filtering operators"), for example `price>N10;region=Teu`. All terms must hold.
//!
//! | operator | numbers and dates | text |
//! |---|---|---|
//! | `=` `!=` | equal, not equal | equal, not equal |
//! | `<` | less | begins with |
//! | `>` | greater | ends with |
//! | `<=` `>=` | less or equal, greater or equal | – |
//! | `&` `~` | – | contains, does not contain |
//!
//! If the property is missing or has another type, `!=` and `~` are true and all other operators are false.

use std::borrow::Cow;
use std::collections::HashMap;

use super::field::is_key;
use super::properties::{Typing, Value, parse_value};

/// Maximum number of terms in one filter.
pub const TERMS_MAX: usize = 32;

/// Maximum steps that the filters of one connection may take for one message: about a millisecond.
///
/// A term is a step, and so are each 64 bytes that it compares or searches. With short values, as many filters as a
/// connection can have take about half of it.
pub const STEPS_MAX: u64 = 65_536;
/// Bytes of text that cost a step.
const STEP_BYTES: usize = 64;

/// The properties of one message, each parsed at most once, and the steps that filters may still take.
#[derive(Debug)]
pub struct FilteredMessage<'a> {
    typing: Typing,
    /// The last one of properties with the same key counts.
    properties: HashMap<&'a str, Property<'a>>,
    steps_left: u64,
}

#[derive(Debug)]
enum Property<'a> {
    Text(&'a [u8]),
    Parsed(Value<'a>),
}

/// Filters may not take more steps for this message, so this one was not evaluated to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the filters of the connection need more than {STEPS_MAX} steps for a message")]
pub struct OverBudget;

impl<'a> FilteredMessage<'a> {
    /// A message with these properties, for which filters may take so many steps in total.
    pub fn new(properties: &[(&'a str, &'a [u8])], typing: Typing, steps: u64) -> Self {
        let properties = properties.iter().map(|(key, value)| (*key, Property::Text(value))).collect();
        Self { typing, properties, steps_left: steps }
    }

    /// The steps that filters may still take.
    pub fn steps_left(&self) -> u64 {
        self.steps_left
    }

    fn spend(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let steps = 1 + (bytes / STEP_BYTES) as u64;
        match self.steps_left.checked_sub(steps) {
            Some(left) => self.steps_left = left,
            None => {
                self.steps_left = 0;
                return Err(OverBudget);
            }
        }
        Ok(())
    }

    /// Parses a property. Its value is then found by [`FilteredMessage::value`].
    fn parse(&mut self, key: &str) -> Result<(), OverBudget> {
        let Some(Property::Text(text)) = self.properties.get(key) else { return Ok(()) };
        let text = *text;
        self.spend(text.len())?;
        let value = parse_value(text, self.typing);
        if let Some(property) = self.properties.get_mut(key) {
            *property = Property::Parsed(value);
        }
        Ok(())
    }

    fn value(&self, key: &str) -> Option<&Value<'a>> {
        match self.properties.get(key)? {
            Property::Parsed(value) => Some(value),
            Property::Text(_) => None,
        }
    }
}

/// A parsed filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq)]
struct Term {
    key: Box<str>,
    operator: Operator,
    value: Value<'static>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
    ContainsNot,
}

/// Longer operators first, because the first match wins.
const OPERATORS: [(&[u8], Operator); 8] = [
    (b"<=", Operator::LessOrEqual),
    (b">=", Operator::GreaterOrEqual),
    (b"!=", Operator::NotEqual),
    (b"=", Operator::Equal),
    (b"<", Operator::Less),
    (b">", Operator::Greater),
    (b"~", Operator::ContainsNot),
    (b"&", Operator::Contains),
];

/// Why a filter is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A term does not have the form `key operator value`.
    #[error("invalid term `{0}`: expected a key, one of = != < <= > >= & ~ and a value")]
    NotATerm(String),
    /// The value has no type prefix, or does not match it.
    #[error("invalid value `{0}`: expected a number (N1), a date (D1413198000.0) or text (Thello)")]
    NotAValue(String),
    /// The operator does not apply to this type.
    #[error("operator `{operator}` cannot be applied to {kind}")]
    NotComparable {
        /// Operator as sent.
        operator: String,
        /// Type of the value.
        kind: &'static str,
    },
    /// The filter has more than [`TERMS_MAX`] terms.
    #[error("a filter has at most {TERMS_MAX} terms")]
    TooManyTerms,
}

impl Filter {
    /// Parses a filter. An empty filter matches every message.
    ///
    /// # Errors
    /// [`FilterError`] names the invalid term.
    pub fn parse(text: &[u8]) -> Result<Self, FilterError> {
        let mut terms = Vec::new();
        for term in text.split(|byte| *byte == b';').filter(|term| !term.is_empty()) {
            if terms.len() == TERMS_MAX {
                return Err(FilterError::TooManyTerms);
            }
            terms.push(Term::parse(term)?);
        }
        Ok(Self { terms })
    }

    /// Whether a message matches.
    ///
    /// # Errors
    /// [`OverBudget`] if that would take more steps than the filters of this message have left.
    pub fn matches(&self, message: &mut FilteredMessage<'_>) -> Result<bool, OverBudget> {
        for term in &self.terms {
            message.parse(&term.key)?;
            message.spend(term.bytes_compared(message.value(&term.key)))?;
            if !term.holds(message.value(&term.key)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the filter matches every message.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

impl Term {
    fn parse(term: &[u8]) -> Result<Self, FilterError> {
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(64)].escape_ascii().to_string();
        let not_a_term = || FilterError::NotATerm(shown(term));
        let at = term.iter().position(|byte| b"<>!=~&".contains(byte)).ok_or_else(not_a_term)?;
        let key = std::str::from_utf8(&term[..at]).ok().filter(|key| is_key(key.as_bytes()));
        let found = OPERATORS.iter().find(|(sign, _)| term[at..].starts_with(sign));
        let (Some(key), Some((sign, operator))) = (key, found) else { return Err(not_a_term()) };
        let text = &term[at + sign.len()..];
        let value = typed(text).ok_or_else(|| FilterError::NotAValue(shown(text)))?;
        if let Some(kind) = operator.refuses(&value) {
            return Err(FilterError::NotComparable { operator: shown(sign), kind });
        }
        Ok(Self { key: key.into(), operator: *operator, value })
    }

    /// The bytes that [`Term::holds`] looks at, at most.
    fn bytes_compared(&self, found: Option<&Value<'_>>) -> usize {
        match (found, &self.value) {
            (Some(Value::Text(found)), Value::Text(wanted)) => match self.operator {
                Operator::Contains | Operator::ContainsNot => found.len() + wanted.len(),
                Operator::Equal | Operator::NotEqual if found.len() != wanted.len() => 0,
                _ => found.len().min(wanted.len()),
            },
            _ => 0,
        }
    }

    fn holds(&self, found: Option<&Value<'_>>) -> bool {
        let missing = matches!(self.operator, Operator::NotEqual | Operator::ContainsNot);
        match (found, &self.value) {
            (Some(Value::Number(found)), Value::Number(wanted))
            | (Some(Value::Date(found)), Value::Date(wanted)) => self.operator.compares(found, wanted),
            (Some(Value::Text(found)), Value::Text(wanted)) => self.operator.compares_text(found, wanted),
            _ => missing,
        }
    }
}

/// Parses a typed value. A filter value without a type prefix is an error, not text.
fn typed(text: &[u8]) -> Option<Value<'static>> {
    let letter = *text.first()?;
    match (letter, parse_value(text, Typing::Typed)) {
        (b'N', Value::Number(number)) => Some(Value::Number(number)),
        (b'D', Value::Date(date)) => Some(Value::Date(date)),
        (b'T', Value::Text(decoded)) if super::field::is_encoded(&text[1..]) => {
            Some(Value::Text(Cow::Owned(decoded.into_owned())))
        }
        _ => None,
    }
}

impl Operator {
    /// Returns the type of `value` if this operator cannot be applied to it.
    fn refuses(self, value: &Value<'_>) -> Option<&'static str> {
        match (self, value) {
            (Self::LessOrEqual | Self::GreaterOrEqual, Value::Text(_)) => Some("text"),
            (Self::Contains | Self::ContainsNot, Value::Number(_)) => Some("a number"),
            (Self::Contains | Self::ContainsNot, Value::Date(_)) => Some("a date"),
            _ => None,
        }
    }

    fn compares<T: PartialOrd>(self, found: &T, wanted: &T) -> bool {
        match self {
            Self::Equal => found == wanted,
            Self::NotEqual => found != wanted,
            Self::Less => found < wanted,
            Self::LessOrEqual => found <= wanted,
            Self::Greater => found > wanted,
            Self::GreaterOrEqual => found >= wanted,
            Self::Contains | Self::ContainsNot => false,
        }
    }

    fn compares_text(self, found: &[u8], wanted: &[u8]) -> bool {
        let contains = || memchr::memmem::find(found, wanted).is_some();
        match self {
            Self::Equal => found == wanted,
            Self::NotEqual => found != wanted,
            Self::Less => found.starts_with(wanted),
            Self::Greater => found.ends_with(wanted),
            Self::Contains => contains(),
            Self::ContainsNot => !contains(),
            Self::LessOrEqual | Self::GreaterOrEqual => false,
        }
    }
}
