//! Destinations: `topic/NAME` is a topic, anything else a queue.

use mqcore_broker::model::id::{QueueAddress, TopicName};
use mqcore_wire::micromessage::DESTINATION_BYTES_MAX;
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};

/// Prefix of topics.
const TOPIC: &[u8] = b"topic/";

/// Destinations remembered by one session.
const REMEMBERED: usize = 4;

/// The target of a message or subscription.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Queue(QueueAddress),
    Topic(TopicName),
}

impl Place {
    /// The queue or topic that a destination names.
    pub(super) fn parse(destination: &[u8]) -> Result<Self, ProtocolFailure> {
        let refuse = |why: String| Err(ProtocolFailure::new(ErrorToken::Destination, why));
        if destination.is_empty() {
            return refuse("the destination is empty; name a queue, or topic/ followed by a topic".into());
        }
        if destination.len() > DESTINATION_BYTES_MAX {
            return refuse("the destination exceeds the limit of 255 bytes".into());
        }
        let shown = || destination.escape_ascii();
        if let Some(name) = destination.strip_prefix(TOPIC) {
            return match TopicName::new(name) {
                Ok(name) if !name.as_bytes().is_empty() => Ok(Self::Topic(name)),
                Ok(_) => refuse("the name of the topic after topic/ is missing".into()),
                Err(error) => refuse(format!("{} is not a valid topic: {error}", shown())),
            };
        }
        let Ok(text) = std::str::from_utf8(destination) else {
            return refuse(format!("{} is not UTF-8", shown()));
        };
        match QueueAddress::parse(text) {
            Ok(queue) => Ok(Self::Queue(queue)),
            Err(error) => refuse(format!("{} cannot be a queue: {error}", shown())),
        }
    }
}

/// The most recent destinations, so that a message to a known one allocates no name.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: [Option<(Box<[u8]>, Place)>; REMEMBERED],
    /// Index that the next unknown destination overwrites.
    oldest: usize,
}

impl Places {
    pub(super) fn find(&mut self, destination: &[u8]) -> Result<Place, ProtocolFailure> {
        let known = self.known.iter().flatten().find(|(name, _)| **name == *destination);
        if let Some((_, place)) = known {
            return Ok(place.clone());
        }
        let place = Place::parse(destination)?;
        self.known[self.oldest] = Some((destination.into(), place.clone()));
        self.oldest = (self.oldest + 1) % REMEMBERED;
        Ok(place)
    }
}
