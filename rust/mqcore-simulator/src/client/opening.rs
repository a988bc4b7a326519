//! How a client begins a connection, in each protocol.

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_session::any::{ListenerTerms, Protocol};
use mqcore_session::eventmq::listener::{EventmqTerms, Role};
use mqcore_session::throttr::listener::ThrottrTerms;
use mqcore_wire::mqks::Lines;
use mqcore_wire::tmqp::hello::{self, Hello};

use super::eventmq::EventMqSide;
use super::limits::LimitSide;
use super::micromessage::MicroMessageSide;
use super::{Dialect, Link, SimulatedPeer, mqks, throttr, tmqp};
use crate::scenario::{ClientRole, ConsumerBehavior, Target};
use crate::scene::Scene;
use crate::time::Micros;

/// The listener of EventMQ's subscribers.
const EVENTMQ_SUBSCRIBER: ListenerTerms = ListenerTerms::Eventmq(EventmqTerms { role: Role::Subscribe });
/// Maximum time until a subscription has reached the broker.
const SUBSCRIPTION_TRANSIT: Micros = 1_000_000;

impl SimulatedPeer {
    /// The listener to which it connects.
    pub(crate) fn listener(&self) -> ListenerTerms {
        match self.terms.protocol {
            Protocol::Eventmq => ListenerTerms::Eventmq(EventmqTerms { role: self.role() }),
            Protocol::Throttr => {
                let persist = self.limit.is_some_and(|limit| limit.persists);
                let dialect = throttr::DIALECT;
                ListenerTerms::Throttr(ThrottrTerms { dialect, persist, ..ThrottrTerms::default() })
            }
            protocol => ListenerTerms::of(protocol),
        }
    }

    fn role(&self) -> Role {
        match self.terms.role {
            ClientRole::Producer(_)
            | ClientRole::Limited(_)
            | ClientRole::Planner(_)
            | ClientRole::Requester(_)
            | ClientRole::Node => Role::Frontend,
            ClientRole::Consumer(..) => Role::Backend,
            ClientRole::Subscriber(_) => Role::Subscribe,
        }
    }

    /// Begins a connection that the broker has accepted.
    pub(crate) fn connect(&mut self, id: ConnectionId, scene: &mut Scene) {
        let limit = |habits: ConsumerBehavior| if self.pulls { u32::MAX } else { habits.prefetch };
        scene.oracle.opened(id, self.terms.role.consumer().map_or(0, limit));
        if self.terms.protocol == Protocol::Eventmq && self.terms.role.consumer().is_some() {
            scene.oracle.works(id);
        }
        let name = format!("c{}-{}", self.index, id.0);
        let (dialect, opening) = match self.terms.protocol {
            Protocol::Mqks => (Dialect::Mqks(Lines::new()), self.begin_mqks(&name)),
            Protocol::MicroMessage => {
                let (side, opening) = MicroMessageSide::open(&name);
                (Dialect::MicroMessage(Box::new(side)), opening)
            }
            Protocol::Eventmq => {
                let (side, opening) = EventMqSide::open(self.role());
                (Dialect::EventMq(Box::new(side)), opening)
            }
            Protocol::Throttr => match (self.limit, self.terms.role) {
                (Some(limit), ClientRole::Limited(index)) => {
                    (Dialect::Limit(Box::new(LimitSide::new(index, limit))), Vec::new())
                }
                _ => (Dialect::Throttr, Vec::new()),
            },
            _ if self.is_node() => (Dialect::Node { is_accepted: false }, self.introduce(scene)),
            _ => {
                let hello = Hello { client_id: Some(&name), ..Hello::default() };
                let opening = hello::opening(&hello, b"hello").expect("a plain Hello");
                (Dialect::Tmqp { is_greeted: false }, opening)
            }
        };
        self.link = Some(Link {
            id,
            unread: Vec::new(),
            sent: 0,
            dialect,
            is_ready: false,
            is_paused: false,
            work: BTreeMap::new(),
            jobs: BTreeMap::new(),
            deliveries: 0,
            next_pull: None,
            pulled: 0,
            undefined: 0,
            has_defined: true,
        });
        self.send(&opening, scene);
        if self.terms.protocol == Protocol::Throttr {
            self.begin(scene);
        }
    }

