//! Declarations and requests of the program that runs the broker and of its admin side, and the answers that they wait for.

use std::collections::HashMap;
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{ConnectionId, RequestId};
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::time::Timestamp;
use tokio::sync::oneshot;

/// The connection of the program. No socket has this ID.
pub(crate) const CONNECTION: ConnectionId = ConnectionId(u64::MAX - 1);

/// The receiver of the answer to a request or declaration.
pub(crate) type ProgramReply = oneshot::Sender<Result<Reply, Rejection>>;

/// The requests of the program to one shard that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct ProgramRequests {
    /// Made for the first one: most programs request nothing.
    client: Option<Arc<Client>>,
    last: u32,
    waiting: HashMap<RequestId, ProgramReply>,
}

impl ProgramRequests {
    /// The client that makes a request, and the id of its request.
    pub(crate) fn begin(&mut self, reply: ProgramReply) -> (Arc<Client>, RequestId) {
        self.last = self.last.wrapping_add(1);
        let id = RequestId(self.last);
        self.waiting.insert(id, reply);
        let client = self.client.get_or_insert_with(program);
        (Arc::clone(client), id)
    }

    /// Takes an event for [`CONNECTION`]: the answer to a request.
    pub(crate) fn end(&mut self, event: Event) {
        let Event::Answered(id, result) = event else { return };
        if let Some(reply) = self.waiting.remove(&id) {
            // The caller may have gone; then nothing needs the answer.
            let _ = reply.send(result);
        }
    }
}

fn program() -> Arc<Client> {
    Arc::new(Client {
        connection: CONNECTION,
        id: "*program*".into(),
        authenticated: true,
        name: None,
        kind: None,
        protocol: "tmqp",
        admin: true,
        user: None,
        connected_at: Timestamp(0),
        data: None,
    })
}
