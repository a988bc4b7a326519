//! Patterns with `*`, matched against the names of resources.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a pattern at most.
pub const PATTERN_BYTES_MAX: usize = 512;

/// Text in which each `*` stands for any bytes, none and `/` among them. Nothing else is special.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Box<str>);

/// Why a text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It would match nothing that has a name.
    #[error("a pattern is empty; * stands for everything")]
    Empty,
    /// Longer than any name.
    #[error("a pattern has {0} bytes, at most {PATTERN_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// No name has one.
    #[error("a pattern contains the control character {0:?}")]
    Control(char),
}

impl Pattern {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether it matches `text`, with respect to case.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        glob(self.0.as_bytes(), text, |pattern, byte| pattern == byte)
    }

    /// Whether it matches `text`, ASCII case apart.
    #[must_use]
    pub fn matches_folded(&self, text: &[u8]) -> bool {
        glob(self.0.as_bytes(), text, |pattern, byte| pattern.eq_ignore_ascii_case(&byte))
    }
}

/// Greedy with one step back, so that no pattern, however many stars it has, takes more than the product of the two
/// lengths.
fn glob(pattern: &[u8], text: &[u8], same: impl Fn(u8, u8) -> bool) -> bool {
    let (mut at, mut position) = (0, 0);
    // Behind the last star: where the pattern goes on, and up to where that star reaches.
    let mut resume = None;
    while position < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                resume = Some((at, position));
            }
            Some(&byte) if same(byte, text[position]) => {
                at += 1;
                position += 1;
            }
            _ => match resume {
                None => return false,
                Some((behind, reached)) => {
                    at = behind;
                    position = reached + 1;
                    resume = Some((behind, position));
                }
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong(text.len()));
        }
        match text.chars().find(|character| character.is_control()) {
            Some(control) => Err(PatternError::Control(control)),
            None => Ok(Self(text.into())),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0.into()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(text.as_bytes())
    }

    #[test]
    fn a_star_stands_for_anything_and_everything_else_for_itself() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a/b"),
            ("orders/*", "orders/1001"),
            ("orders/*", "orders/"),
            ("*/1001", "orders/1001"),
            ("o*s/*1", "orders/1001"),
            ("a*b*c", "aXbYbZc"),
            ("a", "a"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("orders/*", "orders"),
            ("orders", "Orders"),
            ("orders", "orders2"),
            ("*/1001", "orders/10012"),
            ("a?c", "abc"),
            ("[ab]", "a"),
            ("a*b", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn case_is_forgotten_only_where_asked() {
        let pattern: Pattern = "Orders/*".parse().unwrap();
        assert!(pattern.matches_folded(b"oRDERS/1"));
        assert!(!pattern.matches(b"orders/1"));
    }

    #[test]
    fn what_can_match_no_name_is_no_pattern() {
        assert_eq!("".parse::<Pattern>(), Err(PatternError::Empty));
        assert_eq!("a\nb".parse::<Pattern>(), Err(PatternError::Control('\n')));
        assert_eq!("x".repeat(513).parse::<Pattern>(), Err(PatternError::TooLong(513)));
    }

    /// The definition, slow and plain.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(first, left)| first == byte && naive(rest, left))
            }
        }
    }

    proptest! {
        #[test]
        fn the_quick_answer_is_that_of_the_definition(pattern in "[ab*/]{1,8}", text in "[ab/]{0,10}") {
            prop_assert_eq!(matches(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
