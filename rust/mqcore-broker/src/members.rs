//! The consumers of a channel, in the order in which they joined.

use std::sync::Arc;

use crate::client::Client;
use crate::id::ConnectionId;
use crate::time::Timestamp;

/// One consumer.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) client: Arc<Client>,
    pub(crate) joined_at: Timestamp,
}

/// All of a channel.
#[derive(Debug)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// Their connections, in the same order: shared by all deliveries that go to everybody.
    everyone: Arc<[ConnectionId]>,
}

impl Default for Members {
    fn default() -> Self {
        Self { list: Vec::new(), everyone: Arc::new([]) }
    }
}

impl Members {
    pub(crate) fn list(&self) -> &[Member] {
        &self.list
    }

    pub(crate) fn everyone(&self) -> &Arc<[ConnectionId]> {
        &self.everyone
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn position(&self, connection: ConnectionId) -> Option<usize> {
        self.everyone.iter().position(|member| *member == connection)
    }

    /// Adds a consumer at the end; `false` if it is there already.
    pub(crate) fn join(&mut self, client: &Arc<Client>, now: Timestamp) -> bool {
        if self.position(client.connection).is_some() {
            return false;
        }
        self.list.push(Member { client: client.clone(), joined_at: now });
        self.refresh();
        true
    }

    /// Removes a consumer; tells where it stood.
    pub(crate) fn leave(&mut self, connection: ConnectionId) -> Option<usize> {
        let position = self.position(connection)?;
        self.list.remove(position);
        self.refresh();
        Some(position)
    }

    fn refresh(&mut self) {
        self.everyone = self.list.iter().map(|member| member.client.connection).collect();
    }
}
