//! Pull requests and how they end.

use mqcore_broker::model::command::{Clear, Command, Pull};
use mqcore_broker::model::effect::{Event, PullOutcome};
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_session::tmqp::OPEN_REQUESTS_MAX;
use mqcore_wire::tmqp::header::header_value;
use mqcore_wire::tmqp::{Frame, HEADER_BYTES_MAX, Kind};

use super::talk::{Talk, encoded, message, message_with, only_frame, queue, vector};

fn request<'a>(id: &'a str, headers: &'a str) -> Frame<'a> {
    Frame {
        content_type: 1,
        id: id.as_bytes(),
        source: b"cli",
        target: b"ch-pull",
        headers: headers.as_bytes(),
        ..Frame::new(Kind::PULL)
    }
}

fn pull(talk: &mut Talk, bytes: &[u8]) -> Pull {
    match talk.command(bytes) {
        Command::Pull(pull) => *pull,
        other => panic!("{other:?}"),
    }
}

fn open_pull(talk: &mut Talk) -> RequestId {
    pull(talk, &encoded(&request("REQ", "Count:2\r\n"))).request
}

fn pulled(request: RequestId, message: Message, index: u32, count: u32, left: Option<(u64, u64)>) -> Event {
    Event::Pulled {
        request,
        message,
        acknowledge: false,
        hide_source: false,
        first: true,
        attempt: 3,
        index,
        count,
        left,
    }
}

#[test]
fn pull_has_count_order_and_clear_option() {
    let mut talk = Talk::open();
    let asked = pull(&mut talk, &vector("V32"));
    assert_eq!((asked.queue, asked.count, asked.lifo, asked.info), (queue("ch/7"), 10, true, true));
    assert_eq!(asked.clear, Clear { high_priority: true, normal: false });
    let mut read = |headers: &str| pull(&mut talk, &encoded(&request("q", headers)));
    let plain = read("count: 3 \r\n");
    assert_eq!((plain.count, plain.lifo, plain.info, plain.clear), (3, false, false, Clear::default()));
    assert_eq!(read("Count:1\r\nClear:ALL\r\n").clear, Clear { high_priority: true, normal: true });
    assert_eq!(
        read("Count:1\r\nClear:default-priority\r\n").clear,
        Clear { high_priority: false, normal: true }
    );
    assert_eq!(read("Count:1\r\nClear:None\r\nOrder:FIFO\r\nInfo:no\r\n").clear, Clear::default());
    assert_eq!(read("Count:99999999999\r\n").count, u32::MAX);
    assert_eq!(read("Order:LIFO\r\n").count, 0, "whether a count is needed is for the queue to judge");
}

#[test]
fn pulled_message_has_request_and_index_after_its_own_headers() {
    let mut talk = Talk::open();
    let request = open_pull(&mut talk);
    let second = pulled(request, message("P1", "prod", "", "pull"), 1, 2, Some((0, 0)));
    assert_eq!(talk.event(second), vector("V33"));
    let output = talk.event(pulled(request, message("P2", "prod", "Own:1", ""), 2, 2, None));
    assert_eq!(only_frame(&output).headers, b"Own:1\r\nRequest-Id:REQ\r\nCount:2\r\nIndex:2\r\n");
    assert_eq!(talk.event(Event::PullEnded { request, outcome: PullOutcome::Complete }), vector("V34"));
    assert_eq!(talk.event(Event::PullEnded { request, outcome: PullOutcome::Complete }), b"", "it ends once");
    assert_eq!(talk.event(pulled(request, message("P3", "prod", "", ""), 3, 3, None)), b"");
}

#[test]
fn a_pulled_message_may_ask_for_an_acknowledgement_and_hide_its_source() {
    let mut talk = Talk::open();
    let request = open_pull(&mut talk);
    let properties = Properties { high_priority: true, hops: 3, ..Properties::default() };
    let output = talk.event(Event::Pulled {
        request,
        message: message_with(properties, "P", "prod", "", ""),
        acknowledge: true,
        hide_source: true,
        first: false,
        attempt: 2,
        index: 1,
        count: 1,
        left: None,
    });
    let frame = only_frame(&output);
    assert!(frame.pending_acknowledge && !frame.first_acquirer && frame.high_priority);
    assert_eq!((frame.source, frame.hops, frame.content_type), (&b""[..], 3, 1));
}

#[test]
fn headers_of_the_pull_replace_those_of_a_message_that_clients_would_mistake_for_them() {
    let mut talk = Talk::open();
    let own = "Request-Id:OLD\r\nown:1\r\nno-content:End\r\nIndex:mine\r\nrequest-id:x\r\nMessages:many";
    let request = open_pull(&mut talk);
    let output = talk.event(pulled(request, message("P", "prod", own, ""), 1, 2, None));
    let rest = "own:1\r\nIndex:mine\r\nMessages:many\r\nRequest-Id:REQ\r\nCount:2\r\nIndex:1\r\n";
    assert_eq!(only_frame(&output).headers, rest.as_bytes());
    let output = talk.event(pulled(request, message("P", "prod", own, ""), 2, 2, Some((3, 4))));
    let rest = "own:1\r\nIndex:mine\r\nRequest-Id:REQ\r\nCount:2\r\nIndex:2\r\n\
                Priority-Messages:3\r\nMessages:4\r\n";
    assert_eq!(only_frame(&output).headers, rest.as_bytes());
}

