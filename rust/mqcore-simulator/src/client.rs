//! Clients that speak TMQP, MQKS and MicroMessage2 over simulated connections, and report to the oracle.

mod body;
mod eventmq;
mod micromessage;
mod mqks;
pub(crate) mod throttr;
mod tmqp;

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::Status;
use mqcore_session::any::{ListenerTerms, Protocol};
use mqcore_session::eventmq::listener::{EventmqTerms, Role};
use mqcore_session::throttr::listener::ThrottrTerms;
use mqcore_testkit::Random;
use mqcore_wire::codec::Limits;
use mqcore_wire::mqks::Lines;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::ACCEPTED;

use crate::agenda::Due;
use crate::client::body::message_id;
use crate::client::eventmq::EventMqSide;
use crate::client::micromessage::MicroMessageSide;
use crate::network::Side;
use crate::oracle::labels::SeenPublish;
use crate::scenario::{
    ClientRole, ConsumerBehavior, PublishTerms, RouteKind, Scenario, SimulatedClient, SimulatedRoute, Target,
};
use crate::scene::Scene;
use crate::time::Micros;

/// The listener of EventMQ's subscribers.
const EVENTMQ_SUBSCRIBER: ListenerTerms = ListenerTerms::Eventmq(EventmqTerms { role: Role::Subscribe });
/// Maximum time until a subscription has reached the broker.
const SUBSCRIPTION_TRANSIT: Micros = 1_000_000;
/// Pause after a pull from an empty queue.
const EMPTY_PAUSE: Micros = 200_000;

/// One client over all its connections.
pub(crate) struct SimulatedPeer {
    index: usize,
    terms: SimulatedClient,
    /// Its queue; of a route's client, the first one of the route.
    channel: String,
    queue_id: u16,
    queue_status: Status,
    /// The queue drops duplicates.
    deduplicates: bool,
    /// The route and its index.
    route: Option<(usize, SimulatedRoute)>,
    /// The addresses of the route's queues.
    addresses: Vec<String>,
    /// It pulls messages.
    pulls: bool,
    random: Random,
    link: Option<Link>,
    /// What it has published: numbers and sizes of bodies.
    published: Vec<(u32, usize, PublishTerms)>,
    /// It settles everything at once.
    pub(crate) is_diligent: bool,
}

/// Its current connection.
struct Link {
    id: ConnectionId,
    unread: Vec<u8>,
    sent: u64,
    dialect: Dialect,
    /// It may publish, or is a consumer.
    is_ready: bool,
    is_paused: bool,
    /// Pending settlements by time and number.
    work: BTreeMap<(Micros, u64), Work>,
    /// Deliveries so far.
    deliveries: u64,
    /// When it pulls next; `None`: it waits for the end of a pull.
    next_pull: Option<Micros>,
    /// When it pulled last.
    pulled: Micros,
    /// Requests for definitions that are not answered yet, and whether all that are answered saved something.
    undefined: usize,
    has_defined: bool,
}

/// The state of a conversation.
enum Dialect {
    Tmqp { is_greeted: bool },
    Mqks(Lines),
    MicroMessage(Box<MicroMessageSide>),
    EventMq(Box<EventMqSide>),
    Throttr,
}

/// A message to settle.
struct Work {
    label: u32,
    handle: MessageHandle,
    positive: bool,
}

/// How a consumer names a message when it settles it.
enum MessageHandle {
    Id(Box<[u8]>),
    Receipt(u32),
}

/// Something that the broker sent.
enum Received {
    /// It has accepted the client, which sends these bytes next.
    Greeted(Vec<u8>),
    Ready,
    Refused(String),
    /// A definition exists; whether by this request.
    Defined {
        is_new: bool,
    },
    Answers {
        labels: Vec<u32>,
        part: usize,
        confirmed: bool,
    },
    Delivery {
        label: u32,
        handle: MessageHandle,
        intact: bool,
        repeated: bool,
    },
    PullEnd {
        is_empty: bool,
    },
    /// A cache's message and whether it is intact, or that there is none.
    Cached(Option<(u32, bool)>),
    /// The client has to answer with these bytes.
    Ping(Vec<u8>),
    Other,
}

