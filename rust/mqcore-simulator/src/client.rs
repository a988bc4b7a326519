//! Clients that speak TMQP, MQKS and MicroMessage2 over simulated connections, and report to the oracle.

mod micromessage;

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::Status;
use mqcore_session::any::Protocol;
use mqcore_testkit::Random;
use mqcore_wire::codec::Limits;
use mqcore_wire::mqks::answer::{AnswerResult, delivered, parse};
use mqcore_wire::mqks::{Lines, encode_request};
use mqcore_wire::tmqp::header::{VALUE_YES, header_value, key, no_content, push_header};
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::{ACCEPTED, Operation, status};
use mqcore_wire::tmqp::{self, Frame, Kind};

use crate::agenda::Due;
use crate::client::micromessage::MicroMessageSide;
use crate::network::Side;
use crate::scenario::{ConsumerBehavior, PublishTerms, SimulatedClient, SimulatedQueue};
use crate::scene::Scene;
use crate::time::Micros;

/// Pause after a pull from an empty queue.
const EMPTY_PAUSE: Micros = 200_000;

/// One client over all its connections.
pub(crate) struct SimulatedPeer {
    index: usize,
    terms: SimulatedClient,
    channel: String,
    queue_id: u16,
    /// It pulls messages.
    pulls: bool,
    random: Random,
    link: Option<Link>,
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
}

