//! Messages for routers, their answers, and the operations on them.

use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{QueueAddress, RouterName, TopicName};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::route::{RouteStep, RouteTest};
use mqcore_broker::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use mqcore_broker::model::topic::TopicPattern;
use mqcore_wire::tmqp::operation::{Operation, status};
use mqcore_wire::tmqp::{Frame, Kind};
use serde_json::{Value, json};

use super::talk::{Talk, encoded, frames, is_generated, list_text, only_frame, operation, queue, vector};

fn router(name: &str) -> RouterName {
    RouterName::new(name).unwrap()
}

fn routed(command: Command) -> (RouterName, Message) {
    match command {
        Command::Route { router, message } => (router, message),
        other => panic!("{other:?}"),
    }
}

fn not_found() -> Option<Rejection> {
    Some(Rejection::new(RejectionKind::NotFound, "no binding took it"))
}

#[test]
fn router_message_is_routed_with_all_its_fields() {
    let mut talk = Talk::open();
    let (to, message) = routed(talk.command(&vector("V40")));
    assert_eq!(to, router("rt"));
    assert_eq!(
        (message.id(), message.source(), message.body()),
        (&b"id-023"[..], &b"cli"[..], &b"hello"[..])
    );
    let properties = message.properties();
    assert_eq!((properties.content_type, properties.hops, properties.pending_acknowledge), (9, 15, true));
    let without = Frame { pending_acknowledge: true, target: b"rt", ..Frame::new(Kind::ROUTER) };
    let (_, message) = routed(talk.command(&encoded(&without)));
    assert!(is_generated(message.id()));
    assert!(!message.properties().pending_acknowledge, "whoever gives no id can wait for nothing");
}

#[test]
fn missing_router_rejects_like_an_existing_one() {
    let mut talk = Talk::open();
    let frame = Frame { pending_acknowledge: true, id: b"R3", target: b"zzz", ..Frame::new(Kind::ROUTER) };
    let (to, message) = routed(talk.command(&encoded(&frame)));
    let output = talk.event(Event::Routed { router: to, message, refusal: not_found() });
    assert_eq!(output, vector("V41"));
    let frame = Frame { pending_acknowledge: false, pending_response: true, ..frame };
    let (to, message) = routed(talk.command(&encoded(&frame)));
    let output = talk.event(Event::Routed { router: to, message, refusal: not_found() });
    let response = only_frame(&output);
    assert_eq!((response.kind, response.content_type, response.target), (Kind::RESPONSE, 404, &b"cli"[..]));
    let impossible =
        Frame { pending_acknowledge: true, id: b"R3", target: b"a b", ..Frame::new(Kind::ROUTER) };
    let output = talk.answer(&encoded(&impossible));
    assert_eq!(only_frame(&output).headers, b"Nack-Reason:no-consumers\r\n", "nothing is called so");
}

#[test]
fn router_answers_in_the_form_that_its_producer_asked_for() {
    let mut talk = Talk::open();
    for (acknowledge, respond) in [(true, false), (false, true), (true, true)] {
        let frame = Frame {
            pending_acknowledge: acknowledge,
            pending_response: respond,
            content_type: 9,
            id: b"R",
            target: b"rt",
            ..Frame::new(Kind::ROUTER)
        };
        let (to, message) = routed(talk.command(&encoded(&frame)));
        let output = talk.event(Event::Routed { router: to, message, refusal: None });
        let mut expected = Vec::new();
        if acknowledge {
            expected.push(Frame {
                content_type: 9,
                id: b"R",
                target: b"rt",
                ..Frame::new(Kind::ACKNOWLEDGE)
            });
        }
        if respond {
            let code = status::OK;
            expected.push(Frame {
                content_type: code,
                id: b"R",
                target: b"cli",
                ..Frame::new(Kind::RESPONSE)
            });
        }
        assert_eq!(frames(&output), expected);
    }
    let frame = Frame { pending_acknowledge: true, id: b"R", target: b"rt", ..Frame::new(Kind::ROUTER) };
    let (to, message) = routed(talk.command(&encoded(&frame)));
    let refusal = Some(Rejection::new(RejectionKind::Failed, "its handler raised"));
    let output = talk.event(Event::Routed { router: to, message, refusal });
    assert_eq!(only_frame(&output).headers, b"Nack-Reason:its handler raised\r\n");
}

