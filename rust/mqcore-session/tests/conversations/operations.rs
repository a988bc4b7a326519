//! Server operations and their answers.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::command::{Clear, Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::options::{ChannelChanges, DeadLetter, QueueChanges, QueueOptions, Status};
use mqcore_broker::model::page::Page;
use mqcore_broker::model::rejection::{RejectReason, Rejection, RejectionKind};
use mqcore_broker::model::stats::{ClientInformation, QueueInformation, QueueStats};
use mqcore_broker::model::subscription::{JoinedQueues, QueueJoin};
use mqcore_session::tmqp::OPEN_REQUESTS_MAX;
use mqcore_wire::tmqp::{Frame, Kind};

use super::talk::{
    Talk, channel, channel_information, client, encoded, list_text, only_frame, operation, queue, rejection,
    vector,
};

/// The first page of a list that the session asks each shard for.
fn page(max: usize) -> Page {
    Page { after: None, max }
}

/// A request as text that can be compared.
fn described(request: &Request) -> String {
    format!("{request:?}")
}

fn expect(talk: &mut Talk, bytes: &[u8], expected: &Request) {
    assert_eq!(described(&talk.request(bytes).1), described(expected));
}

#[test]
fn the_requests_of_real_clients_are_understood() {
    let ch = || channel("ch");
    let changes = QueueChanges::default;
    let both = Clear { high_priority: true, normal: true };
    for (name, expected) in [
        ("V09", Request::Join { channel: ch() }),
        ("V10", Request::Join { channel: ch() }),
        ("V13", Request::Leave { channel: ch() }),
        ("V14", Request::CreateQueue { queue: queue("ch/7"), changes: changes() }),
        ("V15", Request::RemoveQueue { queue: queue("ch/258") }),
        ("V16", Request::QueueInformation { queue: queue("ch/258") }),
        ("V17", Request::ClearQueue { queue: queue("ch/7"), clear: both }),
        ("V18", Request::ListChannels { filter: Some("*x*".into()), page: page(250) }),
        ("V19", Request::ListClients { kind: Some("ty*".into()), page: page(1000) }),
    ] {
        expect(&mut Talk::open(), &vector(name), &expected);
    }
}

#[test]
fn operation_numbers_of_document_and_program_are_equivalent() {
    for (document, program) in [
        (101, 603),
        (103, 604),
        (104, 606),
        (105, 605),
        (110, 601),
        (111, 602),
        (201, 610),
        (202, 612),
        (203, 611),
        (204, 616),
        (205, 615),
        (301, 621),
        (302, 631),
    ] {
        let request = |code| {
            let frame = Frame { headers: b"Queue-Id:5\r\n", payload: b"{}", ..operation(code, "ch") };
            described(&Talk::open().request(&encoded(&frame)).1)
        };
        assert_eq!(request(document), request(program), "{document}");
    }
}

#[test]
fn every_operation_has_its_request() {
    let ch = || channel("ch");
    for (code, expected) in [
        (603, Request::CreateChannel { channel: ch(), changes: ChannelChanges::default() }),
        (604, Request::RemoveChannel { channel: ch() }),
        (605, Request::ChannelInformation { channel: ch() }),
        (606, Request::ListChannels { filter: Some("ch".into()), page: page(250) }),
        (607, Request::ListConsumers { channel: ch(), page: page(1000) }),
        (616, Request::ListQueues { channel: ch(), page: page(1000) }),
        (621, Request::ListNodes { page: Page::default() }),
        (631, Request::ListClients { kind: Some("ch".into()), page: page(1000) }),
    ] {
        expect(&mut Talk::open(), &encoded(&operation(code, "ch")), &expected);
    }
    for (code, expected) in [
        (606, Request::ListChannels { filter: None, page: page(250) }),
        (631, Request::ListClients { kind: None, page: page(1000) }),
    ] {
        expect(&mut Talk::open(), &encoded(&operation(code, "")), &expected);
    }
}

#[test]
fn channel_header_replaces_a_missing_target() {
    let frame = Frame { headers: b"Channel-Name:ch\r\n", ..operation(601, "") };
    expect(&mut Talk::open(), &encoded(&frame), &Request::Join { channel: channel("ch") });
}

