//! Policies: options that administrators set for all queues whose addresses match a pattern.

use std::fmt;

use crate::model::id::QueueAddress;
use crate::model::options::QueueChanges;

/// Maximum number of policies.
pub const POLICIES_MAX: usize = 1_000;

/// Maximum bytes of the name of a policy, and of its pattern.
pub const TEXT_BYTES_MAX: usize = 255;

/// Options for all queues that match a pattern. They apply to existing queues when the policy is set, and to others when
/// they are created, whatever their creator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Its name, unique in the broker.
    pub name: Box<str>,
    /// The queues.
    pub pattern: QueuePattern,
    /// If several policies set an option of a queue, the one with the highest priority applies; of equal ones, that with the
    /// last name.
    pub priority: i32,
    /// The options.
    pub options: QueueChanges,
}

/// The address of a queue, `CHANNEL/ID`, or the beginning of addresses with `*` behind it. Upper and lower case are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePattern(Box<str>);

/// Why a text is not a pattern of queues, or not the name of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyTextError {
    /// The text is empty or too long.
    #[error("it has {0} bytes, but must have 1 to {TEXT_BYTES_MAX}")]
    Length(usize),
    /// The text has a control character.
    #[error("it must not contain the control character {0:?}")]
    Control(char),
    /// The star is not the last character.
    #[error("a * must be its last character; write orders/*, orders-* or *")]
    Star,
}

/// Checks the name of a policy.
///
/// # Errors
/// [`PolicyTextError`].
pub fn check_text(text: &str) -> Result<(), PolicyTextError> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(PolicyTextError::Length(text.len()));
    }
    match text.chars().find(|character| character.is_control()) {
        Some(control) => Err(PolicyTextError::Control(control)),
        None => Ok(()),
    }
}

impl QueuePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`PolicyTextError`].
    pub fn new(text: &str) -> Result<Self, PolicyTextError> {
        check_text(text)?;
        match text.find('*') {
            Some(star) if star + 1 < text.len() => Err(PolicyTextError::Star),
            _ => Ok(Self(text.into())),
        }
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches this queue.
    pub fn matches(&self, queue: &QueueAddress) -> bool {
        self.matches_text(&queue.to_string())
    }

    fn matches_text(&self, address: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => address
                .as_bytes()
                .get(..prefix.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes())),
            None => address.eq_ignore_ascii_case(&self.0),
        }
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The policies of a broker, those that apply last at the end.
#[derive(Debug, Default)]
pub(crate) struct QueuePolicies(Vec<QueuePolicy>);

impl QueuePolicies {
    /// Adds a policy, or replaces the one with its name.
    pub(crate) fn set(&mut self, policy: QueuePolicy) {
        self.remove(&policy.name);
        let rank = |policy: &QueuePolicy| (policy.priority, policy.name.clone());
        let at = self.0.partition_point(|other| rank(other) < rank(&policy));
        self.0.insert(at, policy);
    }

    /// False if there is none with this name.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|policy| *policy.name != *name);
        self.0.len() < before
    }

    /// Whether another policy with this name has room.
    pub(crate) fn has_room(&self, name: &str) -> bool {
        self.0.len() < POLICIES_MAX || self.0.iter().any(|policy| *policy.name == *name)
    }

    /// All policies, those that apply last at the end.
    pub(crate) fn all(&self) -> &[QueuePolicy] {
        &self.0
    }

    /// Those for a queue, in the order in which they apply.
    pub(crate) fn of(&self, queue: &QueueAddress) -> impl Iterator<Item = &QueuePolicy> {
        // Most brokers have none, and creating a queue should cost nothing then.
        let address = if self.0.is_empty() { String::new() } else { queue.to_string() };
        self.0.iter().filter(move |policy| policy.pattern.matches_text(&address))
    }
}

/// The effect of a policy on existing queues of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyReport {
    /// Number of queues that it changed.
    pub changed: u64,
    /// Queues that cannot have its options, with the reason, up to [`REJECTED_SHOWN`]. They stay as they are.
    pub rejected: Vec<(QueueAddress, String)>,
    /// Number of further queues that cannot have its options.
    pub unlisted: u64,
}

