//! What can be asked for, whatever the protocol.

use std::fmt;

/// One sort of thing that a client may or may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// Create a channel or a queue.
    Create,
    /// Become a consumer of a channel.
    Join,
    /// Publish to a queue.
    Push,
    /// Ask a queue for messages.
    Pull,
    /// Be handed the messages of queues without asking for each.
    Receive,
    /// Send to another client, or answer one.
    Direct,
    /// Publish to a router.
    Route,
    /// Subscribe to events.
    Events,
    /// Look at what others do, change and remove what others made.
    Administer,
    /// Publish to a topic.
    Publish,
    /// Subscribe to a topic.
    Subscribe,
    /// Use, change or remove a limit.
    Limit,
}

impl Action {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// All of them, each at the place of its number.
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
    ];

    /// Its word in rules, in the audit log and for authenticators.
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
        }
    }

    /// The action of this word.
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
    fn every_action_stands_at_its_number_and_is_found_by_its_word() {
        for (number, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, number);
            assert_eq!(Action::from_word(action.as_str()), Some(action));
        }
        assert_eq!(Action::from_word("Push"), None);
    }
}
