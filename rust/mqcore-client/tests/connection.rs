//! Tests of a client against a scripted peer over an in-memory stream, for exact bytes and for behavior that a correct
//! broker never shows.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mqcore_client::address::{BrokerAddress, QueueAddress};
use mqcore_client::client::{Client, ClientState};
use mqcore_client::config::{Backoff, ClientConfig, ClientTls, Transport};
use mqcore_client::consume::{Delivered, Settlement};
use mqcore_client::direct::SendOptions;
use mqcore_client::error::ClientError;
use mqcore_client::event::{EventKind, EventScope};
use mqcore_client::publish::{BatchMessage, PublishOptions};
use mqcore_client::pull::PullOptions;
use mqcore_client::received::Received;
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, Kind, PING, PONG, PREAMBLE, decode, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

/// Longer than anything takes that the tests wait for.
const LONG: Duration = Duration::from_secs(10);

/// The broker's side of the connections that a client makes, in their order.
struct Broker(mpsc::UnboundedReceiver<DuplexStream>);

/// The broker's side of one connection.
struct Peer<S = DuplexStream> {
    stream: S,
    input: Vec<u8>,
}

fn transport() -> (Transport, Broker) {
    let (opened, connections) = mpsc::unbounded_channel();
    let open = move || {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        opened.send(theirs).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(ours)
    };
    (Transport::Local(Arc::new(open)), Broker(connections))
}

async fn connect(config: ClientConfig) -> (Client, Broker, Peer) {
    let (transport, mut broker) = transport();
    let (client, peer) = tokio::join!(Client::connect(config, transport), broker.accept());
    (client.unwrap(), broker, peer)
}

impl Broker {
    /// Accepts the next connection and performs the handshake.
    async fn accept(&mut self) -> Peer {
        let mut peer = self.next().await;
        peer.shake_hands().await;
        peer
    }

    async fn next(&mut self) -> Peer {
        Peer { stream: self.0.recv().await.expect("the client connects"), input: Vec::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    async fn shake_hands(&mut self) {
        assert_eq!(self.read_bytes(8).await, PREAMBLE);
        let hello = self.read().await;
        assert_eq!((hello.kind(), hello.content_type()), (Kind::SERVER, 101));
        self.write_bytes(&PREAMBLE).await;
        self.write(&Frame { content_type: 202, target: b"me", ..Frame::new(Kind::SERVER) }).await;
    }

    async fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        while self.input.len() < count {
            assert!(self.stream.read_buf(&mut self.input).await.unwrap() > 0, "the client goes on");
        }
        self.input.drain(..count).collect()
    }

    async fn read(&mut self) -> Received {
        loop {
            if let Some((frame, size)) = decode(&self.input, &Limits::default()).unwrap() {
                let received = Received::copy(&frame);
                self.input.drain(..size);
                return received;
            }
            assert!(self.stream.read_buf(&mut self.input).await.unwrap() > 0, "the client goes on");
        }
    }

    /// Whether the client has closed its side, once everything it wrote is read.
    async fn is_closed(&mut self) -> bool {
        self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0
    }

    async fn write_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn write(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes);
        self.write_bytes(&bytes).await;
    }

    /// Reads a request and answers it.
    async fn answer(&mut self, status: u16) -> Received {
        let request = self.read().await;
        self.respond(&request, status, b"").await;
        request
    }

    async fn respond(&mut self, request: &Received, status: u16, payload: &[u8]) {
        let response =
            Frame { content_type: status, id: request.id(), payload, ..Frame::new(Kind::RESPONSE) };
        self.write(&Frame { target: b"me", ..response }).await;
    }

    async fn acknowledge(&mut self, message: &Received) {
        self.write(&Frame { id: message.id(), target: b"ch", ..Frame::new(Kind::ACKNOWLEDGE) }).await;
    }

    async fn deliver(&mut self, id: &str, queue: u16, asks: bool) {
        let delivery = Frame { id: id.as_bytes(), target: b"ch", ..Frame::new(Kind::QUEUE) };
        let delivery = Frame { content_type: queue, pending_acknowledge: asks, payload: b"body", ..delivery };
        self.write(&delivery).await;
    }

