//! Servers on loopback that pass on to each other, and peers of the original's sort on either side.

use crate::peer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_cluster::filter::{FilterRule, LinkFilter, WildcardPattern};
use mqcore_server::config::{Config, ConfigError, Protocol};
use mqcore_server::handler::NoHandlers;
use mqcore_server::nodes::config::{NodeConfig, UpstreamConfig};
use mqcore_server::server::{Server, StartError};
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE, operation};
use peer::{Directory, PATIENCE, Peer, Received};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

fn config(data_dir: Option<&Path>, node: NodeConfig) -> Config {
    let queue = QueueOptions {
        status: Status::Pull,
        delivery_handler: data_dir.map(|_| "at-least-once".into()),
        ..QueueOptions::default()
    };
    Config {
        listeners: vec!["tmqp://127.0.0.1:0".parse().expect("a listener")],
        shards: 2,
        data_dir: data_dir.map(Path::to_path_buf),
        channel: ChannelOptions { queue, ..ChannelOptions::default() },
        auto_create_channels: true,
        auto_create_queues: true,
        node: Some(node),
        ..Config::default()
    }
}

async fn start(config: Config) -> Server {
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("it starts")
}

fn address(server: &Server) -> String {
    server.listeners()[0].address.to_string()
}

fn named(name: &str) -> NodeConfig {
    NodeConfig { name: name.into(), reconnect_wait: Duration::from_millis(20), ..NodeConfig::default() }
}

fn downstream_of(name: &str, upstreams: &[String]) -> NodeConfig {
    let url =
        |address: &String| format!("tmqp://{address}").parse::<UpstreamConfig>().expect("an upstream broker");
    NodeConfig { upstreams: upstreams.iter().map(url).collect(), ..named(name) }
}

/// Polls until `holds`, within a limit.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "never: {what}");
}

async fn bodies(server: &Server, queue: &str) -> Vec<String> {
    let address = QueueAddress::parse(queue).expect("a good address");
    let waiting = server.waiting(address, 10_000).await.unwrap_or_default();
    let body = |message: &Message| String::from_utf8_lossy(message.body()).into_owned();
    waiting.iter().filter_map(|waiting| waiting.message.as_ref().map(body)).collect()
}

async fn connected(server: &Server) -> usize {
    server.snapshot().await.nodes.iter().filter(|node| node.connected).count()
}

