//! Clients that speak TMQP and MQKS over simulated connections, and report to the oracle.

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_session::any::Protocol;
use mqcore_testkit::Random;
use mqcore_wire::codec::Limits;
use mqcore_wire::mqks::answer::{AnswerResult, delivered, parse};
use mqcore_wire::mqks::{Lines, encode_request};
use mqcore_wire::tmqp::header::{header_value, key, push_header};
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::{ACCEPTED, Operation, status};
use mqcore_wire::tmqp::{self, Frame, Kind};

use crate::agenda::Due;
use crate::network::Side;
use crate::scenario::{PublishTerms, SimulatedClient, SimulatedQueue};
use crate::scene::Scene;
use crate::time::Micros;

/// One client over all its connections.
pub(crate) struct SimulatedPeer {
    index: usize,
    terms: SimulatedClient,
    channel: String,
    queue_id: u16,
    random: Random,
    link: Option<Link>,
    /// It settles everything at once.
    pub(crate) is_diligent: bool,
}

/// Its current connection.
struct Link {
    id: ConnectionId,
    unread: Vec<u8>,
    lines: Lines,
    sent: u64,
    is_greeted: bool,
    /// It may publish, or is a consumer.
    is_ready: bool,
    is_paused: bool,
    /// Pending settlements by time and message: whether it acknowledges.
    work: BTreeMap<(Micros, u32), bool>,
}

/// Something that the broker sent.
enum Received {
    Greeted,
    Ready,
    Refused(String),
    Answer { label: u32, confirmed: bool },
    Delivery { label: u32, intact: bool, repeated: bool },
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
            random,
            link: None,
            is_diligent: false,
            terms,
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        if self.terms.mqks { Protocol::Mqks } else { Protocol::Tmqp }
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
        scene.oracle.opened(id, self.terms.consumer.map_or(0, |habits| habits.prefetch));
        self.link = Some(Link {
            id,
            unread: Vec::new(),
            lines: Lines::new(),
            sent: 0,
            is_greeted: self.terms.mqks,
            is_ready: false,
            is_paused: false,
            work: BTreeMap::new(),
        });
        if self.terms.mqks {
            self.begin_mqks(scene);
        } else {
            let name = self.name();
            let hello = Hello { client_id: Some(&name), ..Hello::default() };
            let opening = hello::opening(&hello, b"hello").expect("a plain Hello");
            self.send(&opening, scene);
        }
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

