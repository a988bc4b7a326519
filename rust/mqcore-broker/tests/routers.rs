//! Routers over several shards: receivers of a message, its id, and the answer to its producer.

use crate::shards;

use std::collections::BTreeMap;
use std::time::Duration;

use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::decision::{Decision, Step, Steps};
use mqcore_broker::model::effect::{Answer, Effect, Event, HandlerFailure, Question, Reply};
use mqcore_broker::model::id::RouterName;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::policy;
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::router::{Binding, Interaction, RouterMethod, Target};
use mqcore_testkit::Random;
use shards::{Shards, queue};

fn router(name: &str) -> RouterName {
    RouterName::new(name).expect("tests use good names")
}

fn create(shards: &mut Shards, name: &str, method: RouterMethod) {
    shards.request(0, Request::CreateRouter { router: router(name), method }).expect("it is new");
}

fn binding(target: &str, priority: i32, interaction: Interaction) -> Binding {
    let target_ = Target::parse(target).expect("tests use good targets");
    Binding { priority, interaction, ..Binding::new(target, target_) }
}

fn bind(shards: &mut Shards, name: &str, binding: Binding) {
    shards.request(0, Request::AddBinding { router: router(name), binding }).expect("a new binding");
}

fn published(who: &Shards, id: &str, producer: usize) -> Message {
    let properties = Properties {
        pending_acknowledge: true,
        pending_response: true,
        hops: 15,
        content_type: 9,
        ..Properties::default()
    };
    Message::from_parts(id.as_bytes(), b"A:1\r\n", b"body", properties, Some(who.client(producer)))
}

/// The outcome of one message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Came {
    /// `client:id` for each client that received it.
    direct: Vec<String>,
    /// The router's answer: `None` for no answer, otherwise whether a receiver took the message.
    said: Option<Result<(), RejectionKind>>,
}

fn route(shards: &mut Shards, name: &str, id: &str, producer: usize) -> Came {
    let message = published(shards, id, producer);
    let effects = shards.command(producer, Command::Route { router: router(name), message });
    came(shards, effects)
}

fn came(shards: &Shards, effects: Vec<Effect>) -> Came {
    let mut came = Came::default();
    for effect in effects {
        match effect {
            Effect::Notify(to, Event::Direct { message, .. }) => {
                let id = String::from_utf8_lossy(message.id()).into_owned();
                came.direct.push(format!("{}:{id}", shards.name(to)));
            }
            Effect::Notify(_, Event::Routed { refusal, .. }) => {
                assert_eq!(came.said, None, "a producer hears once of its message");
                came.said = Some(refusal.map_or(Ok(()), |refusal| Err(refusal.kind)));
            }
            Effect::Publication(publication) => {
                for to in publication.to.as_slice() {
                    came.direct.push(format!("{} by topic", shards.name(*to)));
                }
            }
            Effect::Deliver(_) | Effect::Notify(_, Event::Acknowledged { .. }) | Effect::Ask(_) => {}
            other => panic!("a router does not cause {other:?}"),
        }
    }
    came
}

const TAKEN: Option<Result<(), RejectionKind>> = Some(Ok(()));
const NOBODY: Option<Result<(), RejectionKind>> = Some(Err(RejectionKind::NotFound));

#[test]
fn distribute_gives_each_binding_each_message() {
    for count in 1..=4 {
        let mut shards = Shards::new(count, 3);
        for name in ["qa/1", "qb/2"] {
            shards.create_pull_queue(name);
        }
        create(&mut shards, "r", RouterMethod::Distribute);
        for target in ["qa/1", "qb/2", "@client:c1", "@name:c2"] {
            bind(&mut shards, "r", binding(target, 0, Interaction::None));
        }
        for number in 0..4 {
            let came = route(&mut shards, "r", &format!("m{number}"), 0);
            assert_eq!((came.direct.len(), came.said), (2, TAKEN));
        }
        assert_eq!((shards.stored("qa/1"), shards.stored("qb/2")), (4, 4));
    }
}