    /// Begins to consume or to publish, after the greeting.
    pub(super) fn begin(&mut self, scene: &mut Scene) {
        let bytes = match self.terms.protocol {
            Protocol::MicroMessage => self.begin_micromessage(),
            Protocol::Eventmq => self.begin_eventmq(),
            Protocol::Throttr => self.begin_throttr(),
            _ => match (self.terms.role, &self.route) {
                (ClientRole::Consumer(_, behavior), _) => tmqp::join(self.queue(), behavior.prefetch),
                (ClientRole::Subscriber(_), Some((index, route))) => tmqp::subscribe(&route.name(*index)),
                (ClientRole::Node, _) => self.repeat(),
                (_, Some((index, route))) => {
                    let addresses: Vec<&str> = self.addresses.iter().map(|address| &**address).collect();
                    let (bytes, count) = tmqp::define(route, *index, &addresses);
                    self.link.iter_mut().for_each(|link| link.undefined = count);
                    bytes
                }
                _ => Vec::new(),
            },
        };
        let is_unanswered = bytes.is_empty() || self.listener() == EVENTMQ_SUBSCRIBER || self.is_node();
        self.send(&bytes, scene);
        if is_unanswered {
            self.ready(scene);
        }
    }

    fn begin_mqks(&self, name: &str) -> Vec<u8> {
        match self.terms.role {
            ClientRole::Consumer(_, behavior) => mqks::consume(name, &self.address(), behavior.prefetch),
            // Its route is bound by others. The queue of this line has no other use.
            _ if self.route.is_some() => mqks::bind(&self.address(), &format!("unused{}", self.index)),
            _ => mqks::bind(&self.address(), &self.event()),
        }
    }

    fn begin_micromessage(&self) -> Vec<u8> {
        match (self.terms.role, &self.route) {
            (ClientRole::Consumer(_, behavior), _) => {
                MicroMessageSide::subscribe(&self.address(), Some(behavior.prefetch))
            }
            (ClientRole::Subscriber(_), Some((index, route))) => {
                MicroMessageSide::subscribe(&format!("topic/{}", route.name(*index)), None)
            }
            _ => MicroMessageSide::command("ping", &[("id", b"p")]),
        }
    }

    fn begin_eventmq(&self) -> Vec<u8> {
        match (self.terms.role, &self.route) {
            (ClientRole::Consumer(..), _) => EventMqSide::inform(&self.address(), self.counts),
            (ClientRole::Subscriber(_), Some((index, route))) => EventMqSide::subscribe(&route.name(*index)),
            _ => Vec::new(),
        }
    }

    fn begin_throttr(&self) -> Vec<u8> {
        match (self.terms.role, &self.route) {
            (ClientRole::Subscriber(_), Some((index, route))) => throttr::subscribe(&route.name(*index)),
            _ => Vec::new(),
        }
    }

    /// A definition is answered.
    pub(super) fn define(&mut self, is_new: bool, scene: &mut Scene) {
        let Some(link) = &mut self.link else { return };
        link.has_defined &= is_new;
        link.undefined -= 1;
        if link.undefined == 0 {
            link.is_ready = true;
            if let Some((route, _)) = self.route.as_ref().filter(|_| link.has_defined) {
                scene.note(format_args!("route {route} is defined"));
                scene.oracle.defined(*route);
            }
        }
    }

    /// The broker has accepted what it begins with.
    pub(super) fn ready(&mut self, scene: &mut Scene) {
        let Some(link) = self.link.as_mut().filter(|link| !link.is_ready) else { return };
        link.is_ready = true;
        let id = link.id;
        match self.terms.role {
            ClientRole::Consumer(queue, behavior) => {
                scene.oracle.listens(id, Target::Queue(queue), scene.now);
                if self.terms.protocol == Protocol::Eventmq {
                    self.send(&EventMqSide::ready(behavior.prefetch), scene);
                }
            }
            ClientRole::Subscriber(route) => {
                // Nothing answers a subscription of EventMQ.
                let transit = if self.terms.protocol == Protocol::Eventmq { SUBSCRIPTION_TRANSIT } else { 0 };
                scene.oracle.listens(id, Target::Route(route), scene.now + transit);
            }
            ClientRole::Requester(_) => self.await_again(scene),
            ClientRole::Producer(_) | ClientRole::Limited(_) | ClientRole::Planner(_) | ClientRole::Node => {}
        }
        if self.pulls {
            self.pull(scene);
        }
    }
}
