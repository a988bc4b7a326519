//! Clients that speak the broker's protocols over simulated connections, and report to the oracle.

mod body;
mod eventmq;
mod job_requests;
mod jobs;
mod limits;
mod micromessage;
mod mqks;
mod node;
mod opening;
mod publishing;
mod throttr;
mod tmqp;

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::Status;
use mqcore_testkit::Random;
use mqcore_wire::codec::Limits;
use mqcore_wire::mqks::Lines;
use mqcore_wire::tmqp::hello;
use mqcore_wire::tmqp::operation::ACCEPTED;

use crate::agenda::Due;
use crate::client::body::message_id;
use crate::client::eventmq::EventMqSide;
use crate::client::jobs::{JobEvent, JobWork};
use crate::client::micromessage::MicroMessageSide;
use crate::network::Side;
use crate::oracle::limits::LimitReply;
use crate::oracle::schedules::RunDelivery;
use crate::scenario::limits::SimulatedLimit;
use crate::scenario::schedules::SimulatedSchedule;
use crate::scenario::{ClientRole, PublishTerms, Scenario, SimulatedClient, SimulatedRoute, Target};
use crate::scene::Scene;
use crate::time::Micros;

/// Pause after a pull from an empty queue.
const EMPTY_PAUSE: Micros = 200_000;
/// The connection that counts as the producer of the first node's messages. No real one has such a number.
const NODES: u64 = u64::MAX / 2;

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
    /// It returns what it has not settled when it leaves.
    returns: bool,
    /// How many of the jobs that it requests with the same key run at a time.
    concurrency: Option<u32>,
    /// The route and its index.
    route: Option<(usize, SimulatedRoute)>,
    /// The addresses of the route's queues.
    addresses: Vec<String>,
    /// The limit that it uses.
    limit: Option<SimulatedLimit>,
    /// The schedule that it requests.
    schedule: Option<SimulatedSchedule>,
    /// As a worker, it asks for the number of each attempt.
    counts: bool,
    /// Its jobs have terms of their own.
    varies_jobs: bool,
    /// The jobs that it has requested, and those of each flow by its first one.
    jobs: Vec<u32>,
    flows: BTreeMap<u32, Vec<u32>>,
    /// Its messages, if it is a downstream broker.
    log: Option<node::NodeLog>,
    /// The connection that counts as the producer of a node's messages, which it sends over several connections.
    producer: ConnectionId,
    /// It pulls messages.
    pulls: bool,
    random: Random,
    link: Option<Link>,
    /// The published messages: number, size of the body and terms.
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
    /// Jobs whose results the broker keeps, by the time and number of their reports.
    jobs: BTreeMap<(Micros, u64), JobWork>,
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
    Limit(Box<limits::LimitSide>),
    Node { is_accepted: bool },
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
    /// A run of a schedule.
    Run {
        run: RunDelivery,
        handle: MessageHandle,
    },
    /// Something about a job whose result the broker keeps.
    Job(JobEvent),
    /// The broker has confirmed a node's messages up to this number.
    Accepted(u64),
    /// An answer to the client of a limit.
    Limit(LimitReply),
    /// The client has to answer with these bytes.
    Ping(Vec<u8>),
    Other,
}

impl SimulatedPeer {
    pub(crate) fn new(index: usize, scenario: &Scenario) -> Self {
        let terms = scenario.clients[index].clone();
        let limit = match terms.role {
            ClientRole::Limited(limit) => Some(scenario.limits[limit]),
            _ => None,
        };
        let route = match terms.role {
            ClientRole::Producer(Target::Route(route)) | ClientRole::Subscriber(route) => Some(route),
            _ => None,
        };
        let schedule = match terms.role {
            ClientRole::Planner(schedule) => Some(scenario.schedules[schedule]),
            _ => None,
        };
        let queue = match terms.role {
            ClientRole::Producer(Target::Queue(queue)) | ClientRole::Consumer(queue, _) => queue,
            ClientRole::Planner(schedule) => scenario.schedules[schedule].queue,
            ClientRole::Requester(queue) => queue,
            _ => route.map_or(0, |route| scenario.routes[route].queues[0]),
        };
        let log = matches!(terms.role, ClientRole::Node).then(|| node::NodeLog::new(scenario.forwarded()));
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
            returns: scenario.is_crowded(),
            concurrency: queue.concurrency,
            route,
            addresses,
            limit,
            schedule,
            counts: scenario.jobs.is_some() && index.is_multiple_of(2),
            varies_jobs: scenario.varies_jobs(),
            jobs: Vec::new(),
            flows: BTreeMap::new(),
            log,
            producer: ConnectionId(NODES - index as u64),
            pulls: terms.role.consumer().is_some() && matches!(queue.status, Status::Pull | Status::Cache),
            random,
            link: None,
            published: Vec::new(),
            is_diligent: false,
            terms,
        }
    }

    /// It requests jobs.
    pub(crate) fn is_requester(&self) -> bool {
        matches!(self.terms.role, ClientRole::Requester(_))
    }

    pub(crate) fn is_consumer_of(&self, queue: usize) -> bool {
        matches!(self.terms.role, ClientRole::Consumer(of, _) if of == queue)
    }

    /// The connection that counts as the producer of its messages, if it is a node.
    pub(crate) fn node_producer(&self) -> Option<ConnectionId> {
        self.is_node().then_some(self.producer)
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
            scene.oracle.doubt(link.id, scene.now);
        }
        self.read(scene);
    }

    /// The client's id, different for each connection: the broker may not have noticed the end of the previous one.
    fn name(&self) -> String {
        format!("c{}-{}", self.index, self.link.as_ref().map_or(0, |link| link.id.0))
    }

    fn address(&self) -> String {
        format!("{}/{}", self.channel, self.queue_id)
    }

    fn queue(&self) -> (&str, u16) {
        (&self.channel, self.queue_id)
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
        self.report_jobs(scene);
    }

    /// Returns the messages that it works on, as a consumer does that closes with messages which no program has seen.
    pub(crate) fn return_unsettled(&mut self, scene: &mut Scene) {
        let is_tmqp = |link: &&mut Link| matches!(link.dialect, Dialect::Tmqp { .. });
        let Some(link) = self.link.as_mut().filter(is_tmqp).filter(|_| self.returns && !self.pulls) else {
            return;
        };
        let id = link.id;
        // The newest goes first, because each is put before all others.
        for work in std::mem::take(&mut link.work).into_values().rev() {
            let MessageHandle::Id(handle) = work.handle else { continue };
            scene.note(format_args!("client {} returns {}", self.index, message_id(work.label, 0)));
            let bytes = tmqp::return_unstarted(self.queue(), &handle);
            self.send(&bytes, scene);
            scene.oracle.settled(work.label, id, false, self.link.as_ref().map_or(0, |link| link.sent));
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
            Dialect::Limit(side) => side.next(&link.unread, &limits)?,
            Dialect::Node { is_accepted } => node::next(&link.unread, is_accepted)?,
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
            Received::Run { run, handle } => {
                if let Some(label) = scene.run_delivered(run) {
                    self.receive(label, handle, true, scene);
                }
            }
            Received::Job(event) => self.take_job(event, scene),
            Received::Accepted(through) => self.confirm(through, scene),
            Received::Limit(reply) => self.take_limit(reply, scene),
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
            ClientRole::Producer(_)
            | ClientRole::Limited(_)
            | ClientRole::Planner(_)
            | ClientRole::Requester(_)
            | ClientRole::Node => {
                scene.oracle.find("phantom", format!("a client that does not consume receives {name}"));
            }
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