#[test]
fn full_header_block_is_truncated_for_the_pulls_headers() {
    let mut talk = Talk::open();
    let request = open_pull(&mut talk);
    let headers = format!("a:1\r\nb:{}\r\n", "v".repeat(HEADER_BYTES_MAX - 9));
    let output = talk.event(pulled(request, message("P", "prod", &headers, ""), 1, 1, None));
    assert_eq!(only_frame(&output).headers, b"a:1\r\nRequest-Id:REQ\r\nCount:1\r\nIndex:1\r\n");
}

#[test]
fn empty_pull_has_a_reason() {
    let mut talk = Talk::open();
    for (outcome, word) in [
        (PullOutcome::Complete, "End"),
        (PullOutcome::Empty, "Empty"),
        (PullOutcome::Unacceptable, "Unacceptable"),
        (PullOutcome::Unauthorized, "Unauthorized"),
        (PullOutcome::NoChannel, "No-Channel"),
        (PullOutcome::NoQueue, "No-Queue"),
    ] {
        let request = open_pull(&mut talk);
        let output = talk.event(Event::PullEnded { request, outcome });
        let frame = only_frame(&output);
        assert_eq!(header_value(frame.headers, "No-Content"), Some(word.as_bytes()));
        assert_eq!((frame.id, frame.content_type, frame.target), (&b"REQ"[..], 1, &b"ch-pull"[..]));
    }
    let request = open_pull(&mut talk);
    assert_eq!(talk.event(Event::PullEnded { request, outcome: PullOutcome::Empty }), vector("V35"));
}

#[test]
fn invalid_pull_ends_at_once() {
    let mut talk = Talk::open();
    let mut word = |frame: Frame<'_>| {
        let output = talk.answer(&encoded(&frame));
        let frame = only_frame(&output);
        assert_eq!((frame.kind, frame.payload), (Kind::QUEUE, &b""[..]));
        let id = header_value(frame.headers, "Request-Id").map(<[u8]>::to_vec);
        let word = header_value(frame.headers, "No-Content").unwrap().to_vec();
        (id, String::from_utf8(word).unwrap())
    };
    assert_eq!(word(request("", "Count:1\r\n")), (None, "Id-Required".into()));
    for headers in ["Count:\r\n", "Count:0\r\n", "Count:-1\r\n", "Count:two\r\n", "Count:1.5\r\n"] {
        assert_eq!(word(request("q", headers)), (Some(b"q".to_vec()), "Unacceptable".into()), "{headers}");
    }
    let nowhere = Frame { target: b"a b", ..request("q", "Count:1\r\n") };
    assert_eq!(word(nowhere), (Some(b"q".to_vec()), "No-Channel".into()));
}

#[test]
fn id_with_a_line_break_is_only_in_the_frame() {
    let mut talk = Talk::open();
    let request = pull(&mut talk, &encoded(&request("a\r\nb", "Count:1\r\n"))).request;
    let output = talk.event(Event::PullEnded { request, outcome: PullOutcome::Empty });
    let frame = only_frame(&output);
    assert_eq!((frame.id, frame.headers), (&b"a\r\nb"[..], &b"No-Content:Empty\r\n"[..]));
}

#[test]
fn the_message_of_a_cache_queue_is_a_response_to_the_pull() {
    let mut talk = Talk::open();
    let request = open_pull(&mut talk);
    let message = message("C1", "prod", "Own:1\r\n", "cached");
    let output = talk.event(Event::Cached { request, message, hide_source: false });
    let frame = only_frame(&output);
    assert_eq!((frame.kind, frame.content_type, frame.id), (Kind::RESPONSE, 0, &b"REQ"[..]));
    assert_eq!((frame.source, frame.target), (&b"prod"[..], &b"cli"[..]));
    assert_eq!((frame.headers, frame.payload), (&b"Own:1\r\n"[..], &b"cached"[..]));
    assert_eq!(talk.event(Event::PullEnded { request, outcome: PullOutcome::Complete }), b"", "that was all");
}

#[test]
fn more_pulls_than_can_be_open_are_unacceptable() {
    let mut talk = Talk::open();
    let bytes = encoded(&request("REQ", "Count:1\r\n"));
    for _ in 0..OPEN_REQUESTS_MAX {
        talk.command(&bytes);
    }
    let output = talk.answer(&bytes);
    assert_eq!(header_value(only_frame(&output).headers, "No-Content"), Some(&b"Unacceptable"[..]));
    talk.event(Event::PullEnded { request: RequestId(77), outcome: PullOutcome::Empty });
    assert_eq!(pull(&mut talk, &bytes).request, RequestId(77));
}