    async fn deliver_pulled(&mut self, pull: &Received, id: &str, asks: bool) {
        let headers = format!("Request-Id:{}\r\n", text(pull.id()));
        let pulled = Frame { id: id.as_bytes(), target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) };
        self.write(&Frame { headers: headers.as_bytes(), pending_acknowledge: asks, ..pulled }).await;
    }

    async fn end_pull(&mut self, pull: &Received) {
        let headers = format!("Request-Id:{}\r\nNo-Content:End\r\n", text(pull.id()));
        let end = Frame { id: pull.id(), target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) };
        self.write(&Frame { headers: headers.as_bytes(), ..end }).await;
    }

    /// Waits until the client has handled everything that was written. It writes nothing else meanwhile.
    async fn handled(&mut self) {
        self.write_bytes(&PING).await;
        assert_eq!(self.read_bytes(8).await, PONG);
    }

    /// Reads the nack with which the client returns this message.
    async fn read_returned(&mut self, id: &str) {
        let returned = self.read().await;
        assert_eq!((returned.kind(), text(returned.id())), (Kind::ACKNOWLEDGE, id));
        assert_eq!(returned.header("nack-reason").as_deref(), Some("consumer-closed"));
    }
}

fn queue() -> QueueAddress {
    QueueAddress::new("ch", 1).unwrap()
}

fn soon() -> ClientConfig {
    let backoff = Backoff { first: Duration::from_millis(1), ..Backoff::default() };
    ClientConfig { backoff, ..ClientConfig::default() }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn the_handshake_may_come_in_pieces_with_traffic_behind_it() {
    let (transport, mut broker) = transport();
    let connecting = tokio::spawn(Client::connect(ClientConfig::default(), transport));
    let mut peer = broker.next().await;
    peer.read_bytes(8).await;
    peer.read().await;
    let mut bytes = PREAMBLE.to_vec();
    let accepted = Frame { content_type: 202, target: b"given", ..Frame::new(Kind::SERVER) };
    encode(&accepted, &mut bytes);
    bytes.extend_from_slice(&PING);
    for byte in bytes {
        peer.write_bytes(&[byte]).await;
        tokio::task::yield_now().await;
    }
    let client = connecting.await.unwrap().unwrap();
    assert_eq!(client.id(), "given");
    assert_eq!(peer.read_bytes(8).await, PONG);
}

#[tokio::test]
async fn a_refused_handshake_is_an_error_that_says_why() {
    let (transport, mut broker) = transport();
    let connecting = tokio::spawn(Client::connect(ClientConfig::default(), transport));
    let mut peer = broker.next().await;
    peer.write_bytes(&PREAMBLE).await;
    let refused = Frame { content_type: 401, payload: b"no such token", ..Frame::new(Kind::SERVER) };
    peer.write(&refused).await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ClientError::AuthFailed { reason, .. } if &**reason == "no such token"),
        "{error}"
    );
}

#[tokio::test]
async fn a_peer_that_never_answers_is_given_up_after_the_connect_timeout() {
    tokio::time::pause();
    let (transport, _broker) = transport();
    let error = Client::connect(ClientConfig::default(), transport).await.unwrap_err();
    assert!(matches!(&error, ClientError::ConnectFailed { .. }), "{error}");
    assert!(error.to_string().contains("5s"), "{error}");
}

#[tokio::test]
async fn the_first_connect_retries_until_a_broker_listens() {
    let (transport, mut broker) = transport();
    let config = ClientConfig { patience: Duration::from_secs(30), ..soon() };
    let connecting = tokio::spawn(Client::connect(config, transport));
    drop(broker.next().await);
    drop(broker.next().await);
    let _peer = broker.accept().await;
    connecting.await.unwrap().unwrap();
}

#[tokio::test]
async fn many_messages_are_one_write_with_separate_outcomes() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let messages: Vec<BatchMessage> =
        (0..3_u8).map(|n| BatchMessage { body: vec![n].into(), ..BatchMessage::default() }).collect();
    let publishing = async { client.publish_many(&queue(), &messages, &PublishOptions::default()).await };
    let answering = async {
        let sent = [peer.read().await, peer.read().await, peer.read().await];
        peer.acknowledge(&sent[2]).await;
        peer.acknowledge(&sent[0]).await;
        let nack =
            Frame { id: sent[1].id(), headers: b"Nack-Reason:no\r\n", ..Frame::new(Kind::ACKNOWLEDGE) };
        peer.write(&nack).await;
        sent.map(|message| message.body_slice()[0])
    };
    let (receipts, order) = tokio::join!(publishing, answering);
    assert_eq!(order, [0, 1, 2]);
    assert!(receipts[0].is_ok() && receipts[2].is_ok());
    assert!(matches!(&receipts[1], Err(ClientError::Nacked { reason, .. }) if &**reason == "no"));
}

#[tokio::test]
async fn many_messages_are_sent_in_steps_when_limits_are_small() {
    let config = ClientConfig { max_outstanding: 4, ..ClientConfig::default() };
    let (client, _broker, mut peer) = connect(config).await;
    let messages = vec![BatchMessage::default(); 50];
    let acknowledging = tokio::spawn(async move {
        for _ in 0..50 {
            let message = peer.read().await;
            peer.acknowledge(&message).await;
        }
    });
    let receipts = client.publish_many(&queue(), &messages, &PublishOptions::default()).await;
    assert!(receipts.iter().all(Result::is_ok), "{receipts:?}");
    acknowledging.await.unwrap();
}