#[test]
fn round_robin_gives_each_binding_its_turn_in_the_order_of_priority() {
    for count in 1..=4 {
        let mut shards = Shards::new(count, 3);
        for name in ["qa/1", "qb/2"] {
            shards.create_pull_queue(name);
        }
        create(&mut shards, "r", RouterMethod::RoundRobin);
        for (target, priority) in [("qa/1", 1), ("qb/2", 2), ("@client:c1", 3), ("@client:c2", 4)] {
            bind(&mut shards, "r", binding(target, priority, Interaction::None));
        }
        let mut direct = Vec::new();
        for number in 0..5 {
            direct.extend(route(&mut shards, "r", &format!("m{number}"), 0).direct);
        }
        let clients: Vec<_> = direct.iter().map(|seen| &seen[..2]).collect();
        assert_eq!(clients, ["c2", "c1", "c2"]);
        assert_eq!((shards.stored("qa/1"), shards.stored("qb/2")), (1, 1));
    }
}

#[test]
fn only_first_continues_until_a_binding_takes_the_message() {
    let mut shards = Shards::new(3, 2);
    shards.create_queue(
        "small/1",
        QueueChanges { status: Some(Status::Pull), message_limit: Some(2), ..QueueChanges::default() },
    );
    shards.create_pull_queue("last/1");
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    for (target, priority) in [("missing/1", 9), ("@client:nobody", 8), ("small/1", 7), ("last/1", -1)] {
        bind(&mut shards, "r", binding(target, priority, Interaction::None));
    }
    for number in 0..5 {
        assert_eq!(route(&mut shards, "r", &format!("m{number}"), 0).said, TAKEN);
    }
    assert_eq!((shards.stored("small/1"), shards.stored("last/1")), (2, 3));
    let survey = shards.survey();
    let counts = &survey.router_counts.iter().find(|(name, _)| *name == router("r")).expect("it counts").1;
    assert_eq!((counts.received, counts.routed, counts.dropped_no_consumer), (5, 5, 0));
    let of = |name: &str| counts.bindings.iter().find(|(known, _)| **known == *name).expect("it was tried").1;
    assert_eq!((of("small/1").taken, of("small/1").refused), (2, 3));
    assert_eq!((of("missing/1").taken, of("missing/1").refused), (0, 5));
}

#[test]
fn waiting_producer_is_notified_if_no_receiver_exists() {
    let mut shards = Shards::new(2, 2);
    assert_eq!(route(&mut shards, "none", "m", 0).said, NOBODY, "no router");
    for (number, method) in
        [RouterMethod::Distribute, RouterMethod::OnlyFirst, RouterMethod::RoundRobin].into_iter().enumerate()
    {
        let name = format!("r{number}");
        create(&mut shards, &name, method);
        assert_eq!(route(&mut shards, &name, "m", 0).said, NOBODY, "no binding");
        bind(&mut shards, &name, binding("@client:gone", 0, Interaction::Response));
        bind(&mut shards, &name, binding("gone/1", 0, Interaction::Acknowledge));
        bind(&mut shards, &name, binding("@topic:gone", 0, Interaction::None));
        assert_eq!(route(&mut shards, &name, "m", 0).said, NOBODY, "no consumer accepts it");
    }
}

