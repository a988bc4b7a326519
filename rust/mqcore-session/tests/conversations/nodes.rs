//! Other brokers: one that connects to this broker and forwards, and clients whose frames are forwarded from here.

use std::sync::Arc;

use mqcore_broker::model::command::{Command, PassedOn};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_cluster::filter::{FilterRule, ForwardKind, LinkFilter, WildcardPattern};
use mqcore_cluster::log::UpstreamSet;
use mqcore_cluster::message::{ID_KEY, LinkMessage, VERSION_KEY};
use mqcore_session::forwards::Forwards;
use mqcore_session::node::NodeTerms;
use mqcore_session::session::{Session, SessionConfig};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE, header, operation};

use super::talk::{Talk, client, config, encoded, introduction, is_generated, only_frame};

fn terms() -> NodeTerms {
    NodeTerms {
        id: "m-1".into(),
        name: "upstream".into(),
        accepts: true,
        token: Some("secret".into()),
        ..NodeTerms::default()
    }
}

fn among_nodes(terms: NodeTerms) -> SessionConfig {
    SessionConfig { node: Some(Arc::new(terms)), ..config() }
}

fn hello(token: &str, properties: Vec<(&str, &str)>) -> Vec<u8> {
    let mut payload = Vec::new();
    let hello = Hello {
        client_id: Some("s-1"),
        client_name: Some("south"),
        client_type: Some("server"),
        client_token: Some(token),
        properties,
        ..Hello::default()
    };
    hello::encode(&hello, &mut payload).expect("a hello");
    let frame = Frame { content_type: operation::HELLO, payload: &payload, ..Frame::new(Kind::SERVER) };
    [&PREAMBLE[..], &encoded(&frame)].concat()
}

const NUMBERED: [(&str, &str); 2] = [("Mqcore-Node", "1"), ("Mqcore-Node-Epoch", "7")];

/// An accepted node, and the last output for it.
fn linked(terms: NodeTerms, properties: Vec<(&str, &str)>) -> (Talk, Vec<u8>) {
    let mut talk = Talk::with(among_nodes(terms));
    let (commands, _) = talk.receive(&hello("secret", properties));
    assert_eq!(introduction(commands).node.as_deref(), Some(""));
    let output = talk.event(Event::Welcomed(client("s-1")));
    (talk, output)
}

fn position(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    LinkMessage::Position(number).encode(&mut bytes);
    bytes
}

fn to_queue(target: &str) -> Frame<'_> {
    let (target, payload) = (target.as_bytes(), b"body");
    Frame { id: b"i", source: b"first-client", target, content_type: 4, payload, ..Frame::new(Kind::QUEUE) }
}

fn passed_on(command: Command) -> PassedOn {
    match command {
        Command::PassedOn(passed_on) => *passed_on,
        other => panic!("{other:?}"),
    }
}

fn confirmation(bytes: &[u8]) -> Option<LinkMessage> {
    let (frame, size) = tmqp::decode(bytes, &Limits::default()).expect("a frame")?;
    assert_eq!(size, bytes.len());
    LinkMessage::read(&frame)
}

#[test]
fn node_needs_the_right_token_and_learns_that_numbers_are_understood() {
    let mut talk = Talk::with(among_nodes(terms()));
    assert!(talk.try_receive(&hello("wrong", NUMBERED.to_vec())).is_err());
    let (_, output) = linked(terms(), NUMBERED.to_vec());
    let (frame, _) = tmqp::decode(&output, &Limits::default()).expect("a frame").expect("whole");
    assert_eq!(frame.content_type, operation::ACCEPTED);
    assert_eq!(header::header_value(frame.headers, VERSION_KEY), Some(&b"1"[..]));
    assert_eq!(header::header_value(frame.headers, ID_KEY), Some(&b"m-1"[..]));
    let (_, output) = linked(terms(), Vec::new());
    let (frame, _) = tmqp::decode(&output, &Limits::default()).expect("a frame").expect("whole");
    assert!(frame.headers.is_empty(), "the original's nodes get what they know");
}

#[test]
fn type_server_is_ordinary_if_nodes_are_not_accepted() {
    for node in [None, Some(Arc::new(NodeTerms { accepts: false, ..terms() }))] {
        let mut talk = Talk::with(SessionConfig { node, ..config() });
        let (commands, _) = talk.receive(&hello("x", NUMBERED.to_vec()));
        assert_eq!(introduction(commands).node, None);
        talk.event(Event::Welcomed(client("s-1")));
        assert!(talk.try_receive(&encoded(&to_queue("ch"))).is_err(), "its source is another client");
    }
}

