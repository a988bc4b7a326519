//! Effects on other shards of the server: messages that change their queue, forwarded commands, and receipts for both.

use std::sync::Arc;

use mqcore_broker::model::effect::{Effect, Forwarded};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::transfer::{ArrivedMessage, Transfer, TransferEnd};
use mqcore_broker::shard::Broker;

use crate::hub::Hub;
use crate::shard::inbox::{SharedRoom, Urgent};

/// Effects for other shards, collected until they are sent together.
pub(crate) struct PeerShards {
    shard: usize,
    /// Messages for queues of other shards, by shard.
    transfers: Vec<Vec<Transfer>>,
    /// How transfers to this shard ended, by the shard that the message comes from.
    transferred: Vec<Vec<TransferEnd>>,
    /// Moved messages that this shard has settled, by the shard of their new queue.
    released: Vec<Vec<ArrivedMessage>>,
    /// Commands, by shard.
    forwards: Vec<Vec<Forwarded>>,
    /// Room in the inbox taken by the batches that `forwards` come from.
    rooms: Vec<SharedRoom>,
    placement: Placement,
}

impl PeerShards {
    pub(crate) fn new(shard: usize, placement: Placement) -> Self {
        let shards = placement.shards();
        Self {
            shard,
            transfers: vec![Vec::new(); shards],
            transferred: vec![Vec::new(); shards],
            released: vec![Vec::new(); shards],
            forwards: vec![Vec::new(); shards],
            rooms: Vec::new(),
            placement,
        }
    }

    pub(crate) fn transfer(&mut self, transfer: Transfer) {
        let shard = transfer.to.channel.shard(self.placement);
        self.transfers[shard].push(transfer);
    }

    pub(crate) fn transferred(&mut self, end: TransferEnd) {
        if let Some(shard) = end.shard() {
            self.transferred[shard].push(end);
        }
    }

    pub(crate) fn release(&mut self, arrival: ArrivedMessage) {
        self.released[arrival.shard].push(arrival);
    }

    pub(crate) fn forward(&mut self, shard: usize, forwarded: Forwarded) {
        self.forwards[shard].push(forwarded);
    }

    /// Keeps the room of a batch until the other shards are done with their parts of it.
    pub(crate) fn keep_room(&mut self, room: Option<&SharedRoom>) {
        if let Some(room) = room
            && !self.rooms.last().is_some_and(|last| Arc::ptr_eq(last, room))
        {
            self.rooms.push(Arc::clone(room));
        }
    }

    /// Keeps the room of commands that another shard forwarded and this one forwards again.
    pub(crate) fn extend_rooms(&mut self, rooms: &[SharedRoom]) {
        self.rooms.extend(rooms.iter().cloned());
    }

    /// Sends everything collected. Effects on this very shard are applied at once.
    pub(crate) fn send(&mut self, broker: &mut Broker, now: Timestamp, effects: &mut Vec<Effect>, hub: &Hub) {
        for (shard, transfers) in self.transfers.iter_mut().enumerate() {
            if transfers.is_empty() {
                continue;
            }
            if shard == self.shard {
                for transfer in transfers.drain(..) {
                    broker.transfer(transfer, now, effects);
                }
            } else {
                hub.moved();
                hub.shards[shard].send_urgent(Urgent::Transfers(std::mem::take(transfers)));
            }
        }
        self.send_forwards(broker, now, effects, hub);
        for (shard, ends) in self.transferred.iter_mut().enumerate() {
            if !ends.is_empty() {
                hub.moved();
                hub.shards[shard].send_urgent(Urgent::Transferred(std::mem::take(ends)));
            }
        }
        for (shard, arrivals) in self.released.iter_mut().enumerate() {
            if !arrivals.is_empty() {
                hub.moved();
                hub.shards[shard].send_urgent(Urgent::Released(std::mem::take(arrivals)));
            }
        }
    }

    fn send_forwards(&mut self, broker: &mut Broker, now: Timestamp, effects: &mut Vec<Effect>, hub: &Hub) {
        let mut rooms: Option<Arc<[SharedRoom]>> = None;
        for (shard, forwards) in self.forwards.iter_mut().enumerate() {
            if forwards.is_empty() {
                continue;
            }
            if shard == self.shard {
                for forwarded in forwards.drain(..) {
                    broker.forwarded(forwarded, now, effects);
                }
                continue;
            }
            let rooms = rooms.get_or_insert_with(|| self.rooms.drain(..).collect());
            hub.moved();
            let sent = Urgent::Forwarded(std::mem::take(forwards), Arc::clone(rooms));
            hub.shards[shard].send_urgent(sent);
        }
        self.rooms.clear();
    }
}
