//! Queues and events of MQKS as the broker's queues and topics.

use mqcore_broker::model::id::{QueueAddress, TopicName};
use mqcore_broker::model::topic::TopicPattern;

/// Names remembered by one session.
const NAMES: usize = 4;

/// The queue with this name: `orders` means `orders/0`, `orders/1001` is an address.
pub(super) fn queue(name: &[u8]) -> Result<QueueAddress, String> {
    let text = std::str::from_utf8(name).map_err(|_| "the name of a queue must be UTF-8".to_owned())?;
    QueueAddress::parse(text).map_err(|error| format!("{} cannot be a queue: {error}", name.escape_ascii()))
}

/// A queue as its consumers wrote it.
pub(super) fn shown(queue: &QueueAddress) -> String {
    if queue.id == 0 { queue.channel.to_string() } else { queue.to_string() }
}

/// The codec has checked the length of a name, which is the only requirement.
fn topic(event: &[u8]) -> Option<TopicName> {
    TopicName::new(event).ok()
}

/// Events as topics.
pub(super) fn topics(events: &[&[u8]]) -> Vec<TopicName> {
    events.iter().filter_map(|event| topic(event)).collect()
}

/// Masks as patterns. A mask without a star, but with a dot, matches the event of that name only.
pub(super) fn masks(masks: &[&[u8]]) -> Vec<TopicPattern> {
    masks.iter().filter_map(|mask| topic(mask)).map(TopicPattern::Mask).collect()
}

/// The most recent events of this session, so that a message of a known one allocates no name.
#[derive(Debug, Default)]
pub(super) struct EventNames {
    known: [Option<TopicName>; NAMES],
    /// Index that the next unknown name overwrites.
    oldest: usize,
}

impl EventNames {
    pub(super) fn topic(&mut self, event: &[u8]) -> TopicName {
        if let Some(name) = self.known.iter().flatten().find(|name| name.as_bytes() == event) {
            return name.clone();
        }
        let name = topic(event).expect("the codec checks the length of names");
        self.known[self.oldest] = Some(name.clone());
        self.oldest = (self.oldest + 1) % NAMES;
        name
    }
}
