//! Commands on their way from one connection to the shards.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Destination};
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::placement::Placement;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, TryAcquireError};

use crate::hub::Hub;
use crate::net::outbox::Outbox;
use crate::shard::inbox::{CommandBatch, Input, permits_for};

type Room = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Commands in the order in which they are sent.
#[derive(Default)]
pub(super) struct CommandQueue {
    unsent: VecDeque<Unsent>,
    /// Waits for room in the inbox of the shard of the first command.
    room: Option<Room>,
    /// A shard may know this connection and has not been notified that it is closed.
    known_to_shards: bool,
}

struct Unsent {
    shard: usize,
    permits: u32,
    batch: CommandBatch,
}

impl CommandQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Whether a shard may know this connection.
    pub(super) fn is_known_to_shards(&self) -> bool {
        self.known_to_shards
    }

    /// Makes all shards deliver nothing more to the connection.
    pub(super) fn stop_deliveries(&mut self, connection: ConnectionId, hub: &Hub) {
        // They forget that when they are notified that it is closed.
        self.known_to_shards = true;
        hub.moved();
        for handle in &hub.shards {
            handle.send(Input::Unwritable(connection));
        }
    }

    /// Notifies all shards that may know the connection that it is closed. Before that, sends `farewells`, which need no
    /// room: their number is limited by what the session holds.
    pub(super) fn close(
        &mut self,
        (outbox, client): (&Arc<Outbox>, &Arc<Client>),
        farewells: Vec<Command>,
        hub: &Hub,
    ) {
        if !std::mem::take(&mut self.known_to_shards) {
            return;
        }
        if !farewells.is_empty() {
            self.unsent.clear();
            self.add(farewells, 0, (outbox, client), hub.placement);
            for Unsent { shard, batch, .. } in self.unsent.drain(..) {
                hub.shards[shard].send(Input::Batch(batch));
            }
            self.known_to_shards = false;
        }
        for handle in &hub.shards {
            handle.send(Input::Closed(outbox.connection));
        }
    }

    /// Groups commands by shard: one batch each. `bytes` is the size of the frames that they come from.
    pub(super) fn add(
        &mut self,
        commands: Vec<Command>,
        bytes: usize,
        (outbox, client): (&Arc<Outbox>, &Arc<Client>),
        placement: Placement,
    ) {
        let Some(first) = commands.first() else { return };
        let destination = first.destination(placement);
        let alone = placement.shards() == 1
            || (destination != Destination::Every
                && commands.iter().all(|command| {
                    command.goes_with(first) || command.destination(placement) == destination
                }));
        if alone {
            let shard = if let Destination::Shard(shard) = destination { shard } else { Placement::HOME };
            return self.enqueue(shard, commands, bytes, (outbox, client));
        }
        let bytes_each = bytes / commands.len();
        let mut by_shard: Vec<Vec<Command>> = vec![Vec::new(); placement.shards()];
        for command in commands {
            match command.destination(placement) {
                Destination::Shard(shard) => by_shard[shard].push(command),
                Destination::Home => by_shard[Placement::HOME].push(command),
                Destination::Every => by_shard.iter_mut().for_each(|batch| batch.push(command.clone())),
            }
        }
        for (shard, commands) in by_shard.into_iter().enumerate() {
            if !commands.is_empty() {
                let bytes = bytes_each * commands.len();
                self.enqueue(shard, commands, bytes, (outbox, client));
            }
        }
    }

    fn enqueue(
        &mut self,
        shard: usize,
        commands: Vec<Command>,
        bytes: usize,
        (outbox, client): (&Arc<Outbox>, &Arc<Client>),
    ) {
        self.known_to_shards = true;
        let batch =
            CommandBatch { outbox: Arc::clone(outbox), client: Arc::clone(client), commands, room: None };
        self.unsent.push_back(Unsent { shard, permits: permits_for(bytes), batch });
    }

    /// Sends commands to their shards, as far as there is room. True if any was sent.
    pub(super) fn send(&mut self, hub: &Hub, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(first) = self.unsent.front() {
            let handle = &hub.shards[first.shard];
            let room = match &mut self.room {
                Some(waiting) => match waiting.as_mut().poll(context) {
                    Poll::Pending => return moved,
                    Poll::Ready(room) => room.ok(),
                },
                None => match Arc::clone(handle.room()).try_acquire_many_owned(first.permits) {
                    Ok(room) => Some(room),
                    Err(TryAcquireError::NoPermits) => {
                        let waiting = Arc::clone(handle.room()).acquire_many_owned(first.permits);
                        self.room = Some(Box::pin(waiting));
                        continue;
                    }
                    // The semaphore is never closed. If it were, the shard would have stopped, and sending would have
                    // no effect.
                    Err(TryAcquireError::Closed) => None,
                },
            };
            self.room = None;
            moved = true;
            if let Some(mut unsent) = self.unsent.pop_front() {
                unsent.batch.room = room;
                hub.moved();
                hub.shards[unsent.shard].send(Input::Batch(unsent.batch));
            }
        }
        moved
    }
}
