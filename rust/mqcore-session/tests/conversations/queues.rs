//! Publishing, delivering and acknowledging.

use std::sync::Arc;

use mqcore_broker::model::command::{Acknowledgement, Command, MessageId};
use mqcore_broker::model::effect::{Deliver, Event, Recipients};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, Tag};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_session::session::Session;
use mqcore_session::session::SessionConfig;
use mqcore_session::tmqp::COPIES_MAX;
use mqcore_session::tmqp::{delivery_size, encode_delivery};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{Frame, HEADER_BYTES_MAX, Kind};

use super::talk::{
    Talk, config, encoded, frames, is_generated, message, message_with, only_frame, queue, rejection, vector,
};

fn published(command: Command) -> (QueueAddress, Message) {
    match command {
        Command::Publish { queue, message } => (queue, message),
        other => panic!("{other:?}"),
    }
}

fn all_published(commands: Vec<Command>) -> Vec<(QueueAddress, Message)> {
    commands.into_iter().map(published).collect()
}

fn with_headers<'a>(headers: &'a str, body: &'a [u8]) -> Frame<'a> {
    Frame {
        pending_acknowledge: true,
        content_type: 7,
        id: b"M",
        source: b"cli",
        target: b"ch",
        headers: headers.as_bytes(),
        payload: body,
        ..Frame::new(Kind::QUEUE)
    }
}

#[test]
fn queue_message_is_published_with_all_its_fields() {
    let mut talk = Talk::open();
    let (to, message) = published(talk.command(&vector("V21")));
    assert_eq!(to, queue("ch/1"));
    assert_eq!(
        (message.id(), message.source(), message.body()),
        (&b"id-005"[..], &b"cli"[..], &b"hello"[..])
    );
    assert_eq!(message.headers(), b"");
    let expected =
        Properties { pending_acknowledge: true, hops: 15, content_type: 1, ..Properties::default() };
    assert_eq!(message.properties(), expected);
    assert_eq!(message.producer().map(|producer| &*producer.id), Some("cli"));
}

#[test]
fn a_message_keeps_its_parts_whatever_their_sizes() {
    let mut talk = Talk::open();
    let long = "n".repeat(255);
    for id in ["", "i", &long] {
        for target in ["t", &long] {
            for headers in ["", "a:b\r\n", "own\r\n"] {
                for body in [0, 1, 252, 253, 400, 65_536] {
                    let body = vec![0xA5; body];
                    let frame = Frame {
                        id: id.as_bytes(),
                        target: target.as_bytes(),
                        ..with_headers(headers, &body)
                    };
                    let (to, message) = published(talk.command(&encoded(&frame)));
                    assert_eq!(to.channel.as_str(), target);
                    assert_eq!(message.id(), id.as_bytes());
                    assert_eq!((message.headers(), message.body()), (headers.as_bytes(), &body[..]));
                    assert_eq!(message.source(), b"cli");
                }
            }
        }
    }
}

#[test]
fn channel_cache_distinguishes_alternating_channels() {
    let mut talk = Talk::open();
    for round in 0..3 {
        for number in 0..10 {
            let name = format!("channel-{number}");
            let bytes = encoded(&Frame { target: name.as_bytes(), ..with_headers("", b"") });
            assert_eq!(published(talk.command(&bytes)).0.channel.as_str(), name, "round {round}");
        }
    }
}

#[test]
fn message_without_an_id_is_published_without_one_and_expects_no_response() {
    let mut talk = Talk::open();
    let frame = Frame { id: b"", pending_response: true, ..with_headers("", b"x") };
    let (_, message) = published(talk.command(&encoded(&frame)));
    assert_eq!(message.id(), b"");
    assert!(!message.properties().pending_response);
}