fn asked(frame: &Frame<'_>) -> Request {
    Talk::open().request(&encoded(frame)).1
}

fn refused(frame: &Frame<'_>) -> u16 {
    let output = Talk::open().answer(&encoded(frame));
    only_frame(&output).content_type
}

#[test]
fn the_operations_of_the_program_are_understood() {
    for (headers, method) in [
        ("", RouterMethod::Distribute),
        ("Route-Method:1\r\n", RouterMethod::RoundRobin),
        ("Route-Method: OnlyFirst\r\n", RouterMethod::OnlyFirst),
    ] {
        let create = Operation::CreateRouter.code();
        let frame = Frame { headers: headers.as_bytes(), ..operation(create, "rt") };
        let Request::CreateRouter { router: name, method: wanted } = asked(&frame) else {
            panic!("{frame:?}")
        };
        assert_eq!((name, wanted), (router("rt"), method));
    }
    let wrong = Frame { headers: b"Route-Method:7\r\n", ..operation(Operation::CreateRouter.code(), "rt") };
    assert_eq!(refused(&wrong), status::BAD_REQUEST);
    assert!(matches!(
        asked(&operation(Operation::RemoveRouter.code(), "rt")),
        Request::RemoveRouter { router: name } if name == router("rt")
    ));
    assert!(matches!(
        asked(&operation(Operation::RouterList.code(), "r*")),
        Request::ListRouters { filter: Some(filter), .. } if &*filter == "r*"
    ));
    assert!(matches!(
        asked(&operation(Operation::BindingList.code(), "rt")),
        Request::ListBindings { router: name } if name == router("rt")
    ));
    let remove = operation(Operation::RemoveBinding.code(), "rt");
    assert!(matches!(
        asked(&Frame { headers: b"Binding-Name:b\r\n", ..remove }),
        Request::RemoveBinding { binding, .. } if &*binding == "b"
    ));
    assert_eq!(refused(&remove), status::BAD_REQUEST, "which one?");
    let test =
        Frame { headers: b"A:1\r\n", payload: b"hello", ..operation(Operation::TestRoute.code(), "rt") };
    let Request::TestRoute { message, .. } = asked(&test) else { panic!("{test:?}") };
    assert_eq!((message.headers(), message.body()), (&b"A:1\r\n"[..], &b"hello"[..]));
}

fn add(json: &Value) -> Result<Binding, u16> {
    let json = json.to_string();
    let frame = Frame { payload: json.as_bytes(), ..operation(Operation::AddBinding.code(), "rt") };
    let (mut commands, output) = Talk::open().receive(&encoded(&frame));
    match commands.pop() {
        Some(Command::Request(_, request)) => match *request {
            Request::AddBinding { binding, .. } => Ok(binding),
            other => panic!("{other:?}"),
        },
        None => Err(only_frame(&output).content_type),
        other => panic!("{other:?}"),
    }
}

#[test]
fn binding_accepts_the_programs_and_mqcores_names() {
    let all = json!({"Name": "b", "Target": "ch", "ContentType": 7, "Priority": -3, "Interaction": 1,
        "BindingType": 1, "Method": 2});
    let expected = Binding {
        content_type: Some(7),
        priority: -3,
        interaction: Interaction::Acknowledge,
        method: RouterMethod::OnlyFirst,
        ..Binding::new("b", Target::Queue(queue("ch/7")))
    };
    assert_eq!(add(&all), Ok(expected));
    let client = |pattern| Target::Client(pattern);
    for (given, target) in [
        (json!({"Target": "c1", "BindingType": 0}), client(ClientPattern::Id("c1".into()))),
        (json!({"Target": "@name:n", "BindingType": "Direct"}), client(ClientPattern::Name("n".into()))),
        (json!({"Target": "@type:t"}), client(ClientPattern::Kind("t".into()))),
        (json!({"Target": "logs/7"}), Target::Queue(queue("logs/7"))),
        (json!({"Target": "logs/7", "BindingType": "queue"}), Target::Queue(queue("logs/7"))),
        (json!({"Target": "a.b", "BindingType": 4}), Target::Topic(TopicName::new(b"a.b").unwrap())),
        (json!({"Target": "@topic:a.b"}), Target::Topic(TopicName::new(b"a.b").unwrap())),
        (json!({"Target": "h", "BindingType": "handler"}), Target::Handler("h".into())),
    ] {
        let binding = add(&given).unwrap();
        assert_eq!((&binding.target, &*binding.name), (&target, &*target.to_string()), "{given}");
    }
    for (given, code) in [
        (json!({"Name": "b"}), 400),
        (json!(["b", "ch"]), 400),
        (json!({"Target": "ch", "Interaction": 9}), 400),
        (json!({"Target": "a b"}), 400),
        (json!({"Target": "u", "BindingType": 2}), 406),
        (json!({"Target": "t", "BindingType": "Tag"}), 406),
    ] {
        assert_eq!(add(&given), Err(code), "{given}");
    }
}

