//! The permissions of one identity, resolved for fast checks.
//!
//! ```
//! use mqcore_authority::action::Action;
//! use mqcore_authority::grants::Grants;
//! use mqcore_authority::resource::Resource;
//!
//! let grants = Grants::new(&["push,pull:orders/*".parse()?]);
//! assert!(grants.allow(Action::Push, &Resource::Queue("orders", 1)));
//! assert!(!grants.allow(Action::Push, &Resource::Queue("invoices", 1)));
//! assert!(!grants.allow(Action::Administer, &Resource::Server));
//! # Ok::<(), mqcore_authority::rule::PermissionRuleError>(())
//! ```

use crate::action::Action;
use crate::pattern::Pattern;
use crate::resource::Resource;
use crate::rule::PermissionRule;

/// Permissions by action. Everything that no rule allows is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    everything: bool,
    by_action: [Box<[Pattern]>; Action::COUNT],
}

impl Grants {
    /// Permits every action on every resource.
    #[must_use]
    pub fn everything() -> Self {
        Self::new(&[PermissionRule::everything()])
    }

    /// Permits nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self::new(&[])
    }

    /// Combines the permissions of these rules.
    #[must_use]
    pub fn new(rules: &[PermissionRule]) -> Self {
        let by_action = Action::ALL.map(|action| {
            let naming = rules.iter().filter(|rule| rule.actions().contains(&action));
            let patterns: Vec<_> = naming.map(|rule| rule.pattern().clone()).collect();
            // A pattern that matches everything makes the others redundant.
            match patterns.iter().find(|pattern| pattern.is_everything()) {
                Some(all) => [all.clone()].into(),
                None => patterns.into_boxed_slice(),
            }
        });
        let everything = by_action.iter().all(|patterns| patterns.iter().any(Pattern::is_everything));
        Self { everything, by_action }
    }

    /// Whether every action on every resource is allowed, so that checks can be skipped.
    #[inline]
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.everything
    }

    /// Whether `action` is allowed on `resource`.
    #[inline]
    #[must_use]
    pub fn allow(&self, action: Action, resource: &Resource<'_>) -> bool {
        self.everything
            || self.by_action[action as usize].iter().any(|pattern| resource.is_covered_by(pattern))
    }

    /// Whether everything that `rule` allows is allowed here, too. It may be false for a rule that only spells
    /// the name of a channel in another case.
    #[must_use]
    pub fn covers(&self, rule: &PermissionRule) -> bool {
        let covered = |action: Action| {
            self.by_action[action as usize].iter().any(|pattern| pattern.covers(rule.pattern()))
        };
        // The right to administer includes the right to inspect.
        let allowed =
            |action: Action| covered(action) || (action == Action::Inspect && covered(Action::Administer));
        self.everything || rule.actions().iter().copied().all(allowed)
    }

    /// Whether `action` is allowed on any resource.
    #[must_use]
    pub fn allow_some(&self, action: Action) -> bool {
        !self.by_action[action as usize].is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(rules: &[&str]) -> Grants {
        Grants::new(&rules.iter().map(|rule| rule.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn actions_without_a_rule_are_denied() {
        let scoped = grants(&["push:orders/*", "pull:orders/7"]);
        assert!(scoped.allow(Action::Push, &Resource::Queue("orders", 1)));
        assert!(scoped.allow(Action::Pull, &Resource::Queue("orders", 7)));
        assert!(!scoped.allow(Action::Pull, &Resource::Queue("orders", 1)));
        assert!(!scoped.allow(Action::Push, &Resource::Queue("invoices", 1)));
        assert!(!scoped.allow(Action::Administer, &Resource::Server));
        for action in Action::ALL {
            assert!(!Grants::nothing().allow(action, &Resource::Server));
            assert!(Grants::everything().allow(action, &Resource::Server));
            assert_eq!(scoped.allow_some(action), matches!(action, Action::Push | Action::Pull));
        }
    }

    #[test]
    fn only_rules_for_every_action_and_resource_grant_everything() {
        assert!(grants(&["*"]).is_everything());
        assert!(grants(&["*", "push:a"]).is_everything());
        assert!(!grants(&["*:orders/*"]).is_everything());
        assert!(!grants(&["push,pull,join"]).is_everything());
        assert!(!Grants::nothing().is_everything());
    }

    #[test]
    fn rules_are_covered_that_allow_nothing_more() {
        let scoped = grants(&["push,pull:orders/*", "administer:/users*"]);
        for covered in ["push:orders/1", "pull,push:orders/*", "inspect,administer:/users/ann"] {
            assert!(scoped.covers(&covered.parse().unwrap()), "{covered}");
        }
        for wider in ["push", "push:*", "push,receive:orders/1", "push:invoices/1", "*", "inspect:/metrics"] {
            assert!(!scoped.covers(&wider.parse().unwrap()), "{wider}");
            assert!(Grants::everything().covers(&wider.parse().unwrap()));
            assert!(!Grants::nothing().covers(&wider.parse().unwrap()));
        }
    }

    #[test]
    fn order_of_rules_does_not_matter() {
        let one = grants(&["push:a/*", "push:b/*"]);
        let other = grants(&["push:b/*", "push:a/*"]);
        for channel in ["a", "b", "c"] {
            let queue = Resource::Queue(channel, 1);
            assert_eq!(one.allow(Action::Push, &queue), other.allow(Action::Push, &queue));
            assert_eq!(one.allow(Action::Push, &queue), channel != "c");
        }
    }
}