impl SimulatedPeer {
    pub(crate) fn new(index: usize, scenario: &Scenario) -> Self {
        let terms = scenario.clients[index].clone();
        let route = match terms.role {
            ClientRole::Producer(Target::Route(route)) | ClientRole::Subscriber(route) => Some(route),
            _ => None,
        };
        let queue = match terms.role {
            ClientRole::Producer(Target::Queue(queue)) | ClientRole::Consumer(queue, _) => queue,
            _ => route.map_or(0, |route| scenario.routes[route].queues[0]),
        };
        let route = route.map(|route| (route, scenario.routes[route].clone()));
        let of_route = route.iter().flat_map(|(_, route)| &route.queues);
        let addresses = of_route.map(|queue| scenario.queues[*queue].address.clone()).collect();
        let queue = &scenario.queues[queue];
        let (channel, id) = queue.address.split_once('/').unwrap_or((&queue.address, "0"));
        let random = Random::new(scenario.seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self {
            index,
            channel: channel.to_owned(),
            queue_id: id.parse().unwrap_or_default(),
            queue_status: queue.status,
            deduplicates: queue.deduplicates,
            route,
            addresses,
            pulls: terms.role.consumer().is_some() && matches!(queue.status, Status::Pull | Status::Cache),
            random,
            link: None,
            published: Vec::new(),
            is_diligent: false,
            terms,
        }
    }

    /// The listener to which it connects.
    pub(crate) fn listener(&self) -> ListenerTerms {
        match self.terms.protocol {
            Protocol::Eventmq => ListenerTerms::Eventmq(EventmqTerms { role: self.role() }),
            Protocol::Throttr => {
                ListenerTerms::Throttr(ThrottrTerms { dialect: throttr::DIALECT, ..ThrottrTerms::default() })
            }
            protocol => ListenerTerms::of(protocol),
        }
    }

    fn role(&self) -> Role {
        match self.terms.role {
            ClientRole::Producer(_) => Role::Frontend,
            ClientRole::Consumer(..) => Role::Backend,
            ClientRole::Subscriber(_) => Role::Subscribe,
        }
    }

    pub(crate) fn is_consumer_of(&self, queue: usize) -> bool {
        matches!(self.terms.role, ClientRole::Consumer(of, _) if of == queue)
    }

    pub(crate) fn link(&self) -> Option<ConnectionId> {
        self.link.as_ref().map(|link| link.id)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_ready)
    }

    /// The connection is gone.
    pub(crate) fn lost(&mut self, id: ConnectionId) {
        self.link.take_if(|link| link.id == id);
    }

    pub(crate) fn set_paused(&mut self, is_paused: bool, scene: &mut Scene) {
        let Some(link) = &mut self.link else { return };
        link.is_paused = is_paused;
        if is_paused {
            scene.oracle.doubt(link.id);
        }
        self.read(scene);
    }

