//! Promises of the server over real sockets and in-memory connections, checked byte by byte.

use crate::peer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::decision::{Decision, Step, Steps};
use mqcore_broker::model::effect::{Answer, Question};
use mqcore_broker::model::options::{ChannelOptions, DeadLetter, QueueOptions, Status};
use mqcore_broker::model::policy;
use mqcore_server::config::{ClockConfig, Config, Protocol};
use mqcore_server::handler::{AnswerSink, HandlerPort, NoHandlers};
use mqcore_server::server::{Server, StartError};
use mqcore_wire::tmqp::hello::Hello;
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE};
use peer::{PATIENCE, Peer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn config() -> Config {
    Config {
        listeners: vec!["tmqp://127.0.0.1:0".parse().expect("a URL")],
        auto_create_channels: true,
        auto_create_queues: true,
        shards: 2,
        ..Config::default()
    }
}

fn with_status(status: Status) -> Config {
    let queue = QueueOptions { status, ..QueueOptions::default() };
    Config { channel: ChannelOptions { queue, ..ChannelOptions::default() }, ..config() }
}

async fn start(config: Config) -> Server {
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("the server starts")
}

fn address(server: &Server) -> SocketAddr {
    server.listeners()[0].address.socket().expect("it is TCP")
}

async fn dial(server: &Server, id: &str) -> Peer<TcpStream> {
    let stream = TcpStream::connect(address(server)).await.expect("it listens");
    Peer::welcome(stream, &Hello { client_id: Some(id), ..Hello::default() }).await
}

async fn local(server: &Server, id: &str) -> Peer<DuplexStream> {
    let hello = Hello { client_id: Some(id), ..Hello::default() };
    Peer::welcome(server.connect_local(Protocol::Tmqp), &hello).await
}

/// Looks again and again until it holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_messages_are_received_in_order() {
    let server = start(config()).await;
    let mut consumer = dial(&server, "consumer").await;
    consumer.join("news").await;
    let mut producer = dial(&server, "producer").await;
    for number in 0..1000_u32 {
        producer.publish("news", &number.to_string(), &number.to_le_bytes()).await;
    }
    for number in 0..1000_u32 {
        let received = consumer.receive().await.expect("it comes");
        assert_eq!(received.kind, Kind::QUEUE);
        assert_eq!(received.payload, number.to_le_bytes());
    }
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_topic_reach_each_subscriber_once_and_in_order() {
    let server = start(config()).await;
    let mut by_name = dial(&server, "by-name").await;
    let mut by_mask = dial(&server, "by-mask").await;
    let mut local = local(&server, "local").await;
    by_name.join("@topic:news.eu").await;
    by_mask.join("@topic:news.*").await;
    local.join("@topic:news.*").await;
    local.join("@topic:news.eu").await;
    let mut producer = dial(&server, "producer").await;
    let mut bytes = Vec::new();
    for number in 0..20_000_u32 {
        let payload = number.to_le_bytes();
        let frame =
            Frame { id: b"x", target: b"@topic:news.eu", payload: &payload, ..Frame::new(Kind::QUEUE) };
        tmqp::encode(&frame, &mut bytes);
    }
    let sending = tokio::spawn(async move {
        producer.write(&bytes).await;
        producer
    });
    for number in 0..20_000_u32 {
        assert_eq!(by_name.receive().await.expect("it comes").payload, number.to_le_bytes());
        assert_eq!(by_mask.receive().await.expect("it comes").payload, number.to_le_bytes());
        assert_eq!(local.receive().await.expect("it comes").payload, number.to_le_bytes());
    }
    sending.await.expect("it was sent");
    let snapshot = server.snapshot().await;
    let stats = snapshot.topics.iter().map(|topic| (topic.subscribers, topic.stats.delivered));
    assert_eq!(stats.collect::<Vec<_>>(), [(3, 60_000)]);
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_does_not_read_misses_messages_and_delays_no_other() {
    let server = start(Config { output_bytes_max: 64 * 1024, ..config() }).await;
    let mut reader = dial(&server, "reader").await;
    let mut stuck = dial(&server, "stuck").await;
    reader.join("@topic:t").await;
    stuck.join("@topic:t").await;
    let mut producer = dial(&server, "producer").await;
    let mut sent = 0_u32;
    let dropped = async || server.snapshot().await.topics[0].stats.dropped_slow;
    let begun = Instant::now();
    while sent == 0 || dropped().await == 0 {
        assert!(begun.elapsed() < PATIENCE, "whoever reads nothing is passed over some day");
        for _ in 0..100 {
            producer.publish("@topic:t", &sent.to_string(), &[0; 4096]).await;
            assert_eq!(reader.receive().await.expect("it comes").id, sent.to_string().as_bytes());
            sent += 1;
        }
    }
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_may_come_in_any_pieces_and_be_larger_than_any_buffer() {
    let server = start(config()).await;
    let mut consumer = dial(&server, "consumer").await;
    consumer.join("large").await;
    let mut producer = dial(&server, "producer").await;
    let bodies: Vec<Vec<u8>> =
        [0, 1, 252, 253, 40_000, 65_536, 1_000_003, 5_000_000].map(|size| vec![7; size]).into();
    let mut bytes = Vec::new();
    for body in &bodies {
        let frame = Frame { id: b"x", target: b"large", payload: body, ..Frame::new(Kind::QUEUE) };
        tmqp::encode(&frame, &mut bytes);
    }
    // The first frames byte by byte, the rest in pieces that match no frame.
    let (slowly, rest) = bytes.split_at(600);
    for byte in slowly {
        producer.write(&[*byte]).await;
    }
    let reading = tokio::spawn(async move {
        let mut sizes = Vec::new();
        for _ in 0..8 {
            let received = consumer.receive().await.expect("it comes");
            assert!(received.payload.iter().all(|byte| *byte == 7));
            sizes.push(received.payload.len());
        }
        sizes
    });
    for piece in rest.chunks(33_333) {
        producer.write(piece).await;
    }
    let sizes = timeout(PATIENCE, reading).await.expect("in time").expect("no panic");
    assert_eq!(sizes, bodies.iter().map(Vec::len).collect::<Vec<_>>());
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_published_before_a_connection_closes_are_delivered() {
    let server = start(config()).await;
    let mut consumer = dial(&server, "consumer").await;
    consumer.join("last-words").await;
    let mut producer = dial(&server, "producer").await;
    let mut bytes = Vec::new();
    for number in 0..20_000_u32 {
        let payload = number.to_le_bytes();
        let frame = Frame { id: b"x", target: b"last-words", payload: &payload, ..Frame::new(Kind::QUEUE) };
        tmqp::encode(&frame, &mut bytes);
    }
    producer.write(&bytes).await;
    drop(producer);
    for number in 0..20_000_u32 {
        assert_eq!(consumer.receive().await.expect("it comes").payload, number.to_le_bytes());
    }
    server.stop(PATIENCE).await;
}

/// Whether the system of the server has everything that a peer has sent.
#[cfg(target_os = "linux")]
fn has_all(peer: &TcpStream) -> bool {
    let port =
        |address: std::io::Result<SocketAddr>| format!(":{:04X}", address.expect("it is connected").port());
    // Connections to other servers may have the same local port.
    let (here, there) = (port(peer.local_addr()), port(peer.peer_addr()));
    let is_peer = |columns: &Vec<&str>| columns[1].ends_with(&here) && columns[2].ends_with(&there);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(is_peer).expect("it is open");
        if line[4].starts_with("00000000:") {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn messages_count_whose_producer_closes_without_reading_the_answers() {
    let server = start(config()).await;
    let mut producer = dial(&server, "producer").await;
    let mut frames = Vec::new();
    for _ in 0..100 {
        let frame = Frame {
            id: b"x",
            target: b"unread",
            payload: &[0; 1000],
            pending_acknowledge: true,
            ..Frame::new(Kind::QUEUE)
        };
        tmqp::encode(&frame, &mut frames);
    }
    // The system enlarges its buffers for a fast peer.
    for _ in 0..40 {
        producer.write(&frames).await;
    }
    let received = async || server.snapshot().await.queues.first().map_or(0, |queue| queue.stats.received);
    eventually("the first ones arrive", async || received().await == 4000).await;
    // The server runs on the same thread and reads nothing meanwhile.
    let mut sent = 4000;
    while sent < 10_000 && producer.stream.try_write(&frames).is_ok_and(|written| written == frames.len()) {
        if !has_all(&producer.stream) {
            break;
        }
        sent += 100;
    }
    assert!(sent > 4000, "more than one read of the server");
    // Because of unread answers, the system of the client resets the connection.
    drop(producer);
    eventually("the producer is gone", async || server.snapshot().await.clients.is_empty()).await;
    let received = received().await;
    assert!(received >= sent, "{sent} were sent, and only {received} count");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_said_goodbye_is_handed_nothing_more_even_if_its_socket_stays() {
    let server = start(with_status(Status::RoundRobin)).await;
    let mut leaving = dial(&server, "leaving").await;
    let mut staying = dial(&server, "staying").await;
    leaving.join("orders").await;
    staying.join("orders").await;
    leaving.send(&Frame::new(Kind::TERMINATE)).await;
    assert_eq!(leaving.receive().await, None);
    for number in 0..10 {
        staying.publish("orders", &format!("m{number}"), b"x").await;
    }
    for number in 0..10 {
        let message = staying.receive().await.expect("nobody else is there");
        assert_eq!(message.id, format!("m{number}").into_bytes());
    }
    server.stop(Duration::from_secs(1)).await;
    drop(leaving);
}

/// Rejects the only message of `failing` until it exceeds its requeue limit, and waits for it in `dead`.
async fn dead_letter(shards: usize, failing: &str, dead: &str) {
    let queue = QueueOptions {
        request_acknowledge: true,
        put_back_limit: 1,
        // No timer wakes the shard while this test looks.
        acknowledge_timeout: 3 * PATIENCE,
        dead_letter: Some(DeadLetter::parse(dead).expect("a good name")),
        ..QueueOptions::default()
    };
    let channel = ChannelOptions { queue, ..ChannelOptions::default() };
    let server = start(Config { shards, channel, ..config() }).await;
    let mut consumer = dial(&server, "consumer").await;
    let mut undertaker = dial(&server, "undertaker").await;
    undertaker.publish(dead, "makes the queue", b"").await;
    consumer.join(failing).await;
    undertaker.join(dead).await;
    assert_eq!(undertaker.receive().await.expect("it comes").id, b"makes the queue");
    consumer.publish(failing, "bad", b"apple").await;
    for _ in 0..2 {
        assert_eq!(consumer.receive().await.expect("it comes").id, b"bad");
        let refusal = Frame {
            id: b"bad",
            target: failing.as_bytes(),
            headers: b"Nack-Reason:rotten\r\n",
            ..Frame::new(Kind::ACKNOWLEDGE)
        };
        consumer.send(&refusal).await;
    }
    let buried = undertaker.receive().await.expect("nothing else has to happen for it to come");
    assert_eq!((buried.id.as_slice(), buried.payload.as_slice()), (&b"bad"[..], &b"apple"[..]));
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_reaches_its_queue_on_the_same_shard_and_on_another() {
    dead_letter(1, "failing", "dead").await;
    // The placement has a random key: all four on the shard of "failing" is as good as impossible.
    for dead in ["dead0", "dead1", "dead2", "dead3"] {
        dead_letter(16, "failing", dead).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_hello_is_closed_at_the_handshake_timeout() {
    let server = start(Config { handshake_timeout: Duration::from_millis(500), ..config() }).await;
    let mut guest = dial(&server, "guest").await;
    guest.join("calm").await;
    let started = Instant::now();
    let mut silent = TcpStream::connect(address(&server)).await.expect("it listens");
    let mut half = TcpStream::connect(address(&server)).await.expect("it listens");
    half.write_all(&PREAMBLE[..5]).await.expect("it reads");
    // Less than the default of the timeout: the option has to have an effect.
    let limit = Config::default().handshake_timeout / 2;
    for stream in [&mut silent, &mut half] {
        let mut rest = Vec::new();
        let _ = timeout(limit, stream.read_to_end(&mut rest)).await.expect("closed in time");
    }
    assert!(started.elapsed() >= Duration::from_millis(500));
    guest.publish("calm", "1", b"still here").await;
    assert_eq!(guest.receive().await.expect("a client with a handshake stays").payload, b"still here");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_closes_only_the_connection_of_its_sender() {
    let server = start(config()).await;
    let mut bystander = dial(&server, "bystander").await;
    bystander.join("calm").await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 300], b"TMQP/2.0\x00\x00\x00\x00\x00\x00\x00\x00"]
    {
        let mut stream = TcpStream::connect(address(&server)).await.expect("it listens");
        stream.write_all(garbage).await.expect("it reads");
        Peer::new(stream).closed().await;
    }
    let mut liar = dial(&server, "liar").await;
    // Announces a payload of 2^64 - 1 bytes.
    liar.write(&[0x11, 0x10, 0, 0, 0, 0, 0, 0xFF, 255, 255, 255, 255, 255, 255, 255, 255]).await;
    liar.closed().await;
    bystander.publish("calm", "1", b"still here").await;
    assert_eq!(bystander.receive().await.expect("it comes").payload, b"still here");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_strangers_keep_no_client_out() {
    let half_open_max = 500;
    let server = start(Config { half_open_max, ..config() }).await;
    let mut strangers = Vec::new();
    for _ in 0..10_000 {
        strangers.push(server.connect_local(Protocol::Tmqp));
    }
    let mut client = local(&server, "client").await;
    client.join("open").await;
    // All but the youngest were sent away.
    let gone = 10_000 - half_open_max;
    for stranger in &mut strangers[..gone] {
        let read = timeout(PATIENCE, stranger.read(&mut [0; 1])).await.expect("in time");
        assert_eq!(read.unwrap_or(0), 0);
    }
    drop(strangers);
    client.publish("open", "1", b"hello").await;
    assert_eq!(client.receive().await.expect("it comes").payload, b"hello");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_rejected() {
    let server = start(Config { connections_max: 2, ..config() }).await;
    let first = dial(&server, "first").await;
    let second = dial(&server, "second").await;
    let third = TcpStream::connect(address(&server)).await.expect("it listens");
    Peer::new(third).closed().await;
    drop((first, second));
    eventually("there is room again", async || {
        let mut stream = TcpStream::connect(address(&server)).await.expect("it listens");
        let _ = stream.write_all(&PREAMBLE).await;
        stream.read_exact(&mut [0; 8]).await.is_ok()
    })
    .await;
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_never_reads_is_closed_and_others_get_everything() {
    let config = Config {
        admin: Some("http://127.0.0.1:0".parse().expect("a URL")),
        output_bytes_max: 256 * 1024,
        slow_consumer_timeout: Duration::from_millis(200),
        ..with_status(Status::Broadcast)
    };
    let server = start(config).await;
    let mut sleeper = local(&server, "sleeper").await;
    sleeper.join("flood").await;
    let mut reader = local(&server, "reader").await;
    reader.join("flood").await;
    let mut producer = local(&server, "producer").await;
    // Far more than the sleeper's buffers hold; the reader confirms each round, so it is never slow.
    for round in 0..64_u32 {
        for _ in 0..32 {
            producer.publish("flood", "x", &[1; 1024]).await;
        }
        for _ in 0..32 {
            assert_eq!(reader.receive().await.expect("it comes").payload.len(), 1024, "round {round}");
        }
    }
    eventually("the sleeper is closed", async || server.snapshot().await.clients.len() == 2).await;
    let snapshot = server.snapshot().await;
    let queue = &snapshot.queues[0];
    let slow = queue.stats.dropped[mqcore_broker::model::stats::DropReason::Slow as usize];
    assert!(slow > 0, "what the sleeper missed is counted");
    assert_eq!(queue.memory_bytes, 0, "nothing of a broadcast is kept");
    let (_, metrics) = http_get(server.admin().expect("it is served").address, "/metrics").await;
    let closed = "mqcore_connections_closed_total{protocol=\"tmqp\",reason=\"slow-consumer\"} 1";
    assert!(metrics.lines().any(|line| line == closed), "{metrics}");
    drop(sleeper);
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_asks_and_never_reads_is_bounded() {
    let server = start(Config { output_bytes_max: 64 * 1024, ..config() }).await;
    let mut peer = local(&server, "asker").await;
    let mut pings = Vec::new();
    for _ in 0..1000 {
        pings.extend_from_slice(&tmqp::PING);
    }
    // The pongs fill the pipe, then the buffer, until the server gives up.
    let flood = async { while peer.stream.write_all(&pings).await.is_ok() {} };
    timeout(PATIENCE, flood).await.expect("the server closes");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_writes_pending_output_and_goodbye_and_ends_all_tasks() {
    let server = start(config()).await;
    let mut consumer = dial(&server, "consumer").await;
    consumer.join("end").await;
    let mut producer = dial(&server, "producer").await;
    for number in 0..5000_u32 {
        producer.publish("end", "x", &number.to_le_bytes()).await;
    }
    eventually("all were taken", async || {
        server.snapshot().await.queues.first().is_some_and(|queue| queue.stats.received == 5000)
    })
    .await;
    let stopping = tokio::spawn({
        let server = server.clone();
        async move { server.stop(PATIENCE).await }
    });
    for number in 0..5000_u32 {
        assert_eq!(consumer.receive().await.expect("it comes").payload, number.to_le_bytes());
    }
    assert_eq!(consumer.receive().await.expect("goodbye").kind, Kind::TERMINATE);
    assert_eq!(consumer.receive().await, None);
    timeout(PATIENCE, stopping).await.expect("in time").expect("no panic");
    assert!(TcpStream::connect(address(&server)).await.is_err(), "nobody listens any more");
    server.stop(Duration::ZERO).await;
    server.stopped().await;
    let mut late = server.connect_local(Protocol::Tmqp);
    assert_eq!(late.read(&mut [0; 1]).await.expect("reads as closed"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_does_not_wait_for_active_producers() {
    let server = start(config()).await;
    let mut consumer = dial(&server, "consumer").await;
    consumer.join("flood").await;
    let consuming = tokio::spawn(consumer.closed());
    let mut producers = Vec::new();
    for number in 0..4 {
        let mut producer = dial(&server, &format!("producer-{number}")).await;
        producers.push(tokio::spawn(async move {
            let mut bytes = Vec::new();
            for _ in 0..100 {
                let frame =
                    Frame { id: b"x", target: b"flood", payload: &[0; 128], ..Frame::new(Kind::QUEUE) };
                tmqp::encode(&frame, &mut bytes);
            }
            while producer.stream.write_all(&bytes).await.is_ok() {}
        }));
    }
    eventually("messages flow", async || {
        server.snapshot().await.queues.first().is_some_and(|queue| queue.stats.sent > 10_000)
    })
    .await;
    let started = Instant::now();
    server.stop(PATIENCE).await;
    assert!(started.elapsed() < PATIENCE / 2, "it took {:?}", started.elapsed());
    for task in producers {
        timeout(PATIENCE, task).await.expect("in time").expect("no panic");
    }
    timeout(PATIENCE, consuming).await.expect("in time").expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_delays_the_stop_only_by_the_grace() {
    let server = start(config()).await;
    let mut sleeper = local(&server, "sleeper").await;
    sleeper.join("stuck").await;
    let mut producer = local(&server, "producer").await;
    for _ in 0..300 {
        producer.publish("stuck", "x", &[0; 1024]).await;
    }
    let started = Instant::now();
    timeout(PATIENCE, server.stop(Duration::from_millis(300))).await.expect("in time");
    assert!(started.elapsed() >= Duration::from_millis(300));
    drop(sleeper);
}

#[test]
fn two_hundred_starts_and_stops_leave_no_task_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        for round in 0..200_u32 {
            let server =
                start(Config { admin: Some("http://127.0.0.1:0".parse().expect("a URL")), ..config() }).await;
            let mut consumer = dial(&server, "consumer").await;
            consumer.join("round").await;
            consumer.publish("round", "x", &round.to_le_bytes()).await;
            assert_eq!(consumer.receive().await.expect("it comes").payload, round.to_le_bytes());
            // Every other time the peer is still there, and gets no grace.
            let grace = if round % 2 == 0 { PATIENCE } else { Duration::ZERO };
            if round % 2 == 0 {
                drop(consumer);
            }
            timeout(PATIENCE, server.stop(grace)).await.expect("in time");
        }
        let metrics = tokio::runtime::Handle::current().metrics();
        eventually("all tasks are gone", async || metrics.num_alive_tasks() == 0).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_handles_stops() {
    let server = start(config()).await;
    let peer = dial(&server, "peer").await;
    drop(server);
    peer.closed().await;
}

#[tokio::test]
async fn only_loopback_is_bound_unless_told_otherwise() {
    let listeners = vec!["tmqp://0.0.0.0:0".parse().unwrap()];
    let refused =
        Server::start(Config { listeners: listeners.clone(), ..config() }, Vec::new(), Arc::new(NoHandlers));
    assert!(matches!(refused.await, Err(StartError::NotLoopback { .. })));
    let server = start(Config { listeners, allow_remote: true, ..config() }).await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_it() {
    let server = start(config()).await;
    let listeners = vec![format!("tmqp://{}", address(&server)).parse().unwrap()];
    let error = Server::start(Config { listeners, ..config() }, Vec::new(), Arc::new(NoHandlers)).await;
    let error = error.expect_err("the port is taken").to_string();
    assert!(error.contains(&address(&server).to_string()), "{error}");
    server.stop(Duration::ZERO).await;
}

/// Answers every question with the default decision, from a thread of its own and after a delay.
struct Slow {
    asked: Arc<AtomicUsize>,
    delay: Duration,
}

impl HandlerPort for Slow {
    fn ask(&self, questions: Vec<Question>, answers: &Arc<dyn AnswerSink>) {
        self.asked.fetch_add(questions.len(), Ordering::SeqCst);
        let (delay, answers) = (self.delay, Arc::clone(answers));
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let go_on = |question: Question| Answer::new(question.id, Ok(Decision::ALLOW));
            answers.answer(questions.into_iter().map(go_on).collect());
        });
    }
}

fn asked_first(timeout: Duration) -> HandlerSpec {
    HandlerSpec {
        key: "asked".into(),
        overrides: Steps::NONE.with(Step::ReceivedFromProducer),
        base: policy::MEMORY,
        timeout,
        fallback: Decision::ALLOW,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settle_waits_for_handlers_and_everything_after_them() {
    let asked = Arc::new(AtomicUsize::new(0));
    let port = Slow { asked: Arc::clone(&asked), delay: Duration::from_millis(30) };
    let config = Config { clock: ClockConfig::Manual, delivery_handler: "asked".into(), ..config() };
    let server = Server::start(config, vec![asked_first(Duration::from_secs(10))], Arc::new(port)).await;
    let server = server.expect("the server starts");
    let mut peer = local(&server, "peer").await;
    peer.join("asked").await;
    for _ in 0..10 {
        peer.publish("asked", "x", b"decide").await;
    }
    timeout(PATIENCE, server.settle()).await.expect("in time");
    assert_eq!(asked.load(Ordering::SeqCst), 10);
    // Everything was decided and written: it can be read without waiting.
    for _ in 0..10 {
        let received = timeout(Duration::from_millis(1), peer.receive()).await.expect("it is there");
        assert_eq!(received.expect("it is there").payload, b"decide");
    }
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manual_clock_drives_brokers_and_sessions() {
    let port = Slow { asked: Arc::default(), delay: Duration::from_millis(1) };
    let config = Config {
        clock: ClockConfig::Manual,
        delivery_handler: "asked".into(),
        ping_interval: Duration::from_secs(60),
        pong_timeout: Duration::from_secs(10),
        ..config()
    };
    let server = Server::start(config, vec![asked_first(Duration::from_secs(10))], Arc::new(port)).await;
    let server = server.expect("the server starts");
    let mut peer = local(&server, "peer").await;
    server.settle().await;
    server.advance(Duration::from_secs(61));
    server.settle().await;
    let ping = timeout(PATIENCE, peer.receive()).await.expect("in time");
    assert_eq!(ping.expect("a ping").kind, Kind::PING);
    server.advance(Duration::from_secs(11));
    peer.closed().await;
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_upload_is_not_taken_for_a_dead_peer() {
    let timing = Config {
        clock: ClockConfig::Manual,
        ping_interval: Duration::from_secs(60),
        pong_timeout: Duration::from_secs(10),
        ..config()
    };
    let server = start(timing).await;
    let mut peer = local(&server, "peer").await;
    peer.join("uploads").await;
    let payload = vec![7; 1 << 20];
    let mut bytes = Vec::new();
    tmqp::encode(
        &Frame { id: b"big", target: b"uploads", payload: &payload, ..Frame::new(Kind::QUEUE) },
        &mut bytes,
    );
    for part in bytes.chunks(bytes.len() / 8 + 1) {
        peer.write(part).await;
        server.settle().await;
        server.advance(Duration::from_secs(50));
        server.settle().await;
    }
    let received = peer.receive().await.expect("the connection lives");
    assert_eq!((received.kind, received.payload), (Kind::QUEUE, payload));
    server.stop(PATIENCE).await;
}

/// One request over HTTP, without any library: what an operator's `curl` would see.
async fn http_get(address: SocketAddr, target: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut response)).await.expect("in time").expect("text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_side_tells_health_metrics_and_an_overview() {
    let admin = Some("http://127.0.0.1:0".parse().expect("a URL"));
    let server = start(Config { admin, ..with_status(Status::Pull) }).await;
    let mut peer = dial(&server, "peer-1").await;
    peer.join("shelf").await;
    for _ in 0..3 {
        peer.publish("shelf", "x", b"kept").await;
    }
    eventually("three are stored", async || {
        server.snapshot().await.queues.first().is_some_and(|queue| queue.normal == 3)
    })
    .await;
    let admin = server.admin().expect("it is served").address;
    assert_eq!(http_get(admin, "/livez").await.0, 200);
    assert_eq!(http_get(admin, "/readyz").await.0, 200);

    let (status, metrics) = http_get(admin, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "mqcore_messages_total{outcome=\"in\"} 3",
        "mqcore_messages_ready 3",
        "mqcore_messages_dropped_total{reason=\"slow\"} 0",
        "mqcore_connections{protocol=\"tmqp\",state=\"client\"} 1",
        "mqcore_clients 1",
    ] {
        assert!(metrics.lines().any(|present| present == line), "{line} is missing in\n{metrics}");
    }
    assert!(!metrics.contains("shelf"), "queues are listed only when asked for");
    let (_, metrics) = http_get(admin, "/metrics?queues=1").await;
    assert!(metrics.contains("mqcore_queue_ready{queue=\"shelf/0\"} 3"), "{metrics}");

    let (status, overview) = http_get(admin, "/overview?limit=1").await;
    assert_eq!(status, 200);
    let overview: serde_json::Value = serde_json::from_str(&overview).expect("JSON");
    assert_eq!(overview["totals"]["ready"], 3);
    assert_eq!(overview["queues"][0]["queue"], "shelf/0");
    assert_eq!(overview["clients"][0]["id"], "peer-1");

    for (target, expected, code) in
        [("/nothing", 404, "not-found"), ("/overview?limit=many", 400, "bad-request")]
    {
        let (status, body) = http_get(admin, target).await;
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, body["error"]["code"].as_str()), (expected, Some(code)));
    }
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_side_answers_while_a_handler_is_stuck() {
    struct Stuck;
    impl HandlerPort for Stuck {
        fn ask(&self, _: Vec<Question>, _: &Arc<dyn AnswerSink>) {}
    }
    let admin = Some("http://127.0.0.1:0".parse().expect("a URL"));
    let config = Config { admin, delivery_handler: "asked".into(), ..config() };
    let server = Server::start(config, vec![asked_first(Duration::from_secs(600))], Arc::new(Stuck)).await;
    let server = server.expect("the server starts");
    let mut peer = dial(&server, "peer").await;
    peer.join("asked").await;
    peer.publish("asked", "x", b"for ever").await;
    let admin = server.admin().expect("it is served").address;
    eventually("the question is seen to be open", async || {
        http_get(admin, "/metrics").await.1.contains("mqcore_handler_questions_open 1")
    })
    .await;
    assert_eq!(http_get(admin, "/readyz").await.0, 200);
    timeout(PATIENCE, server.stop(Duration::from_secs(1)))
        .await
        .expect("a stuck handler does not hold the stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_never_ends_does_not_keep_the_admin_side_busy() {
    let admin = Some("http://127.0.0.1:0".parse().expect("a URL"));
    let server = start(Config { admin, ..config() }).await;
    let admin = server.admin().expect("it is served").address;
    let mut slow = TcpStream::connect(admin).await.expect("it listens");
    slow.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("it reads");
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the server gives up on it");
    server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_send_half_a_request_keep_out_no_health_check() {
    let admin = Some("http://127.0.0.1:0".parse().expect("a URL"));
    let server = start(Config { admin, ..config() }).await;
    let admin = server.admin().expect("it is served").address;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut peer = TcpStream::connect(admin).await.expect("it listens");
        peer.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("it reads");
        slow.push(peer);
    }
    for page in ["/livez", "/readyz", "/metrics"] {
        let answer = timeout(Duration::from_secs(2), http_get(admin, page)).await;
        assert_eq!(answer.expect("it answers at once").0, 200, "{page}");
    }
    server.stop(PATIENCE).await;
}