#[test]
fn a_queue_is_bound_to_topics_as_to_a_router() {
    let pattern = TopicPattern::Mask(TopicName::new(b"a.*").unwrap());
    let payload = br#"{"Target":"logs","ContentType":7,"BindingType":1}"#;
    let bind = Frame { payload, ..operation(Operation::AddBinding.code(), "@topic:a.*") };
    let Request::BindTopic { pattern: bound, queue: to } = asked(&bind) else { panic!("{bind:?}") };
    assert_eq!((bound, to), (pattern.clone(), queue("logs/7")));
    let unbind = operation(Operation::RemoveBinding.code(), "@topic:a.*");
    let unbind = Frame { headers: b"Binding-Name:logs/7\r\n", ..unbind };
    let Request::UnbindTopic { pattern: bound, queue: from } = asked(&unbind) else { panic!("{unbind:?}") };
    assert_eq!((bound, from), (pattern, queue("logs/7")));
    let client = Frame { payload: br#"{"Target":"@name:n"}"#, ..bind };
    assert_eq!(refused(&client), status::BAD_REQUEST);
}

#[test]
fn routers_and_bindings_list_the_programs_members_first() {
    let mut talk = Talk::open();
    let definition = RouterDefinition::new(router("rt"), RouterMethod::OnlyFirst);
    let list = list_text(Operation::RouterList.code(), Reply::Routers(vec![definition].into()));
    assert_eq!(list, r#"[{"Name":"rt","IsEnabled":true,"Method":2}]"#);
    let (request, _) = talk.request(&encoded(&operation(Operation::BindingList.code(), "rt")));
    let bindings = [
        Binding { priority: 4, ..Binding::new("q", Target::Queue(QueueAddress::parse("ch/7").unwrap())) },
        Binding::new("c", Target::Client(ClientPattern::Id("c1".into()))),
    ];
    let output = talk.reply(request, Ok(Reply::Bindings(bindings.into())));
    let expected = concat!(
        r#"[{"Name":"q","Target":"ch","ContentType":7,"Priority":4,"Interaction":0,"BindingType":1,"Method":0,"#,
        r#""Address":"ch/7"},"#,
        r#"{"Name":"c","Target":"c1","ContentType":null,"Priority":0,"Interaction":0,"BindingType":0,"Method":0,"#,
        r#""Address":"@client:c1"}]"#
    );
    assert_eq!(String::from_utf8_lossy(only_frame(&output).payload), expected);
}

#[test]
fn router_test_lists_each_step() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&encoded(&operation(Operation::TestRoute.code(), "rt")));
    let test = RouteTest {
        method: RouterMethod::OnlyFirst,
        steps: vec![RouteStep {
            binding: "q".into(),
            target: Target::Queue(queue("ch/7")),
            takes: true,
            why: "the queue takes it".into(),
        }],
        skipped: vec!["c".into()],
        refusal: None,
    };
    let output = talk.reply(request, Ok(Reply::RouteTest(Box::new(test))));
    let expected = json!({"Method": "only-first", "Taken": true, "Refusal": null, "Skipped": ["c"],
        "Steps": [{"Binding": "q", "Target": "ch/7", "Takes": true, "Why": "the queue takes it"}]});
    assert_eq!(serde_json::from_slice::<Value>(only_frame(&output).payload).unwrap(), expected);
}