/// Maximum rejected queues of a report.
pub const REJECTED_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::definition::{Definition, decode_definition, encode_policy, policy_key};
    use crate::model::options::{DeadLetter, Durability, Status};

    fn policy(name: &str, pattern: &str, priority: i32) -> QueuePolicy {
        let pattern = QueuePattern::new(pattern).expect("a pattern");
        QueuePolicy { name: name.into(), pattern, priority, options: QueueChanges::default() }
    }

    fn names(policies: &QueuePolicies, queue: &str) -> Vec<String> {
        let queue = QueueAddress::parse(queue).expect("an address");
        policies.of(&queue).map(|policy| policy.name.to_string()).collect()
    }

    #[test]
    fn policies_apply_by_priority_and_name() {
        let mut policies = QueuePolicies::default();
        for (name, pattern, priority) in
            [("z", "*", 0), ("a", "*", 0), ("m", "Orders/*", 5), ("n", "orders/1", -1)]
        {
            policies.set(policy(name, pattern, priority));
        }
        assert_eq!(names(&policies, "ORDERS/1"), ["n", "a", "z", "m"]);
        assert_eq!(names(&policies, "orders-late/1"), ["a", "z"]);
        assert_eq!(names(&policies, "orders/10"), ["a", "z", "m"]);
        policies.set(policy("z", "other/*", 0));
        assert_eq!(names(&policies, "orders/10"), ["a", "m"], "a policy with the same name is replaced");
        assert!(policies.remove("a") && !policies.remove("a"));
        assert_eq!(names(&policies, "orders/10"), ["m"]);
    }

    #[test]
    fn a_policy_survives_in_the_journal_with_exactly_its_options() {
        let options = QueueChanges {
            status: Some(Status::RoundRobin),
            only_first_acquirer: Some(true),
            request_acknowledge: Some(true),
            acknowledge_timeout: Some(Duration::from_millis(1_500)),
            message_timeout: Some(Duration::ZERO),
            use_message_id: Some(false),
            wait_for_acknowledge: Some(true),
            hide_client_names: Some(true),
            message_limit: Some(u64::MAX),
            message_size_limit: Some(7),
            tag: Some("a = b".into()),
            delivery_handler: Some("at-least-once".into()),
            put_back_limit: Some(3),
            retry_delay: Some(Some(Duration::from_millis(20))),
            retry_delay_max: Some(Duration::from_secs(9)),
            dead_letter: Some(Some(DeadLetter::Drop)),
            durability: Some(Durability::Os),
            deduplication_window: Some(Duration::from_secs(60)),
            publish_limit: Some("100/s".parse().ok()),
        };
        let removes = QueueChanges {
            retry_delay: Some(None),
            dead_letter: Some(None),
            publish_limit: Some(None),
            ..QueueChanges::default()
        };
        let one = QueueChanges { message_limit: Some(0), ..QueueChanges::default() };
        for options in [options, removes, one, QueueChanges::default()] {
            let policy = QueuePolicy { options, ..policy("logs", "logs/*", -7) };
            let read = decode_definition(&policy_key("logs"), &encode_policy(&policy));
            assert_eq!(read, Ok(Definition::Policy(Box::new(policy))));
        }
    }

    #[test]
    fn a_star_stands_only_at_the_end() {
        for wrong in ["*x", "a*b", "**"] {
            assert_eq!(QueuePattern::new(wrong), Err(PolicyTextError::Star), "{wrong}");
        }
        assert_eq!(QueuePattern::new(""), Err(PolicyTextError::Length(0)));
        assert_eq!(QueuePattern::new("a\n"), Err(PolicyTextError::Control('\n')));
        let all = QueuePattern::new("*").expect("a pattern");
        assert!(all.matches(&QueueAddress::parse("ä/1").expect("an address")));
        let umlaut = QueuePattern::new("a*").expect("a pattern");
        assert!(!umlaut.matches(&QueueAddress::parse("ä/1").expect("an address")));
    }
}
