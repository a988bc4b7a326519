//! Lists: one page of channels, queues, consumers, clients, nodes or routers in one step.

use std::ops::Bound;

use crate::model::effect::Reply;
use crate::model::filter;
use crate::model::id::{ConnectionId, Tag};
use crate::model::page::{PAGE_ENTRIES_MAX, Page};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::ClientInformation;
use crate::model::time::Timestamp;
use crate::queue::members::Member;
use crate::shard::channel::Channel;
use crate::shard::entities::Entities;
use crate::shard::nodes::NodePlace;

fn passes(filter: Option<&str>, name: &str) -> bool {
    filter.is_none_or(|filter| filter::matches(filter, name))
}

/// The cursor of a page of entries whose keys are not texts.
fn cursor<K>(page: &Page, read: impl Fn(&str) -> Option<K>) -> Result<Option<K>, Rejection> {
    let Some(after) = page.after.as_deref() else { return Ok(None) };
    let key = read(after).ok_or_else(|| {
        let reason =
            format!("{after:?} is not the cursor of a page of this list; repeat what the broker sent");
        Rejection::new(RejectionKind::BadRequest, reason)
    })?;
    Ok(Some(key))
}

impl Entities {
    pub(crate) fn list_channels(&self, filter: Option<&str>, page: &Page) -> Reply {
        let begin = page.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        Reply::Channels(page.take(
            self.ordered.range::<str, _>((begin, Bound::Unbounded)),
            |(name, _)| name.as_str().into(),
            |(name, key)| passes(filter, name.as_str()).then(|| self.channels[**key].information()),
        ))
    }

    pub(crate) fn list_routers(&self, filter: Option<&str>, page: &Page) -> Reply {
        Reply::Routers(page.take(
            self.routers.following(page.after.as_deref()),
            |router| router.name.as_str().into(),
            |router| passes(filter, router.name.as_str()).then(|| (*router).clone()),
        ))
    }

    pub(crate) fn list_nodes(&self, page: &Page, now: Timestamp) -> Result<Reply, Rejection> {
        let after = cursor(page, |text| match text.strip_prefix('u') {
            Some(index) => index.parse().ok().map(NodePlace::Upstream),
            None => text.parse().ok().map(|number| NodePlace::Downstream(ConnectionId(number))),
        })?;
        Ok(Reply::Nodes(page.take(
            self.directory.nodes_following(after, now),
            |(place, _)| match place {
                NodePlace::Upstream(index) => format!("u{index}").into(),
                NodePlace::Downstream(connection) => connection.0.to_string().into(),
            },
            |(_, node)| Some(node.clone()),
        )))
    }

    pub(crate) fn list_clients(
        &self,
        kind: Option<&str>,
        page: &Page,
        now: Timestamp,
    ) -> Result<Reply, Rejection> {
        let after = cursor(page, |text| text.parse().ok().map(ConnectionId))?;
        Ok(Reply::Clients(page.take(
            self.directory.following(after),
            |client| client.connection.0.to_string().into(),
            |client| {
                passes(kind, client.kind.as_deref().unwrap_or_default())
                    .then(|| ClientInformation::new(client, client.connected_at, now))
            },
        )))
    }
}

impl Channel {
    pub(crate) fn list_queues(&self, page: &Page) -> Result<Reply, Rejection> {
        let after = cursor(page, |text| text.parse::<u16>().ok())?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(Reply::Queues(page.take(
            self.queues.range((begin, Bound::Unbounded)),
            |(id, _)| id.to_string().into(),
            |(_, queue)| Some(queue.information(&self.members)),
        )))
    }

    /// Looks at the places of all consumers, but describes only those of the page.
    pub(crate) fn list_consumers(&self, page: &Page, now: Timestamp) -> Result<Reply, Rejection> {
        let after = cursor(page, read_place)?;
        let partial = self.members.partial().iter().map(|partial| &partial.member);
        let members = self.members.list().iter().chain(partial).map(|member| (place(None, member), member));
        let subscribers = self
            .queues
            .iter()
            .flat_map(|(id, queue)| queue.subscriptions().map(|member| (place(Some(*id), member), member)));
        let is_next = |(place, _): &(ConsumerPlace, &Member)| after.is_none_or(|after| *place > after);
        let mut entries: Vec<_> = members.chain(subscribers).filter(is_next).collect();
        // One more than the page, which shows that there is another one.
        let count = page.max.min(PAGE_ENTRIES_MAX) + 1;
        if entries.len() > count {
            entries.select_nth_unstable_by_key(count, |(place, _)| *place);
            entries.truncate(count);
        }
        entries.sort_unstable_by_key(|(place, _)| *place);
        Ok(Reply::Clients(page.take(
            entries.into_iter(),
            |((queue, joined_at, connection, tag), _)| {
                format!("{queue}-{joined_at}-{connection}-{tag}").into()
            },
            |(_, member)| Some(ClientInformation::new(&member.consumer.client, member.joined_at, now)),
        )))
    }
}

/// Where a consumer is in the list of its channel: 0 or the number behind its queue's id, when it joined, its
/// connection, and its subscription.
type ConsumerPlace = (u32, u64, u64, u32);

/// The place of a member of the channel, or of a subscriber of a queue.
fn place(queue: Option<u16>, member: &Member) -> ConsumerPlace {
    let (ConnectionId(connection), Tag(tag)) = member.consumer.key();
    (queue.map_or(0, |id| u32::from(id) + 1), member.joined_at.0, connection, tag)
}

fn read_place(text: &str) -> Option<ConsumerPlace> {
    let mut numbers = text.split('-').map(|number| number.parse::<u64>().ok());
    let (queue, joined_at) = (numbers.next()??, numbers.next()??);
    let (connection, tag) = (numbers.next()??, numbers.next()??);
    let place = (queue.try_into().ok()?, joined_at, connection, tag.try_into().ok()?);
    numbers.next().is_none().then_some(place)
}
