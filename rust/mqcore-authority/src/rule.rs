//! Permission rules in text form: `push,pull:orders/*`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::pattern::{Pattern, PatternError};

/// Actions and the pattern of resources on which they are allowed. Written `ACTIONS:PATTERN`, `ACTIONS` for all resources,
/// or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PermissionRule {
    actions: Vec<Action>,
    pattern: Pattern,
}

/// Why a text is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PermissionRuleError {
    /// An unknown action.
    #[error("{word:?} is not an action; expected one of {}, or * for all of them", words())]
    Action {
        /// Name as given.
        word: String,
    },
    /// The part after the colon is not a valid pattern.
    #[error("{rule:?}: {source}")]
    Pattern {
        /// Complete rule.
        rule: String,
        /// Reason.
        source: PatternError,
    },
}

fn words() -> String {
    Action::ALL.map(Action::as_str).join(", ")
}

impl PermissionRule {
    /// Permits every action on every resource.
    #[must_use]
    pub fn everything() -> Self {
        Self { actions: Action::ALL.to_vec(), pattern: "*".parse().expect("a star is a pattern") }
    }

    /// Permitted actions, without duplicates.
    #[must_use]
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// Pattern of the resources.
    #[must_use]
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }
}

impl FromStr for PermissionRule {
    type Err = PermissionRuleError;

    fn from_str(text: &str) -> Result<Self, PermissionRuleError> {
        let (words, pattern) = text.split_once(':').unwrap_or((text, "*"));
        let pattern = pattern
            .trim()
            .parse()
            .map_err(|source| PermissionRuleError::Pattern { rule: text.to_owned(), source })?;
        let mut actions = Vec::new();
        for word in words.split(',').map(str::trim) {
            let named: &[Action] = match (word, Action::from_word(word)) {
                ("*", _) => &Action::ALL,
                (_, Some(action)) => &Action::ALL[action as usize..=action as usize],
                (_, None) => return Err(PermissionRuleError::Action { word: word.to_owned() }),
            };
            actions.extend_from_slice(named);
        }
        actions.sort_unstable();
        actions.dedup();
        Ok(Self { actions, pattern })
    }
}

impl TryFrom<String> for PermissionRule {
    type Error = PermissionRuleError;

    fn try_from(text: String) -> Result<Self, PermissionRuleError> {
        text.parse()
    }
}

impl From<PermissionRule> for String {
    fn from(rule: PermissionRule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for PermissionRule {
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
        text.parse::<PermissionRule>().unwrap().to_string()
    }

    #[test]
    fn rule_survives_a_round_trip_in_normal_form() {
        assert_eq!(written("*"), "*");
        assert_eq!(written("*:*"), "*");
        assert_eq!(written("pull , push:orders/*"), "push,pull:orders/*");
        assert_eq!(written("administer"), "administer");
        assert_eq!(written("direct:@name:worker"), "direct:@name:worker");
        assert_eq!(written("push,push:a"), "push:a");
    }

    #[test]
    fn invalid_rule_names_the_problem() {
        assert!(matches!("dance".parse::<PermissionRule>(), Err(PermissionRuleError::Action { .. })));
        assert!(matches!("push,:a".parse::<PermissionRule>(), Err(PermissionRuleError::Action { .. })));
        assert!(matches!("".parse::<PermissionRule>(), Err(PermissionRuleError::Action { .. })));
        assert!(matches!("push:".parse::<PermissionRule>(), Err(PermissionRuleError::Pattern { .. })));
        assert!("orders/*".parse::<PermissionRule>().unwrap_err().to_string().contains("push"));
    }
}