#[tokio::test]
async fn an_acknowledgement_that_does_not_come_is_a_timeout_and_its_late_arrival_harmless() {
    tokio::time::pause();
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let options = PublishOptions { timeout: Some(Duration::from_secs(2)), ..PublishOptions::default() };
    let error = client.publish(&queue(), b"x", &options).await.unwrap_err();
    assert!(matches!(error, ClientError::ConfirmTimeout { .. }), "{error}");
    let message = peer.read().await;
    peer.acknowledge(&message).await;
    let receipts = client.publish_many(&queue(), &vec![BatchMessage::default(); 2], &options).await;
    assert!(receipts.iter().all(|r| matches!(r, Err(ClientError::ConfirmTimeout { .. }))), "{receipts:?}");
    assert_eq!(client.stats().late_answers, 1);
}

#[tokio::test]
async fn a_call_that_is_cancelled_leaves_nothing_waiting() {
    let config = ClientConfig { max_outstanding: 1, ..ClientConfig::default() };
    let (client, _broker, mut peer) = connect(config).await;
    let abandoned = tokio::spawn({
        let client = client.clone();
        async move { client.publish(&queue(), b"1", &PublishOptions::default()).await }
    });
    peer.read().await;
    abandoned.abort();
    drop(abandoned.await);
    let (receipt, ()) =
        tokio::join!(async { client.publish(&queue(), b"2", &PublishOptions::default()).await }, async {
            let second = peer.read().await;
            peer.acknowledge(&second).await;
        });
    receipt.unwrap();
}

#[tokio::test]
async fn a_lost_connection_fails_requests_in_flight_and_restores_intents() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    let (consumer, join) =
        tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    assert_eq!((join.content_type(), text(join.target())), (601, "ch"));
    peer.deliver("m1", 1, true).await;
    peer.deliver("m2", 1, true).await;
    peer.deliver("m3", 1, false).await;
    let first = consumer.next_batch(1).await.remove(0);

    let publishing = tokio::spawn({
        let client = client.clone();
        async move { client.publish(&queue(), b"x", &PublishOptions::default()).await }
    });
    peer.read().await;
    while consumer.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(peer);
    let error = publishing.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { sent: true, .. }), "{error}");

    let mut peer = broker.accept().await;
    let join = peer.answer(0).await;
    assert_eq!((join.content_type(), text(join.target())), (601, "ch"), "joined again, before anything else");
    assert_eq!(first.ack(), Settlement::Stale);
    // The broker redelivers messages with acknowledgement; it would lose the others.
    assert_eq!(consumer.next_batch(9).await[0].message().id(), b"m3");
    peer.deliver("m1", 1, true).await;
    let again = consumer.next_batch(9).await.remove(0);
    assert_eq!((again.message().id(), again.ack()), (&b"m1"[..], Settlement::Sent));
    let acknowledgement = peer.read().await;
    assert_eq!((acknowledgement.kind(), acknowledgement.id()), (Kind::ACKNOWLEDGE, &b"m1"[..]));
    let stats = client.stats();
    assert_eq!((stats.connects, stats.stale_settlements, stats.stale_discarded), (2, 1, 1));
}

#[tokio::test]
async fn publishing_waits_for_a_connection_and_says_that_nothing_was_sent_if_none_comes() {
    let (client, mut broker, peer) = connect(soon()).await;
    drop(peer);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.publish(&queue(), b"x", &PublishOptions::default()).await }
    });
    let mut peer = broker.accept().await;
    let message = peer.read().await;
    peer.acknowledge(&message).await;
    waiting.await.unwrap().unwrap();

    drop((peer, broker));
    let mut states = client.states();
    states.wait_for(|state| matches!(state, ClientState::Waiting { .. })).await.unwrap();
    let options = PublishOptions { timeout: Some(Duration::from_millis(20)), ..PublishOptions::default() };
    let error = client.publish(&queue(), b"x", &options).await.unwrap_err();
    assert!(error.is_unsent(), "{error}");
}

