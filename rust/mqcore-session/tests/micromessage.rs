//! MicroMessage2 conversations between sessions and a broker of several shards.

use crate::micromessage_world;

use std::time::Duration;

use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_session::extension::{ExtensionFailure, VendorFrame};
use mqcore_session::micromessage::listener::MicroMessageTerms;
use mqcore_session::micromessage::{OPEN_FRAMES_MAX, SUBSCRIPTIONS_MAX};
use mqcore_session::session::Session;
use mqcore_session::session::SessionError;
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::extension::WINDOW_MAX;
use mqcore_wire::micromessage::handshake::{self, Handshake, HandshakeInput, parse_list};
use mqcore_wire::micromessage::properties::Typing;

use micromessage_world::{
    Heard, World, ack, command, extension, handshake_bytes, message, properties_of, send, sends,
};

fn bodies(heard: &[Heard]) -> Vec<String> {
    heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Message { payload, .. } => Some(String::from_utf8_lossy(payload).into_owned()),
            _ => None,
        })
        .collect()
}

fn numbers(heard: &[Heard]) -> Vec<u16> {
    heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Message { sequence, .. } => Some(*sequence),
            _ => None,
        })
        .collect()
}

fn error(heard: &[Heard]) -> &str {
    match heard {
        [.., Heard::Error(text)] => text,
        other => panic!("no error: {other:?}"),
    }
}

// ---- the handshake ---------------------------------------------------------------------------------------------------

#[test]
fn the_handshake_of_the_document_ends_with_its_ids() {
    let mut world = World::new(1);
    let peer = world.connect();
    world.send(peer, &handshake_bytes(b"hulk", "json;dotnet", ""));
    let reply = world.take(peer);
    let Ok(Some((HandshakeInput::Handshake(said), size))) = handshake::decode(&reply, &Limits::default())
    else {
        panic!("a handshake comes back")
    };
    assert_eq!((size, said.major, said.minor, said.required), (reply.len(), 1, 0, &b""[..]));
    assert!(said.identity.starts_with(b"mqcore/"));
    let offered = parse_list(said.optional).unwrap();
    assert!(offered.iter().any(|extension| extension.name == "batch-ack"));
    world.send(peer, &handshake_bytes(b"hulk", "json;dotnet", "batch-ack"));
    assert!(world.take(peer).is_empty(), "there is no fourth message");
    let names: Vec<_> = world.session(peer).agreement().all().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["json", "dotnet", "batch-ack"]);
    let client = world.client(peer);
    assert_eq!((client.name.as_deref(), client.protocol), (Some("hulk"), "mm2"));
}

#[test]
fn failed_agreement_sends_an_error_and_closes() {
    for (offer, last, why) in [
        (("microauth", ""), None, "extension: unsupported microauth"),
        (("json json", ""), None, "malformed: "),
        (("json;json", ""), None, "malformed: "),
        (("json", ""), Some(("", "")), "extension: required extension json is missing in the final message"),
        (
            ("json", ""),
            Some(("json;x-never", "")),
            "extension: extension x-never was not offered by either side",
        ),
        (
            ("ack", "batch-ack"),
            Some(("ack;batch-ack", "")),
            "extension: ack and batch-ack exclude each other",
        ),
        (("json;xml", ""), Some(("json;xml", "")), "extension: json, xml and protobuf exclude each other"),
        (
            ("", "batch-ack"),
            Some(("batch-ack:max-count=101", "")),
            "extension: max-count 101 exceeds the maximum of 100",
        ),
        (("", ""), Some(("x-nack", "")), "extension: extension x-nack was not offered by either side"),
        (("x-nack", ""), Some(("x-nack", "")), "extension: x-nack requires ack or batch-ack"),
    ] {
        let mut world =
            World::with_terms(1, MicroMessageTerms { window_max: 100, ..MicroMessageTerms::default() });
        let peer = world.connect();
        world.send(peer, &handshake_bytes(b"c", offer.0, offer.1));
        if let Some(last) = last {
            world.take(peer);
            world.send(peer, &handshake_bytes(b"c", last.0, last.1));
        }
        let heard = world.heard(peer);
        assert!(error(&heard).starts_with(why), "{offer:?} {last:?}: {heard:?}");
        assert!(matches!(world.error(peer), Some(SessionError::Misbehaved(_))));
    }
}

#[test]
fn unsupported_version_is_named_in_the_error() {
    let mut world = World::new(1);
    let peer = world.connect();
    world.send(peer, b"\0\x02\0\x01c\0\0\0\0");
    assert_eq!(world.take(peer), b"\x04\x1dversion: 0.2 is not supported");
}