/// The state of a conversation.
enum Dialect {
    Tmqp { is_greeted: bool },
    Mqks(Lines),
    MicroMessage(Box<MicroMessageSide>),
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
    Answers {
        labels: Vec<u32>,
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
    Ping,
    Other,
}

impl SimulatedPeer {
    pub(crate) fn new(index: usize, terms: SimulatedClient, queue: &SimulatedQueue, seed: u64) -> Self {
        let (channel, id) = queue.address.split_once('/').unwrap_or((&queue.address, "0"));
        let random = Random::new(seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self {
            index,
            channel: channel.to_owned(),
            queue_id: id.parse().unwrap_or_default(),
            pulls: terms.consumer.is_some() && queue.status == Status::Pull,
            random,
            link: None,
            is_diligent: false,
            terms,
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.terms.protocol
    }

    pub(crate) fn is_consumer_of(&self, queue: usize) -> bool {
        self.terms.queue == queue && self.terms.consumer.is_some()
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
        scene.oracle.opened(id, self.terms.consumer.map_or(0, limit));
        let name = format!("c{}-{}", self.index, id.0);
        let (dialect, opening) = match self.terms.protocol {
            Protocol::Mqks => (Dialect::Mqks(Lines::new()), self.begin_mqks(&name)),
            Protocol::MicroMessage => {
                let (side, opening) = MicroMessageSide::open(&name);
                (Dialect::MicroMessage(Box::new(side)), opening)
            }
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
        });
        self.send(&opening, scene);
    }

    /// The client's id, different for each connection: the broker may not have noticed the end of the previous one.
    fn name(&self) -> String {
        format!("c{}-{}", self.index, self.link.as_ref().map_or(0, |link| link.id.0))
    }

    fn event(&self) -> String {
        format!("event{}", self.terms.queue)
    }

    fn address(&self) -> String {
        format!("{}/{}", self.channel, self.queue_id)
    }

    fn begin_mqks(&self, name: &str) -> Vec<u8> {
        let (address, mut lines) = (self.address(), Vec::new());
        match self.terms.consumer {
            Some(habits) => {
                let prefetch = habits.prefetch.to_string();
                encode_request(b"p", "prefetch", false, &[name.as_bytes(), prefetch.as_bytes()], &mut lines);
                let consume: [&[u8]; 2] = [address.as_bytes(), b"--manual-ack"];
                encode_request(name.as_bytes(), "consume", true, &consume, &mut lines);
            }
            None => {
                let event = self.event();
                let bind: [&[u8]; 3] = [address.as_bytes(), b"--add", event.as_bytes()];
                encode_request(b"b", "rebind", true, &bind, &mut lines);
            }
        }
        lines
    }

    /// Begins to consume or to publish, after the greeting.
    fn begin(&mut self, scene: &mut Scene) {
        if self.terms.protocol == Protocol::MicroMessage {
            let address = self.address();
            let command = match self.terms.consumer {
                Some(habits) => {
                    let prefetch = habits.prefetch.to_string();
                    let arguments: [(&str, &[u8]); 3] = [
                        ("destination", address.as_bytes()),
                        ("id", b"s"),
                        ("prefetch", prefetch.as_bytes()),
                    ];
                    MicroMessageSide::command("subscribe", &arguments)
                }
                None => MicroMessageSide::command("ping", &[("id", b"p")]),
            };
            return self.send(&command, scene);
        }
        match self.terms.consumer {
            Some(habits) => self.join(habits.prefetch, scene),
            None => self.link.iter_mut().for_each(|link| link.is_ready = true),
        }
    }

    fn join(&mut self, prefetch: u32, scene: &mut Scene) {
        let mut headers = Vec::new();
        let lines = [(key::QUEUE_IDS, self.queue_id.to_string()), (key::PREFETCH, prefetch.to_string())];
        for (name, value) in &lines {
            push_header(&mut headers, name, value.as_bytes()).expect("a plain header");
        }
        let frame = Frame {
            pending_response: true,
            content_type: Operation::JoinChannel.code(),
            id: b"join",
            target: self.channel.as_bytes(),
            headers: &headers,
            ..Frame::new(Kind::SERVER)
        };
        let mut bytes = Vec::new();
        tmqp::encode(&frame, &mut bytes);
        self.send(&bytes, scene);
    }

    /// Publishes a message, if the connection is ready for it.
    pub(crate) fn publish(&mut self, size: usize, terms: PublishTerms, scene: &mut Scene) {
        let (address, event) = (self.address(), self.event());
        let Some(link) = self.link.as_mut().filter(|link| link.is_ready) else { return };
        if matches!(&link.dialect, Dialect::MicroMessage(side) if !side.has_room()) {
            return;
        }
        let has_terms = matches!(link.dialect, Dialect::Tmqp { .. });
        let terms = if has_terms { terms } else { PublishTerms::default() };
        let label = scene.oracle.published(self.terms.queue, link.id, terms, scene.now);
        let (id, body) = (message_id(label), body(label, size));
        scene.note(format_args!("client {} publishes {id}", self.index));
        let mut bytes = Vec::new();
        match &mut link.dialect {
            Dialect::MicroMessage(side) => bytes = side.publish(label, &address, &body),
            Dialect::Mqks(_) => {
                let data: [&[u8]; 2] = [event.as_bytes(), body.as_bytes()];
                encode_request(id.as_bytes(), "publish", true, &data, &mut bytes);
            }
            Dialect::Tmqp { .. } => {
                let headers = headers_of(terms);
                let frame = Frame {
                    pending_acknowledge: true,
                    content_type: self.queue_id,
                    id: id.as_bytes(),
                    target: self.channel.as_bytes(),
                    headers: &headers,
                    payload: body.as_bytes(),
                    ..Frame::new(Kind::QUEUE)
                };
                tmqp::encode(&frame, &mut bytes);
            }
        }
        self.send(&bytes, scene);
    }

    fn pull(&mut self, scene: &mut Scene) {
        let Some(habits) = self.terms.consumer else { return };
        let count = habits.prefetch.to_string();
        let mut headers = Vec::new();
        for (name, value) in [(key::COUNT, &*count), (key::ATTEMPT, VALUE_YES)] {
            push_header(&mut headers, name, value.as_bytes()).expect("a plain header");
        }
        let frame = Frame {
            content_type: self.queue_id,
            id: b"pull",
            target: self.channel.as_bytes(),
            headers: &headers,
            ..Frame::new(Kind::PULL)
        };
        let mut bytes = Vec::new();
        tmqp::encode(&frame, &mut bytes);
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
            (Dialect::Mqks(_), MessageHandle::Id(id)) => {
                let (mut bytes, action) = (Vec::new(), if *positive { "ack" } else { "reject" });
                encode_request(b"a", action, false, &[name.as_bytes(), id], &mut bytes);
                bytes
            }
            (Dialect::Tmqp { .. }, MessageHandle::Id(id)) => self.acknowledgement(id, *positive),
            _ => return,
        };
        let verb = if *positive { "acks" } else { "nacks" };
        scene.note(format_args!("client {} {verb} {}", self.index, message_id(*label)));
        self.send(&bytes, scene);
        if let Some(link) = &self.link {
            scene.oracle.settled(*label, link.id, *positive, link.sent);
        }
    }