#[tokio::test]
async fn a_message_with_an_id_is_published_again_if_the_caller_allows_it() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    let options = PublishOptions { id: Some("mine".into()), retry: true, ..PublishOptions::default() };
    let publishing = tokio::spawn(async move { client.publish(&queue(), b"x", &options).await });
    assert_eq!(peer.read().await.id(), b"mine");
    drop(peer);
    let mut peer = broker.accept().await;
    let again = peer.read().await;
    assert_eq!(again.id(), b"mine");
    peer.acknowledge(&again).await;
    publishing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_message_that_was_sent_once_is_not_unsent_if_it_cannot_be_published_again() {
    let timeouts = [Some(Duration::from_millis(300)), None];
    for timeout in timeouts {
        let (client, broker, mut peer) = connect(soon()).await;
        let id = Some("mine".into());
        let options = PublishOptions { id, retry: true, timeout, ..PublishOptions::default() };
        let publishing = tokio::spawn({
            let client = client.clone();
            async move { client.publish(&queue(), b"x", &options).await }
        });
        assert_eq!(peer.read().await.id(), b"mine");
        drop((peer, broker));
        if timeout.is_none() {
            let mut states = client.states();
            states.wait_for(|state| matches!(state, ClientState::Waiting { .. })).await.unwrap();
            client.abort();
        }
        let error = publishing.await.unwrap().unwrap_err();
        assert!(matches!(&error, ClientError::ConnectionLost { sent: true, .. }), "{error}");
    }
}

#[tokio::test]
async fn a_busy_queue_after_a_lost_attempt_is_asked_again_and_not_taken_for_a_refusal() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    let timeout = Some(Duration::from_millis(300));
    let options =
        PublishOptions { id: Some("mine".into()), retry: true, timeout, ..PublishOptions::default() };
    let publish = || {
        let (client, options) = (client.clone(), options.clone());
        tokio::spawn(async move { client.publish(&queue(), b"x", &options).await })
    };
    // A busy queue that got the message for the first time has refused it.
    let publishing = publish();
    let message = peer.read().await;
    peer.respond(&message, 503, b"").await;
    assert!(matches!(publishing.await.unwrap(), Err(ClientError::Refused(_))));
    // It may be saving the copy of the lost attempt.
    let publishing = publish();
    peer.read().await;
    drop(peer);
    let mut peer = broker.accept().await;
    let again = peer.read().await;
    peer.respond(&again, 503, b"").await;
    let third = peer.read().await;
    peer.acknowledge(&third).await;
    publishing.await.unwrap().unwrap();
    // The outcome is unknown if it stays busy. The time may also end while the client waits for an answer, so that it
    // does not know the last one.
    for attempt in 1.. {
        let publishing = publish();
        peer.read().await;
        drop(peer);
        peer = broker.accept().await;
        let busy = async {
            loop {
                let again = peer.read().await;
                peer.respond(&again, 503, b"").await;
            }
        };
        let error = tokio::select! {
            () = busy => unreachable!("it has no end"),
            result = publishing => result.unwrap().unwrap_err(),
        };
        if matches!(error, ClientError::ConfirmTimeout { .. }) && attempt < 20 {
            continue;
        }
        assert!(matches!(&error, ClientError::ConnectionLost { sent: true, .. }), "{error}");
        assert!(error.to_string().contains("503"), "{error}");
        break;
    }
}

#[tokio::test]
async fn a_join_that_is_refused_after_a_reconnect_is_tried_until_it_stands() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    drop(peer);
    let mut peer = broker.accept().await;
    peer.answer(404).await;
    tokio::time::pause();
    assert_eq!(peer.answer(404).await.content_type(), 601);
    assert_eq!(peer.answer(0).await.content_type(), 601);
    peer.deliver("m1", 1, false).await;
    assert_eq!(consumer.next_batch(1).await.len(), 1);
}

#[tokio::test]
async fn a_consumer_that_begins_while_the_connection_is_lost_begins_on_the_next() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    let consuming = tokio::spawn(async move { (client.consume(&queue(), 10).await, client) });
    assert_eq!(peer.read().await.content_type(), 601);
    drop(peer);
    let mut peer = broker.accept().await;
    let answering = tokio::spawn(async move {
        // The intent is restored and the call retries; their order does not matter.
        loop {
            let request = peer.read().await;
            if request.kind() == Kind::DIRECT {
                return peer;
            }
            if request.wants_response() {
                peer.respond(&request, 0, b"").await;
            }
        }
    });
    let (consumer, client) = consuming.await.unwrap();
    client.send("enough", b"", &SendOptions::default()).await.unwrap();
    let mut peer = answering.await.unwrap();
    peer.deliver("m1", 1, false).await;
    assert_eq!(consumer.unwrap().next_batch(1).await.len(), 1);
}

#[tokio::test]
async fn the_client_gives_up_only_with_an_attempt_limit() {
    let backoff = Backoff { attempts: Some(2), ..soon().backoff };
    let (client, broker, peer) = connect(ClientConfig { backoff, ..ClientConfig::default() }).await;
    let (consumer, _) = {
        let mut peer = peer;
        tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0))
    };
    drop(broker);
    let mut states = client.states();
    states.wait_for(|state| matches!(state, ClientState::Closed { .. })).await.unwrap();
    assert!(consumer.next_batch(1).await.is_empty(), "consumers end with the client");
    let error = client.publish(&queue(), b"x", &PublishOptions::default()).await.unwrap_err();
    assert_eq!(error, ClientError::Closed);
}

