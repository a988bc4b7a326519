//! The actions that permissions distinguish, independent of the protocol.

use std::fmt;

/// An action that a client may or may not be allowed to perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// Create a channel or a queue.
    Create,
    /// Subscribe to a channel as a consumer.
    Join,
    /// Publish to a queue.
    Push,
    /// Pull messages from a queue.
    Pull,
    /// Receive pushed messages from queues.
    Receive,
    /// Send a direct message to another client, or respond to one.
    Direct,
    /// Publish to a router.
    Route,
    /// Subscribe to events.
    Events,
    /// Inspect the activity of other clients, and change or delete what they created.
    Administer,
    /// Publish to a topic.
    Publish,
    /// Subscribe to a topic.
    Subscribe,
    /// Use, change or delete a rate limit.
    Limit,
    /// Read pages of the admin side, apart from messages and backups. `administer` includes it.
    Inspect,
}

impl Action {
    /// Number of actions.
    pub const COUNT: usize = 13;

    /// All actions, in the order of their discriminants.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Create,
        Self::Join,
        Self::Push,
        Self::Pull,
        Self::Receive,
        Self::Direct,
        Self::Route,
        Self::Events,
        Self::Administer,
        Self::Publish,
        Self::Subscribe,
        Self::Limit,
        Self::Inspect,
    ];

    /// Name used in rules, in the audit log and by authenticators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Join => "join",
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Receive => "receive",
            Self::Direct => "direct",
            Self::Route => "route",
            Self::Events => "events",
            Self::Administer => "administer",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Limit => "limit",
            Self::Inspect => "inspect",
        }
    }

    /// Returns the action with this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Action;

    #[test]
    fn actions_are_ordered_by_discriminant_and_found_by_name() {
        for (number, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, number);
            assert_eq!(Action::from_word(action.as_str()), Some(action));
        }
        assert_eq!(Action::from_word("Push"), None);
    }
}