async fn client(server: &Server) -> Peer<tokio::io::DuplexStream> {
    let hello = Hello { client_id: Some("c-1"), ..Hello::default() };
    Peer::welcome(server.connect_local(Protocol::Tmqp), &hello).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_reach_the_upstream_with_their_source_and_no_further_broker() {
    let (top, middle_directory, bottom_directory) = (Directory::new(), Directory::new(), Directory::new());
    let top = start(config(Some(&top), named("top"))).await;
    let middle = start(config(Some(&middle_directory), downstream_of("middle", &[address(&top)]))).await;
    let bottom = start(config(Some(&bottom_directory), downstream_of("bottom", &[address(&middle)]))).await;
    until("links are up", async || connected(&top).await == 1 && connected(&middle).await == 2).await;
    // The middle may count the bottom before the bottom has its answer; until then, the bottom drops what it would forward.
    until("the bottom is accepted", async || connected(&bottom).await == 1).await;
    client(&bottom).await.publish_confirmed("ch", "from-bottom").await;
    client(&middle).await.publish_confirmed("ch", "from-middle").await;
    until("both are at the middle", async || bodies(&middle, "ch").await.len() == 2).await;
    until("one is at the top", async || bodies(&top, "ch").await == ["from-middle"]).await;
    assert_eq!(bodies(&bottom, "ch").await, ["from-bottom"]);
    let address = QueueAddress::parse("ch").expect("a good address");
    let waiting = top.waiting(address, 1).await.expect("it is there");
    assert_eq!(waiting[0].message.as_ref().expect("it is in memory").source(), b"c-1");
    for server in [bottom, middle, top] {
        server.stop(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_the_moment_a_link_falls_idle_is_sent_at_once() {
    let upstream = start(config(None, named("up"))).await;
    let downstream = start(config(None, downstream_of("down", &[address(&upstream)]))).await;
    until("the link is up", async || connected(&downstream).await == 1).await;
    let mut producer = client(&downstream).await;
    for number in 0..300 {
        producer.publish_confirmed("ch", &number.to_string()).await;
        if number % 3 == 0 {
            until("it is there", async || bodies(&upstream, "ch").await.len() == number + 1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mesh_of_four_has_everything_everywhere_once() {
    let mut sockets = Vec::new();
    for _ in 0..4 {
        sockets.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    }
    let addresses: Vec<_> =
        sockets.iter().map(|socket| socket.local_addr().expect("bound").to_string()).collect();
    drop(sockets);
    let mut servers = Vec::new();
    for (index, own) in addresses.iter().enumerate() {
        let others: Vec<_> = addresses.iter().filter(|address| *address != own).cloned().collect();
        let mut config = config(None, downstream_of(&format!("n{index}"), &others));
        config.listeners = vec![format!("tmqp://{own}").parse().expect("a listener")];
        servers.push(start(config).await);
    }
    for server in &servers {
        until("the mesh is whole", async || connected(server).await == 6).await;
    }
    for (index, server) in servers.iter().enumerate() {
        let mut client = client(server).await;
        for number in 0..25 {
            client.publish_confirmed("ch", &format!("{index}-{number:02}")).await;
        }
    }
    for server in &servers {
        until("everything is there", async || bodies(server, "ch").await.len() >= 100).await;
    }
    // A copy that took a detour would arrive after its original and before this message.
    for server in &servers {
        client(server).await.publish_confirmed("end", "x").await;
    }
    for server in &servers {
        until("the last of each is there", async || bodies(server, "end").await.len() >= 4).await;
        assert_eq!(bodies(server, "end").await.len(), 4);
    }
    for server in &servers {
        let all = bodies(server, "ch").await;
        for index in 0..4 {
            let prefix = format!("{index}-");
            let of_one: Vec<_> = all.iter().filter(|body| body.starts_with(&prefix)).cloned().collect();
            let expected: Vec<_> = (0..25).map(|number| format!("{index}-{number:02}")).collect();
            assert_eq!(of_one, expected, "once each, in order");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_kept_for_a_master_that_is_away_and_come_in_order_after_both_restarted() {
    let (up, down) = (Directory::new(), Directory::new());
    let upstream = start(config(Some(&up), named("up"))).await;
    let there = address(&upstream);
    let keeping =
        || NodeConfig { keep_messages: true, ..downstream_of("down", std::slice::from_ref(&there)) };
    let downstream = start(config(Some(&down), keeping())).await;
    until("the link is up", async || connected(&downstream).await == 1).await;
    client(&downstream).await.publish_confirmed("ch", "0").await;
    until("the first is there", async || bodies(&upstream, "ch").await.len() == 1).await;
    upstream.stop(Duration::ZERO).await;
    drop(upstream);
    let mut producer = client(&downstream).await;
    for number in 1..50 {
        producer.publish_confirmed("ch", &number.to_string()).await;
    }
    drop(producer);
    downstream.stop(Duration::ZERO).await;
    drop(downstream);
    let downstream = start(config(Some(&down), keeping())).await;
    client(&downstream).await.publish_confirmed("ch", "50").await;
    let mut again = config(Some(&up), named("up"));
    again.listeners = vec![format!("tmqp://{there}").parse().expect("a listener")];
    let upstream = start(again).await;
    until("all are there", async || bodies(&upstream, "ch").await.len() >= 51).await;
    let expected: Vec<_> = (0..=50).map(|number: u32| number.to_string()).collect();
    assert_eq!(bodies(&upstream, "ch").await, expected);
    downstream.stop(Duration::ZERO).await;
    upstream.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_storage_messages_for_a_disconnected_upstream_are_not_forwarded() {
    let downstream = start(config(None, downstream_of("down", &["127.0.0.1:9".into()]))).await;
    client(&downstream).await.publish_confirmed("ch", "x").await;
    assert_eq!(bodies(&downstream, "ch").await, ["x"]);
    let snapshot = downstream.snapshot().await;
    assert_eq!(
        (snapshot.nodes.len(), snapshot.nodes[0].connected, snapshot.nodes[0].downstream),
        (1, false, false)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_of_both_sides_and_the_token_are_kept() {
    let rule = |channel| FilterRule { channel: Some(WildcardPattern::new(channel)), ..FilterRule::default() };
    let accept = LinkFilter { allow: Vec::new(), deny: vec![rule("refused-there")] };
    let token = Some("secret".to_owned());
    let upstream = start(config(None, NodeConfig { accept, token, ..named("up") })).await;
    let mut node = downstream_of("down", &[address(&upstream)]);
    node.upstreams[0].send = LinkFilter { allow: Vec::new(), deny: vec![rule("kept-here")] };
    let stranger = start(config(None, node.clone())).await;
    until("it was tried", async || !stranger.snapshot().await.nodes.is_empty()).await;
    node.upstreams[0].token = Some("secret".into());
    let downstream = start(config(None, node)).await;
    until("the link is up", async || connected(&downstream).await == 1).await;
    let mut producer = client(&downstream).await;
    for channel in ["kept-here", "refused-there", "ch"] {
        producer.publish_confirmed(channel, channel).await;
    }
    until("the last is there", async || bodies(&upstream, "ch").await.len() == 1).await;
    assert_eq!(
        (bodies(&upstream, "kept-here").await.len(), bodies(&upstream, "refused-there").await.len()),
        (0, 0)
    );
    assert_eq!(connected(&stranger).await, 0, "a wrong token opens nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_originals_sort_may_pass_on_here() {
    let upstream = start(config(None, named("up"))).await;
    let stream = TcpStream::connect(address(&upstream)).await.expect("it listens");
    let hello = Hello {
        client_id: Some("twino"),
        client_name: Some("old"),
        client_type: Some("server"),
        ..Hello::default()
    };
    let mut node = Peer::welcome(stream, &hello).await;
    let frame =
        Frame { id: b"i", source: b"its-client", target: b"ch", payload: b"x", ..Frame::new(Kind::QUEUE) };
    node.send(&frame).await;
    until("it is there", async || bodies(&upstream, "ch").await == ["x"]).await;
    let nodes = upstream.snapshot().await.nodes;
    assert_eq!(
        (&*nodes[0].id, &*nodes[0].name, nodes[0].downstream, nodes[0].connected),
        ("twino", "old", true, true)
    );
    assert!(upstream.snapshot().await.clients.is_empty());
    drop(node);
    until("it is gone", async || upstream.snapshot().await.nodes.is_empty()).await;
}

/// Takes one node in as the original would, and answers its pings.
async fn original_master(listener: &TcpListener) -> Peer<TcpStream> {
    let (mut stream, _) = listener.accept().await.expect("a node dials");
    let mut preamble = [0; 8];
    stream.read_exact(&mut preamble).await.expect("it speaks first");
    let mut peer = Peer::new(stream);
    let Received { kind, payload, .. } = peer.frame().await;
    let hello = hello::decode(&payload).expect("a hello");
    assert_eq!((kind, hello.client_type, hello.client_name), (Kind::SERVER, Some("server"), Some("down")));
    peer.write(&PREAMBLE).await;
    let accepted = Frame {
        content_type: operation::ACCEPTED,
        target: hello.client_id.unwrap_or_default().as_bytes(),
        ..Frame::new(Kind::SERVER)
    };
    peer.send(&accepted).await;
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_original_upstream_receives_plain_frames_and_unread_ones_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let down = Directory::new();
    let there = listener.local_addr().expect("bound").to_string();
    let node = NodeConfig { keep_messages: true, ..downstream_of("down", &[there]) };
    let downstream = start(config(Some(&down), node)).await;
    let mut upstream = original_master(&listener).await;
    let mut producer = client(&downstream).await;
    producer.publish_confirmed("ch", "1").await;
    let Received { kind, id, source, payload, .. } = upstream.frame().await;
    assert_eq!((kind, &*id, &*source, &*payload), (Kind::QUEUE, &b"1"[..], &b"c-1"[..], &b"1"[..]));
    assert_eq!(upstream.frame().await.kind, Kind::PING, "whether it has read so far");
    upstream.write(&tmqp::PONG).await;
    producer.publish_confirmed("ch", "2").await;
    assert_eq!(upstream.frame().await.id, b"2");
    drop(upstream);
    let mut upstream = original_master(&listener).await;
    assert_eq!(upstream.frame().await.id, b"2", "the peer may have read it");
    downstream.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_requirements_of_message_storage_are_reported_at_start() {
    let node = NodeConfig { keep_messages: true, ..downstream_of("down", &["127.0.0.1:9".into()]) };
    let refused = Server::start(config(None, node), Vec::new(), Arc::new(NoHandlers)).await;
    let expected =
        matches!(refused, Err(StartError::Config(ConfigError::Node { what: "keep_messages", .. })));
    assert!(expected);
}