    fn acknowledgement(&self, id: &[u8], positive: bool) -> Vec<u8> {
        let (mut headers, mut bytes) = (Vec::new(), Vec::new());
        if !positive {
            push_header(&mut headers, key::NACK_REASON, b"no").expect("a plain header");
        }
        let frame = Frame {
            content_type: self.queue_id,
            id,
            target: self.channel.as_bytes(),
            headers: &headers,
            ..Frame::new(Kind::ACKNOWLEDGE)
        };
        tmqp::encode(&frame, &mut bytes);
        bytes
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
            Dialect::Mqks(lines) => {
                let next = lines.next(&link.unread, &limits);
                let (line, size) = next.expect("the broker sends valid lines")?;
                (line_received(line), size)
            }
            Dialect::Tmqp { is_greeted: true } => {
                let next = tmqp::decode(&link.unread, &limits);
                let (frame, size) = next.expect("the broker sends valid frames")?;
                (frame_received(&frame), size)
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
            Received::Ready => {
                link.is_ready = true;
                if self.pulls {
                    self.pull(scene);
                }
            }
            Received::PullEnd { is_empty } => {
                let habits = self.terms.consumer.map_or(0, |habits| habits.work_micros);
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
            Received::Answers { labels, confirmed } => {
                let verb = if confirmed { "confirmed" } else { "rejected" };
                for label in labels {
                    scene.note(format_args!("message {label} is {verb}"));
                    scene.oracle.answered(label, confirmed);
                }
            }
            Received::Delivery { label, handle, intact, repeated } => {
                let how = if scene.oracle.is_of(label, self.terms.queue) { "" } else { ", a dead letter" };
                scene.note(format_args!("client {} receives {}{how}", self.index, message_id(label)));
                if !intact {
                    scene.oracle.find("phantom", format!("message {label} has another body"));
                }
                scene.oracle.delivered(label, self.terms.queue, link.id, repeated, scene.now);
                self.decide(label, handle, scene);
            }
            Received::Ping => self.send(&tmqp::PONG, scene),
            Received::Other => {}
        }
    }

    /// Decides how and when to settle a message.
    fn decide(&mut self, label: u32, handle: MessageHandle, scene: &mut Scene) {
        let Some(habits) = self.terms.consumer else { return };
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

fn message_id(label: u32) -> String {
    format!("m{label}")
}

fn headers_of(terms: PublishTerms) -> Vec<u8> {
    let mut headers = Vec::new();
    let wanted = [
        (key::DELAY, terms.delay_ms),
        (key::EXPIRES_IN, terms.expires_ms),
        (key::PRIORITY, u64::from(terms.priority)),
    ];
    for (name, value) in wanted.into_iter().filter(|(_, value)| *value > 0) {
        push_header(&mut headers, name, value.to_string().as_bytes()).expect("a plain header");
    }
    headers
}

fn label_of(id: &[u8]) -> Option<u32> {
    std::str::from_utf8(id).ok()?.strip_prefix('m')?.parse().ok()
}

/// The body of a message: its number and size, and filler that follows from them.
fn body(label: u32, size: usize) -> String {
    let filler = char::from(b'a' + (label % 26) as u8);
    format!("{label}:{size}:{}", filler.to_string().repeat(size))
}

/// Whether a body is the one that was published under this number.
fn is_intact(label: u32, found: &[u8]) -> bool {
    let size = std::str::from_utf8(found).ok().and_then(|text| text.split(':').nth(1)?.parse().ok());
    size.is_some_and(|size| body(label, size).as_bytes() == found)
}

/// A delivered message. Its body has its number, because brokers choose the ids of messages of some protocols.
fn delivery(handle: MessageHandle, body: &[u8], repeated: bool) -> Received {
    let number = body.split(|byte| *byte == b':').next();
    let label = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
    let intact = label.is_some_and(|label| is_intact(label, body));
    Received::Delivery { label: label.unwrap_or(u32::MAX), handle, intact, repeated }
}

fn by_id(id: &[u8], body: &[u8], repeated: bool) -> Received {
    delivery(MessageHandle::Id(id.into()), body, repeated)
}

fn line_received(line: &[u8]) -> Received {
    let Some(answer) = parse(line) else { return Received::Other };
    match (answer.said, label_of(answer.id)) {
        (AnswerResult::Done(_), Some(label)) => Received::Answers { labels: vec![label], confirmed: true },
        (AnswerResult::Failed(_), Some(label)) => Received::Answers { labels: vec![label], confirmed: false },
        (AnswerResult::Done(data), None) => match delivered(data) {
            Some(message) => by_id(message.message, message.data, message.retry > 0),
            None if data.is_empty() => Received::Ready,
            None => Received::Other,
        },
        (AnswerResult::Failed(error), None) => {
            Received::Refused(format!("error {}", String::from_utf8_lossy(error)))
        }
    }
}

fn frame_received(frame: &Frame<'_>) -> Received {
    match frame.kind {
        Kind::PING => Received::Ping,
        Kind::RESPONSE if frame.id == b"join" && frame.content_type == status::OK => Received::Ready,
        Kind::RESPONSE if frame.id == b"join" => {
            Received::Refused(String::from_utf8_lossy(frame.headers).into_owned())
        }
        Kind::ACKNOWLEDGE => match label_of(frame.id) {
            Some(label) => {
                let confirmed = header_value(frame.headers, key::NACK_REASON).is_none();
                Received::Answers { labels: vec![label], confirmed }
            }
            None => Received::Other,
        },
        Kind::QUEUE => match header_value(frame.headers, key::NO_CONTENT) {
            Some(reason) => Received::PullEnd { is_empty: reason != no_content::END.as_bytes() },
            None => {
                let attempt = header_value(frame.headers, key::ATTEMPT);
                let repeated = attempt.is_some_and(|attempt| attempt != b"1");
                by_id(frame.id, frame.payload, repeated)
            }
        },
        _ => Received::Other,
    }
}