/// A client that gives up after this many attempts in a row.
fn with_attempts(most: u32) -> ClientConfig {
    ClientConfig { backoff: Backoff { attempts: Some(most), ..soon().backoff }, ..soon() }
}

#[tokio::test]
async fn the_client_makes_as_many_attempts_as_it_may() {
    let (client, mut broker, peer) = connect(with_attempts(3)).await;
    drop(peer);
    for _ in 0..3 {
        drop(broker.next().await);
    }
    let mut states = client.states();
    states.wait_for(|state| matches!(state, ClientState::Closed { .. })).await.unwrap();
    assert!(broker.0.try_recv().is_err(), "no further attempt");
}

#[tokio::test]
async fn connections_that_break_at_once_count_as_attempts() {
    let (client, mut broker, peer) = connect(with_attempts(3)).await;
    drop(peer);
    for _ in 0..3 {
        drop(broker.accept().await);
    }
    let mut states = client.states();
    let closed = states.wait_for(|state| matches!(state, ClientState::Closed { .. }));
    // Sooner than another attempt, which would end at its timeout.
    tokio::time::timeout(Duration::from_secs(3), closed).await.expect("the client gives up").unwrap();
}

#[tokio::test]
async fn a_silent_broker_is_pinged_and_a_dead_one_given_up() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    tokio::time::pause();
    let mut states = client.states();
    states.mark_unchanged();
    assert_eq!(peer.read_bytes(8).await, PING);
    peer.write_bytes(&PONG).await;
    assert_eq!(peer.read_bytes(8).await, PING);
    assert!(!states.has_changed().unwrap());
    // Half open: nothing is refused, and no data arrives.
    let lost = states.wait_for(|state| matches!(state, ClientState::Waiting { .. })).await.unwrap().clone();
    assert!(
        matches!(&lost, ClientState::Waiting { cause, .. } if cause.contains("no heartbeat")),
        "{lost:?}"
    );
    tokio::time::resume();
    let _peer = broker.accept().await;
    states.wait_for(|state| matches!(state, ClientState::Connected { .. })).await.unwrap();
}

#[tokio::test]
async fn a_client_that_cannot_read_still_shows_that_it_lives() {
    let config = ClientConfig { read_buffer_bytes: 1, ..ClientConfig::default() };
    let (client, _broker, mut peer) = connect(config).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    peer.deliver("m1", 1, false).await;
    while consumer.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    for _ in 0..3 {
        assert_eq!(peer.read_bytes(8).await, PING);
    }
    assert!(matches!(client.state(), ClientState::Connected { .. }));
    peer.deliver("m2", 1, false).await;
    assert_eq!(consumer.next_batch(9).await.len(), 1);
    assert_eq!(consumer.next_batch(9).await[0].message().id(), b"m2", "it reads again");
}

#[tokio::test]
async fn a_closed_consumer_leaves_and_requeues_untaken_messages() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    peer.deliver("m1", 1, true).await;
    while consumer.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(consumer);
    // A message in flight is requeued too. The newest goes first, because each is put before all others.
    peer.deliver("m2", 1, true).await;
    let left = peer.answer(0).await;
    assert_eq!((left.kind(), left.content_type()), (Kind::SERVER, 602));
    for id in [&b"m2"[..], b"m1"] {
        let refused = peer.read().await;
        assert_eq!((refused.kind(), refused.id()), (Kind::ACKNOWLEDGE, id));
        assert_eq!(refused.header("nack-reason").as_deref(), Some("consumer-closed"));
    }
    peer.deliver("m3", 1, true).await;
    assert_eq!(peer.read().await.id(), b"m3", "no consumer accepts it");
}

#[tokio::test]
async fn a_consumer_that_is_closed_while_reads_are_paused_returns_its_messages() {
    let config = ClientConfig { read_buffer_bytes: 1, ..ClientConfig::default() };
    let (client, _broker, mut peer) = connect(config).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    peer.deliver("m1", 1, true).await;
    while consumer.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    // It arrives before the answer to the request to leave.
    peer.deliver("m2", 1, true).await;
    drop(consumer);
    assert_eq!(peer.answer(0).await.content_type(), 602);
    let returned = async {
        peer.read_returned("m2").await;
        peer.read_returned("m1").await;
    };
    tokio::time::timeout(LONG, returned).await.expect("the client reads the answer");
}