#[test]
fn a_queue_id_is_a_header_or_a_body_of_two_bytes() {
    let mut talk = Talk::open();
    for code in [611, 615, 613] {
        let by_header = Frame { headers: b"queue-id: 258 \r\n", ..operation(code, "ch") };
        let by_body = Frame { payload: &[2, 1], ..operation(code, "ch") };
        let both = Frame { payload: b"whatever", ..by_header };
        let wanted = described(&talk.request(&encoded(&by_header)).1);
        assert!(wanted.contains("id: 258"), "{wanted}");
        for frame in [by_body, both] {
            assert_eq!(described(&talk.request(&encoded(&frame)).1), wanted);
        }
    }
}

#[test]
fn options_come_as_json_and_as_headers() {
    let mut talk = Talk::open();
    let changes = QueueChanges {
        status: Some(Status::Pull),
        acknowledge_timeout: Some(Duration::from_secs(33)),
        ..QueueChanges::default()
    };
    let json = br#"{"Status":3,"AcknowledgeTimeout":33000}"#;
    let frame = Frame { headers: b"Queue-Id:4\r\n", payload: json, ..operation(612, "ch") };
    expect(
        &mut talk,
        &encoded(&frame),
        &Request::UpdateQueue { queue: queue("ch/4"), changes: changes.clone() },
    );

    let headers = b"Queue-Id:4\r\nQueue-Tag:t\r\nQueue-Status:push\r\n";
    let frame = Frame { headers, payload: json, ..operation(610, "ch") };
    let changes = QueueChanges { tag: Some("t".into()), ..changes };
    expect(&mut talk, &encoded(&frame), &Request::CreateQueue { queue: queue("ch/4"), changes });

    let frame = Frame { payload: br#"{"ClientLimit":3}"#, ..operation(603, "ch") };
    let changes = ChannelChanges { client_limit: Some(3), ..ChannelChanges::default() };
    expect(&mut talk, &encoded(&frame), &Request::CreateChannel { channel: channel("ch"), changes });
}

#[test]
fn invalid_operations_are_answered_without_closing() {
    let mut talk = Talk::open();
    let queue_five = |code, payload| Frame { headers: b"Queue-Id:5\r\n", payload, ..operation(code, "ch") };
    for (frame, code) in [
        (operation(601, ""), 400),
        (operation(601, "a b"), 400),
        (operation(603, "@a"), 400),
        (Frame { target: b"\xFF", ..operation(604, "") }, 400),
        (Frame { target: b"\xFF", ..operation(606, "") }, 400),
        (operation(610, "ch"), 406),
        (operation(611, "ch"), 406),
        (operation(612, "ch"), 400),
        (Frame { payload: b"{}", ..operation(612, "ch") }, 406),
        (operation(613, "ch"), 406),
        (operation(615, "ch"), 406),
        (Frame { payload: &[1], ..operation(611, "ch") }, 400),
        (Frame { payload: &[1, 2, 3], ..operation(615, "ch") }, 400),
        (Frame { headers: b"Queue-Id:seven\r\n", ..operation(610, "ch") }, 400),
        (Frame { headers: b"Queue-Id:65536\r\n", ..operation(611, "ch") }, 400),
        (queue_five(610, b"{"), 400),
        (queue_five(610, br#"{"Status":9}"#), 400),
        (queue_five(612, br#"{"RequestAcknowledge":"yes"}"#), 400),
        (Frame { payload: b"no json", ..operation(603, "ch") }, 400),
        (operation(999, "ch"), 400),
        (operation(614, "ch"), 400),
        (operation(641, "ch"), 406),
        (operation(652, "a b"), 400),
        (operation(653, ""), 400),
        (operation(661, "@r"), 400),
        (operation(662, "rt"), 400),
        (operation(663, "rt"), 400),
    ] {
        let output = talk.answer(&encoded(&frame));
        let answer = only_frame(&output);
        assert_eq!((answer.kind, answer.content_type), (Kind::RESPONSE, code), "{frame:?}");
        assert_eq!((answer.id, answer.target), (&b"q"[..], &b"cli"[..]));
        assert!(answer.headers.starts_with(b"Reason:"), "a refusal says what was wrong");
        assert_eq!(
            answer.payload, b"",
            "the original's clients parse a body as the model that they asked for"
        );
        let silent = Frame { pending_response: false, ..frame };
        assert_eq!(talk.answer(&encoded(&silent)), b"", "who asks for no answer gets none");
    }
}

#[test]
fn an_answer_is_a_response_with_the_requests_id() {
    let mut talk = Talk::open();
    let join = |id| encoded(&Frame { id, ..operation(601, "ch") });
    // The vectors are of a client whose id is `c1`.
    let as_c1 = |output: &[u8]| encoded(&Frame { target: b"c1", headers: b"", ..only_frame(output) });
    let (request, _) = talk.request(&join(b"j1"));
    let output = talk.reply(request, Ok(Reply::Done));
    assert_eq!(only_frame(&output).target, b"cli");
    assert_eq!(as_c1(&output), vector("V11"));
    let (request, _) = talk.request(&join(b"j3"));
    let output = talk.reply(request, Err(rejection(RejectionKind::NotFound)));
    assert_eq!(only_frame(&output).headers, b"Reason:because\r\n");
    assert_eq!(as_c1(&output), vector("V12"));
}

#[test]
fn an_answer_repeats_the_first_two_bits_of_its_request() {
    let mut talk = Talk::open();
    let frame = Frame { first_acquirer: true, high_priority: true, ..operation(601, "ch") };
    let (request, _) = talk.request(&encoded(&frame));
    let output = talk.reply(request, Ok(Reply::Done));
    assert!(only_frame(&output).first_acquirer && only_frame(&output).high_priority);
}

#[test]
fn every_status_code_has_its_rejection() {
    let mut talk = Talk::open();
    for (kind, code) in [
        (RejectionKind::Failed, 1),
        (RejectionKind::BadRequest, 400),
        (RejectionKind::Unauthorized, 401),
        (RejectionKind::NotFound, 404),
        (RejectionKind::Unacceptable, 406),
        (RejectionKind::AlreadyExists, 481),
        (RejectionKind::LimitExceeded, 482),
        (RejectionKind::Busy, 503),
    ] {
        let (request, _) = talk.request(&encoded(&operation(601, "ch")));
        let output = talk.reply(request, Err(rejection(kind)));
        assert_eq!(only_frame(&output).content_type, code);
    }
}

#[test]
fn request_for_an_acknowledgement_gets_only_that() {
    let mut talk = Talk::open();
    let frame = Frame { pending_response: false, pending_acknowledge: true, ..operation(603, "ch") };
    // The acknowledgement has normal priority, whatever that of the request is.
    let (request, _) = talk.request(&encoded(&Frame { high_priority: true, ..frame }));
    let output = talk.reply(request, Ok(Reply::Done));
    let ack = only_frame(&output);
    assert!(!ack.high_priority);
    assert_eq!(
        (ack.kind, ack.id, ack.target, ack.headers),
        (Kind::ACKNOWLEDGE, &b"q"[..], &b"ch"[..], &b""[..])
    );
    let (request, _) = talk.request(&encoded(&frame));
    let output = talk.reply(request, Err(rejection(RejectionKind::AlreadyExists)));
    assert_eq!(only_frame(&output).headers, b"Nack-Reason:because\r\n");
    let output = talk.answer(&encoded(&Frame { target: b"a b", ..frame }));
    assert!(only_frame(&output).headers.starts_with(b"Nack-Reason:"));
    let both = Frame { pending_response: true, ..frame };
    let (request, _) = talk.request(&encoded(&both));
    let output = talk.reply(request, Ok(Reply::Done));
    assert_eq!(only_frame(&output).kind, Kind::RESPONSE);
}

#[test]
fn request_without_an_answer_gets_none() {
    let mut talk = Talk::open();
    let no_id = Frame { id: b"", pending_acknowledge: true, ..operation(601, "ch") };
    for bytes in [vector("V09"), encoded(&no_id)] {
        let (request, _) = talk.request(&bytes);
        assert_eq!(talk.reply(request, Ok(Reply::Done)), b"");
        assert_eq!(talk.reply(request, Err(rejection(RejectionKind::NotFound))), b"");
    }
}

#[test]
fn answers_arrive_in_any_order_and_unknown_ones_are_ignored() {
    let mut talk = Talk::open();
    let ask = |id| encoded(&Frame { id, ..operation(601, "ch") });
    let (first, _) = talk.request(&ask(b"1"));
    let (second, _) = talk.request(&ask(b"2"));
    let output = talk.reply(second, Ok(Reply::Done));
    assert_eq!(only_frame(&output).id, b"2");
    for request in [second, RequestId(99), RequestId(u32::MAX)] {
        assert_eq!(talk.reply(request, Ok(Reply::Done)), b"");
    }
    let output = talk.reply(first, Ok(Reply::Done));
    assert_eq!(only_frame(&output).id, b"1");
}

#[test]
fn more_requests_than_can_be_open_are_refused_as_busy() {
    let mut talk = Talk::open();
    let bytes = encoded(&operation(601, "ch"));
    for _ in 0..OPEN_REQUESTS_MAX {
        talk.request(&bytes);
    }
    let output = talk.answer(&bytes);
    assert_eq!(only_frame(&output).content_type, 503);
    assert!(
        matches!(talk.command(&vector("V09")), Command::Request(..)),
        "without an answer it costs nothing"
    );
    talk.reply(RequestId(5), Ok(Reply::Done));
    assert_eq!(talk.request(&bytes).0, RequestId(5));
}

fn answer_text(reply: Reply) -> String {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&vector("V16"));
    let output = talk.reply(request, Ok(reply));
    let frame = only_frame(&output);
    assert_eq!(frame.content_type, 0);
    String::from_utf8(frame.payload.to_vec()).unwrap()
}

#[test]
fn channel_information_has_the_members_that_clients_know_in_their_order() {
    let expected = concat!(
        r#"{"Name":"ch","Queues":[1,7],"AllowMultipleQueues":true,"AllowedQueues":null,"OnlyFirstAcquirer":false,"#,
        r#""RequestAcknowledge":false,"AcknowledgeTimeout":15000,"MessageTimeout":0,"UseMessageId":true,"#,
        r#""WaitForAcknowledge":false,"HideClientNames":false,"ActiveClients":2,"ClientLimit":0,"QueueLimit":0,"#,
        r#""DestroyWhenEmpty":false,"#,
        // mqcore's own members:
        r#""ChannelEventHandler":null,"Authenticator":null,"Status":"push","MessageLimit":0,"MessageSizeLimit":0,"#,
        r#""Tag":null,"MessageDeliveryHandler":null,"PutBackLimit":16,"RetryDelay":null,"RetryDelayMax":60000,"#,
        r#""DeadLetter":null,"Durability":"fsync","DeduplicationWindow":0,"PublishLimit":null}"#
    );
    assert_eq!(answer_text(Reply::Channel(Box::new(channel_information("ch")))), expected);
    assert_eq!(
        list_text(606, Reply::Channels(vec![channel_information("ch")].into())),
        format!("[{expected}]")
    );
}

#[test]
fn queue_information_has_the_members_that_clients_know_and_then_its_own() {
    let information = QueueInformation {
        queue: queue("ch/7"),
        options: QueueOptions {
            status: Status::RoundRobin,
            acknowledge_timeout: Duration::from_secs(u64::MAX / 1000),
            retry_delay: Some(Duration::from_millis(250)),
            dead_letter: Some(DeadLetter::Queue(queue("dead/1"))),
            tag: Some("tag".into()),
            publish_limit: Some("7/90s".parse().unwrap()),
            ..QueueOptions::default()
        },
        high_priority: 1,
        normal: 2,
        missing_handler: Some("key".into()),
        consumers: 31,
        delayed: 28,
        next_attempt_ms: 29,
        in_flight: 3,
        undecided: 4,
        unsettled: 26,
        oldest_ms: 0,
        memory_bytes: 5,
        processed_in: None,
        stats: QueueStats {
            received: 6,
            rejected: 0,
            rejected_by: [0; RejectReason::ALL.len()],
            sent: 7,
            deliveries: 8,
            acks: 9,
            negative_acks: 10,
            timed_out: 11,
            saved: 12,
            save_failed: 13,
            removed: 14,
            requeued: 15,
            dead_lettered: 16,
            moved: 17,
            errors: 17,
            dropped: [18, 19, 20, 21, 22, 23, 27, 30],
            last_received_ms: 24,
            last_sent_ms: 25,
        },
    };
    let expected = concat!(
        r#"{"Channel":"ch","TagName":"tag","Id":7,"PriorityMessages":1,"Messages":2,"Status":"roundrobin","#,
        r#""OnlyFirstAcquirer":false,"RequestAcknowledge":false,"AcknowledgeTimeout":2147483647,"#,
        r#""MessageTimeout":0,"UseMessageId":true,"WaitForAcknowledge":false,"HideClientNames":false,"#,
        r#""ReceivedMessages":6,"SentMessages":7,"Deliveries":8,"NegativeAcks":10,"Acks":9,"#,
        r#""TimeoutMessages":11,"SavedMessages":12,"RemovedMessages":14,"Errors":17,"LastMessageReceived":24,"#,
        r#""LastMessageSent":25,"MessageLimit":0,"MessageSizeLimit":0,"#,
        r#""Tag":"tag","MessageDeliveryHandler":null,"PutBackLimit":16,"RetryDelay":250,"RetryDelayMax":60000,"DeadLetter":"dead/1","Durability":"fsync","DeduplicationWindow":0,"#,
        r#""PublishLimit":"7/90s","InFlight":3,"Undecided":4,"Unsettled":26,"MemoryBytes":5,"PutBackMessages":15,"DeadLetteredMessages":16,"#,
        r#""SaveFailedMessages":13,"DroppedMessages":{"no-consumer":18,"slow":19,"limit":20,"expired":21,"#,
        r#""refused":22,"erased":23,"unreadable":27,"duplicate":30},"DelayedMessages":28,"NextAttempt":29,"MissingHandler":"key","Consumers":31}"#
    );
    assert_eq!(answer_text(Reply::Queue(Box::new(information.clone()))), expected);
    assert_eq!(list_text(616, Reply::Queues(vec![information].into())), format!("[{expected}]"));
}

#[test]
fn clients_and_nodes_have_the_members_that_clients_know() {
    let listed = ClientInformation { client: client("cli"), online_ms: 5 };
    let nameless = ClientInformation {
        client: Arc::new(mqcore_broker::model::client::Client {
            authenticated: true,
            name: None,
            kind: None,
            ..(*client("x")).clone()
        }),
        online_ms: 6,
    };
    assert_eq!(
        list_text(631, Reply::Clients(vec![listed, nameless].into())),
        concat!(
            r#"[{"Id":"cli","Name":"nm","Type":"ty","Online":5,"IsAuthenticated":false},"#,
            r#"{"Id":"x","Name":null,"Type":null,"Online":6,"IsAuthenticated":true}]"#
        )
    );
    let node = NodeInformation {
        id: "1".into(),
        name: "n".into(),
        host: "h".into(),
        downstream: true,
        connected: false,
        lifetime_ms: 7,
    };
    assert_eq!(
        list_text(621, Reply::Nodes(vec![node].into())),
        r#"[{"Id":"1","Name":"n","Host":"h","Slave":true,"Connected":false,"Lifetime":7}]"#
    );
    assert_eq!(list_text(621, Reply::Nodes(Vec::new().into())), "[]");
    assert_eq!(answer_text(Reply::Done), "");
}

#[test]
fn a_rejected_query_has_the_bytes_of_the_original_and_a_header_with_the_reason() {
    let mut talk = Talk::open();
    for (code, kind, status) in [
        (605, RejectionKind::NotFound, 404),
        (606, RejectionKind::Unauthorized, 401),
        (607, RejectionKind::NotFound, 404),
        (615, RejectionKind::NotFound, 404),
        (616, RejectionKind::NotFound, 404),
    ] {
        let (request, _) =
            talk.request(&encoded(&Frame { headers: b"Queue-Id:5\r\n", ..operation(code, "ch") }));
        // Every shard answers a list.
        let mut output = Vec::new();
        while output.is_empty() {
            output = talk.reply(request, Err(rejection(kind)));
        }
        let [low, high] = u16::to_le_bytes(status);
        let mut expected = vec![0x14, 0x30, 1, 0, 3, low, high, 0];
        expected.extend_from_slice(b"qcli\x10\x00Reason:because\r\n");
        assert_eq!(output, expected, "{code}");
    }
}

#[test]
fn rejection_reason_of_any_length_is_cut_to_fit_its_header() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&encoded(&operation(601, "ch")));
    let reason = "r".repeat(100_000);
    let output = talk.reply(request, Err(Rejection::new(RejectionKind::Failed, reason)));
    let line = format!("Reason:{}\r\n", "r".repeat(1024));
    assert_eq!(only_frame(&output).headers, line.as_bytes());
}

#[test]
fn a_join_may_name_queues_and_a_prefetch() {
    let mut talk = Talk::open();
    let joined = |queues: &[u16], prefetch| {
        Request::JoinQueues(Box::new(QueueJoin { channel: channel("ch"), queues: queues.to_vec(), prefetch }))
    };
    for (headers, expected) in [
        (&b"Queue-Ids:1,2\r\nPrefetch:100\r\n"[..], joined(&[1, 2], 100)),
        (b"queue-ids: 7 , 7,8\r\n", joined(&[7, 8], 0)),
        (b"Queue-Ids:\r\n", joined(&[], 0)),
    ] {
        expect(&mut talk, &encoded(&Frame { headers, ..operation(601, "ch") }), &expected);
    }
    let left = Request::LeaveQueues { channel: channel("ch"), queues: vec![1] };
    expect(&mut talk, &encoded(&Frame { headers: b"Queue-Ids:1\r\n", ..operation(602, "ch") }), &left);
}

#[test]
fn wrong_terms_of_a_join_are_refused_with_the_reason() {
    let mut talk = Talk::open();
    let many = format!("Queue-Ids:{}\r\n", (0..2000).map(|id| id.to_string()).collect::<Vec<_>>().join(","));
    for (headers, code, reason) in [
        (&b"Queue-Ids:1,x\r\n"[..], 400, "queue id"),
        (b"Queue-Ids:1,\r\n", 400, "queue id"),
        (b"Queue-Ids:65536\r\n", 400, "queue id"),
        (b"Queue-Ids:1\r\nPrefetch:-1\r\n", 400, "Prefetch"),
        (many.as_bytes(), 482, "1000"),
    ] {
        let answer = talk.answer(&encoded(&Frame { headers, ..operation(601, "ch") }));
        let frame = only_frame(&answer);
        assert_eq!(frame.content_type, code, "{headers:?}");
        assert!(String::from_utf8_lossy(frame.headers).contains(reason), "{frame:?}");
    }
}

#[test]
fn the_answer_to_a_join_by_queues_repeats_the_terms() {
    let mut talk = Talk::open();
    let bytes = encoded(&Frame { headers: b"Queue-Ids:1,2\r\nPrefetch:9\r\n", ..operation(601, "ch") });
    let (id, _) = talk.request(&bytes);
    let joined = JoinedQueues {
        join: QueueJoin { channel: channel("ch"), queues: vec![1, 2], prefetch: 9 },
        acknowledge_timeouts: vec![Some(Duration::from_secs(15)), None],
    };
    let answer = talk.reply(id, Ok(Reply::JoinedQueues(Box::new(joined))));
    let frame = only_frame(&answer);
    assert_eq!((frame.kind, frame.content_type, frame.id), (Kind::RESPONSE, 0, &b"q"[..]));
    assert_eq!(frame.headers, b"Queue-Ids:1,2\r\nPrefetch:9\r\nAcknowledge-Timeouts:15000,0\r\n");
    assert_eq!(frame.payload, b"");
}

#[test]
fn an_extension_is_a_command_without_an_answer() {
    let mut talk = Talk::open();
    let frame = Frame { headers: b"Queue-Id:7\r\n", id: b"m-1", ..operation(670, "ch") };
    match talk.command(&encoded(&frame)) {
        Command::Extend { queue: to, message_id, .. } => {
            assert_eq!((to, &message_id[..]), (queue("ch/7"), &b"m-1"[..]));
        }
        other => panic!("{other:?}"),
    }
    for frame in [Frame { headers: b"", ..frame }, Frame { id: b"", ..frame }, Frame { target: b"", ..frame }]
    {
        assert_eq!(talk.answer(&encoded(&frame)), b"", "it names no delivery");
    }
}