#[test]
fn a_client_that_gives_up_in_the_handshake_is_left_alone() {
    let mut world = World::new(1);
    let peer = world.connect();
    world.send(peer, &[4, 0, 0, 1]);
    assert!(world.take(peer).is_empty());
    assert!(world.session_is_over(peer));
}

#[test]
fn a_handshake_that_stops_halfway_ends_in_time() {
    for sent in [&b""[..], b"\x01\0", &handshake_bytes(b"c", "", "")] {
        let mut world = World::new(1);
        let peer = world.connect();
        world.send(peer, sent);
        world.take(peer);
        world.advance(Duration::from_secs(9));
        assert!(!world.session_is_over(peer));
        world.advance(Duration::from_secs(2));
        assert!(error(&world.heard(peer)).starts_with("timeout: "));
        assert!(matches!(world.error(peer), Some(SessionError::HandshakeTimeout(_))));
    }
}

#[test]
fn a_list_of_ten_thousand_extensions_costs_its_sender_only() {
    let list = (0..10_000).map(|number| format!("x-{number}")).collect::<Vec<_>>().join(";");
    let mut bytes = vec![1, 0, 0, 0];
    bytes.extend_from_slice(&u16::try_from(list.len().min(65_535)).unwrap().to_be_bytes());
    bytes.extend_from_slice(list.as_bytes());
    let mut world = World::new(1);
    let peer = world.connect();
    world.send(peer, &bytes);
    assert!(error(&world.heard(peer)).starts_with("too-large: required extensions"));
    // Short names fit the list, but there are too many of them.
    let list = (0..300).map(|number| format!("x{number}")).collect::<Vec<_>>().join(";");
    let other = world.connect();
    world.send(other, &handshake_bytes(b"c", "", &list));
    assert!(error(&world.heard(other)).contains("255 extensions"));
}

#[test]
fn every_client_needs_the_listeners_required_extensions() {
    let required = parse_list(b"batch-ack:max-count=5").unwrap();
    let required = required.into_iter().map(|extension| extension.into_owned()).collect();
    let mut world = World::with_terms(1, MicroMessageTerms { required, ..MicroMessageTerms::default() });
    let peer = world.connect();
    world.send(peer, &handshake_bytes(b"c", "", ""));
    let reply = world.take(peer);
    let Ok(Some((HandshakeInput::Handshake(Handshake { required, .. }), _))) =
        handshake::decode(&reply, &Limits::default())
    else {
        panic!("a handshake comes back")
    };
    assert_eq!(required, b"batch-ack:max-count=5");
    world.send(peer, &handshake_bytes(b"c", "", ""));
    assert_eq!(
        error(&world.heard(peer)),
        "extension: required extension batch-ack is missing in the final message"
    );
}

#[test]
fn input_waits_until_the_broker_accepts_the_peer() {
    for shards in [1, 3] {
        let mut world = World::new(shards);
        let peer = world.connect();
        let mut bytes = handshake_bytes(b"c", "", "pub-sub");
        bytes.extend(handshake_bytes(b"c", "pub-sub", ""));
        bytes.extend(command("subscribe;destination=orders"));
        bytes.extend(send(1, "orders", "", b"first"));
        world.send(peer, &bytes);
        let reply = world.take_handshake(peer);
        assert!(!reply.is_empty());
        assert_eq!(bodies(&world.heard(peer)), ["first"]);
    }
}

// ---- queues and topics -----------------------------------------------------------------------------------------------

#[test]
fn a_message_of_a_queue_goes_to_one_receiver_in_order() {
    let mut world = World::new(3);
    let (one, two, sender) = (world.open("", "pub-sub"), world.open("", "pub-sub"), world.open("", ""));
    for peer in [one, two] {
        world.send(peer, &command("subscribe;destination=orders"));
    }
    world.send(sender, &sends(1..=10, "orders"));
    let (first, second) = (world.heard(one), world.heard(two));
    assert_eq!(bodies(&first), ["1", "3", "5", "7", "9"]);
    assert_eq!(bodies(&second), ["2", "4", "6", "8", "10"]);
    assert_eq!(numbers(&first), [1, 2, 3, 4, 5]);
    assert!(matches!(&first[0], Heard::Message { destination, .. } if destination == "orders"));
}