#[test]
fn forwarded_frames_keep_their_source_and_are_confirmed_when_done() {
    let (mut talk, _) = linked(terms(), NUMBERED.to_vec());
    let copies = Frame { headers: b"CC:other\r\n", ..to_queue("ch") };
    let bytes =
        [position(40), encoded(&to_queue("ch")), encoded(&copies), position(50), encoded(&to_queue("ch"))];
    let (commands, output) = talk.receive(&bytes.concat());
    assert!(output.is_empty());
    let commands: Vec<_> = commands.into_iter().map(passed_on).collect();
    let numbers: Vec<u64> = commands.iter().map(|command| command.ticket.number).collect();
    assert_eq!(numbers, [40 << 7, 41 << 7, (41 << 7) + 1, 50 << 7]);
    assert!(commands.iter().all(|command| (&*command.ticket.node, command.ticket.epoch) == ("s-1", 7)));
    let Command::Publish { queue, message } = &commands[0].command else { panic!("{commands:?}") };
    assert_eq!(queue.to_string(), "ch/4");
    assert_eq!(
        (message.id(), message.source(), message.body()),
        (&b"i"[..], &b"first-client"[..], &b"body"[..])
    );
    assert_eq!((message.properties().hops, message.ticket()), (15, Some(&commands[0].ticket)));
    let Command::Publish { queue, message } = &commands[2].command else { panic!("{commands:?}") };
    assert_eq!((queue.to_string(), message.source()), ("other/4".to_owned(), &b"first-client"[..]));
    assert!(talk.event(Event::Confirmed(vec![50 << 7, 41 << 7])).is_empty());
    assert_eq!(confirmation(&talk.event(Event::Confirmed(vec![40 << 7]))), Some(LinkMessage::Confirm(40)));
    let confirmed = talk.event(Event::Confirmed(vec![(41 << 7) + 1]));
    assert_eq!(confirmation(&confirmed), Some(LinkMessage::Confirm(50)));
}

#[test]
fn frames_that_an_upstream_skips_are_confirmed_at_once() {
    let rule = FilterRule {
        channel: Some(WildcardPattern::new("ch")),
        node: Some(WildcardPattern::new("nm")),
        ..FilterRule::default()
    };
    let accept = LinkFilter { allow: vec![rule], deny: Vec::new() };
    let (mut talk, _) = linked(NodeTerms { accept, ..terms() }, NUMBERED.to_vec());
    let (commands, output) = talk.receive(&encoded(&to_queue("other")));
    assert!(commands.is_empty());
    assert_eq!(confirmation(&output), Some(LinkMessage::Confirm(1)));
    let spent = Frame { hops: 0, ..to_queue("ch") };
    let (commands, output) = talk.receive(&encoded(&spent));
    assert!(commands.is_empty(), "no hops left");
    assert_eq!(confirmation(&output), Some(LinkMessage::Confirm(2)));
    assert_eq!(talk.receive(&encoded(&to_queue("ch"))).0.len(), 1);
}

#[test]
fn frames_between_clients_are_passed_on_too_and_operations_are_not() {
    let (mut talk, _) = linked(terms(), NUMBERED.to_vec());
    let base = Frame { id: b"i", source: b"c", target: b"other", ..Frame::new(Kind::DIRECT) };
    let taken = |talk: &mut Talk, frame: Frame<'_>| passed_on(talk.command(&encoded(&frame))).command;
    assert!(matches!(taken(&mut talk, base), Command::Direct { .. }));
    assert!(matches!(taken(&mut talk, Frame { kind: Kind::ROUTER, ..base }), Command::Route { .. }));
    assert!(matches!(taken(&mut talk, Frame { kind: Kind::RESPONSE, ..base }), Command::Respond { .. }));
    let acknowledge = Frame { kind: Kind::ACKNOWLEDGE, ..base };
    assert!(matches!(taken(&mut talk, acknowledge), Command::Acknowledge(_)));
    let direct = Frame { high_priority: true, ..acknowledge };
    assert!(matches!(taken(&mut talk, direct), Command::AcknowledgeDirect { .. }));
    assert_eq!(talk.answer(&tmqp::PING), tmqp::PONG);
}

#[test]
fn a_node_that_sends_no_numbers_is_served_without_confirmations() {
    let (mut talk, _) = linked(terms(), Vec::new());
    let Command::Publish { message, .. } = talk.command(&encoded(&to_queue("ch"))) else { panic!() };
    assert_eq!((message.source(), message.ticket()), (&b"first-client"[..], None));
    assert!(message.producer().is_none(), "no client here is its producer fate");
}

#[test]
fn node_is_disconnected_when_a_frame_is_deferred() {
    let (mut talk, _) = linked(terms(), NUMBERED.to_vec());
    talk.receive(&encoded(&to_queue("ch")));
    talk.event(Event::Deferred(1 << 7, Rejection::new(RejectionKind::Busy, "full")));
    assert!(talk.session.is_closing());
}