#[test]
fn a_receiver_that_was_asked_for_an_answer_keeps_the_id_and_the_router_says_nothing() {
    let mut shards = Shards::new(2, 3);
    create(&mut shards, "r", RouterMethod::Distribute);
    bind(&mut shards, "r", binding("@client:c1", 0, Interaction::Response));
    bind(&mut shards, "r", binding("@client:c2", 0, Interaction::None));
    let message = published(&shards, "m", 0);
    let effects = shards.command(0, Command::Route { router: router("r"), message });
    let mut seen = BTreeMap::new();
    for effect in effects {
        let Effect::Notify(to, Event::Direct { message, to: pattern }) = effect else { panic!("{effect:?}") };
        assert!(matches!(pattern, ClientPattern::Id(_)));
        assert_eq!(
            (message.source(), message.headers(), message.body()),
            (&b"c0"[..], &b"A:1\r\n"[..], &b"body"[..])
        );
        seen.insert(shards.name(to), (message.id().to_vec(), message.properties()));
    }
    let (id, properties) = &seen["c1"];
    assert_eq!(id, b"m");
    assert_eq!((properties.pending_acknowledge, properties.pending_response), (false, true));
    let (id, properties) = &seen["c2"];
    assert_eq!(id.len(), 32, "nobody answers, so the copy has an id of its own");
    assert_eq!((properties.pending_acknowledge, properties.pending_response), (false, false));
    assert_eq!((properties.content_type, properties.hops), (9, 15));
}

