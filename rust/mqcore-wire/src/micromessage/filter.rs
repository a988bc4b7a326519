//! Which messages a subscriber wants: `price>N10;region=Teu`. All terms must hold.
//!
//! | operator | numbers and dates | text |
//! |---|---|---|
//! | `=` `!=` | equal, not equal | equal, not equal |
//! | `<` | less | begins with |
//! | `>` | greater | ends with |
//! | `<=` `>=` | less or equal, greater or equal | – |
//! | `&` `~` | – | contains, does not contain |
//!
//! A property that is missing or of another type makes its term false; `!=` and `~` it makes true.

use std::borrow::Cow;

use super::field::is_key;
use super::properties::{Typing, Value, parse_value};

/// Terms that one filter may have.
pub const TERMS_MAX: usize = 32;

/// A filter that was read.
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

/// Longer ones first: the longest match is meant.
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

/// Why a filter cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A term is not `key operator value`.
    #[error("the term `{0}` is not a key, one of = != < <= > >= & ~ and a value")]
    NotATerm(String),
    /// The value has no type, or does not fit it.
    #[error("the value `{0}` is neither a number (N1), nor a date (D1413198000.0), nor text (Thello)")]
    NotAValue(String),
    /// The operator cannot be used with this type.
    #[error("`{operator}` cannot be used with {kind}")]
    NotComparable {
        /// The operator.
        operator: String,
        /// What it was used with.
        kind: &'static str,
    },
    /// There are too many terms.
    #[error("a filter has at most {TERMS_MAX} terms")]
    TooManyTerms,
}

impl Filter {
    /// Reads a filter. An empty one lets everything pass.
    ///
    /// # Errors
    /// [`FilterError`] says which term cannot be meant.
    pub fn parse(text: &[u8]) -> Result<Self, FilterError> {
        let mut terms = Vec::new();
        for term in text.split(|octet| *octet == b';').filter(|term| !term.is_empty()) {
            if terms.len() == TERMS_MAX {
                return Err(FilterError::TooManyTerms);
            }
            terms.push(Term::parse(term)?);
        }
        Ok(Self { terms })
    }

    /// Whether a message with these properties passes.
    pub fn matches(&self, properties: &[(&str, &[u8])], typing: Typing) -> bool {
        self.terms.iter().all(|term| {
            let value = properties.iter().rev().find(|(key, _)| *key == &*term.key);
            term.holds(value.map(|(_, value)| parse_value(value, typing)).as_ref())
        })
    }

    /// Whether it lets everything pass.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

impl Term {
    fn parse(term: &[u8]) -> Result<Self, FilterError> {
        let shown = |octets: &[u8]| octets[..octets.len().min(64)].escape_ascii().to_string();
        let not_a_term = || FilterError::NotATerm(shown(term));
        let at = term.iter().position(|octet| b"<>!=~&".contains(octet)).ok_or_else(not_a_term)?;
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

/// Values of filters say their type: what does not is a mistake, not text.
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
    /// What the value is, if this cannot be used with it.
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
