//! One permission in words: `push,pull:orders/*`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::pattern::{Pattern, PatternError};

/// Actions, and the pattern of what they are allowed on. Written `ACTIONS:PATTERN`, `ACTIONS` for everything, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    actions: Vec<Action>,
    pattern: Pattern,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A word that is no action.
    #[error("{word:?} is no action; there are: {}, and * for all of them", words())]
    Action {
        /// The word.
        word: String,
    },
    /// The part behind the colon is no pattern.
    #[error("{rule:?}: {source}")]
    Pattern {
        /// The whole rule.
        rule: String,
        /// What is wrong.
        source: PatternError,
    },
}

fn words() -> String {
    Action::ALL.map(Action::as_str).join(", ")
}

impl Rule {
    /// Everything, everywhere.
    #[must_use]
    pub fn everything() -> Self {
        Self { actions: Action::ALL.to_vec(), pattern: "*".parse().expect("a star is a pattern") }
    }

    /// What may be done, each once.
    #[must_use]
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// To what.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (words, pattern) = text.split_once(':').unwrap_or((text, "*"));
        let pattern =
            pattern.trim().parse().map_err(|source| RuleError::Pattern { rule: text.to_owned(), source })?;
        let mut actions = Vec::new();
        for word in words.split(',').map(str::trim) {
            let named: &[Action] = match (word, Action::from_word(word)) {
                ("*", _) => &Action::ALL,
                (_, Some(action)) => &Action::ALL[action as usize..=action as usize],
                (_, None) => return Err(RuleError::Action { word: word.to_owned() }),
            };
            actions.extend_from_slice(named);
        }
        actions.sort_unstable();
        actions.dedup();
        Ok(Self { actions, pattern })
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.actions.len() == Action::COUNT {
            formatter.write_str("*")?;
        } else {
            let words: Vec<_> = self.actions.iter().map(|action| action.as_str()).collect();
            formatter.write_str(&words.join(","))?;
        }
        if self.pattern.is_everything() { Ok(()) } else { write!(formatter, ":{}", self.pattern) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        text.parse::<Rule>().unwrap().to_string()
    }

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        assert_eq!(written("*"), "*");
        assert_eq!(written("*:*"), "*");
        assert_eq!(written("pull , push:orders/*"), "push,pull:orders/*");
        assert_eq!(written("administer"), "administer");
        assert_eq!(written("direct:@name:worker"), "direct:@name:worker");
        assert_eq!(written("push,push:a"), "push:a");
    }

    #[test]
    fn what_is_no_rule_says_what_is_wrong() {
        assert!(matches!("dance".parse::<Rule>(), Err(RuleError::Action { .. })));
        assert!(matches!("push,:a".parse::<Rule>(), Err(RuleError::Action { .. })));
        assert!(matches!("".parse::<Rule>(), Err(RuleError::Action { .. })));
        assert!(matches!("push:".parse::<Rule>(), Err(RuleError::Pattern { .. })));
        assert!("orders/*".parse::<Rule>().unwrap_err().to_string().contains("push"));
    }
}
