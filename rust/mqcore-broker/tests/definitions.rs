//! Definitions in the journal come back as they were.

use std::collections::BTreeSet;
use std::time::Duration;

use mqcore_broker::model::definition::{
    Definition, NUMBERS_KEY, channel_key, decode_definition, encode_channel, encode_intake, encode_numbers,
    encode_queue, encode_router, encode_topic_binding, intake_key, queue_key, router_key, topic_binding_key,
};
use mqcore_broker::model::id::{ChannelName, MessageNumber, QueueAddress, RouterName, TopicName};
use mqcore_broker::model::intake;
use mqcore_broker::model::options::{ChannelOptions, DeadLetter, Durability, QueueOptions, Status};
use mqcore_broker::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use mqcore_broker::model::topic::TopicPattern;

#[test]
fn definitions_come_back_as_they_were() {
    let queue = QueueOptions {
        status: Status::RoundRobin,
        request_acknowledge: true,
        acknowledge_timeout: Duration::from_millis(1234),
        message_timeout: Duration::from_secs(9),
        message_limit: 10,
        put_back_limit: 3,
        durability: Durability::Os,
        retry_delay: Some(Duration::from_millis(20)),
        retry_delay_max: Duration::from_secs(7),
        dead_letter: DeadLetter::parse("dead/9").ok(),
        delivery_handler: Some("orders".into()),
        tag: Some("a=b".into()),
        ..QueueOptions::default()
    };
    let options = ChannelOptions {
        queue: queue.clone(),
        allowed_queues: Some(vec![1, 7]),
        client_limit: 4,
        destroy_when_empty: true,
        ..ChannelOptions::default()
    };
    let name = ChannelName::new("Orders/EU").expect("a good name");
    let read = decode_definition(&channel_key(&name), &encode_channel(&name, &options));
    assert_eq!(read, Ok(Definition::Channel(name.clone(), Box::new(options))));
    for above in [vec![], vec![9, 12], vec![9, 10, 11, 13, u64::MAX - 1, u64::MAX]] {
        let progress = intake::IntakeProgress { epoch: 3, through: 7, above: above.into_iter().collect() };
        let read = decode_definition(&intake_key("n"), &encode_intake("n", &progress));
        assert_eq!(read, Ok(Definition::Intake("n".into(), progress)));
    }
    let waiting = intake::IntakeProgress { epoch: 3, through: 7, above: (9..100_000).collect() };
    assert!(encode_intake("n", &waiting).len() < 100, "one message that waits costs little");
    let many = intake::IntakeProgress { epoch: 3, through: 7, above: (9..3_000_000).collect() };
    let read = decode_definition(&intake_key("n"), &encode_intake("n", &many));
    assert_eq!(read, Ok(Definition::Intake("n".into(), many)), "a sender may ignore its window");
    let listed = decode_definition(&intake_key("n"), b"1\nname=n\nepoch=3\nthrough=7\nabove=9,12\n");
    let progress = intake::IntakeProgress { epoch: 3, through: 7, above: [9, 12].into() };
    assert_eq!(listed, Ok(Definition::Intake("n".into(), progress)), "as earlier versions wrote it");
    for broken in ["", "ranges=9\n", "ranges=9-8\n", "ranges=0-18446744073709551615\n", "above=9,x\n"] {
        let text =
            format!("1\nname=n\nepoch=1\n{}{broken}", if broken.is_empty() { "" } else { "through=7\n" });
        assert!(decode_definition(&intake_key("n"), text.as_bytes()).is_err(), "{broken}");
    }
    let address = QueueAddress { channel: name, id: 0 };
    let read = decode_definition(&queue_key(&address), &encode_queue(&address, &queue));
    assert_eq!(read, Ok(Definition::Queue(address, Box::new(queue))));
    let read = decode_definition(NUMBERS_KEY, &encode_numbers(MessageNumber(77)));
    assert_eq!(read, Ok(Definition::Numbers(MessageNumber(77))));
}

#[test]
fn a_router_comes_back_as_it_was() {
    let mut router =
        RouterDefinition::new(RouterName::new("Order-Events").expect("a good name"), RouterMethod::OnlyFirst);
    router.enabled = false;
    for (name, target) in [
        ("a=b", "orders/7"),
        ("b", "@topic:a=b"),
        ("c", "@type:x y"),
        ("d", "@client:1"),
        ("e", "@handler:h"),
    ] {
        let binding = Binding {
            content_type: (name == "c").then_some(9),
            priority: name.len() as i32 - 2,
            interaction: Interaction::Acknowledge,
            method: RouterMethod::RoundRobin,
            ..Binding::new(name, Target::parse(target).expect("a good target"))
        };
        router.add(binding).expect("a new name");
    }
    let read = decode_definition(&router_key(&router.name), &encode_router(&router));
    assert_eq!(read, Ok(Definition::Router(Box::new(router))));
    let text = b"1\nname=r\nbinding=x\ntarget=@later:y\npriority=3\nbinding=y\ntarget=q\n";
    let read = decode_definition(b"router r", text).expect("what is unknown is left out");
    let Definition::Router(read) = read else { panic!("{read:?}") };
    assert_eq!(read.bindings, [Binding::new("y", Target::parse("q").expect("a queue"))]);
}

#[test]
fn a_binding_to_topics_of_any_bytes_comes_back_as_it_was() {
    let queue = QueueAddress::parse("Orders/7").expect("a queue");
    let every: Vec<u8> = (0..=254).collect();
    for name in [&b"orders.*"[..], b"", b"a b%41=\n", &every] {
        let name = TopicName::new(name).expect("not too long");
        let mut keys = BTreeSet::new();
        for pattern in
            [TopicPattern::Exact, TopicPattern::Mask, TopicPattern::Prefix].map(|make| make(name.clone()))
        {
            let key = topic_binding_key(&pattern, &queue);
            let read = decode_definition(&key, &encode_topic_binding(&pattern, &queue));
            assert_eq!(read, Ok(Definition::TopicBinding(pattern, queue.clone())));
            assert!(keys.insert(key), "each has a key of its own");
        }
    }
    for broken in
        ["kind=exact\ntopic=%4\n", "kind=exact\ntopic=%zz\n", "kind=later\ntopic=a\n", "kind=exact\n"]
    {
        let text = format!("1\nname=q/1\n{broken}");
        assert!(decode_definition(b"topic exact a q/1", text.as_bytes()).is_err(), "{broken}");
    }
}
