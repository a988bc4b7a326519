//! Joining as a worker.

use std::sync::Arc;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::subscription::{QueueSubscription, Settling, Terms as SubscriptionTerms};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::{self, EmqpCommand, encode_heartbeat, queues};

use super::{EventmqSession, HEARTBEAT_INTERVAL, Part, deny};
use crate::eventmq::pending::RequestSubject;
use crate::eventmq::worker::Work;
use crate::session::SessionError;

impl EventmqSession {
    pub(super) fn join(
        &mut self,
        id: &[u8],
        listed: &[u8],
        counts: bool,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let listed = queues::parse(listed).map_err(|mistake| mistake.to_string())?;
        match &self.part {
            Part::None => {}
            Part::Worker(work) if work.worker().queues == listed => {
                self.acknowledge(id, now, output);
                return Ok(());
            }
            _ => return Err("a worker cannot change its queues; open a new connection".to_owned()),
        }
        let mut addresses = Vec::new();
        for queue in &listed {
            let address = QueueAddress::parse(&queue.name)
                .map_err(|error| format!("{:?} cannot be a queue: {error}", queue.name))?;
            addresses.push(address);
        }
        let weights: Vec<_> = listed.iter().map(|queue| queue.weight).collect();
        let slots = self.exchange.new_slots();
        let connection = self.config.connection;
        let user = self.client.as_ref().and_then(|client| client.user.clone());
        let named = (&*self.identity, user);
        let registration = self.exchange.join_worker(connection, named, listed, slots, now);
        let work = Box::new(Work::new(&self.exchange, registration, addresses, counts));
        for (served, weight) in work.served().iter().zip(weights) {
            let terms = SubscriptionTerms {
                settling: Settling::Explicit,
                weight,
                slots: Some(Arc::clone(work.slots())),
                ..SubscriptionTerms::default()
            };
            let subscription = QueueSubscription {
                queue: served.address.clone(),
                tag: served.tag,
                terms,
                create: Some(Box::new(self.exchange.made_for_jobs())),
                name: None,
                binding: None,
                notify_self: false,
            };
            let number = self.pending.expect(RequestSubject::Subscription, 1);
            commands
                .push(Command::Request(number, Box::new(Request::SubscribeQueue(Box::new(subscription)))));
        }
        let open = work.served().len();
        self.part = Part::Joining { id: id.into(), work, open, slots: 0 };
        Ok(())
    }

    /// One of a worker's queues has answered; after the last answer the worker has joined.
    pub(super) fn subscribed(
        &mut self,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let Part::Joining { open, .. } = &mut self.part else { return Ok(()) };
        if let Err(rejection) = answer {
            // Otherwise it would wait forever for queues that it cannot subscribe to.
            deny(&rejection, output);
            return Err(SessionError::Misbehaved(rejection.to_string().into()));
        }
        *open -= 1;
        if *open == 0
            && let Part::Joining { id, mut work, slots, .. } = std::mem::replace(&mut self.part, Part::None)
        {
            self.acknowledge(&id, now, output);
            for _ in 0..slots {
                work.ready();
            }
            work.announce_room(&mut self.wanted);
            self.part = Part::Worker(work);
        }
        Ok(())
    }

    /// Confirms that a peer has joined, and sends a heartbeat: the original's workers start after the first one.
    pub(super) fn acknowledge(&mut self, id: &[u8], now: Timestamp, output: &mut Vec<u8>) {
        eventmq::EmqpMessage { id: self.ids.next(), command: EmqpCommand::Ack(id) }.encode(output);
        self.heartbeat(now, output);
    }

    pub(super) fn heartbeat(&mut self, now: Timestamp, output: &mut Vec<u8>) {
        encode_heartbeat(self.ids.next(), now.0, output);
        self.heartbeat_at = now.after(HEARTBEAT_INTERVAL);
    }

    pub(super) fn reply(&mut self, body: &[u8], request: Option<&[u8]>, output: &mut Vec<u8>) {
        let command = EmqpCommand::Reply { body, request };
        eventmq::EmqpMessage { id: self.ids.next(), command }.encode(output);
    }
}
