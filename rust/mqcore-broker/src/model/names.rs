//! The names of all channels and queues of a broker, and who created them. Its shards share them, so that each can
//! check a name that belongs to another one. Only creating, removing and naming a queue reads or changes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::client::Client;
use crate::model::id::{ChannelName, ConnectionId, QueueAddress};
use crate::model::rejection::{Rejection, RejectionKind};

/// Default of [`CreationLimits::channels_per_user_max`] and [`CreationLimits::queues_per_user_max`].
pub const CREATED_PER_USER_MAX: usize = 16_384;

/// How many channels and queues a user or token may have created, or a connection without a login. Declarations of the
/// program do not count, and neither do channels and queues that existed when the broker started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreationLimits {
    /// Maximum number of channels. Default 16,384.
    pub channels_per_user_max: usize,
    /// Maximum number of queues. Default 16,384.
    pub queues_per_user_max: usize,
}

impl Default for CreationLimits {
    fn default() -> Self {
        Self { channels_per_user_max: CREATED_PER_USER_MAX, queues_per_user_max: CREATED_PER_USER_MAX }
    }
}

/// The names of all channels and queues of a broker, without regard to case.
#[derive(Debug, Default)]
pub struct BrokerNames {
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    channels: HashMap<Box<str>, ChannelNames>,
    /// The numbers of existing channels and queues of each creator.
    created: HashMap<Creator, Created>,
}

#[derive(Debug, Default)]
struct ChannelNames {
    creator: Option<Creator>,
    /// The ids of its queues and their creators.
    queues: HashMap<u16, Option<Creator>>,
}

/// The client that a channel or queue counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Creator {
    User(Arc<str>),
    Connection(ConnectionId),
}

impl Creator {
    fn of(client: &Client) -> Self {
        match &client.user {
            Some(user) => Self::User(Arc::clone(user)),
            None => Self::Connection(client.connection),
        }
    }
}

#[derive(Debug, Default)]
struct Created {
    channels: usize,
    queues: usize,
}

/// A limit that a new channel or queue would exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameLimit {
    /// That of all channels of the broker.
    Channels(u32),
    /// That of what a client has created, with a description of the client.
    Created { by: Box<str>, what: &'static str, limit: usize },
}

impl NameLimit {
    /// The rejection that tells the client.
    pub(crate) fn rejection(&self) -> Rejection {
        let reason = match self {
            Self::Channels(limit) => {
                format!("the limit of {limit} channels is reached; remove a channel or raise the limit")
            }
            Self::Created { by, what, limit } => format!(
                "{by} has created {limit} {what} (limit: {limit}); remove some of them, or raise {what}_per_user_max"
            ),
        };
        Rejection::new(RejectionKind::LimitExceeded, reason)
    }
}

impl Names {
    /// Fails if the creator may have no more queues.
    fn check_queue(&self, creator: Option<&Creator>, limit: usize) -> Result<(), NameLimit> {
        let queues =
            creator.and_then(|creator| self.created.get(creator)).map_or(0, |created| created.queues);
        check(creator, queues, "queues", limit)
    }

    fn release(&mut self, creator: Option<Creator>, count: impl FnOnce(&mut Created) -> &mut usize) {
        let Some(creator) = creator else { return };
        if let Some(created) = self.created.get_mut(&creator) {
            *count(created) -= 1;
            if created.channels + created.queues == 0 {
                self.created.remove(&creator);
            }
        }
    }
}

fn check(creator: Option<&Creator>, count: usize, what: &'static str, limit: usize) -> Result<(), NameLimit> {
    let Some(creator) = creator.filter(|_| count >= limit) else { return Ok(()) };
    let by = match creator {
        Creator::User(user) => format!("user {user:?}").into(),
        Creator::Connection(_) => "this connection".into(),
    };
    Err(NameLimit::Created { by, what, limit })
}