#[test]
fn a_topic_message_reaches_each_subscriber_once() {
    let mut world = World::new(3);
    let (one, two, sender) =
        (world.open("", "pub-sub"), world.open("", "pub-sub"), world.open("", "pub-sub"));
    for peer in [one, two, sender] {
        world.send(peer, &command("subscribe;destination=topic%2Forders,id=a"));
        world.send(peer, &command("subscribe;destination=topic%2Forders,id=b"));
    }
    world.send(sender, &send(1, "topic/orders", "price:N1;", b"new"));
    for peer in [one, two, sender] {
        let heard = world.heard(peer);
        assert_eq!(heard, [message(1, "topic/orders", "price:N1;", b"new")]);
    }
}

#[test]
fn ended_subscription_receives_no_more_messages() {
    for destination in ["orders", "topic/orders"] {
        let mut world = World::new(3);
        let (peer, sender) = (world.open("", "pub-sub;x-mqcore"), world.open("", ""));
        let escaped = destination.replace('/', "%2F");
        world.send(peer, &command(&format!("subscribe;destination={escaped},id=s")));
        assert_eq!(world.heard(peer), [Heard::Command("ok;id=s".into())]);
        world.send(peer, &command("unsubscribe;id=s"));
        assert_eq!(world.heard(peer), [Heard::Command("ok;id=s".into())]);
        world.send(sender, &send(1, destination, "", b"late"));
        assert_eq!(world.heard(peer), []);
        world.send(peer, &command(&format!("subscribe;destination={escaped},id=s")));
        let kept = if destination == "orders" { vec!["late"] } else { vec![] };
        assert_eq!(bodies(&world.heard(peer)), kept);
    }
}

#[test]
fn a_subscription_without_an_id_is_ended_by_its_destination() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("", "pub-sub"), world.open("", ""));
    world.send(peer, &command("SUBSCRIBE;destination=topic%2Fa"));
    world.send(peer, &command("unsubscribe;destination=topic%2Fa"));
    world.send(sender, &send(1, "topic/a", "", b"x"));
    assert_eq!(world.heard(peer), []);
    world.send(peer, &command("unsubscribe;destination=topic%2Fa"));
    assert_eq!(error(&world.heard(peer)), "unexpected: there is no such subscription");
}

#[test]
fn filters_pass_messages_that_match_any_subscription() {
    let mut world = World::new(2);
    let (peer, sender) = (world.open("", "pub-sub"), world.open("", ""));
    for (id, filter) in [("a", "price%3EN10%3Bregion%3DTeu"), ("b", "urgent%26Tyes")] {
        world.send(peer, &command(&format!("subscribe;destination=topic%2Forders,id={id},filter={filter}")));
    }
    for (number, properties) in
        [(1, "price:N11;region:Teu;"), (2, "price:N10;region:Teu;"), (3, "urgent:Toh%20yes;"), (4, "")]
    {
        world.send(sender, &send(number, "topic/orders", properties, number.to_string().as_bytes()));
    }
    assert_eq!(bodies(&world.heard(peer)), ["1", "3"]);
    world.send(peer, &command("unsubscribe;id=a"));
    world.send(sender, &send(5, "topic/orders", "price:N11;region:Teu;", b"5"));
    assert_eq!(bodies(&world.heard(peer)), Vec::<String>::new());
}

#[test]
fn untyped_properties_are_text_if_the_listener_is_configured_so() {
    for (typing, wanted) in [(Typing::Typed, vec!["x"]), (Typing::Untyped, vec![])] {
        let mut world = World::with_terms(1, MicroMessageTerms { typing, ..MicroMessageTerms::default() });
        let (peer, sender) = (world.open("", "pub-sub"), world.open("", ""));
        world.send(peer, &command("subscribe;destination=topic%2Fa,filter=n%3DN1"));
        world.send(sender, &send(1, "topic/a", "n:N1", b"x"));
        assert_eq!(bodies(&world.heard(peer)), wanted);
    }
}

