//! Which topics a subscription or a binding is about.

use crate::model::id::TopicName;

/// Default of [`TopicLimits::subscriptions_max`].
pub const SUBSCRIPTIONS_MAX: usize = 16_384;

/// Default of [`TopicLimits::patterns_max`].
pub const PATTERNS_MAX: usize = 1_024;

/// Default of [`TopicLimits::patterns_per_user_max`].
pub const PATTERNS_PER_USER_MAX: usize = 65_536;

/// Maximum number of topics and patterns that one queue is bound to, on each shard.
pub const BINDINGS_MAX: usize = 16_384;

/// Maximum number of topics without subscriber and queue that a shard remembers, so that publishing to
/// them again is fast.
pub const PASSING_MAX: usize = 4_096;

/// How many subscriptions to topics the broker accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicLimits {
    /// Maximum number of topics by name for one connection, on each shard. Default 16,384.
    pub subscriptions_max: usize,
    /// Maximum number of patterns for one connection. Default 1,024.
    pub patterns_max: usize,
    /// Maximum number of subscriptions by pattern for all connections of one user or token. Default 65,536.
    pub patterns_per_user_max: usize,
}

impl Default for TopicLimits {
    fn default() -> Self {
        Self {
            subscriptions_max: SUBSCRIPTIONS_MAX,
            patterns_max: PATTERNS_MAX,
            patterns_per_user_max: PATTERNS_PER_USER_MAX,
        }
    }
}

/// Which topics a subscription or a binding is about.
///
/// ```
/// use mqcore_broker::model::id::TopicName;
/// use mqcore_broker::model::topic::TopicPattern;
///
/// let mask = TopicPattern::from_name(TopicName::new(b"orders.*")?);
/// assert!(mask.matches(b"orders.eu"));
/// assert!(!mask.matches(b"orders.eu.north"));
/// # Ok::<(), mqcore_broker::model::id::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicPattern {
    /// The topic with this name, whatever characters it contains.
    Exact(TopicName),
    /// Topics that match a mask: `*` matches any run of bytes without a dot, including none; everything
    /// else matches itself. Only names that contain a dot can match (MQKS).
    Mask(TopicName),
    /// Topics with this prefix; an empty prefix matches all (ZeroMQ).
    Prefix(TopicName),
}

impl TopicPattern {
    /// A mask if `name` contains `*`, otherwise the topic with that name.
    pub fn from_name(name: TopicName) -> Self {
        if name.as_bytes().contains(&b'*') { Self::Mask(name) } else { Self::Exact(name) }
    }

    /// Whether a topic matches.
    pub fn matches(&self, topic: &[u8]) -> bool {
        match self {
            Self::Exact(name) => name.as_bytes() == topic,
            Self::Mask(mask) => topic.contains(&b'.') && fits(mask.as_bytes(), topic),
            Self::Prefix(prefix) => topic.starts_with(prefix.as_bytes()),
        }
    }

    /// The name, mask or prefix.
    pub fn name(&self) -> &TopicName {
        match self {
            Self::Exact(name) | Self::Mask(name) | Self::Prefix(name) => name,
        }
    }
}

/// A star matches no dot, so the dots of mask and name correspond one by one, and within each part the
/// leftmost match is as good as any other. So only the last star is ever retried, and the time is
/// bounded by the product of both lengths.
fn fits(mask: &[u8], name: &[u8]) -> bool {
    let (mut in_mask, mut in_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match mask.get(in_mask) {
            Some(b'*') => {
                star = Some((in_mask, in_name));
                in_mask += 1;
            }
            Some(byte) if *byte == name[in_name] => {
                in_mask += 1;
                in_name += 1;
            }
            _ => match star {
                Some((at, taken)) if name[taken] != b'.' => {
                    star = Some((at, taken + 1));
                    (in_mask, in_name) = (at + 1, taken + 1);
                }
                _ => return false,
            },
        }
    }
    mask[in_mask..].iter().all(|byte| *byte == b'*')
}