#[tokio::test]
async fn messages_of_a_closed_consumer_do_not_pause_reads_after_a_reconnect() {
    let (client, mut broker, mut peer) = connect(ClientConfig { read_buffer_bytes: 1, ..soon() }).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    peer.deliver("m1", 1, true).await;
    // The program keeps a message longer than its consumer.
    let kept = consumer.next_batch(1).await;
    peer.deliver("m2", 1, true).await;
    while consumer.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(consumer);
    assert_eq!(peer.read().await.content_type(), 602);
    drop(peer);
    let mut peer = broker.accept().await;
    let publishing = async { client.publish(&queue(), b"x", &PublishOptions::default()).await };
    let confirming = async {
        let message = peer.read().await;
        peer.acknowledge(&message).await;
    };
    let published = async { tokio::join!(publishing, confirming).0 };
    tokio::time::timeout(LONG, published).await.expect("the client reads the confirmation").unwrap();
    assert_eq!(kept[0].ack(), Settlement::Stale);
}

#[tokio::test]
async fn messages_go_to_the_consumers_of_their_queue_and_others_are_counted() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let second = QueueAddress::new("CH", 2).unwrap();
    let (one, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    let (two, _) = tokio::join!(async { client.consume(&second, 10).await.unwrap() }, peer.answer(0));
    let (two_more, _) = tokio::join!(async { client.consume(&second, 10).await.unwrap() }, peer.answer(0));
    peer.deliver("a", 1, false).await;
    for id in ["b", "c"] {
        peer.deliver(id, 2, false).await;
    }
    peer.deliver("d", 3, false).await;
    peer.deliver("e", 1, false).await;
    let mut of_one = one.next_batch(9).await;
    while of_one.len() < 2 {
        of_one.extend(one.next_batch(9).await);
    }
    assert_eq!((two.take(9).len(), two_more.take(9).len()), (1, 1), "shared in turn");
    assert_eq!(client.stats().unclaimed, 1);
    // A message that must be settled goes back: this server delivers all queues of a channel.
    peer.deliver("f", 3, true).await;
    let refused = peer.read().await;
    assert_eq!((refused.kind(), refused.id()), (Kind::ACKNOWLEDGE, &b"f"[..]));
}

#[tokio::test]
async fn a_pull_joins_for_itself_and_leaves_when_its_messages_are_done() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let options = PullOptions { count: 5, ..PullOptions::default() };
    let pulling = async { client.pull(&queue(), &options).await.unwrap() };
    let serving = async {
        assert_eq!(peer.answer(0).await.content_type(), 601);
        let request = peer.read().await;
        assert_eq!((request.kind(), request.header("count").as_deref()), (Kind::PULL, Some("5")));
        let id = text(request.id());
        let message = format!("Request-Id:{id}\r\nPriority-Messages:1\r\nMessages:7\r\n");
        let pulled = Frame { id: b"m1", target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) };
        peer.write(&Frame { headers: message.as_bytes(), pending_acknowledge: true, ..pulled }).await;
        let end = format!("Request-Id:{id}\r\nNo-Content:End\r\n");
        peer.write(&Frame { id: request.id(), headers: end.as_bytes(), ..pulled }).await;
    };
    let (mut pulled, ()) = tokio::join!(pulling, serving);
    let messages = pulled.take();
    assert_eq!((messages.len(), pulled.remaining, pulled.complete), (1, Some((1, 7)), true));
    assert_eq!(messages[0].ack(), Settlement::Sent);
    assert_eq!(messages[0].ack(), Settlement::Already);
    assert_eq!(peer.read().await.kind(), Kind::ACKNOWLEDGE);
    drop(messages);
    assert_eq!(peer.read().await.content_type(), 602);
}

#[tokio::test]
async fn a_pull_without_any_answer_is_a_timeout_and_one_with_a_message_is_not() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let options =
        PullOptions { count: 2, timeout: Some(Duration::from_millis(200)), ..PullOptions::default() };
    let pulling = async { client.pull(&queue(), &options).await };
    let (pulled, _) = tokio::join!(pulling, peer.answer(0));
    assert!(matches!(pulled, Err(ClientError::RequestTimeout { .. })), "{pulled:?}");
    assert_eq!(peer.read().await.kind(), Kind::PULL);
    assert_eq!(peer.answer(0).await.content_type(), 602);

    let pulling = async { client.pull(&queue(), &options).await.unwrap() };
    let serving = async {
        peer.answer(0).await;
        let request = peer.read().await;
        let headers = format!("Request-Id:{}\r\n", text(request.id()));
        let message = Frame { id: b"m1", target: b"ch", content_type: 1, ..Frame::new(Kind::QUEUE) };
        peer.write(&Frame { headers: headers.as_bytes(), ..message }).await;
    };
    let (mut pulled, ()) = tokio::join!(pulling, serving);
    assert_eq!((pulled.take().len(), pulled.complete), (1, false));
}

