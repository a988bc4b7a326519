//! Which topics a subscription or a binding is about.

use crate::model::id::TopicName;

/// Topics by name that one connection may subscribe to, on each shard.
pub const SUBSCRIPTIONS_MAX: usize = 16_384;

/// Patterns that one connection may subscribe to. Each costs a look whenever a new topic is published to.
pub const PATTERNS_MAX: usize = 1_024;

/// Topics and patterns that one queue may be bound to, on each shard.
pub const BINDINGS_MAX: usize = 16_384;

/// Topics without subscriber and queue of their own that a shard remembers, so that publishing to them again is quick.
pub const PASSING_MAX: usize = 4_096;

/// Which topics a subscription or a binding is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicPattern {
    /// The one of this name, whatever characters it has.
    Exact(TopicName),
    /// Those that fit a mask: `*` stands for any run of octets without a dot, also an empty one; everything else for
    /// itself. Only names that have a dot can fit (MQKS).
    Mask(TopicName),
    /// Those that begin so; an empty prefix means all (ZeroMQ).
    Prefix(TopicName),
}

impl TopicPattern {
    /// A mask if `name` has a `*`, else the topic of that name.
    pub fn from_name(name: TopicName) -> Self {
        if name.as_bytes().contains(&b'*') { Self::Mask(name) } else { Self::Exact(name) }
    }

    /// Whether a topic is one of them.
    pub fn matches(&self, topic: &[u8]) -> bool {
        match self {
            Self::Exact(name) => name.as_bytes() == topic,
            Self::Mask(mask) => topic.contains(&b'.') && fits(mask.as_bytes(), topic),
            Self::Prefix(prefix) => topic.starts_with(prefix.as_bytes()),
        }
    }

    /// The name, mask or prefix as it was given.
    pub fn name(&self) -> &TopicName {
        match self {
            Self::Exact(name) | Self::Mask(name) | Self::Prefix(name) => name,
        }
    }
}

/// Since no star takes a dot, the dots of mask and name belong together one by one, and within each part the leftmost fit
/// is as good as any other: only the last star has ever to be tried again, so the time is bounded by the product of both
/// lengths.
fn fits(mask: &[u8], name: &[u8]) -> bool {
    let (mut in_mask, mut in_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match mask.get(in_mask) {
            Some(b'*') => {
                star = Some((in_mask, in_name));
                in_mask += 1;
            }
            Some(octet) if *octet == name[in_name] => {
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
    mask[in_mask..].iter().all(|octet| *octet == b'*')
}
