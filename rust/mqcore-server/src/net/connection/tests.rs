//! Connections over streams that tests control, on a running server.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqcore_broker::model::client::Peer;
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::decision::{Decision, Step, Steps};
use mqcore_broker::model::effect::Question;
use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_broker::model::policy;
use mqcore_session::any::{ListenerTerms, Protocol};
use mqcore_session::micromessage::listener::MicroMessageTerms;
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::{self, Handshake};
use mqcore_wire::micromessage::{self as mm2, MessageFrame};
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::Operation;
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::time::timeout;

use super::Connection;
use crate::config::{ClockConfig, Config};
use crate::handler::{AnswerSink, HandlerPort, NoHandlers};
use crate::net::outbox::OutboxItem;
use crate::server::Server;
use crate::stats::counters::CloseReason;

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> Config {
    let queue = QueueOptions {
        status: Status::RoundRobin,
        request_acknowledge: true,
        acknowledge_timeout: 10 * PATIENCE,
        ..QueueOptions::default()
    };
    Config {
        auto_create_channels: true,
        auto_create_queues: true,
        shards: 2,
        channel: ChannelOptions { queue, ..ChannelOptions::default() },
        ..Config::default()
    }
}

async fn start(config: Config) -> Server {
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("the server starts")
}

/// Starts the task of a connection.
fn connect(
    server: &Server,
    terms: ListenerTerms,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let outbox = server.hub().registry.open_as(terms).expect("there is room");
    Connection::spawn_inside(server.hub(), stream, outbox);
}

/// Looks again and again until it holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn open_connections(server: &Server) -> usize {
    server.hub().registry.all().len()
}

async fn received(server: &Server) -> u64 {
    server.snapshot().await.queues.iter().map(|queue| queue.stats.received).sum()
}

// --- TMQP ---------------------------------------------------------------------------------------------------------------

/// The first bytes of a client.
fn opening(id: &str) -> Vec<u8> {
    hello::opening(&Hello { client_id: Some(id), ..Hello::default() }, b"hello").expect("a plain Hello")
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    tmqp::encode(frame, &mut bytes);
    bytes
}

fn push(id: &str, payload: &[u8]) -> Vec<u8> {
    encoded(&Frame { id: id.as_bytes(), target: b"orders", payload, ..Frame::new(Kind::QUEUE) })
}

fn join() -> Vec<u8> {
    encoded(&Frame {
        content_type: Operation::JoinChannel.code(),
        id: b"join",
        target: b"orders",
        pending_response: true,
        ..Frame::new(Kind::SERVER)
    })
}

/// Reads the answers until a message with this id.
async fn read_message(stream: &mut DuplexStream, input: &mut Vec<u8>, id: &str) {
    let begun = Instant::now();
    loop {
        if input.starts_with(&PREAMBLE) {
            input.drain(..PREAMBLE.len());
        }
        if let Some((frame, size)) = tmqp::decode(input, &Limits::default()).expect("sound frames") {
            let found = frame.kind == Kind::QUEUE && frame.id == id.as_bytes();
            input.drain(..size);
            if found {
                return;
            }
            continue;
        }
        assert!(begun.elapsed() < PATIENCE, "{id} never comes");
        let read = timeout(PATIENCE, stream.read_buf(input)).await.expect("in time");
        assert_ne!(read.expect("it is open"), 0, "it was closed before {id}");
    }
}

/// A peer that sends its input at once. It accepts output until it is broken, and then writes fail.
struct Broken {
    input: Vec<u8>,
    at: usize,
    /// Whether the peer closes its side behind its input.
    closes: bool,
    broken: Arc<AtomicBool>,
}

impl Broken {
    fn new(input: Vec<u8>, closes: bool, broken: bool) -> Self {
        Self { input, at: 0, closes, broken: Arc::new(AtomicBool::new(broken)) }
    }

    fn check(&self) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Broken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.input[self.at..];
        if rest.is_empty() && !self.closes {
            return Poll::Pending;
        }
        let step = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..step]);
        self.at += step;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.check().map(|()| buffer.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.check())
    }
}