#[tokio::test]
async fn a_cancelled_pull_leaves_its_messages_to_the_next_pull_or_to_the_broker() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let options = PullOptions { count: 4, ..PullOptions::default() };
    let abandoned = tokio::spawn({
        let (client, options) = (client.clone(), options.clone());
        async move { client.pull(&queue(), &options).await }
    });
    peer.answer(0).await;
    let pull = peer.read().await;
    for (id, asks) in [("m1", false), ("m2", true), ("m3", false)] {
        peer.deliver_pulled(&pull, id, asks).await;
    }
    peer.handled().await;
    abandoned.abort();
    drop(abandoned.await);
    peer.read_returned("m2").await;
    assert_eq!(peer.answer(0).await.content_type(), 602);
    assert_eq!(pull_ids(&client, &mut peer, &options, 2).await, ["m1", "m3"]);
}

/// Pulls while the broker has nothing, which the pull asks for `asked` messages. Returns the ids of the messages.
async fn pull_ids(client: &Client, peer: &mut Peer, options: &PullOptions, asked: u32) -> Vec<String> {
    let pulling = async { client.pull(&queue(), options).await.unwrap() };
    let serving = async {
        assert_eq!(peer.answer(0).await.content_type(), 601);
        let pull = peer.read().await;
        assert_eq!(pull.header("count"), Some(asked.to_string().into()));
        peer.end_pull(&pull).await;
    };
    let (mut pulled, ()) =
        tokio::time::timeout(LONG, async { tokio::join!(pulling, serving) }).await.unwrap();
    let id = |delivered: &Delivered| text(delivered.message().id()).to_owned();
    let ids = pulled.take().iter().map(id).collect();
    assert_eq!(peer.read().await.content_type(), 602);
    ids
}

#[tokio::test]
async fn a_pull_that_is_cancelled_when_its_answer_is_here_leaves_the_messages_too() {
    let (queue, options) = (queue(), PullOptions { count: 3, ..PullOptions::default() });
    // The broker ends the pull, or its connection does.
    for ends in [true, false] {
        let (client, mut broker, mut peer) = connect(soon()).await;
        let mut abandoned = Box::pin(client.pull(&queue, &options));
        let asked = async {
            peer.answer(0).await;
            peer.read().await
        };
        let pull = tokio::select! {
            biased;
            pulled = &mut abandoned => unreachable!("there is no answer: {pulled:?}"),
            pull = asked => pull,
        };
        for (id, asks) in [("m1", false), ("m2", false), ("m3", true)] {
            peer.deliver_pulled(&pull, id, asks).await;
        }
        if ends {
            peer.end_pull(&pull).await;
            peer.handled().await;
            drop(abandoned);
            peer.read_returned("m3").await;
            assert_eq!(peer.answer(0).await.content_type(), 602);
        } else {
            peer.handled().await;
            drop(peer);
            peer = broker.accept().await;
            // The subscription of the pull is restored.
            assert_eq!(peer.answer(0).await.content_type(), 601);
            drop(abandoned);
            assert_eq!(peer.answer(0).await.content_type(), 602);
        }
        assert_eq!(pull_ids(&client, &mut peer, &options, 1).await, ["m1", "m2"]);
    }
}

#[tokio::test]
async fn messages_of_a_pull_that_no_one_took_come_with_the_next_one_or_go_back() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let options = PullOptions { count: 3, ..PullOptions::default() };
    let pulling = async { client.pull(&queue(), &options).await.unwrap() };
    let serving = async {
        peer.answer(0).await;
        let pull = peer.read().await;
        for (id, asks) in [("m1", false), ("m2", true), ("m3", false)] {
            peer.deliver_pulled(&pull, id, asks).await;
        }
        peer.end_pull(&pull).await;
    };
    let (pulled, ()) = tokio::join!(pulling, serving);
    drop(pulled);
    peer.read_returned("m2").await;
    assert_eq!(peer.answer(0).await.content_type(), 602);
    assert_eq!(pull_ids(&client, &mut peer, &options, 1).await, ["m1", "m3"]);
    let cached = async {
        peer.answer(0).await;
        let pull = peer.read().await;
        peer.respond(&pull, 0, b"cached").await;
    };
    // The message of a cache stays there.
    let (pulled, ()) = tokio::join!(async { client.pull(&queue(), &options).await.unwrap() }, cached);
    drop(pulled);
    assert_eq!(peer.answer(0).await.content_type(), 602);
    assert!(pull_ids(&client, &mut peer, &options, 3).await.is_empty());
}