impl BrokerNames {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a channel, unless it is known. `creator`: the client that it counts for. Fails if there are `limit` channels (0:
    /// no limit), or if the creator may have no more of them.
    pub(crate) fn add_channel(
        &self,
        name: &ChannelName,
        creator: Option<&Client>,
        limit: u32,
        limits: &CreationLimits,
    ) -> Result<(), NameLimit> {
        let mut names = self.names();
        if names.channels.contains_key(&folded(name)) {
            return Ok(());
        }
        if limit > 0 && names.channels.len() >= limit as usize {
            return Err(NameLimit::Channels(limit));
        }
        let creator = creator.map(Creator::of);
        if let Some(creator) = &creator {
            let channels = names.created.get(creator).map_or(0, |created| created.channels);
            check(Some(creator), channels, "channels", limits.channels_per_user_max)?;
            names.created.entry(creator.clone()).or_default().channels += 1;
        }
        names.channels.insert(folded(name), ChannelNames { creator, queues: HashMap::new() });
        Ok(())
    }

    /// Adds a channel that counts for no client.
    pub(crate) fn restore_channel(&self, name: &ChannelName) {
        self.names().channels.entry(folded(name)).or_default();
    }

    /// Removes a channel with its queues.
    pub(crate) fn remove_channel(&self, name: &ChannelName) {
        let mut names = self.names();
        let Some(channel) = names.channels.remove(&folded(name)) else { return };
        names.release(channel.creator, |created| &mut created.channels);
        for creator in channel.queues.into_values() {
            names.release(creator, |created| &mut created.queues);
        }
    }

    /// Fails if the creator may have no more queues.
    pub(crate) fn check_queue(
        &self,
        creator: Option<&Client>,
        limits: &CreationLimits,
    ) -> Result<(), NameLimit> {
        let creator = creator.map(Creator::of);
        self.names().check_queue(creator.as_ref(), limits.queues_per_user_max)
    }

    /// Adds a queue. `creator`: the client that it counts for. Fails if the creator may have no more of them.
    pub(crate) fn add_queue(
        &self,
        queue: &QueueAddress,
        creator: Option<&Client>,
        limits: &CreationLimits,
    ) -> Result<(), NameLimit> {
        let mut names = self.names();
        let creator = creator.map(Creator::of);
        names.check_queue(creator.as_ref(), limits.queues_per_user_max)?;
        if let Some(creator) = &creator {
            names.created.entry(creator.clone()).or_default().queues += 1;
        }
        let queues = &mut names.channels.entry(folded(&queue.channel)).or_default().queues;
        let replaced = queues.insert(queue.id, creator).flatten();
        names.release(replaced, |created| &mut created.queues);
        Ok(())
    }

    /// Adds a queue that counts for no client.
    pub(crate) fn restore_queue(&self, queue: &QueueAddress) {
        let mut names = self.names();
        let queues = &mut names.channels.entry(folded(&queue.channel)).or_default().queues;
        let replaced = queues.insert(queue.id, None).flatten();
        names.release(replaced, |created| &mut created.queues);
    }

    /// Removes a queue.
    pub(crate) fn remove_queue(&self, queue: &QueueAddress) {
        let mut names = self.names();
        let channel = names.channels.get_mut(&folded(&queue.channel));
        if let Some(creator) = channel.and_then(|channel| channel.queues.remove(&queue.id)) {
            names.release(creator, |created| &mut created.queues);
        }
    }

    /// Whether the channel exists.
    pub fn has_channel(&self, name: &ChannelName) -> bool {
        self.names().channels.contains_key(&folded(name))
    }

    /// Whether the queue exists.
    pub fn has_queue(&self, queue: &QueueAddress) -> bool {
        let names = self.names();
        names
            .channels
            .get(&folded(&queue.channel))
            .is_some_and(|channel| channel.queues.contains_key(&queue.id))
    }
}

fn folded(name: &ChannelName) -> Box<str> {
    name.as_str().to_ascii_lowercase().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;

    const LIMITS: CreationLimits = CreationLimits { channels_per_user_max: 2, queues_per_user_max: 3 };

    fn client(connection: u64, user: Option<&str>) -> Client {
        Client {
            connection: ConnectionId(connection),
            id: "c".into(),
            authenticated: user.is_some(),
            name: None,
            kind: None,
            protocol: "tmqp",
            user: user.map(Into::into),
            admin: false,
            connected_at: Timestamp(0),
            data: None,
        }
    }

    fn address(text: &str) -> QueueAddress {
        QueueAddress::parse(text).unwrap()
    }

    fn add(names: &BrokerNames, queue: &str, creator: &Client) -> bool {
        let queue = address(queue);
        names.add_channel(&queue.channel, Some(creator), 0, &LIMITS).is_ok()
            && names.add_queue(&queue, Some(creator), &LIMITS).is_ok()
    }

    #[test]
    fn connections_of_a_user_share_a_budget_and_removing_gives_it_back() {
        let names = BrokerNames::default();
        let (first, second) = (client(1, Some("ann")), client(2, Some("ann")));
        assert!(add(&names, "a/1", &first));
        assert!(add(&names, "b/1", &second));
        assert!(!add(&names, "c/1", &first), "two channels");
        assert!(add(&names, "a/2", &first));
        assert!(!add(&names, "a/3", &second), "three queues");
        assert!(add(&names, "c/1", &client(3, Some("bob"))));
        names.remove_queue(&address("A/1"));
        assert!(add(&names, "c/2", &first), "one queue was removed, and the channel is known");
        names.remove_channel(&address("a/1").channel);
        assert!(add(&names, "d/1", &first));
        for channel in ["b/1", "c/1", "d/1"] {
            names.remove_channel(&address(channel).channel);
        }
        assert!(names.names().created.is_empty());
    }

    #[test]
    fn connections_without_a_login_have_budgets_of_their_own() {
        let names = BrokerNames::default();
        for connection in 1..=2 {
            let anonymous = client(connection, None);
            for queue in 1..=3 {
                assert!(add(&names, &format!("of-{connection}/{queue}"), &anonymous));
            }
            assert!(!add(&names, &format!("of-{connection}/4"), &anonymous));
        }
    }

    #[test]
    fn restored_names_and_those_of_the_program_count_for_no_client() {
        let names = BrokerNames::default();
        let ann = client(1, Some("ann"));
        for queue in 1..=10 {
            names.restore_queue(&address(&format!("old/{queue}")));
            names.add_queue(&address(&format!("own/{queue}")), None, &LIMITS).unwrap();
        }
        assert!(add(&names, "old/11", &ann));
        names.restore_queue(&address("old/11"));
        assert_eq!(names.names().created.get(&Creator::of(&ann)).map(|created| created.queues), None);
    }

    #[test]
    fn rejections_name_the_limit_and_the_option() {
        let names = BrokerNames::default();
        let ann = client(1, Some("ann"));
        for queue in 1..=3 {
            assert!(add(&names, &format!("a/{queue}"), &ann));
        }
        let limit = names.check_queue(Some(&ann), &LIMITS).unwrap_err();
        assert_eq!(
            limit.rejection().reason,
            "user \"ann\" has created 3 queues (limit: 3); remove some of them, or raise queues_per_user_max"
        );
        assert_eq!(names.check_queue(None, &LIMITS), Ok(()));
    }
}