#[test]
fn queue_acknowledges_to_the_producer_if_its_binding_asks_for_it() {
    let mut shards = Shards::new(2, 1);
    shards.create_pull_queue("q/7");
    create(&mut shards, "r", RouterMethod::Distribute);
    bind(&mut shards, "r", binding("q/7", 0, Interaction::Acknowledge));
    let message = published(&shards, "m", 0);
    let effects = shards.command(0, Command::Route { router: router("r"), message });
    let heard: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notify(_, Event::Acknowledged { message, negative: None, queue: from, .. }) => {
                Some((message.id().to_vec(), (**from).clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(heard, [(b"m".to_vec(), queue("q/7"))], "the queue's policy acknowledges on receipt");
    assert_eq!(came(&shards, effects).said, None);
}

#[test]
fn a_binding_can_choose_among_the_clients_of_a_type() {
    let mut shards = Shards::new(2, 1);
    for id in ["w1", "w2", "w3"] {
        shards.connect(id, "worker");
    }
    create(&mut shards, "r", RouterMethod::Distribute);
    for (name, method) in [
        ("all", RouterMethod::Distribute),
        ("turn", RouterMethod::RoundRobin),
        ("oldest", RouterMethod::OnlyFirst),
    ] {
        let target = Target::parse("@type:worker").expect("a good target");
        bind(&mut shards, "r", Binding { method, ..Binding::new(name, target) });
    }
    let mut turns = Vec::new();
    for number in 0..3 {
        let came = route(&mut shards, "r", &format!("m{number}"), 0);
        let who: Vec<_> = came.direct.iter().map(|seen| &seen[..2]).collect();
        assert_eq!(who[..3], ["w1", "w2", "w3"]);
        turns.push(who[3].to_owned());
        assert_eq!(who[4], "w1");
    }
    assert_eq!(turns, ["w1", "w2", "w3"]);
}

#[test]
fn topic_takes_a_message_if_it_has_subscribers() {
    let mut shards = Shards::new(3, 2);
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    bind(&mut shards, "r", binding("@topic:news", 1, Interaction::None));
    bind(&mut shards, "r", binding("@client:c0", 0, Interaction::None));
    assert_eq!(route(&mut shards, "r", "m", 0).direct.len(), 1);
    let name = mqcore_broker::model::id::TopicName::new(b"news").expect("a short name");
    let pattern = mqcore_broker::model::topic::TopicPattern::Exact(name);
    shards.request(1, Request::SubscribeTopic { pattern }).expect("fine");
    assert_eq!(route(&mut shards, "r", "m", 0).direct, ["c1 by topic"]);
}

#[test]
fn router_test_takes_a_topic_with_subscribers_or_bound_queues() {
    let mut shards = Shards::new(1, 2);
    shards.create_pull_queue("q/1");
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    bind(&mut shards, "r", binding("@topic:news", 1, Interaction::None));
    let news = || {
        let name = mqcore_broker::model::id::TopicName::new(b"news").expect("a short name");
        mqcore_broker::model::topic::TopicPattern::Exact(name)
    };
    let step = |shards: &mut Shards| {
        let message = published(shards, "m", 0);
        match shards.request(0, Request::TestRoute { router: router("r"), message }) {
            Ok(Reply::RouteTest(test)) => (test.steps[0].takes, test.steps[0].why.to_string()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(step(&mut shards), (false, "0 subscribers and 0 queues receive it".into()));
    shards.request(0, Request::BindTopic { pattern: news(), queue: queue("q/1") }).expect("fine");
    assert_eq!(step(&mut shards), (true, "0 subscribers and 1 queues receive it".into()));
    shards.request(1, Request::SubscribeTopic { pattern: news() }).expect("fine");
    assert_eq!(step(&mut shards), (true, "1 subscribers and 1 queues receive it".into()));
}

#[test]
fn definitions_need_an_administrator_and_report_mistakes() {
    let mut shards = Shards::new(2, 1);
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    let other = Request::CreateRouter { router: router("r"), method: RouterMethod::Distribute };
    assert_eq!(shards.request(0, other).unwrap_err().kind, RejectionKind::AlreadyExists);
    bind(&mut shards, "r", binding("q/1", 0, Interaction::None));
    let twice = Request::AddBinding { router: router("r"), binding: binding("q/1", 3, Interaction::None) };
    assert_eq!(shards.request(0, twice).unwrap_err().kind, RejectionKind::AlreadyExists);
    let handler = binding("@handler:none", 3, Interaction::None);
    let unknown = Request::AddBinding { router: router("r"), binding: handler };
    assert_eq!(shards.request(0, unknown).unwrap_err().kind, RejectionKind::BadRequest);
    for missing in [
        Request::ListBindings { router: router("x") },
        Request::RemoveBinding { router: router("x"), binding: "b".into() },
        Request::AddBinding { router: router("R"), binding: binding("q/1", 0, Interaction::None) },
    ] {
        assert_eq!(shards.request(0, missing).unwrap_err().kind, RejectionKind::NotFound);
    }
    let remove = Request::RemoveBinding { router: router("r"), binding: "q/1".into() };
    shards.request(0, remove.clone()).expect("it was there");
    shards.request(0, remove).expect("gone is gone");
    shards.request(0, Request::RemoveRouter { router: router("r") }).expect("it was there");
    shards.request(0, Request::RemoveRouter { router: router("r") }).expect("gone is gone");
    assert_eq!(route(&mut shards, "r", "m", 0).said, NOBODY);
}

#[test]
fn router_test_reports_the_route_without_sending() {
    let mut shards = Shards::new(3, 2);
    shards.create_pull_queue("q/1");
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    for (target, priority) in [("missing/1", 9), ("q/1", 5), ("@client:c1", 1)] {
        bind(&mut shards, "r", binding(target, priority, Interaction::None));
    }
    let message = published(&shards, "m", 0);
    let Ok(Reply::RouteTest(test)) =
        shards.request(0, Request::TestRoute { router: router("r"), message: message.clone() })
    else {
        panic!("a test is answered")
    };
    let steps: Vec<_> = test.steps.iter().map(|step| (&*step.binding, step.takes, &*step.why)).collect();
    assert_eq!(
        steps,
        [("missing/1", false, "the channel does not exist"), ("q/1", true, "the queue takes it")]
    );
    assert_eq!((&test.skipped[..], &test.refusal), (&["@client:c1".into()][..], &None));
    assert_eq!(shards.stored("q/1"), 0);
    let unknown = Request::TestRoute { router: router("x"), message };
    assert_eq!(shards.request(0, unknown).unwrap_err().kind, RejectionKind::NotFound);
}

// ---- Handlers --------------------------------------------------------------------------------------------

fn with_handler(count: usize) -> Shards {
    let mut shards = Shards::new(count, 2);
    let spec = HandlerSpec {
        key: "h".into(),
        overrides: Steps::NONE.with(Step::Route),
        timeout: Duration::from_secs(1),
        ..HandlerSpec::of_policy(policy::MEMORY)
    };
    for broker in &mut shards.brokers {
        broker.register_handler(spec.clone());
    }
    create(&mut shards, "r", RouterMethod::Distribute);
    bind(&mut shards, "r", binding("@handler:h", 0, Interaction::None));
    shards
}

fn home(shards: &Shards) -> usize {
    router("r").shard(Placement::unkeyed(shards.brokers.len()))
}

/// Publishes a message; returns the question for the handler.
fn ask(shards: &mut Shards, id: &str) -> Question {
    let message = published(shards, id, 0);
    let effects = shards.command(0, Command::Route { router: router("r"), message });
    match &effects[..] {
        [Effect::Ask(question)] => question.clone(),
        other => panic!("the handler is asked and nothing else: {other:?}"),
    }
}

fn answer(shards: &mut Shards, question: &Question, answer: Answer) -> Came {
    let home = home(shards);
    let mut effects = Vec::new();
    let now = shards.now;
    shards.brokers[home].answer(Answer { id: question.id, ..answer }, now, &mut effects);
    let mut all = Vec::new();
    shards.carry_out(home, effects, &mut all);
    came(shards, all)
}

fn targets(names: &[&str]) -> Answer {
    let targets = names.iter().map(|name| Binding { name: "".into(), ..binding(name, 0, Interaction::None) });
    Answer {
        targets: Some(targets.collect()),
        ..Answer::new(mqcore_broker::model::id::QuestionId(0), Ok(Decision::ALLOW))
    }
}

fn plain(result: Result<Decision, HandlerFailure>) -> Answer {
    Answer::new(mqcore_broker::model::id::QuestionId(0), result)
}

#[test]
fn handler_chooses_the_targets_of_a_message() {
    for count in 1..=3 {
        let mut shards = with_handler(count);
        shards.create_pull_queue("qa/1");
        shards.create_pull_queue("qb/1");
        let question = ask(&mut shards, "m");
        assert_eq!((question.step, question.queue.channel.as_str()), (Step::Route, "r"));
        let came = answer(&mut shards, &question, targets(&["qa/1", "qb/1", "@client:c1", "none/1"]));
        assert_eq!((came.direct.len(), came.said), (1, TAKEN));
        assert_eq!((shards.stored("qa/1"), shards.stored("qb/1")), (1, 1));
        let question = ask(&mut shards, "m");
        assert_eq!(answer(&mut shards, &question, targets(&[])).said, NOBODY);
        let question = ask(&mut shards, "m");
        assert_eq!(answer(&mut shards, &question, plain(Ok(Decision::REFUSE))).said, NOBODY);
        let question = ask(&mut shards, "m");
        assert_eq!(
            answer(&mut shards, &question, plain(Ok(Decision::ALLOW))).said,
            TAKEN,
            "it has it itself"
        );
        let question = ask(&mut shards, "m");
        let endless = answer(&mut shards, &question, targets(&["@handler:h"]));
        assert_eq!(endless.said, Some(Err(RejectionKind::Unacceptable)), "that would not end");
    }
}

#[test]
fn messages_leave_a_handler_in_the_order_in_which_they_came() {
    let mut shards = with_handler(2);
    let questions: Vec<_> = ["m0", "m1", "m2"].map(|id| ask(&mut shards, id)).into();
    assert_eq!(answer(&mut shards, &questions[2], targets(&["@client:c1"])), Came::default());
    assert_eq!(answer(&mut shards, &questions[1], targets(&["@client:c1"])), Came::default());
    let home = home(&shards);
    let mut effects = Vec::new();
    let first = Answer { id: questions[0].id, ..targets(&["@client:c1"]) };
    let now = shards.now;
    shards.brokers[home].answer(first, now, &mut effects);
    let mut all = Vec::new();
    shards.carry_out(home, effects, &mut all);
    let said: Vec<_> = all
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notify(_, Event::Routed { message, .. }) => Some(message.id().to_vec()),
            _ => None,
        })
        .collect();
    assert_eq!(said, [b"m0", b"m1", b"m2"]);
}

#[test]
fn a_handler_that_fails_or_is_late_costs_its_own_message_only() {
    let mut shards = with_handler(2);
    let question = ask(&mut shards, "m");
    let failed = answer(&mut shards, &question, plain(Err(HandlerFailure::Raised)));
    assert_eq!(failed.said, Some(Err(RejectionKind::Failed)));
    let late = ask(&mut shards, "late");
    shards.now = shards.now.after(Duration::from_secs(2));
    let home = home(&shards);
    let (mut effects, now) = (Vec::new(), shards.now);
    assert!(shards.brokers[home].next_timeout() <= now);
    shards.brokers[home].timeout(now, &mut effects);
    let mut all = Vec::new();
    shards.carry_out(home, effects, &mut all);
    assert_eq!(came(&shards, all).said, Some(Err(RejectionKind::Failed)));
    assert_eq!(answer(&mut shards, &late, targets(&["@client:c1"])), Came::default(), "too late is too late");
    let question = ask(&mut shards, "next");
    assert_eq!(answer(&mut shards, &question, targets(&["@client:c1"])).said, TAKEN);
}

#[test]
fn rejecting_handler_leaves_the_message_to_the_next_binding() {
    let mut shards = with_handler(3);
    shards.request(0, Request::RemoveRouter { router: router("r") }).expect("it was there");
    create(&mut shards, "r", RouterMethod::OnlyFirst);
    bind(&mut shards, "r", binding("@handler:h", 5, Interaction::None));
    bind(&mut shards, "r", binding("@client:c1", 1, Interaction::None));
    for refusing in [plain(Ok(Decision::REFUSE)), plain(Err(HandlerFailure::Gone)), targets(&["none/1"])] {
        let question = ask(&mut shards, "m");
        let came = answer(&mut shards, &question, refusing);
        assert_eq!((came.direct.len(), came.said), (1, TAKEN));
    }
    let question = ask(&mut shards, "m");
    assert_eq!(answer(&mut shards, &question, plain(Ok(Decision::ALLOW))).direct, [""; 0]);
}

// ---- A model ---------------------------------------------------------------------------------------------

/// One router as a list that is searched linearly.
struct Model {
    method: RouterMethod,
    bindings: Vec<(String, i32)>,
    turn: usize,
}

impl Model {
    /// The receivers of a message; `takes` decides which bindings accept it.
    fn route(&mut self, takes: impl Fn(&str) -> bool) -> Vec<String> {
        let count = self.bindings.len();
        let start = self.turn;
        self.turn = (start + 1) % count.max(1);
        let names = |order: Vec<usize>| -> Vec<String> {
            order.into_iter().map(|at| self.bindings[at].0.clone()).filter(|name| takes(name)).collect()
        };
        match self.method {
            RouterMethod::Distribute => names((0..count).collect()),
            RouterMethod::OnlyFirst => names((0..count).collect()).into_iter().take(1).collect(),
            RouterMethod::RoundRobin => {
                names((0..count).map(|step| (start + step) % count).collect()).into_iter().take(1).collect()
            }
        }
    }
}

#[test]
fn random_routers_and_messages_end_as_in_the_model() {
    const TARGETS: [&str; 7] = ["qa/1", "qb/2", "qc/3", "qd/4", "@client:c1", "@client:c2", "@client:gone"];
    for seed in mqcore_testkit::seeds(60, 300) {
        let mut dice = Random::new(seed);
        let mut shards = Shards::new(1 + seed as usize % 4, 3);
        let mut open: BTreeMap<&str, bool> = BTreeMap::new();
        for name in &TARGETS[..4] {
            shards.create_pull_queue(name);
            open.insert(name, true);
        }
        let mut model = BTreeMap::new();
        let mut stored: BTreeMap<String, u64> = BTreeMap::new();
        for step in 0..80 {
            let name = ["r0", "r1", "r2"][dice.index(3)];
            let method =
                [RouterMethod::Distribute, RouterMethod::RoundRobin, RouterMethod::OnlyFirst][dice.index(3)];
            let target = TARGETS[dice.index(TARGETS.len())];
            match dice.index(10) {
                0 => {
                    let fresh = !model.contains_key(name);
                    let same = model.get(name).is_none_or(|known: &Model| known.method == method);
                    let made = shards.request(0, Request::CreateRouter { router: router(name), method });
                    assert_eq!(made.is_ok(), same, "seed {seed} step {step}");
                    if fresh {
                        model.insert(name, Model { method, bindings: Vec::new(), turn: 0 });
                    }
                }
                1..=2 => {
                    let priority = dice.index(5) as i32 - 2;
                    let binding = binding(target, priority, Interaction::None);
                    let added = shards.request(0, Request::AddBinding { router: router(name), binding });
                    let known = model.get_mut(name);
                    let fresh = known.is_some_and(|known| {
                        let fresh = known.bindings.iter().all(|(bound, _)| bound != target);
                        if fresh {
                            let place = known.bindings.iter().filter(|(_, other)| *other >= priority).count();
                            known.bindings.insert(place, (target.to_owned(), priority));
                        }
                        fresh
                    });
                    assert_eq!(added.is_ok(), fresh, "seed {seed} step {step}");
                }
                3 => {
                    let remove = Request::RemoveBinding { router: router(name), binding: target.into() };
                    let removed = shards.request(0, remove);
                    assert_eq!(removed.is_ok(), model.contains_key(name), "seed {seed} step {step}");
                    if let Some(known) = model.get_mut(name) {
                        known.bindings.retain(|(bound, _)| bound != target);
                    }
                }
                4 if dice.index(4) == 0 => {
                    shards.request(0, Request::RemoveRouter { router: router(name) }).expect("always fine");
                    model.remove(name);
                }
                5 if target.starts_with('q') => {
                    let now = !open[target];
                    open.insert(target, now);
                    let status = if now { Status::Pull } else { Status::Stopped };
                    let changes = QueueChanges { status: Some(status), ..QueueChanges::default() };
                    let update = Request::UpdateQueue { queue: queue(target), changes };
                    shards.request(0, update).expect("it exists");
                    if !now {
                        stored.insert(target.to_owned(), 0);
                    }
                }
                _ => {
                    let came = route(&mut shards, name, "m", 0);
                    let takes = |target: &str| match target.strip_prefix("@client:") {
                        Some(client) => client != "gone",
                        None => open[target],
                    };
                    let reached = model.get_mut(name).map(|known| {
                        // An added or removed binding may leave the turn beyond the end; then the router starts over.
                        let count = known.bindings.len().max(1);
                        known.turn %= count;
                        known.route(takes)
                    });
                    let reached = reached.unwrap_or_default();
                    let expected = if reached.is_empty() { NOBODY } else { TAKEN };
                    assert_eq!(came.said, expected, "seed {seed} step {step}");
                    let mut clients: Vec<_> =
                        came.direct.iter().map(|seen| format!("@client:{}", &seen[..2])).collect();
                    clients.sort();
                    let mut wanted: Vec<_> =
                        reached.iter().filter(|target| target.starts_with('@')).cloned().collect();
                    wanted.sort();
                    assert_eq!(clients, wanted, "seed {seed} step {step}");
                    for target in reached.iter().filter(|target| target.starts_with('q')) {
                        *stored.entry(target.clone()).or_default() += 1;
                    }
                }
            }
        }
        for name in &TARGETS[..4] {
            let expected = stored.get(*name).copied().unwrap_or(0);
            assert_eq!(shards.stored(name), expected, "seed {seed} {name}");
        }
    }
}