    /// Begins a connection that the broker has accepted.
    pub(crate) fn connect(&mut self, id: ConnectionId, scene: &mut Scene) {
        let limit = |habits: ConsumerBehavior| if self.pulls { u32::MAX } else { habits.prefetch };
        scene.oracle.opened(id, self.terms.role.consumer().map_or(0, limit));
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
            Protocol::Throttr => (Dialect::Throttr, Vec::new()),
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

    /// The client's id, different for each connection: the broker may not have noticed the end of the previous one.
    fn name(&self) -> String {
        format!("c{}-{}", self.index, self.link.as_ref().map_or(0, |link| link.id.0))
    }

    /// The event to which an MQKS client publishes.
    fn event(&self) -> String {
        match (&self.route, self.terms.role) {
            (Some((index, route)), _) => route.name(*index),
            (None, ClientRole::Producer(Target::Queue(queue))) => format!("event{queue}"),
            _ => String::new(),
        }
    }

    fn address(&self) -> String {
        format!("{}/{}", self.channel, self.queue_id)
    }

    fn queue(&self) -> (&str, u16) {
        (&self.channel, self.queue_id)
    }

    fn begin_mqks(&self, name: &str) -> Vec<u8> {
        match self.terms.role {
            ClientRole::Consumer(_, behavior) => mqks::consume(name, &self.address(), behavior.prefetch),
            // Its route is bound by others. The queue of this line has no other use.
            _ if self.route.is_some() => mqks::bind(&self.address(), &format!("unused{}", self.index)),
            _ => mqks::bind(&self.address(), &self.event()),
        }
    }

    /// Begins to consume or to publish, after the greeting.
    fn begin(&mut self, scene: &mut Scene) {
        let bytes = match self.terms.protocol {
            Protocol::MicroMessage => self.begin_micromessage(),
            Protocol::Eventmq => self.begin_eventmq(),
            Protocol::Throttr => self.begin_throttr(),
            _ => match (self.terms.role, &self.route) {
                (ClientRole::Consumer(_, behavior), _) => tmqp::join(self.queue(), behavior.prefetch),
                (ClientRole::Subscriber(_), Some((index, route))) => tmqp::subscribe(&route.name(*index)),
                (_, Some((index, route))) => {
                    let addresses: Vec<&str> = self.addresses.iter().map(|address| &**address).collect();
                    let (bytes, count) = tmqp::define(route, *index, &addresses);
                    self.link.iter_mut().for_each(|link| link.undefined = count);
                    bytes
                }
                _ => Vec::new(),
            },
        };
        let is_unanswered = bytes.is_empty() || self.listener() == EVENTMQ_SUBSCRIBER;
        self.send(&bytes, scene);
        if is_unanswered {
            self.ready(scene);
        }
    }

    fn begin_eventmq(&self) -> Vec<u8> {
        match (self.terms.role, &self.route) {
            (ClientRole::Consumer(..), _) => EventMqSide::inform(&self.address()),
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

    /// The broker has accepted what it begins with.
    fn ready(&mut self, scene: &mut Scene) {
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
            ClientRole::Producer(_) => {}
        }
        if self.pulls {
            self.pull(scene);
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

    /// A definition is answered.
    fn define(&mut self, is_new: bool, scene: &mut Scene) {
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

    /// Publishes a message, if the connection is ready for it.
    pub(crate) fn publish(&mut self, size: usize, terms: PublishTerms, scene: &mut Scene) {
        let ClientRole::Producer(target) = self.terms.role else { return };
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready) else { return };
        if matches!(&link.dialect, Dialect::MicroMessage(side) if !side.has_room()) {
            return;
        }
        let has_terms = matches!(link.dialect, Dialect::Tmqp { .. });
        let terms = if has_terms { terms } else { PublishTerms::default() };
        let is_answered = !matches!(link.dialect, Dialect::EventMq(_) | Dialect::Throttr);
        let publish = SeenPublish { target, link: link.id, terms, size, is_answered };
        let label = scene.oracle.published(publish, scene.now);
        scene.note(format_args!("client {} publishes {}", self.index, message_id(label, 0)));
        self.published.push((label, size, terms));
        self.send_message(label, size, terms, scene);
    }

    /// Publishes its latest messages again, if its queue drops duplicates.
    pub(crate) fn republish(&mut self, count: u32, scene: &mut Scene) {
        let is_direct = self.route.is_none() && self.deduplicates;
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready && is_direct) else { return };
        if !matches!(link.dialect, Dialect::Tmqp { .. }) {
            return;
        }
        let id = link.id;
        let from = self.published.len().saturating_sub(count as usize);
        for (label, size, terms) in self.published[from..].to_vec() {
            scene.note(format_args!("client {} publishes {} again", self.index, message_id(label, 0)));
            scene.oracle.republished(label, id);
            self.send_message(label, size, terms, scene);
        }
    }

    fn send_message(&mut self, label: u32, size: usize, terms: PublishTerms, scene: &mut Scene) {
        let (address, event, body) = (self.address(), self.event(), body::body(label, size));
        let others: Vec<&str> = self.addresses.iter().skip(1).map(|address| &**address).collect();
        let Some(link) = &mut self.link else { return };
        let bytes = match (&mut link.dialect, &self.route) {
            (Dialect::MicroMessage(side), None) => side.publish(label, &address, &body),
            (Dialect::MicroMessage(side), Some((index, route))) => {
                side.publish(label, &format!("topic/{}", route.name(*index)), &body)
            }
            (Dialect::Mqks(_), _) => mqks::publish(&event, label, &body),
            (Dialect::EventMq(_), None) => EventMqSide::request(&address, label, &body),
            (Dialect::EventMq(_), Some((index, route))) => {
                EventMqSide::publish(&route.name(*index), label, &body)
            }
            (Dialect::Throttr, _) => throttr::publish(&event, &body),
            (Dialect::Tmqp { .. }, route) => {
                let destination = match route {
                    None => tmqp::Destination::Queue(&self.channel, self.queue_id),
                    Some((index, route)) => match route.kind {
                        RouteKind::Topic { .. } => tmqp::Destination::Topic(route.name(*index)),
                        RouteKind::Router(_) => tmqp::Destination::Router(route.name(*index)),
                        RouteKind::Copies => tmqp::Destination::Copies(&self.channel, self.queue_id, &others),
                    },
                };
                tmqp::publish(&destination, label, terms, &body)
            }
        };
        self.send(&bytes, scene);
    }

    fn pull(&mut self, scene: &mut Scene) {
        let Some(behavior) = self.terms.role.consumer() else { return };
        let bytes = tmqp::pull(self.queue(), behavior.prefetch);
        self.link.iter_mut().for_each(|link| link.pulled = scene.now);
        self.send(&bytes, scene);
    }

    fn pull_later(&mut self, pause: Micros, scene: &mut Scene) {
        if let Some(link) = &mut self.link {
            let at = scene.now + pause;
            link.next_pull = Some(at);
            scene.agenda.add(at, Due::Client(self.index));
        }
    }

    /// Settles what it has worked on long enough, and pulls if it is time.
    pub(crate) fn work(&mut self, scene: &mut Scene) {
        if let Some(link) = &mut self.link
            && link.next_pull.take_if(|at| *at <= scene.now).is_some()
        {
            self.pull(scene);
        }
        while let Some(link) = &mut self.link
            && let Some(first) = link.work.first_entry().filter(|first| first.key().0 <= scene.now)
        {
            let work = first.remove();
            self.settle(&work, scene);
        }
    }

    fn settle(&mut self, work: &Work, scene: &mut Scene) {
        let Work { label, handle, positive } = work;
        let name = self.name();
        let Some(link) = &mut self.link else { return };
        let bytes = match (&mut link.dialect, handle) {
            (Dialect::MicroMessage(side), MessageHandle::Receipt(receipt)) => {
                side.settle(*receipt, *positive)
            }
            (Dialect::Mqks(_), MessageHandle::Id(id)) => mqks::settle(&name, id, *positive),
            (Dialect::EventMq(_), MessageHandle::Id(id)) => EventMqSide::settle(id, *positive),
            (Dialect::Tmqp { .. }, MessageHandle::Id(id)) => tmqp::acknowledge(self.queue(), id, *positive),
            _ => return,
        };
        let verb = if *positive { "acks" } else { "nacks" };
        scene.note(format_args!("client {} {verb} {}", self.index, message_id(*label, 0)));
        self.send(&bytes, scene);
        let Some(link) = &self.link else { return };
        scene.oracle.settled(*label, link.id, *positive, link.sent);
        if matches!(link.dialect, Dialect::EventMq(_)) {
            self.send(&EventMqSide::ready(1), scene);
        }
    }

    fn send(&mut self, bytes: &[u8], scene: &mut Scene) {
        if let Some(link) = &mut self.link {
            link.sent += bytes.len() as u64;
            scene.send(link.id, Side::Client, bytes);
        }
    }

    // ---- Input -------------------------------------------------------------------------------------------------

    /// Reads everything that has arrived, unless it is paused.
    pub(crate) fn read(&mut self, scene: &mut Scene) {
        let Some(link) = self.link.as_mut().filter(|link| !link.is_paused) else { return };
        if let Some(bytes) = scene.network.read(link.id, Side::Client, usize::MAX) {
            scene.freed.push(link.id);
            link.unread.extend_from_slice(&bytes);
        }
        while let Some(received) = self.next_received() {
            self.take(received, scene);
        }
    }

    fn next_received(&mut self) -> Option<Received> {
        let limits = Limits::default();
        let link = self.link.as_mut()?;
        let (received, size) = match &mut link.dialect {
            Dialect::MicroMessage(side) => side.next(&link.unread, &limits)?,
            Dialect::EventMq(side) => side.next(&link.unread, &limits)?,
            Dialect::Throttr => throttr::next(&link.unread, &limits)?,
            Dialect::Mqks(lines) => {
                let next = lines.next(&link.unread, &limits);
                let (line, size) = next.expect("the broker sends valid lines")?;
                (mqks::received(line), size)
            }
            Dialect::Tmqp { is_greeted: true } => {
                let next = mqcore_wire::tmqp::decode(&link.unread, &limits);
                let (frame, size) = next.expect("the broker sends valid frames")?;
                (tmqp::received(&frame, Some(self.queue_status)), size)
            }
            Dialect::Tmqp { is_greeted } => {
                let answer = hello::answer(&link.unread, &limits);
                let (frame, size) = answer.expect("the broker greets")?;
                *is_greeted = frame.content_type == ACCEPTED;
                let refused = || Received::Refused(String::from_utf8_lossy(frame.payload).into_owned());
                (if *is_greeted { Received::Greeted(Vec::new()) } else { refused() }, size)
            }
        };
        link.unread.drain(..size);
        Some(received)
    }

    fn take(&mut self, received: Received, scene: &mut Scene) {
        let Some(link) = &mut self.link else { return };
        match received {
            Received::Greeted(bytes) => {
                self.send(&bytes, scene);
                self.begin(scene);
            }
            Received::Defined { is_new } => self.define(is_new, scene),
            Received::Ready => self.ready(scene),
            Received::PullEnd { is_empty } => {
                let habits = self.terms.role.consumer().map_or(0, |habits| habits.work_micros);
                let pause = match (is_empty, self.is_diligent) {
                    (true, _) => EMPTY_PAUSE,
                    (false, true) => 0,
                    (false, false) => self.random.below(habits + 1),
                };
                self.pull_later(pause, scene);
            }
            Received::Refused(why) => {
                let text = format!("client {} is refused: {why}", self.index);
                scene.oracle.refused(text);
            }
            Received::Cached(found) => {
                let (asked, label) = (link.pulled, found.map(|(label, _)| label));
                if let ClientRole::Consumer(queue, _) = self.terms.role {
                    let shown = label.map_or("nothing".to_owned(), |label| message_id(label, 0));
                    scene.note(format_args!("client {} reads {shown} from a cache", self.index));
                    scene.oracle.cached(queue, label, asked);
                }
                if found.is_some_and(|(_, intact)| !intact) {
                    scene.oracle.find("phantom", "a cache has another body".to_owned());
                }
                self.pull_later(EMPTY_PAUSE, scene);
            }
            Received::Answers { labels, part, confirmed } => {
                let verb = if confirmed { "confirmed" } else { "rejected" };
                for label in labels {
                    scene.note(format_args!("message {label}.{part} is {verb}"));
                    scene.oracle.answered(label, part, confirmed, scene.now);
                }
            }
            Received::Delivery { label, handle, intact, repeated } => {
                if !intact {
                    scene.oracle.find("phantom", format!("message {label} has another body"));
                }
                self.receive(label, handle, repeated, scene);
            }
            Received::Ping(answer) => self.send(&answer, scene),
            Received::Other => {}
        }
    }

    fn receive(&mut self, label: u32, handle: MessageHandle, repeated: bool, scene: &mut Scene) {
        let Some(link) = &self.link else { return };
        let (id, name) = (link.id, message_id(label, 0));
        match self.terms.role {
            ClientRole::Subscriber(route) => {
                scene.note(format_args!("client {} hears {name}", self.index));
                scene.oracle.heard(label, Target::Route(route), id);
                if matches!(handle, MessageHandle::Receipt(_)) {
                    self.settle(&Work { label, handle, positive: true }, scene);
                }
            }
            ClientRole::Consumer(queue, _) => {
                let how = if scene.oracle.is_of(label, queue) { "" } else { ", a dead letter" };
                scene.note(format_args!("client {} receives {name}{how}", self.index));
                scene.oracle.delivered(label, queue, id, repeated, scene.now);
                self.decide(label, handle, scene);
            }
            ClientRole::Producer(_) => scene.oracle.find("phantom", format!("a producer receives {name}")),
        }
    }

    /// Decides how and when to settle a message.
    fn decide(&mut self, label: u32, handle: MessageHandle, scene: &mut Scene) {
        let Some(habits) = self.terms.role.consumer() else { return };
        if self.is_diligent {
            return self.settle(&Work { label, handle, positive: true }, scene);
        }
        let choice = self.random.below(100);
        if choice < habits.ignores {
            return;
        }
        let positive = choice >= habits.ignores + habits.rejects;
        let at = scene.now + self.random.below(habits.work_micros + 1);
        if let Some(link) = &mut self.link {
            link.deliveries += 1;
            link.work.insert((at, link.deliveries), Work { label, handle, positive });
            scene.agenda.add(at, Due::Client(self.index));
        }
    }
}

/// A delivered message. Its body has its number, because brokers choose the ids of messages of some protocols.
fn delivery(handle: MessageHandle, found: &[u8], repeated: bool) -> Received {
    let (label, intact) = body::read(found);
    Received::Delivery { label, handle, intact, repeated }
}

fn by_id(id: &[u8], found: &[u8], repeated: bool) -> Received {
    delivery(MessageHandle::Id(id.into()), found, repeated)
}

fn cached(found: &[u8]) -> Received {
    let (label, intact) = body::read(found);
    Received::Cached(Some((label, intact)))
}