/// The frames recorded for a client's input, and their upstream brokers.
fn noted(
    talk: &mut Talk,
    terms: &NodeTerms,
    frames: &[Frame<'_>],
) -> (Vec<Command>, Vec<(UpstreamSet, Vec<u8>)>) {
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| encoded(frame)).collect();
    let (mut commands, _) = talk.receive(&bytes);
    let mut forwards = Forwards::new(ConnectionId(1), talk.now);
    for command in &mut commands {
        forwards.note(terms, &client("cli"), command);
    }
    let noted = forwards.take().map_or_else(Vec::new, |noted| {
        noted.iter().map(|(upstreams, bytes)| (upstreams, bytes.to_vec())).collect()
    });
    assert!(forwards.take().is_none());
    (commands, noted)
}

#[test]
fn client_commands_go_to_upstreams_selected_by_filters_with_their_source() {
    let own = FilterRule {
        client_name: Some(WildcardPattern::new("nm")),
        channel: Some(WildcardPattern::new("own*")),
        ..FilterRule::default()
    };
    let queues = LinkFilter {
        allow: vec![FilterRule { kinds: vec![ForwardKind::Queue], ..FilterRule::default() }],
        deny: vec![own],
    };
    let terms = NodeTerms { sends: vec![LinkFilter::default(), queues], ..terms() };
    let of_client = |target| Frame { source: b"", ..to_queue(target) };
    let direct = Frame { id: b"", target: b"@name:x", ..Frame::new(Kind::DIRECT) };
    let spent = Frame { hops: 1, ..of_client("ch") };
    let acknowledge =
        Frame { id: b"i", target: b"ch", headers: b"Nack-Reason:no\r\n", ..Frame::new(Kind::ACKNOWLEDGE) };
    let list = Frame { content_type: 606, id: b"i", pending_response: true, ..Frame::new(Kind::SERVER) };
    let route = Frame { id: b"i", target: b"r", ..Frame::new(Kind::ROUTER) };
    let frames =
        [of_client("ch"), of_client("own"), of_client("@topic:t"), direct, spent, acknowledge, list, route];
    let (_, noted) = noted(&mut Talk::open(), &terms, &frames);
    let seen: Vec<_> = noted
        .iter()
        .map(|(upstreams, bytes)| {
            let frame = only_frame(bytes);
            assert_eq!((frame.source, frame.hops), (&b"cli"[..], 15));
            (upstreams.0, frame.kind, str::from_utf8(frame.target).expect("text"))
        })
        .collect();
    let expected = [
        (3, Kind::QUEUE, "ch"),
        (1, Kind::QUEUE, "own"),
        (3, Kind::QUEUE, "@topic:t"),
        (1, Kind::DIRECT, "@name:x"),
        (1, Kind::ACKNOWLEDGE, "ch"),
        (1, Kind::ROUTER, "r"),
    ];
    assert_eq!(seen, expected);
    assert!(is_generated(only_frame(&noted[3].1).id));
    assert_eq!(only_frame(&noted[4].1).headers, b"Nack-Reason:no\r\n");
}

#[test]
fn message_has_one_id_on_all_brokers_and_its_copies_are_forwarded_once() {
    let terms = NodeTerms { sends: vec![LinkFilter::default()], ..terms() };
    let headers = b"A:b\r\nCC:other;5;copy\r\n";
    let without_id = Frame { id: b"", source: b"", headers, ..to_queue("ch") };
    let (commands, noted) = noted(&mut Talk::open(), &terms, &[without_id]);
    let [Command::Publish { message, .. }, Command::Publish { message: copy, .. }] = &commands[..] else {
        panic!("{commands:?}")
    };
    let (frame, copied) = (only_frame(&noted[0].1), only_frame(&noted[1].1));
    assert!(is_generated(message.id()));
    assert_eq!((message.id(), message.source(), message.body()), (frame.id, &b"cli"[..], frame.payload));
    assert_eq!(
        (message.headers(), frame.headers),
        (&headers[..], &b"A:b\r\n"[..]),
        "an upstream makes no copies again"
    );
    assert_eq!((copy.id(), copied.id, copied.target), (&b"copy"[..], &b"copy"[..], &b"other"[..]));
    assert_eq!((copied.content_type, copied.hops, copied.headers), (5, 16, &b"A:b\r\n"[..]));
}

#[test]
fn forwarded_frames_are_not_forwarded_again() {
    let terms = NodeTerms { sends: vec![LinkFilter::default()], ..terms() };
    for properties in [NUMBERED.to_vec(), Vec::new()] {
        let (mut talk, _) = linked(terms.clone(), properties);
        assert!(talk.session.is_node());
        let (commands, noted) = noted(&mut talk, &terms, &[to_queue("ch"), to_queue("@topic:t")]);
        assert_eq!((commands.len(), noted.len()), (2, 0));
    }
}