/// A login and three reads full of messages.
fn pushes() -> (Vec<u8>, u64) {
    let (mut bytes, mut count) = (opening("producer"), 0);
    while bytes.len() < 3 * 64 * 1024 {
        bytes.extend_from_slice(&push(&count.to_string(), &[7; 1000]));
        count += 1;
    }
    (bytes, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_that_was_sent_before_a_write_failed_counts() {
    let server = start(config()).await;
    let (bytes, count) = pushes();
    connect(&server, ListenerTerms::of(Protocol::Tmqp), Broken::new(bytes, true, true));
    eventually("all is read, and the connection ends", async || open_connections(&server) == 0).await;
    assert_eq!(received(&server).await, count);
    assert!(server.snapshot().await.clients.is_empty());
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_accepts_no_output_and_never_closes_is_given_up() {
    let server = start(config()).await;
    let (bytes, count) = pushes();
    connect(&server, ListenerTerms::of(Protocol::Tmqp), Broken::new(bytes, false, true));
    eventually("all is read", async || received(&server).await == count).await;
    eventually("the connection ends", async || open_connections(&server) == 0).await;
    // With another one the server stops at once.
    connect(&server, ListenerTerms::of(Protocol::Tmqp), Broken::new(opening("late"), false, true));
    timeout(PATIENCE, server.stop(3 * PATIENCE)).await.expect("the stop does not wait for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_output_broke_gets_nothing_more_and_returns_what_it_had() {
    let server = start(config()).await;
    let peer = Broken::new([opening("broken"), join()].concat(), false, false);
    let broken = Arc::clone(&peer.broken);
    connect(&server, ListenerTerms::of(Protocol::Tmqp), peer);
    let mut other = server.connect_local(Protocol::Tmqp);
    other.write_all(&[opening("other"), push("first", b"x")].concat()).await.expect("it reads");
    let unsettled = async || {
        let queues = server.snapshot().await.queues;
        queues.iter().map(|queue| queue.in_flight).sum::<u64>()
    };
    eventually("the message is delivered", async || unsettled().await == 1).await;
    broken.store(true, Ordering::SeqCst);
    // The write of the second message fails. The other consumer gets it, and the first one.
    other.write_all(&[push("second", b"x"), join()].concat()).await.expect("it reads");
    let mut input = Vec::new();
    read_message(&mut other, &mut input, "first").await;
    read_message(&mut other, &mut input, "second").await;
    eventually("the connection ends", async || open_connections(&server) == 1).await;
    server.stop(Duration::ZERO).await;
}

/// Runs a connection without a task of its own until it holds.
async fn run<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: &mut Connection<S>,
    mut holds: impl FnMut(&Connection<S>) -> bool,
) {
    let begun = Instant::now();
    while !holds(connection) {
        assert!(begun.elapsed() < PATIENCE, "it never holds");
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut *connection).poll(&mut context).is_pending(), "it is open");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_does_not_copy_an_unfinished_frame() {
    let server = start(config()).await;
    let outbox = server.hub().registry.open(Protocol::Tmqp).expect("there is room");
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let mut connection =
        Connection::begin(server.hub(), ours, Arc::clone(&outbox), true, Peer::default(), true);
    theirs.write_all(&opening("uploader")).await.expect("it reads");
    let large = push("large", &[7; 1 << 20]);
    theirs.write_all(&large[..500_000]).await.expect("it reads");
    run(&mut connection, |connection| connection.input.unread.len() == 500_000).await;
    let before = connection.input.unread.as_ptr();
    for _ in 0..100 {
        let message = Bytes::from(push("x", b"delivered"));
        let bytes = message.len();
        outbox.push(&mut vec![OutboxItem::Shared(message)], bytes, 0);
        run(&mut connection, |connection| connection.taken.is_empty()).await;
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut connection).poll(&mut context).is_pending(), "it is open");
        assert_eq!(connection.input.unread.as_ptr(), before, "the frame stays where it is");
    }
    theirs.write_all(&large[500_000..]).await.expect("it reads");
    let arrived = connection.counters().bytes_in.get();
    run(&mut connection, |connection| connection.input.unread.is_empty()).await;
    assert!(connection.counters().bytes_in.get() > arrived);
    eventually("the message arrives", async || received(&server).await == 1).await;
    drop(connection);
    server.stop(Duration::ZERO).await;
}

// --- MicroMessage2 ------------------------------------------------------------------------------------------------------

/// Both messages of a client in the handshake.
fn greeting(required: &[u8]) -> Vec<u8> {
    let (identity, optional) = (&b"peer"[..], &b""[..]);
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let message = Handshake { major: 1, minor: 0, flags: 0, identity, required, optional };
        handshake::encode(&message, &mut bytes);
    }
    bytes
}

/// A client with the extension for subscriptions, over a stream without a socket.
async fn micromessage(server: &Server, terms: MicroMessageTerms) -> DuplexStream {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    connect(server, ListenerTerms::MicroMessage(Arc::new(terms)), ours);
    theirs.write_all(&greeting(b"pub-sub")).await.expect("it reads");
    theirs
}

