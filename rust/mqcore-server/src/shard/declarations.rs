//! Declarations of the program that runs the broker, and the answers that it waits for.

use std::collections::HashMap;
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::declaration::Declared;
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{ConnectionId, RequestId};
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::time::Timestamp;
use tokio::sync::oneshot;

/// The connection of the program. No socket has this ID.
pub(crate) const CONNECTION: ConnectionId = ConnectionId(u64::MAX - 1);

/// The receiver of the result of a declaration.
pub(crate) type DeclarationReply = oneshot::Sender<Result<Declared, Rejection>>;

/// The declarations of one shard that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    /// Made for the first one: most programs declare nothing.
    client: Option<Arc<Client>>,
    last: u32,
    waiting: HashMap<RequestId, DeclarationReply>,
}

impl Declarations {
    /// The client that makes a declaration, and the id of its request.
    pub(crate) fn begin(&mut self, reply: DeclarationReply) -> (Arc<Client>, RequestId) {
        self.last = self.last.wrapping_add(1);
        let id = RequestId(self.last);
        self.waiting.insert(id, reply);
        let client = self.client.get_or_insert_with(program);
        (Arc::clone(client), id)
    }

    /// Takes an event for [`CONNECTION`]: the answer to a declaration.
    pub(crate) fn end(&mut self, event: Event) {
        let Event::Answered(id, result) = event else { return };
        let Some(reply) = self.waiting.remove(&id) else { return };
        let result = match result {
            Ok(Reply::Declared(declared)) => Ok(declared),
            Ok(_) => Ok(Declared::Unchanged),
            Err(rejection) => Err(rejection),
        };
        // The caller may have gone; then nothing needs the answer.
        let _ = reply.send(result);
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