#[test]
fn a_high_priority_message_with_a_copy_is_two_messages() {
    let mut talk = Talk::open();
    let mut bytes = vector("V22");
    bytes.resize(bytes.len() + 253, b'z');
    let (commands, output) = talk.receive(&bytes);
    let published = all_published(commands);
    assert_eq!(output, b"");
    let [(first, original), (second, copy)] = &published[..] else { panic!("{published:?}") };
    assert_eq!((first, second), (&queue("ch/7"), &queue("b/2")));
    assert_eq!((original.id(), copy.id()), (&b"id-027"[..], &b"xx"[..]));
    assert_eq!((original.headers(), copy.headers()), (&b"CC:b;2;xx\r\n"[..], &b""[..]));
    assert_eq!((original.properties().hops, copy.properties().hops), (15, 16));
    assert_eq!((original.properties().content_type, copy.properties().content_type), (7, 2));
    assert!(original.properties().high_priority && copy.properties().high_priority);
    assert_eq!((original.body().len(), copy.body().len()), (253, 253));
}

#[test]
fn copies_inherit_missing_fields_from_the_message() {
    let mut talk = Talk::open();
    let headers = "cc: b ; 9 ; mine \r\nOwn:1\r\nCc:c;3\r\nCC:d\r\nCC:e;;m2";
    let (commands, output) = talk.receive(&encoded(&with_headers(headers, b"body")));
    assert_eq!(output, b"");
    let published = all_published(commands);
    let queues: Vec<_> = published.iter().map(|(queue, _)| queue.to_string()).collect();
    assert_eq!(queues, ["ch/7", "b/9", "c/3", "d/7", "e/7"]);
    let copies: Vec<_> = published[1..].iter().map(|(_, message)| message).collect();
    assert_eq!((copies[0].id(), copies[3].id()), (&b"mine"[..], &b"m2"[..]));
    assert!(is_generated(copies[1].id()) && is_generated(copies[2].id()));
    assert_ne!(copies[1].id(), copies[2].id());
    let waits: Vec<_> = copies.iter().map(|copy| copy.properties().pending_acknowledge).collect();
    assert_eq!(
        waits,
        [true, false, false, true],
        "only copies with an id of the producer's own are waited for"
    );
    for copy in copies {
        assert_eq!(
            (copy.headers(), copy.body(), copy.source()),
            (&b"Own:1\r\n"[..], &b"body"[..], &b"cli"[..])
        );
    }
}

#[test]
fn invalid_copy_is_rejected_and_the_others_are_published() {
    let mut talk = Talk::open();
    let long_id = "i".repeat(256);
    let headers = format!("CC:b c\r\nCC:d;65536;x\r\nCC:e;two\r\nCC:\r\nCC:f;1;{long_id}\r\nCC:good\r\n");
    let (commands, output) = talk.receive(&encoded(&with_headers(&headers, b"")));
    let queues: Vec<_> = all_published(commands).iter().map(|(queue, _)| queue.to_string()).collect();
    assert_eq!(queues, ["ch/7", "good/7"]);
    let refused = frames(&output);
    let ids: Vec<_> = refused.iter().map(|frame| frame.id).collect();
    assert_eq!(ids, [&b"M"[..], b"x", b"M", b"M", &long_id.as_bytes()[..255]]);
    for frame in refused {
        assert_eq!((frame.kind, frame.content_type), (Kind::RESPONSE, 400));
    }
}

#[test]
fn copies_are_bounded_in_number_and_in_size() {
    let headers = "CC:c\r\n".repeat(COPIES_MAX + 5);
    let (commands, output) = Talk::open().receive(&encoded(&with_headers(&headers, b"")));
    assert_eq!(commands.len(), 1 + COPIES_MAX);
    assert_eq!(only_frame(&output).content_type, 482);

    let limits = Limits { frame_bytes_max: 10_000, ..Limits::default() };
    let mut talk = Talk::open_with(SessionConfig { limits, ..config() });
    let (commands, output) = talk.receive(&encoded(&with_headers(&headers, &[0; 4000])));
    assert_eq!(commands.len(), 1 + 2, "the message, and copies that fit a frame together");
    assert_eq!(only_frame(&output).content_type, 482);
}

#[test]
fn each_copy_with_an_id_beyond_the_limit_is_rejected_under_its_id() {
    let mut headers = "CC:c\r\n".repeat(COPIES_MAX);
    headers += "CC:d;1;first\r\nCC:e\r\nCC:f;2;second\r\nCC:g\r\n";
    let (commands, output) = Talk::open().receive(&encoded(&with_headers(&headers, b"")));
    assert_eq!(commands.len(), 1 + COPIES_MAX);
    let refused = frames(&output);
    let answers: Vec<_> = refused.iter().map(|frame| (frame.id, frame.target, frame.content_type)).collect();
    assert_eq!(answers, [(&b"first"[..], &b"d"[..], 482), (b"second", b"f", 482), (b"M", b"ch", 482)]);
}

