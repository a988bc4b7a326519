//! Patterns with `*` wildcards, matched against resource names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum size of a pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 512;

/// A pattern in which each `*` matches any bytes, including none and `/`. No other character is special.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Box<str>);

/// Why a text is not a valid pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is empty and would match no name.
    #[error("a pattern must not be empty; * matches everything")]
    Empty,
    /// The pattern is longer than any name.
    #[error("a pattern of {0} bytes exceeds the limit of {PATTERN_BYTES_MAX} bytes")]
    TooLong(usize),
    /// The pattern contains a control character, which no name contains.
    #[error("a pattern must not contain the control character {0:?}")]
    Control(char),
}

impl Pattern {
    /// Returns the pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern matches every name.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether the pattern matches `text`, case-sensitively.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        glob(self.0.as_bytes(), text, |pattern, byte| pattern == byte)
    }

    /// Whether the pattern matches `text`, ignoring ASCII case.
    #[must_use]
    pub fn matches_folded(&self, text: &[u8]) -> bool {
        glob(self.0.as_bytes(), text, |pattern, byte| pattern.eq_ignore_ascii_case(&byte))
    }

    /// Whether this pattern matches every name that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        // Only a star matches a star, and it matches whatever that stands for.
        self.matches(other.0.as_bytes())
    }
}

/// Greedy matching that backtracks to the last star only, so the time is at most proportional to the product of the two
/// lengths, whatever the pattern.
fn glob(pattern: &[u8], text: &[u8], same: impl Fn(u8, u8) -> bool) -> bool {
    let (mut at, mut position) = (0, 0);
    // Position after the last star, and how far that star extends.
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
    fn star_matches_anything_and_other_characters_match_themselves() {
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
    fn case_is_ignored_only_on_request() {
        let pattern: Pattern = "Orders/*".parse().unwrap();
        assert!(pattern.matches_folded(b"oRDERS/1"));
        assert!(!pattern.matches(b"orders/1"));
    }

    #[test]
    fn patterns_that_match_no_name_are_rejected() {
        assert_eq!("".parse::<Pattern>(), Err(PatternError::Empty));
        assert_eq!("a\nb".parse::<Pattern>(), Err(PatternError::Control('\n')));
        assert_eq!("x".repeat(513).parse::<Pattern>(), Err(PatternError::TooLong(513)));
        assert!("x".repeat(512).parse::<Pattern>().is_ok());
    }

    #[test]
    fn a_pattern_covers_those_that_match_less() {
        let covers = |one: &str, other: &str| {
            one.parse::<Pattern>().unwrap().covers(&other.parse::<Pattern>().unwrap())
        };
        for (one, other) in [
            ("*", "orders/*"),
            ("orders/*", "orders/1*"),
            ("a", "a"),
            ("*", "*"),
            ("a*", "a*b"),
            ("*/*", "a/*"),
        ] {
            assert!(covers(one, other), "{one} {other}");
            assert!(one == other || !covers(other, one), "{other} {one}");
        }
        assert!(!covers("orders/*", "*"));
        assert!(!covers("orders/1", "orders/*"));
        assert!(!covers("a*b", "a*"));
    }

    /// The definition of matching, as a slow recursive function.
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
        fn matching_agrees_with_its_definition(pattern in "[ab*/]{1,8}", text in "[ab/]{0,10}") {
            prop_assert_eq!(matches(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn covering_patterns_match_whatever_the_covered_ones_match(
            one in "[ab*]{1,5}", other in "[ab*]{1,5}", text in "[ab]{0,8}"
        ) {
            let (one, other): (Pattern, Pattern) = (one.parse().unwrap(), other.parse().unwrap());
            prop_assert!(!one.covers(&other) || !other.matches(text.as_bytes()) || one.matches(text.as_bytes()));
        }
    }
}