#[tokio::test]
async fn events_come_typed_and_unsubscribing_is_said() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let wanted = EventScope { kind: EventKind::MessageProduced, channel: Some("ch".into()), queue: Some(7) };
    let subscribing = async { client.subscribe_events(std::slice::from_ref(&wanted)).await.unwrap() };
    let (stream, request) = tokio::join!(subscribing, peer.answer(0));
    assert_eq!((request.kind(), request.content_type()), (Kind::EVENT, 1));
    let body = br#"{"Channel":"ch","Queue":7,"Id":"m1","Saved":true,"ProducerId":"p","ProducerName":null}"#;
    let event =
        Frame { source: b"MessageProduced", target: b"ch", content_type: 7, ..Frame::new(Kind::EVENT) };
    peer.write(&Frame { content_type: 8, payload: body, ..event }).await;
    peer.write(&Frame { payload: body, ..event }).await;
    let events = stream.next_batch(9).await;
    assert_eq!(events.len(), 1, "the other is of another queue");
    assert_eq!((events[0].channel.as_deref(), events[0].queue), (Some("ch"), Some(7)));
    drop(stream);
    let request = peer.read().await;
    assert_eq!((request.kind(), request.content_type()), (Kind::EVENT, 0));

    let needless = EventScope { kind: EventKind::ClientConnected, ..wanted };
    let needless = client.subscribe_events(&[needless]).await;
    assert!(matches!(needless, Err(ClientError::InvalidArgument { .. })));
}

#[tokio::test]
async fn closing_waits_for_requests_in_flight() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let publishing = tokio::spawn({
        let client = client.clone();
        async move { client.publish(&queue(), b"x", &PublishOptions::default()).await }
    });
    let message = peer.read().await;
    let finishing = async {
        let refused = client.publish(&queue(), b"y", &PublishOptions::default()).await;
        assert_eq!(refused, Err(ClientError::Closed));
        peer.acknowledge(&message).await;
    };
    tokio::join!(client.close(None), finishing);
    publishing.await.unwrap().unwrap();
    assert!(peer.is_closed().await);
    client.close(None).await;
}

#[tokio::test]
async fn a_closing_client_leaves_messages_without_acknowledgement_to_its_consumers() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let (consumer, _) = tokio::join!(async { client.consume(&queue(), 10).await.unwrap() }, peer.answer(0));
    for (id, asks) in [("m1", false), ("m2", true), ("m3", false), ("m4", false)] {
        peer.deliver(id, 1, asks).await;
    }
    while consumer.waiting() < 4 {
        tokio::task::yield_now().await;
    }
    let leaving = async {
        assert_eq!(peer.answer(0).await.content_type(), 602);
        peer.read_returned("m2").await;
    };
    tokio::join!(client.close(None), leaving);
    let left = consumer.next_batch(9).await;
    let ids: Vec<_> = left.iter().map(|delivered| text(delivered.message().id())).collect();
    assert_eq!(ids, ["m1", "m3", "m4"]);
    assert!(consumer.next_batch(9).await.is_empty());
}

/// Accepts one connection over TLS and performs both handshakes.
async fn accept_over_tls(listener: &TcpListener) -> Peer<impl AsyncRead + AsyncWrite + Unpin + use<>> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
    let mut peer = Peer { stream, input: Vec::new() };
    peer.shake_hands().await;
    peer
}

#[tokio::test]
async fn closing_ends_with_the_drain_timeout_although_the_broker_does_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tmqps://{}", listener.local_addr().unwrap());
    let transport = Transport::Tcp(vec![BrokerAddress::parse(&address).unwrap()]);
    let tls = ClientTls { dangerously_accept_any_certificate: true, ..ClientTls::default() };
    let config = ClientConfig { tls: Some(tls), ..ClientConfig::default() };
    let (client, _peer) = tokio::join!(Client::connect(config, transport), accept_over_tls(&listener));
    let client = client.unwrap();
    let timeout = Some(Duration::from_millis(500));
    let options = PublishOptions { confirm: false, timeout, ..PublishOptions::default() };
    let body = vec![0; 256 * 1024];
    // Until the buffers of both sides are full.
    while client.publish(&queue(), &body, &options).await.is_ok() {}
    let closing = client.close(Some(Duration::from_millis(200)));
    tokio::time::timeout(LONG, closing).await.expect("it waits no longer than it may");
}

#[tokio::test]
async fn the_connection_goes_with_the_last_handle() {
    let (client, _broker, mut peer) = connect(ClientConfig::default()).await;
    let clone = client.clone();
    drop(client);
    assert!(matches!(clone.state(), ClientState::Connected { .. }));
    drop(clone);
    assert!(peer.is_closed().await);
}

#[tokio::test]
async fn a_broken_frame_ends_the_connection_and_nothing_else() {
    let (client, mut broker, mut peer) = connect(soon()).await;
    // The frame announces headers without a length.
    peer.write_bytes(&[0x11, 0x30, 0, 0, 0, 0, 0, 0, 0, 0]).await;
    let _peer = broker.accept().await;
    let mut states = client.states();
    states.wait_for(|state| matches!(state, ClientState::Connected { .. })).await.unwrap();
}