/// A part of the first message.
fn part(continued: bool, payload: &[u8]) -> Vec<u8> {
    let (sequence, destination, properties) = (1, &b"orders"[..], &b""[..]);
    let mut bytes = Vec::new();
    let frame = MessageFrame { continued, sequence, destination, properties, payload };
    mm2::encode(&mm2::Frame::Message(frame), &mut bytes);
    bytes
}

/// Never answers.
struct Stuck;

impl HandlerPort for Stuck {
    fn ask(&self, _: Vec<Question>, _: &Arc<dyn AnswerSink>) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_gone_does_not_wait_for_its_answers() {
    let handler = HandlerSpec {
        key: "stuck".into(),
        overrides: Steps::NONE.with(Step::ReceivedFromProducer),
        base: policy::MEMORY,
        timeout: 10 * PATIENCE,
        fallback: Decision::ALLOW,
    };
    let config = Config { delivery_handler: "stuck".into(), ..config() };
    let server = Server::start(config, vec![handler], Arc::new(Stuck)).await.expect("the server starts");
    let bytes = [greeting(b"ack"), part(false, b"never confirmed")].concat();
    connect(&server, ListenerTerms::of(Protocol::MicroMessage), Broken::new(bytes, true, true));
    eventually("the handler is asked", async || server.hub().counters.handlers.open() == 1).await;
    eventually("the connection ends", async || open_connections(&server) == 0).await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_does_not_make_a_silent_peer_heard() {
    let server = start(Config { clock: ClockConfig::Manual, ..config() }).await;
    let terms = MicroMessageTerms { idle_timeout: Duration::from_secs(1), ..MicroMessageTerms::default() };
    let mut silent = micromessage(&server, terms).await;
    let mut subscribe = Vec::new();
    let payload = b"subscribe;destination=topic%2Fnews";
    mm2::encode(&mm2::Frame::Command { payload }, &mut subscribe);
    silent.write_all(&subscribe).await.expect("it reads");
    let mut producer = server.connect_local(Protocol::Tmqp);
    producer.write_all(&opening("producer")).await.expect("it reads");
    server.settle().await;
    // The first byte of a message, and nothing more.
    silent.write_all(&[0]).await.expect("it reads");
    server.settle().await;
    let news = Frame { id: b"x", target: b"@topic:news", payload: b"news", ..Frame::new(Kind::QUEUE) };
    for _ in 0..4 {
        producer.write_all(&encoded(&news)).await.expect("it reads");
        server.settle().await;
        server.advance(Duration::from_millis(300));
        server.settle().await;
    }
    assert_eq!(server.snapshot().await.topics[0].stats.delivered, 4);
    let mut said = Vec::new();
    timeout(PATIENCE, silent.read_to_end(&mut said)).await.expect("it is closed").expect("it reads");
    assert!(String::from_utf8_lossy(&said).contains("nothing came for 1s"));
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_unfinished_messages_count_as_unfinished_input() {
    let server = start(Config { unfinished_bytes_max: 4 << 20, ..config() }).await;
    let mut older = micromessage(&server, MicroMessageTerms::default()).await;
    let mut younger = micromessage(&server, MicroMessageTerms::default()).await;
    let payload = vec![7; 1 << 20];
    for peer in [&mut older, &mut younger] {
        for _ in 0..3 {
            peer.write_all(&part(true, &payload)).await.expect("it reads");
        }
    }
    let closed = server.hub().counters.of(Protocol::MicroMessage).closed(CloseReason::InputLimit);
    eventually("the older one is closed", async || closed.get() == 1).await;
    assert!(server.hub().input.clients.held() <= 4 << 20);
    younger.write_all(&part(false, &payload)).await.expect("it reads");
    eventually("the message arrives", async || received(&server).await == 1).await;
    assert_eq!((open_connections(&server), server.hub().input.clients.held()), (1, 0));
    server.stop(Duration::ZERO).await;
}

// --- Throttr ------------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_behind_a_rejected_publish_is_answered() {
    let publish_limit = Some("1/1h".parse().expect("a limit"));
    let server = start(Config { publish_limit, ..config() }).await;
    let mut peer = server.connect_local(Protocol::Throttr);
    let publish = [0x13, 1, 1, 0, b'c', b'x'];
    let channels = [0x16];
    peer.write_all(&publish).await.expect("it reads");
    timeout(PATIENCE, peer.read_exact(&mut [0])).await.expect("in time").expect("it answers");
    peer.write_all(&[&publish[..], &channels].concat()).await.expect("it reads");
    let mut answers = [7; 1 + 9];
    timeout(PATIENCE, peer.read_exact(&mut answers)).await.expect("in time").expect("it answers");
    assert_eq!(answers, [0, 1, 0, 0, 0, 0, 0, 0, 0, 0], "the publish is rejected, and there are no channels");
    server.stop(PATIENCE).await;
}