    fn begin_mqks(&mut self, scene: &mut Scene) {
        let (name, address, mut lines) = (self.name(), self.address(), Vec::new());
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
        self.send(&lines, scene);
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
        let Some(link) = self.link.as_ref().filter(|link| link.is_ready) else { return };
        let terms = if self.terms.mqks { PublishTerms::default() } else { terms };
        let label = scene.oracle.published(self.terms.queue, link.id, terms, scene.now);
        let (id, body, mut bytes) = (message_id(label), body(label, size), Vec::new());
        scene.note(format_args!("client {} publishes {id}", self.index));
        if self.terms.mqks {
            let event = self.event();
            encode_request(id.as_bytes(), "publish", true, &[event.as_bytes(), body.as_bytes()], &mut bytes);
        } else {
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
        self.send(&bytes, scene);
    }

    /// Settles what it has worked on long enough.
    pub(crate) fn work(&mut self, scene: &mut Scene) {
        while let Some(link) = &mut self.link
            && let Some(first) = link.work.first_entry().filter(|first| first.key().0 <= scene.now)
        {
            let ((_, label), positive) = first.remove_entry();
            self.settle(label, positive, scene);
        }
    }

    fn settle(&mut self, label: u32, positive: bool, scene: &mut Scene) {
        let (id, mut bytes) = (message_id(label), Vec::new());
        if self.terms.mqks {
            let (name, action) = (self.name(), if positive { "ack" } else { "reject" });
            encode_request(b"a", action, false, &[name.as_bytes(), id.as_bytes()], &mut bytes);
        } else {
            let mut headers = Vec::new();
            if !positive {
                push_header(&mut headers, key::NACK_REASON, b"no").expect("a plain header");
            }
            let frame = Frame {
                content_type: self.queue_id,
                id: id.as_bytes(),
                target: self.channel.as_bytes(),
                headers: &headers,
                ..Frame::new(Kind::ACKNOWLEDGE)
            };
            tmqp::encode(&frame, &mut bytes);
        }
        let verb = if positive { "acks" } else { "nacks" };
        scene.note(format_args!("client {} {verb} {id}", self.index));
        self.send(&bytes, scene);
        if let Some(link) = &self.link {
            scene.oracle.settled(label, link.id, positive, link.sent);
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
        let (received, size) = if self.terms.mqks {
            let (line, size) =
                link.lines.next(&link.unread, &limits).expect("the broker sends valid lines")?;
            (line_received(line), size)
        } else if link.is_greeted {
            let (frame, size) =
                tmqp::decode(&link.unread, &limits).expect("the broker sends valid frames")?;
            (frame_received(&frame), size)
        } else {
            let (frame, size) = hello::answer(&link.unread, &limits).expect("the broker greets")?;
            let refused = || Received::Refused(String::from_utf8_lossy(frame.payload).into_owned());
            (if frame.content_type == ACCEPTED { Received::Greeted } else { refused() }, size)
        };
        link.unread.drain(..size);
        Some(received)
    }

    fn take(&mut self, received: Received, scene: &mut Scene) {
        let Some(link) = &mut self.link else { return };
        match received {
            Received::Greeted => {
                link.is_greeted = true;
                match self.terms.consumer {
                    Some(habits) => self.join(habits.prefetch, scene),
                    None => link.is_ready = true,
                }
            }
            Received::Ready => link.is_ready = true,
            Received::Refused(why) => {
                let text = format!("client {} is refused: {why}", self.index);
                scene.oracle.refused(text);
            }
            Received::Answer { label, confirmed } => {
                let verb = if confirmed { "confirmed" } else { "rejected" };
                scene.note(format_args!("message {label} is {verb}"));
                scene.oracle.answered(label, confirmed);
            }
            Received::Delivery { label, intact, repeated } => {
                let how = if scene.oracle.is_of(label, self.terms.queue) { "" } else { ", a dead letter" };
                scene.note(format_args!("client {} receives {}{how}", self.index, message_id(label)));
                if !intact {
                    scene.oracle.find("phantom", format!("message {label} has another body"));
                }
                scene.oracle.delivered(label, self.terms.queue, link.id, repeated, scene.now);
                self.decide(label, scene);
            }
            Received::Ping => self.send(&tmqp::PONG, scene),
            Received::Other => {}
        }
    }

    /// Decides how and when to settle a message.
    fn decide(&mut self, label: u32, scene: &mut Scene) {
        let Some(habits) = self.terms.consumer else { return };
        if self.is_diligent {
            return self.settle(label, true, scene);
        }
        let choice = self.random.below(100);
        if choice < habits.ignores {
            return;
        }
        let positive = choice >= habits.ignores + habits.rejects;
        let at = scene.now + self.random.below(habits.work_micros + 1);
        if let Some(link) = &mut self.link {
            link.work.insert((at, label), positive);
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

fn delivery(id: &[u8], body: &[u8], repeated: bool) -> Received {
    match label_of(id) {
        Some(label) => Received::Delivery { label, intact: is_intact(label, body), repeated },
        None => Received::Delivery { label: u32::MAX, intact: false, repeated },
    }
}

fn line_received(line: &[u8]) -> Received {
    let Some(answer) = parse(line) else { return Received::Other };
    match (answer.said, label_of(answer.id)) {
        (AnswerResult::Done(_), Some(label)) => Received::Answer { label, confirmed: true },
        (AnswerResult::Failed(_), Some(label)) => Received::Answer { label, confirmed: false },
        (AnswerResult::Done(data), None) => match delivered(data) {
            Some(message) => delivery(message.message, message.data, message.retry > 0),
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
                Received::Answer { label, confirmed: header_value(frame.headers, key::NACK_REASON).is_none() }
            }
            None => Received::Other,
        },
        Kind::QUEUE => {
            let repeated = header_value(frame.headers, key::ATTEMPT).is_some();
            delivery(frame.id, frame.payload, repeated)
        }
        _ => Received::Other,
    }
}
