//! The client that publishes runs of schedules.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;

/// The connection of the publisher. No socket has this ID.
pub const CONNECTION: ConnectionId = ConnectionId(u64::MAX);

/// The client that publishes runs of schedules.
#[must_use]
pub fn client() -> Arc<Client> {
    Arc::new(Client {
        connection: CONNECTION,
        id: mqcore_broker::model::intake::SCHEDULES.into(),
        authenticated: false,
        name: None,
        kind: None,
        protocol: "emqp",
        admin: true,
        user: None,
        connected_at: Timestamp(0),
        data: None,
    })
}