#[test]
fn invalid_subscription_is_an_error() {
    for (said, why) in [
        ("subscribe", "destination: "),
        ("subscribe;destination=topic%2F", "destination: "),
        ("subscribe;destination=bad%40name", "destination: "),
        ("subscribe;destination=a,id=UPPER", "malformed: "),
        ("subscribe;destination=topic%2Fa,filter=price", "bad-filter: "),
        ("subscribe;destination=topic%2Fa,filter=price%7EN1", "bad-filter: "),
        ("subscribe;destination=a,filter=price%3DN1", "bad-filter: "),
        ("unsubscribe", "malformed: "),
        ("unsubscribe;id=nobody", "unexpected: "),
        ("shout;a=b", "unknown-command: shout"),
        ("SUB;a=b ", "malformed: "),
    ] {
        let mut world = World::new(1);
        let (peer, other) = (world.open("", "pub-sub"), world.open("", "pub-sub"));
        world.send(peer, &command(said));
        assert!(error(&world.heard(peer)).starts_with(why), "{said}");
        assert!(world.session_is_over(peer) && !world.session_is_over(other));
    }
    let mut world = World::new(1);
    let peer = world.open("", "");
    world.send(peer, &command("subscribe;destination=a"));
    assert_eq!(error(&world.heard(peer)), "unexpected: subscribe needs the extension pub-sub");
}

#[test]
fn commands_that_fail_are_answered_where_both_sides_know_how() {
    let mut world = World::new(1);
    let peer = world.open("", "pub-sub;x-mqcore");
    for said in [
        "subscribe;destination=bad%40name,id=s",
        "shout;id=s",
        "subscribe;id=s,destination=topic%2Fa,filter=x",
    ] {
        world.send(peer, &command(said));
        let heard = world.heard(peer);
        assert!(
            matches!(&heard[..], [Heard::Command(answer)] if answer.starts_with("fail;id=s,reason=")),
            "{heard:?}"
        );
    }
    world.send(peer, &command("subscribe;destination=a,id=s"));
    world.send(peer, &command("subscribe;destination=b,id=s"));
    let heard = world.heard(peer);
    assert!(
        matches!(&heard[..], [Heard::Command(ok), Heard::Command(fail)] if ok == "ok;id=s" && fail.contains("fail"))
    );
    world.send(peer, &command("ping;id=p"));
    assert_eq!(world.heard(peer), [Heard::Command("ok;id=p".into())]);
}

#[test]
fn a_connection_has_so_many_subscriptions_and_no_more() {
    let mut world = World::new(1);
    let peer = world.open("", "pub-sub");
    for number in 0..SUBSCRIPTIONS_MAX {
        world.send(peer, &command(&format!("subscribe;destination=topic%2Ft,id=s{number}")));
    }
    assert!(!world.session_is_over(peer));
    world.send(peer, &command("subscribe;destination=topic%2Ft,id=more"));
    assert!(error(&world.heard(peer)).starts_with("limit: "));
}

#[test]
fn a_removed_queue_ends_its_subscriptions() {
    let mut world = World::new(1);
    let peer = world.open("", "pub-sub;x-mqcore");
    world.send(peer, &command("subscribe;destination=orders,id=s"));
    world.heard(peer);
    world.drop_queue("orders");
    let heard = world.heard(peer);
    assert!(
        matches!(&heard[..], [Heard::Command(fail)] if fail.starts_with("fail;id=s,reason=")),
        "{heard:?}"
    );
    world.send(peer, &command("subscribe;destination=orders,id=s"));
    assert_eq!(world.heard(peer), [Heard::Command("ok;id=s".into())]);
}

#[test]
fn a_subscription_whose_new_prefetch_is_rejected_continues() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("batch-ack", "pub-sub;x-mqcore"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=q,id=1"));
    assert_eq!(world.heard(peer), [Heard::Command("ok;id=1".into())]);
    let (now, mut commands, mut output) = (Timestamp(0), Vec::new(), Vec::new());
    let session = world.session(peer);
    session.receive(&command("prefetch;id=1,count=5"), now, &mut commands, &mut output).unwrap();
    let [Command::Request(number, _)] = commands[..] else { panic!("{commands:?}") };
    let rejection = Rejection::new(RejectionKind::Unauthorized, "no");
    session.event(Event::Answered(number, Err(rejection)), now, &mut output).unwrap();
    world.send(sender, &send(1, "q", "", b"job"));
    assert_eq!(world.heard(peer), [message(1, "q", "", b"job")]);
    assert_eq!(output, command("fail;id=1,command=prefetch,reason=auth%3A%20no"));
    world.send(peer, &command("prefetch;id=1,count=5"));
    assert_eq!(world.heard(peer), [Heard::Command("ok;id=1".into())]);
    world.send(peer, &command("prefetch;id=1,count=0"));
    let heard = world.heard(peer);
    assert!(
        matches!(&heard[..], [Heard::Command(fail)] if fail.starts_with("fail;id=1,command=prefetch,reason=")),
        "{heard:?}"
    );
}

// ---- acknowledgements ------------------------------------------------------------------------------------------------