#[test]
fn invalid_channel_name_is_rejected_without_closing() {
    for name in [&b""[..], b"a b", b"@a", b"a;b", b"*", b"a\nb", b"\xFF"] {
        let mut talk = Talk::open();
        let frame = Frame { target: name, ..with_headers("", b"") };
        let output = talk.answer(&encoded(&frame));
        let [response, nack] = frames(&output)[..] else { panic!() };
        assert_eq!((response.kind, response.content_type, response.target), (Kind::RESPONSE, 400, name));
        assert_eq!((response.id, nack.id), (&b"M"[..], &b"M"[..]));
        assert_eq!((nack.kind, nack.content_type, nack.target), (Kind::ACKNOWLEDGE, 7, name));
        assert!(nack.headers.starts_with(b"Nack-Reason:invalid channel name"));
        assert_eq!(
            talk.answer(&encoded(&Frame { id: b"", ..frame })),
            b"",
            "nothing to answer to without an id"
        );
        assert!(
            talk.command(&vector("V20")).destination(Placement::unkeyed(1))
                == mqcore_broker::model::command::Destination::Shard(0)
        );
    }
}

#[test]
fn a_message_for_an_unknown_channel_is_answered_with_404_and_the_channel_as_target() {
    let mut talk = Talk::open();
    let refused = |properties| Event::PublishRefused {
        queue: queue("nope/4"),
        message: message_with(properties, "M3", "cli", "", ""),
        rejection: rejection(RejectionKind::NotFound),
    };
    let output = talk.event(refused(Properties::default()));
    let frame = only_frame(&output);
    assert_eq!((frame.headers, frame.payload), (&b"Reason:because\r\n"[..], &b""[..]));
    assert_eq!(encoded(&Frame { headers: b"", ..frame }), vector("V31"));

    let output = talk.event(refused(Properties {
        pending_acknowledge: true,
        high_priority: true,
        ..Properties::default()
    }));
    let [response, nack] = frames(&output)[..] else { panic!() };
    assert_eq!((response.content_type, response.high_priority), (404, true));
    assert_eq!((nack.content_type, nack.high_priority, nack.target), (4, false, &b"nope"[..]));
    assert_eq!(nack.headers, b"Nack-Reason:because\r\n");
}

#[test]
fn a_refused_message_without_an_id_is_not_answered() {
    let message =
        message_with(Properties { pending_acknowledge: true, ..Properties::default() }, "", "cli", "", "");
    let refused =
        Event::PublishRefused { queue: queue("a/1"), message, rejection: rejection(RejectionKind::Busy) };
    assert_eq!(Talk::open().event(refused), b"");
}

#[test]
fn a_reason_becomes_one_line_of_bounded_length() {
    let mut talk = Talk::open();
    for (reason, line) in [
        ("two\r\nlines".to_owned(), "two  lines".to_owned()),
        (String::new(), "none".to_owned()),
        ("ş".repeat(1000), "ş".repeat(512)),
        (format!("x{}", "ş".repeat(1000)), format!("x{}", "ş".repeat(511))),
    ] {
        let output = talk.event(acknowledged("ch/1", message("M", "cli", "", ""), Some(&reason), None));
        assert_eq!(only_frame(&output).headers, format!("Nack-Reason:{line}\r\n").as_bytes());
    }
}

fn acknowledged(
    to: &str,
    message: Message,
    negative: Option<&str>,
    relayed: Option<(Acknowledgement, Option<&str>)>,
) -> Event {
    Event::Acknowledged {
        queue: Arc::new(queue(to)),
        message,
        negative: negative.map(Into::into),
        relayed: relayed.map(|(word, consumer)| Box::new((word, consumer.map(Into::into)))),
    }
}

fn word(id: &str, headers: &str) -> Acknowledgement {
    Acknowledgement {
        tag: Tag::CHANNEL,
        queue: queue("ch-push/2"),
        message_id: MessageId::from_slice(id.as_bytes()),
        refusal: None,
        headers: headers.as_bytes().into(),
        hops: 15,
        first_acquirer: true,
    }
}

