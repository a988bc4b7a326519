//! The consumers of one connection.

use foldhash::HashMap;

use mqcore_broker::model::id::{QueueAddress, Tag};

/// Maximum consumers of one connection; further ones are rejected.
pub(super) const CONSUMERS_MAX: usize = 16_384;

/// Maximum queues of one consumer id. A line such as `ack ID --all` becomes a command for each.
pub(super) const QUEUES_MAX: usize = 64;

/// One consumer of one queue. The same id may consume several.
#[derive(Debug, Clone)]
pub(super) struct Consumer {
    pub(super) id: Box<[u8]>,
    pub(super) queue: QueueAddress,
    pub(super) manual_ack: bool,
    /// Maximum number of unsettled deliveries; 0: no limit.
    pub(super) prefetch: u32,
}

/// All consumers of a connection, by the number of their subscription, and by id.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    by_tag: HashMap<Tag, Consumer>,
    by_id: HashMap<Box<[u8]>, Vec<Tag>>,
    last: u32,
    /// Id and prefetch of a consumer that the peer is about to start.
    announced: Option<(Box<[u8]>, u32)>,
}

impl Consumers {
    /// Adds a consumer, or changes it if it consumes that queue already. Returns its subscription.
    pub(super) fn add(&mut self, id: &[u8], queue: &QueueAddress, manual_ack: bool) -> Result<Tag, String> {
        let known =
            self.by_id.get(id).into_iter().flatten().copied().find(|tag| self.by_tag[tag].queue == *queue);
        if let Some(tag) = known {
            if let Some(consumer) = self.by_tag.get_mut(&tag) {
                consumer.manual_ack = manual_ack;
            }
            return Ok(tag);
        }
        if self.by_tag.len() >= CONSUMERS_MAX {
            return Err(format!(
                "the connection has reached its limit of {CONSUMERS_MAX} consumers; use another connection"
            ));
        }
        if self.by_id.get(id).is_some_and(|tags| tags.len() >= QUEUES_MAX) {
            return Err(format!("a consumer consumes at most {QUEUES_MAX} queues; use another consumer id"));
        }
        self.last = self
            .last
            .checked_add(1)
            .ok_or("this connection has used up its consumer numbers; open another connection")?;
        let tag = Tag(self.last);
        let announced = self.announced.take_if(|(announced, _)| **announced == *id);
        let prefetch = announced.map_or(0, |(_, prefetch)| prefetch);
        self.by_tag.insert(tag, Consumer { id: id.into(), queue: queue.clone(), manual_ack, prefetch });
        self.by_id.entry(id.into()).or_default().push(tag);
        Ok(tag)
    }

    /// Sets the prefetch of a consumer, or of the next one with this id. Returns its subscriptions.
    pub(super) fn set_prefetch(&mut self, id: &[u8], prefetch: u32) -> Vec<(QueueAddress, Tag)> {
        let known = self.of(id);
        for (_, tag) in &known {
            if let Some(consumer) = self.by_tag.get_mut(tag) {
                consumer.prefetch = prefetch;
            }
        }
        if known.is_empty() {
            self.announced = Some((id.into(), prefetch));
        }
        known
    }

    /// The queues of a consumer and its subscriptions.
    pub(super) fn of(&self, id: &[u8]) -> Vec<(QueueAddress, Tag)> {
        let tags = self.by_id.get(id).into_iter().flatten();
        tags.map(|tag| (self.by_tag[tag].queue.clone(), *tag)).collect()
    }

    /// The consumer of a subscription.
    pub(super) fn get(&self, queue: &QueueAddress, tag: Tag) -> Option<&Consumer> {
        self.by_tag.get(&tag).filter(|consumer| same(&consumer.queue, queue))
    }

    /// A consumer was deleted.
    pub(super) fn forget(&mut self, id: &[u8]) {
        for tag in self.by_id.remove(id).unwrap_or_default() {
            self.by_tag.remove(&tag);
        }
    }

    /// A subscription ended.
    pub(super) fn ended(&mut self, queue: &QueueAddress, tag: Tag) {
        if self.get(queue, tag).is_none() {
            return;
        }
        if let Some(consumer) = self.by_tag.remove(&tag)
            && let Some(tags) = self.by_id.get_mut(&consumer.id)
        {
            tags.retain(|other| *other != tag);
            if tags.is_empty() {
                self.by_id.remove(&consumer.id);
            }
        }
    }
}

/// Names of channels are compared without case.
fn same(one: &QueueAddress, other: &QueueAddress) -> bool {
    one.id == other.id && one.channel.as_str().eq_ignore_ascii_case(other.channel.as_str())
}
