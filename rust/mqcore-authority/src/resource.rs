//! The resources that permissions cover, and their names.

use std::borrow::Cow;
use std::fmt;

use crate::pattern::Pattern;

/// Maximum size in bytes of a resource name in logs.
const SHOWN_BYTES_MAX: usize = 300;

/// A resource on which a client wants to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource<'a> {
    /// The broker as a whole, covered only by the pattern `*`.
    Server,
    /// A channel itself. Covered by its name and by `NAME/*`.
    Channel(&'a str),
    /// A channel with all its queues. Covered by `NAME/*`, but not by its name alone.
    AllQueues(&'a str),
    /// A queue, `channel/id`. Queue 0 is also covered by the channel's name, because that is its short name.
    Queue(&'a str, u16),
    /// A client, by id.
    ClientId(&'a str),
    /// Clients with this name, written `@name:NAME`.
    ClientName(&'a str),
    /// Clients of this type, written `@type:TYPE`.
    ClientType(&'a str),
    /// A router.
    Router(&'a str),
    /// A topic.
    Topic(&'a [u8]),
    /// All topics with this prefix. Covered by a pattern that covers each of them.
    TopicsFrom(&'a [u8]),
    /// The key of a rate limit.
    LimitKey(&'a [u8]),
    /// A path of the admin interface, with its leading slash.
    Page(&'a str),
}

impl Resource<'_> {
    /// Whether `pattern` covers this resource. Channel names ignore case, like channels themselves; all other names are
    /// case-sensitive.
    #[must_use]
    pub fn is_covered_by(&self, pattern: &Pattern) -> bool {
        if pattern.is_everything() {
            return true;
        }
        let matches = |text: &str| pattern.matches(text.as_bytes());
        match *self {
            Self::Server => false,
            Self::Channel(name) => pattern.matches_folded(name.as_bytes()) || covers_all(pattern, name),
            Self::AllQueues(name) => covers_all(pattern, name),
            Self::Queue(name, id) => {
                // Most names are short, so the address rarely needs an allocation.
                let mut address = InlineText::<320>::default();
                address.push(name.as_bytes());
                address.push(b"/");
                address.push(decimal(id, &mut [0; 5]));
                pattern.matches_folded(address.as_slice())
                    || (id == 0 && pattern.matches_folded(name.as_bytes()))
            }
            Self::ClientId(id) => matches(id),
            Self::ClientName(name) => matches(&format!("@name:{name}")),
            Self::ClientType(kind) => matches(&format!("@type:{kind}")),
            Self::Router(name) | Self::Page(name) => matches(name),
            Self::Topic(name) | Self::LimitKey(name) => pattern.matches(name),
            // A pattern that matches the prefix and ends with a star matches every topic with this prefix.
            Self::TopicsFrom(prefix) => pattern.as_str().ends_with('*') && pattern.matches(prefix),
        }
    }
}

/// Whether all possible queues of a channel are covered. Then the address without digits is covered, too.
fn covers_all(pattern: &Pattern, channel: &str) -> bool {
    let mut prefix = InlineText::<320>::default();
    prefix.push(channel.as_bytes());
    prefix.push(b"/");
    // Only a pattern that ends with a star covers ids of any length.
    pattern.as_str().ends_with('*') && pattern.matches_folded(prefix.as_slice())
}

/// A byte buffer on the stack that spills to the heap if needed. Channel names normally fit.
struct InlineText<const N: usize> {
    inline: [u8; N],
    length: usize,
    spilled: Vec<u8>,
}

impl<const N: usize> Default for InlineText<N> {
    fn default() -> Self {
        Self { inline: [0; N], length: 0, spilled: Vec::new() }
    }
}

impl<const N: usize> InlineText<N> {
    fn push(&mut self, bytes: &[u8]) {
        if self.spilled.is_empty() && self.length + bytes.len() <= N {
            self.inline[self.length..self.length + bytes.len()].copy_from_slice(bytes);
            self.length += bytes.len();
            return;
        }
        if self.spilled.is_empty() {
            self.spilled.extend_from_slice(&self.inline[..self.length]);
        }
        self.spilled.extend_from_slice(bytes);
    }

    fn as_slice(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.inline[..self.length] } else { &self.spilled }
    }
}

fn decimal(mut number: u16, buffer: &mut [u8; 5]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

/// Formats the name as in patterns. Long names are truncated, because peers choose them.
impl fmt::Display for Resource<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Server => formatter.write_str("*"),
            Self::Channel(name) | Self::Router(name) | Self::Page(name) => {
                formatter.write_str(&cut(name.as_bytes()))
            }
            Self::AllQueues(name) => write!(formatter, "{}/*", cut(name.as_bytes())),
            Self::Queue(name, id) => write!(formatter, "{}/{id}", cut(name.as_bytes())),
            Self::ClientId(id) => formatter.write_str(&cut(id.as_bytes())),
            Self::ClientName(name) => write!(formatter, "@name:{}", cut(name.as_bytes())),
            Self::ClientType(kind) => write!(formatter, "@type:{}", cut(kind.as_bytes())),
            Self::Topic(name) | Self::LimitKey(name) => formatter.write_str(&cut(name)),
            Self::TopicsFrom(prefix) => write!(formatter, "{}*", cut(prefix)),
        }
    }
}

fn cut(name: &[u8]) -> Cow<'_, str> {
    match name.get(..SHOWN_BYTES_MAX) {
        Some(start) if start.len() < name.len() => format!("{}…", String::from_utf8_lossy(start)).into(),
        _ => String::from_utf8_lossy(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(pattern: &str, resource: Resource<'_>) -> bool {
        resource.is_covered_by(&pattern.parse().unwrap())
    }

    #[test]
    fn channel_is_covered_by_its_name_and_by_all_its_queues() {
        assert!(covered("orders", Resource::Channel("Orders")));
        assert!(covered("orders/*", Resource::Channel("orders")));
        assert!(!covered("orders/1*", Resource::Channel("orders")));
        assert!(!covered("orders/1", Resource::Channel("orders")));
        assert!(!covered("orders", Resource::AllQueues("orders")));
        assert!(covered("orders/*", Resource::AllQueues("orders")));
        assert!(!covered("orders/", Resource::AllQueues("orders")));
        assert!(!covered("*/", Resource::AllQueues("orders")));
    }

    #[test]
    fn queue_is_covered_by_its_address_and_queue_zero_by_the_channel_name() {
        assert!(covered("orders/1001", Resource::Queue("ORDERS", 1001)));
        assert!(covered("orders/*", Resource::Queue("orders", 65_535)));
        assert!(covered("orders", Resource::Queue("orders", 0)));
        assert!(!covered("orders", Resource::Queue("orders", 1)));
        assert!(!covered("orders/100", Resource::Queue("orders", 1001)));
        assert!(covered("logs/eu/*", Resource::Queue("logs/eu", 3)));
    }

    #[test]
    fn only_a_star_covers_the_server() {
        assert!(covered("*", Resource::Server));
        assert!(!covered("*a", Resource::Server));
        assert!(!covered("a*", Resource::Server));
    }

    #[test]
    fn clients_are_covered_by_their_form_of_address() {
        assert!(covered("worker-*", Resource::ClientId("worker-1")));
        assert!(!covered("worker-*", Resource::ClientName("worker-1")));
        assert!(covered("@name:worker-*", Resource::ClientName("worker-1")));
        assert!(covered("@type:*", Resource::ClientType("printer")));
        assert!(!covered("Worker-*", Resource::ClientId("worker-1")));
    }

    #[test]
    fn topic_prefix_is_covered_by_a_pattern_for_all_its_topics() {
        assert!(covered("news.*", Resource::Topic(b"news.sport")));
        assert!(covered("news.*", Resource::TopicsFrom(b"news.")));
        assert!(covered("n*", Resource::TopicsFrom(b"news.")));
        assert!(covered("*", Resource::TopicsFrom(b"")));
        assert!(!covered("news.*", Resource::TopicsFrom(b"news")));
        assert!(!covered("news.", Resource::TopicsFrom(b"news.")));
        assert!(!covered("n*t", Resource::TopicsFrom(b"news.")));
    }

    #[test]
    fn name_longer_than_the_inline_buffer_is_matched_completely() {
        let long = "n".repeat(1000);
        assert!(covered("n*/7", Resource::Queue(&long, 7)));
        assert!(!covered("n*/8", Resource::Queue(&long, 7)));
    }

    #[test]
    fn displayed_name_is_truncated() {
        assert!(Resource::LimitKey(&[b'k'; 5000]).to_string().len() < 400);
        assert_eq!(Resource::Queue("orders", 7).to_string(), "orders/7");
        let longest = "r".repeat(SHOWN_BYTES_MAX);
        assert_eq!(Resource::Router(&longest).to_string(), longest);
        assert_eq!(Resource::Router(&format!("{longest}r")).to_string(), format!("{longest}…"));
    }
}