#[test]
fn the_brokers_own_acknowledgement_names_no_source() {
    let mut talk = Talk::open();
    let output = talk.event(acknowledged("ch-push/1", message("M1", "cli", "", ""), None, None));
    assert_eq!(output, vector("V29"));
    let output = talk.event(acknowledged("ch-push/1", message("M1", "cli", "", ""), Some("timeout"), None));
    let frame = only_frame(&output);
    assert_eq!(frame.headers, b"Nack-Reason:timeout\r\n");
    assert_eq!(encoded(&Frame { headers: b"", ..frame }), vector("V29"));
    assert_eq!(talk.event(acknowledged("ch-push/1", message("", "cli", "", ""), None, None)), b"");
}

#[test]
fn a_consumers_acknowledgement_is_relayed_with_its_name_unless_that_is_hidden() {
    let mut talk = Talk::open();
    let output = talk.event(acknowledged(
        "ch-push/2",
        message("M2", "cli", "", ""),
        None,
        Some((word("M2", ""), Some("c1"))),
    ));
    assert_eq!(output, vector("V30"));
    let output = talk.event(acknowledged(
        "ch-push/2",
        message("M2", "cli", "", ""),
        None,
        Some((word("M2", ""), None)),
    ));
    assert_eq!(only_frame(&output).source, b"");
}

#[test]
fn a_consumers_reason_and_headers_are_relayed_as_they_are() {
    let headers = "Own:1\r\nNack-Reason: broken \r\n";
    let relayed = Some((word("M2", headers), Some("c1")));
    let output = Talk::open().event(acknowledged(
        "ch-push/2",
        message("M2", "cli", "", ""),
        Some(" broken "),
        relayed,
    ));
    assert_eq!(only_frame(&output).headers, headers.as_bytes());
}

#[test]
fn decision_overrides_the_consumers_acknowledgement() {
    let mut talk = Talk::open();
    let mut headers = |negative, said: &str| {
        let relayed = Some((word("M2", said), Some("c1")));
        let output = talk.event(acknowledged("ch-push/2", message("M2", "cli", "", ""), negative, relayed));
        String::from_utf8(only_frame(&output).headers.to_vec()).unwrap()
    };
    assert_eq!(headers(Some("none"), "Own:1"), "Own:1\r\nNack-Reason:none\r\n");
    assert_eq!(headers(None, "Nack-Reason:x\r\nOwn:1\r\nnack-reason:y\r\n"), "Own:1\r\n");
}

#[test]
fn consumers_acknowledge_and_refuse() {
    let mut talk = Talk::open();
    let Command::Acknowledge(ack) = talk.command(&vector("V27")) else { panic!() };
    assert_eq!((ack.queue.clone(), &ack.message_id[..], ack.negative()), (queue("ch/7"), &b"QM1"[..], None));
    assert!(ack.first_acquirer && ack.headers.is_empty());
    assert_eq!(ack.hops, 15);
    let Command::Acknowledge(nack) = talk.command(&vector("V28")) else { panic!() };
    assert_eq!(nack.negative(), Some("none"));
    assert_eq!(&*nack.headers, b"Nack-Reason:none\r\n");
    let bytes =
        encoded(&Frame { id: b"M", target: b"ch", headers: b"Other:1\r\n", ..Frame::new(Kind::ACKNOWLEDGE) });
    let Command::Acknowledge(ack) = talk.command(&bytes) else { panic!() };
    assert_eq!(ack.negative(), None, "other headers do not make it negative");
}

#[test]
fn an_acknowledgement_of_nothing_is_ignored_and_counted() {
    let mut talk = Talk::open();
    for frame in [
        Frame { target: b"ch", ..Frame::new(Kind::ACKNOWLEDGE) },
        Frame { id: b"M", target: b"a b", ..Frame::new(Kind::ACKNOWLEDGE) },
        Frame { id: b"M", high_priority: true, ..Frame::new(Kind::ACKNOWLEDGE) },
        Frame { id: b"M", high_priority: true, target: b"\xFF", ..Frame::new(Kind::ACKNOWLEDGE) },
    ] {
        assert_eq!(talk.answer(&encoded(&frame)), b"");
    }
    assert_eq!(talk.session.ignored_frames(), 4);
}