#[test]
fn window_limits_unacknowledged_deliveries() {
    for (extensions, window) in [("ack", 1), ("batch-ack:max-count=3", 3), ("batch-ack", 10)] {
        for destination in ["orders", "topic/orders"] {
            let mut world = World::new(2);
            let (peer, sender) = (world.open(extensions, "pub-sub"), world.open("", ""));
            world.send(peer, &command(&format!("subscribe;destination={}", destination.replace('/', "%2F"))));
            world.send(sender, &sends(1..=25, destination));
            let mut seen = numbers(&world.heard(peer));
            assert_eq!(seen.len(), window, "{extensions} {destination}");
            while seen.len() < 25 {
                let last = *seen.last().unwrap();
                world.send(peer, &ack(1, last));
                let more = numbers(&world.heard(peer));
                assert_eq!(more.len(), window.min(25 - seen.len()));
                seen.extend(more);
            }
            assert_eq!(seen, (1..=25).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_window_is_the_connections_however_many_subscriptions_it_has() {
    let mut world = World::new(2);
    let (peer, sender) = (world.open("batch-ack:max-count=4", "pub-sub"), world.open("", ""));
    for destination in ["a", "b", "topic%2Fc"] {
        world.send(peer, &command(&format!("subscribe;destination={destination}")));
    }
    for destination in ["a", "b", "topic/c"] {
        world.send(sender, &sends(1..=3, destination));
    }
    assert_eq!(world.heard(peer).len(), 4);
    world.send(peer, &ack(1, 2));
    assert_eq!(numbers(&world.heard(peer)), [5, 6]);
    world.send(peer, &ack(1, 6));
    assert_eq!(numbers(&world.heard(peer)), [7, 8, 9]);
}

#[test]
fn only_unacknowledged_messages_are_redelivered() {
    let mut world = World::new(2);
    let (first, sender) = (world.open("batch-ack", "pub-sub"), world.open("", ""));
    world.send(first, &command("subscribe;destination=orders"));
    world.send(sender, &sends(1..=5, "orders"));
    assert_eq!(world.heard(first).len(), 5);
    world.send(first, &ack(1, 3));
    world.close(first);
    let second = world.open("batch-ack", "pub-sub");
    world.send(second, &command("subscribe;destination=orders"));
    assert_eq!(bodies(&world.heard(second)), ["4", "5"]);
}

#[test]
fn rejected_message_is_redelivered_and_frees_the_window() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("batch-ack:max-count=2;x-nack", "pub-sub"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=orders"));
    world.send(sender, &sends(1..=3, "orders"));
    assert_eq!(bodies(&world.heard(peer)), ["1", "2"]);
    world.send(peer, &extension(2, &1_u16.to_be_bytes()));
    assert_eq!(bodies(&world.heard(peer)), ["3"]);
    world.send(peer, &ack(1, 3));
    assert_eq!(bodies(&world.heard(peer)), ["1"]);
    assert_eq!(world.waiting("orders"), 0);
}

#[test]
fn invalid_acknowledgements_close_and_a_repeated_one_does_not() {
    for (bytes, why) in [
        (ack(1, 3), "ack: "),
        (ack(1, 0), "ack: "),
        (extension(1, b"\x04"), "malformed: "),
        (extension(1, b"\0\0\x04"), "malformed: "),
        (extension(2, b"\0\x01"), "malformed: pub-sub has no frames"),
        (extension(3, b"\0\x01"), "malformed: "),
        (extension(0, b"\0\x01"), "malformed: "),
    ] {
        let mut world = World::new(1);
        let (peer, sender) = (world.open("batch-ack", "pub-sub"), world.open("", ""));
        world.send(peer, &command("subscribe;destination=orders"));
        world.send(sender, &sends(1..=2, "orders"));
        world.heard(peer);
        world.send(peer, &ack(1, 1));
        world.send(peer, &ack(1, 1));
        assert!(!world.session_is_over(peer));
        world.send(peer, &bytes);
        assert!(error(&world.heard(peer)).starts_with(why), "{bytes:?}");
        world.close(peer);
        assert_eq!(world.waiting("orders"), 1, "what was not acknowledged is back");
    }
}

#[test]
fn numbers_of_messages_begin_again_with_1() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("batch-ack:max-count=1000", "pub-sub"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=topic%2Ft"));
    let mut last = 0_u16;
    for _ in 0..66 {
        world.send(sender, &sends(1..=1000, "topic/t"));
        for number in numbers(&world.heard(peer)) {
            assert_eq!(number, if last == 65_535 { 1 } else { last + 1 });
            last = number;
        }
        world.send(peer, &ack(1, last));
    }
    assert_eq!(last, (66_000 - 65_535) as u16);
}

#[test]
fn messages_are_acknowledged_up_to_the_last_accepted_one() {
    for shards in [1, 3] {
        let mut world = World::new(shards);
        let receiver = world.open("", "pub-sub");
        world.send(receiver, &command("subscribe;destination=orders"));
        let sender = world.open("json;batch-ack:max-count=100", "");
        let mut bytes = sends(1..=50, "orders");
        bytes.extend(sends(51..=100, "topic/nobody"));
        world.send(sender, &bytes);
        let acks: Vec<_> = world
            .heard(sender)
            .into_iter()
            .map(|heard| match heard {
                Heard::Extension { id: 2, payload } => u16::from_be_bytes([payload[0], payload[1]]),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(acks.last(), Some(&100), "{acks:?}");
        assert!(acks.is_sorted());
        assert_eq!(world.heard(receiver).len(), 50);
    }
}

#[test]
fn repeated_message_is_acknowledged_again_and_published_once() {
    let mut world = World::new(1);
    let receiver = world.open("", "pub-sub");
    world.send(receiver, &command("subscribe;destination=orders"));
    let sender = world.open("ack", "");
    for _ in 0..2 {
        world.send(sender, &send(65_535, "orders", "", b"x"));
        assert_eq!(world.heard(sender), [Heard::Extension { id: 1, payload: vec![255, 255] }]);
    }
    world.send(sender, &send(1, "orders", "", b"y"));
    assert_eq!(bodies(&world.heard(receiver)), ["x", "y"]);
}

#[test]
fn a_message_numbered_0_or_beyond_the_window_is_an_error() {
    let mut world = World::new(1);
    let peer = world.open("ack", "");
    world.send(peer, &send(0, "topic/a", "", b"x"));
    assert!(error(&world.heard(peer)).starts_with("ack: sequence numbers start at 1"));
    let peer = world.open("ack", "");
    let mut bytes = send(1, "topic/a", "", b"x");
    bytes.extend(send(2, "topic/a", "", b"y"));
    world.send(peer, &bytes);
    assert!(error(&world.heard(peer)).starts_with("ack: message 2 exceeds the window"));
    let peer = world.open("", "");
    world.send(peer, &send(0, "topic/a", "", b"without acknowledgements a number is a label"));
    assert!(!world.session_is_over(peer));
}

#[test]
fn rejected_message_is_reported_or_closes_the_connection() {
    let mut world = World::new(1);
    let peer = world.open("batch-ack;x-nack", "");
    let mut bytes = send(1, "topic/a", "", b"x");
    bytes.extend(send(2, "missing", "", b"x"));
    bytes.extend(send(3, "topic/a", "", b"x"));
    world.send(peer, &bytes);
    let heard = world.heard(peer);
    assert!(heard.contains(&Heard::Extension { id: 2, payload: vec![0, 2] }), "{heard:?}");
    assert_eq!(heard.last(), Some(&Heard::Extension { id: 1, payload: vec![0, 3] }));
    for extensions in ["batch-ack", ""] {
        let peer = world.open(extensions, "");
        world.send(peer, &send(1, "missing", "", b"x"));
        assert!(error(&world.heard(peer)).starts_with("destination: "));
        assert!(matches!(world.error(peer), Some(SessionError::Refused(_))));
    }
}

#[test]
fn messages_of_topics_that_wait_for_acknowledgements_are_counted() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("ack", "pub-sub"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=topic%2Ft"));
    for number in 1..=3 {
        world.send(sender, &send(number, "topic/t", "", &[b'x'; 1000]));
    }
    assert_eq!(world.heard(peer).len(), 1);
    let two = world.session(peer).waiting_bytes();
    assert!((2000..3000).contains(&two), "{two}");
    world.send(peer, &ack(1, 1));
    world.send(peer, &ack(1, 2));
    assert_eq!(world.session(peer).waiting_bytes(), 0);
}

// ---- content ---------------------------------------------------------------------------------------------------------

#[test]
fn messages_carry_a_type_to_peers_that_support_types() {
    let mut world = World::new(1);
    let (knows, other) = (world.open("dotnet", "pub-sub"), world.open("", "pub-sub"));
    for peer in [knows, other] {
        world.send(peer, &command("subscribe;destination=topic%2Ft"));
    }
    let (typed, plain) = (world.open("json;dotnet", ""), world.open("json", ""));
    let mut bytes = extension(2, b"Shop.Order, Shop");
    bytes.extend(send(1, "topic/t", "", b"1"));
    bytes.extend(send(2, "topic/t", "a:N1;", b"2"));
    world.send(typed, &bytes);
    world.send(plain, &send(1, "topic/t", "", b"3"));
    world.send(plain, &send(2, "topic/t", "", b"4"));
    let of_type = |name: &[u8]| Heard::Extension { id: 1, payload: name.to_vec() };
    assert_eq!(
        world.heard(knows),
        [
            of_type(b"Shop.Order, Shop"),
            message(1, "topic/t", "", b"1"),
            of_type(b"Shop.Order, Shop"),
            message(2, "topic/t", "a:N1;", b"2"),
            of_type(b""),
            message(3, "topic/t", "", b"3"),
            message(4, "topic/t", "", b"4"),
        ]
    );
    assert_eq!(bodies(&world.heard(other)), ["1", "2", "3", "4"]);
}

#[test]
fn a_large_message_comes_in_parts_and_counts_once() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("ack", "pub-sub"), world.open("ack", ""));
    world.send(peer, &command("subscribe;destination=orders"));
    let body = vec![b'x'; 3 << 20];
    let mut bytes = Vec::new();
    mqcore_wire::micromessage::encode_split(1, b"orders", b"a:N1;", &body, &mut bytes);
    world.send(sender, &bytes);
    assert_eq!(world.heard(sender), [Heard::Extension { id: 1, payload: vec![0, 1] }]);
    let heard = world.heard(peer);
    assert!(heard == [message(1, "orders", "a:N1;", &body)], "it comes whole");
}

#[test]
fn parts_that_do_not_belong_together_are_an_error() {
    let part = |destination: &str, payload: &[u8]| {
        let mut bytes = send(7, destination, "", payload);
        bytes[0] |= 16;
        bytes
    };
    for (behind, why) in [
        (command("subscribe;destination=a"), "malformed: a command stands between the parts"),
        (part("other", b"b"), "malformed: "),
        (send(8, "other", "", b"b"), "malformed: "),
        (vec![0x11, 4], "malformed: "),
        (vec![3, 0], "malformed: "),
        (vec![0x20], "malformed: "),
        (part("q", &[b'x'; 3000]), "too-large: "),
    ] {
        let mut world = World::with_terms(
            1,
            MicroMessageTerms { message_bytes_max: 3000, ..MicroMessageTerms::default() },
        );
        let peer = world.open("", "pub-sub");
        world.send(peer, &part("q", b"a"));
        world.send(peer, &behind);
        assert!(error(&world.heard(peer)).starts_with(why), "{behind:?}");
    }
}

#[test]
fn acknowledgements_may_stand_between_the_parts_of_a_message() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("ack", "pub-sub"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=topic%2Ft"));
    world.send(sender, &send(1, "topic/t", "", b"x"));
    world.heard(peer);
    let mut bytes = send(1, "topic/t", "", b"be");
    bytes[0] |= 16;
    bytes.extend(ack(1, 1));
    bytes.extend(send(1, "topic/t", "", b"tween"));
    world.send(peer, &bytes);
    let heard = world.heard(peer);
    assert_eq!(bodies(&heard), ["between"]);
}

#[test]
fn a_message_without_a_destination_goes_where_the_listener_says_or_nowhere() {
    let mut world = World::new(1);
    let peer = world.open("", "");
    world.send(peer, &send(1, "", "", b"x"));
    assert!(error(&world.heard(peer)).starts_with("destination: "));
    let mut world = World::with_terms(
        1,
        MicroMessageTerms { default_destination: Some("topic/all".into()), ..MicroMessageTerms::default() },
    );
    let (peer, sender) = (world.open("", "pub-sub"), world.open("", ""));
    world.send(peer, &command("subscribe;destination=topic%2Fall"));
    world.send(sender, &send(1, "", "", b"x"));
    assert_eq!(bodies(&world.heard(peer)), ["x"]);
}

#[test]
fn properties_are_delivered_unchanged() {
    let mut world = World::new(1);
    let (peer, sender) = (world.open("", "pub-sub"), world.open("xml", ""));
    world.send(peer, &command("subscribe;destination=orders"));
    for list in ["last_name:kalle;", "price:N1;sent:D1413198000.0;name:THello%20%22world%22;", "a:N1"] {
        world.send(sender, &send(1, "orders", list, b"x"));
        assert_eq!(properties_of(&world.heard(peer)), [list]);
    }
    world.send(sender, &send(1, "orders", "no colon", b"x"));
    assert!(error(&world.heard(sender)).starts_with("malformed: "));
}

// ---- vendors' extensions ---------------------------------------------------------------------------------------------

#[test]
fn vendor_frames_go_to_their_handlers() {
    let mut world = World::new(1);
    let peer = world.open("x-note:v=1", "");
    world.send(peer, &extension(1, b"hello"));
    let frames = world.session(peer).take_vendor_frames();
    assert_eq!(frames, [VendorFrame { id: 1, name: "x-note".into(), payload: (*b"hello").into() }]);
    world.vendor_answers(peer, 1, Ok(vec![b"one".to_vec(), b"two".to_vec()]));
    let wanted = [b"one", b"two"].map(|payload| Heard::Extension { id: 1, payload: payload.to_vec() });
    assert_eq!(world.heard(peer), wanted);
    world.send(peer, &extension(1, b"bad"));
    world.session(peer).take_vendor_frames();
    world.vendor_answers(peer, 1, Err(ExtensionFailure::Failed("x-note: no".into())));
    assert_eq!(error(&world.heard(peer)), "internal: x-note: no");
}

#[test]
fn a_peer_whose_frames_are_not_handled_is_not_read_any_further() {
    let mut world = World::new(1);
    let peer = world.open("x-note", "");
    for _ in 0..=OPEN_FRAMES_MAX {
        world.send(peer, &extension(1, b"hello"));
    }
    assert_eq!(world.session(peer).take_vendor_frames().len(), OPEN_FRAMES_MAX);
    assert_eq!(world.unread(peer), extension(1, b"hello").len());
    world.vendor_answers(peer, 1, Ok(vec![]));
    world.send(peer, b"");
    assert_eq!(world.session(peer).take_vendor_frames().len(), 1);
}

// ---- the end ---------------------------------------------------------------------------------------------------------

#[test]
fn stopping_broker_sends_an_error() {
    let mut world = World::new(1);
    let peer = world.open("", "");
    world.shut_down(peer);
    assert_eq!(error(&world.heard(peer)), "shutdown: the broker stops");
}

#[test]
fn an_error_of_the_peers_is_the_end() {
    let mut world = World::new(1);
    let peer = world.open("", "");
    world.send(peer, b"\x04\x04oops");
    assert!(world.session_is_over(peer));
    assert_eq!(world.heard(peer), []);
}

#[test]
fn silent_peer_times_out_only_if_the_listener_has_a_timeout() {
    let mut world = World::new(1);
    let peer = world.open("", "");
    world.advance(Duration::from_secs(1_000_000));
    assert!(!world.session_is_over(peer));
    let mut world = World::with_terms(
        1,
        MicroMessageTerms { idle_timeout: Duration::from_secs(60), ..MicroMessageTerms::default() },
    );
    let peer = world.open("", "x-mqcore");
    world.advance(Duration::from_secs(59));
    world.send(peer, &command("ping"));
    world.advance(Duration::from_secs(59));
    assert!(!world.session_is_over(peer));
    world.advance(Duration::from_secs(2));
    assert!(error(&world.heard(peer)).starts_with("timeout: nothing came for 60s"));
}

#[test]
fn input_before_a_half_close_is_handled_and_acknowledged() {
    let mut world = World::new(2);
    let receiver = world.open("", "pub-sub");
    world.send(receiver, &command("subscribe;destination=orders"));
    let sender = world.connect();
    let mut bytes = handshake_bytes(b"c", "batch-ack:max-count=50", "");
    bytes.extend(handshake_bytes(b"c", "batch-ack:max-count=50", ""));
    bytes.extend(sends(1..=50, "orders"));
    world.send_last(sender, &bytes);
    world.take_handshake(sender);
    assert_eq!(world.heard(sender).last(), Some(&Heard::Extension { id: 1, payload: vec![0, 50] }));
    assert!(world.session_is_over(sender));
    assert_eq!(world.heard(receiver).len(), 50);
}

#[test]
fn the_window_is_never_larger_than_half_the_numbers() {
    let mut world = World::new(1);
    let peer = world.connect();
    world.send(peer, &handshake_bytes(b"c", "batch-ack:max-count=60000", ""));
    let reply = world.take(peer);
    let wanted = format!("batch-ack:max-count={WINDOW_MAX}");
    assert!(String::from_utf8_lossy(&reply).contains(&wanted), "{}", reply.escape_ascii());
}