fn delivery(to: &str, message: Message, acknowledge: bool) -> Deliver {
    Deliver {
        tag: Tag::CHANNEL,
        attempt: 1,
        by_queue: false,
        requeues: 0,
        name: None,
        queue: Arc::new(queue(to)),
        message,
        to: Recipients::One(ConnectionId(1)),
        acknowledge,
        hide_source: false,
        first: true,
    }
}

fn delivered(deliver: &Deliver, first: bool) -> Vec<u8> {
    let mut output = b"before".to_vec();
    encode_delivery(deliver, first, &mut output);
    assert_eq!(output.len() - 6, delivery_size(deliver));
    output.split_off(6)
}

#[test]
fn repeated_delivery_has_the_number_of_its_attempt_after_the_other_headers() {
    let plain = delivery("ch-push/1", message("M1", "prod", "A:1\r\n", "hello"), true);
    let again = Deliver { attempt: 3, by_queue: true, ..plain };
    let bytes = delivered(&again, false);
    assert_eq!(only_frame(&bytes).headers, b"A:1\r\nDelivery-Attempt:3\r\n");
    // Clients that joined the channel get the bytes of the original.
    let to_channel = Deliver { by_queue: false, ..again.clone() };
    assert_eq!(only_frame(&delivered(&to_channel, false)).headers, b"A:1\r\n");
    let first = Deliver { attempt: 1, ..again };
    assert_eq!(only_frame(&delivered(&first, false)).headers, b"A:1\r\n", "no number is the first attempt");
    let forwarded = message("M1", "prod", "Delivery-Attempt:7\r\n", "hello");
    let bytes = delivered(&Deliver { message: forwarded, ..first }, false);
    assert_eq!(only_frame(&bytes).headers, b"Delivery-Attempt:7\r\nDelivery-Attempt:1\r\n");
}

#[test]
fn deliveries_have_the_originals_bytes() {
    let plain = delivery("ch-push/1", message("M1", "prod", "", "hello"), false);
    assert_eq!(delivered(&plain, true), vector("V23"));
    assert_eq!(delivered(&plain, false), vector("V24"));
    let acknowledged = delivery("ch-push/2", message("M2", "prod", "", "hello"), true);
    assert_eq!(delivered(&acknowledged, true), vector("V25"));
    let properties = Properties { high_priority: true, hops: 15, ..Properties::default() };
    let urgent = delivery("ch-push/1", message_with(properties, "M4", "prod", "", "hp"), false);
    assert_eq!(delivered(&urgent, true), vector("V26"));
}

#[test]
fn a_delivery_takes_queue_and_acknowledgement_from_the_queue_and_may_hide_its_source() {
    let properties =
        Properties { pending_acknowledge: true, content_type: 9, hops: 200, ..Properties::default() };
    let message = message_with(properties, "M", "prod", "CC:b\r\n", "");
    let bytes = delivered(&Deliver { hide_source: true, ..delivery("ch/3", message, false) }, true);
    let frame = only_frame(&bytes);
    assert_eq!((frame.content_type, frame.target, frame.source), (3, &b"ch"[..], &b""[..]));
    assert!(!frame.pending_acknowledge);
    assert_eq!(frame.headers, b"CC:b\r\n");
    assert_eq!(frame.hops, 31, "what came through another protocol may have more hops than fit");
}

#[test]
fn names_of_other_protocols_are_truncated_to_fit_a_frame() {
    let bytes = delivered(&delivery("ch/1", message("M", &"p".repeat(300), "", ""), false), true);
    assert_eq!(only_frame(&bytes).source, "p".repeat(255).as_bytes());
}

#[test]
fn a_full_header_block_is_delivered() {
    let headers = format!("k:{}\r\n", "v".repeat(HEADER_BYTES_MAX - 4));
    let bytes = delivered(&delivery("ch/1", message("M", "p", &headers, ""), false), true);
    assert_eq!(only_frame(&bytes).headers.len(), HEADER_BYTES_MAX);
}
