//! Policies: options for queues that match a pattern, when it is set and when they are created.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Request, Retry};
use mqcore_broker::model::declaration::{Declaration, Declared};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::options::{DeadLetter, QueueChanges, Status};
use mqcore_broker::model::queue_policy::{POLICIES_MAX, PolicyReport, QueuePattern, QueuePolicy};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};

use crate::world::{World, acknowledged, changes, queue};

fn policy(name: &str, pattern: &str, priority: i32, options: QueueChanges) -> QueuePolicy {
    let pattern = QueuePattern::new(pattern).unwrap();
    QueuePolicy { name: name.into(), pattern, priority, options }
}

fn limit(message_limit: u64) -> QueueChanges {
    QueueChanges { message_limit: Some(message_limit), ..QueueChanges::default() }
}

fn set(w: &mut World, client: &Arc<Client>, policy: QueuePolicy) -> Result<PolicyReport, Rejection> {
    match w.request(client, Request::SetPolicy(Box::new(policy)))? {
        Reply::Policy(report) => Ok(*report),
        reply => panic!("{reply:?}"),
    }
}

fn limits(w: &World) -> [u64; 3] {
    ["logs/1", "logs/2", "other/1"].map(|address| w.information(address).options.message_limit)
}

#[test]
fn a_policy_changes_existing_queues_and_those_created_later() {
    let mut w = World::new();
    let p = w.client("admin");
    for address in ["logs/1", "other/1"] {
        w.create(&p, address, changes(Status::Pull));
    }
    let report = set(&mut w, &p, policy("big", "LOGS/*", 0, limit(5))).unwrap();
    assert_eq!(report, PolicyReport { changed: 1, ..PolicyReport::default() });
    w.create(&p, "logs/2", QueueChanges { message_limit: Some(77), ..changes(Status::Push) });
    assert_eq!(limits(&w), [5, 5, 0], "a policy prevails over the creator");
    assert_eq!(w.information("logs/2").options.status, Status::Push, "other options are the creator's");
    w.update(&p, "logs/1", limit(9));
    assert_eq!(limits(&w), [9, 5, 0], "one queue may be changed afterwards");
    w.request(&p, Request::RemovePolicy { name: "big".into() }).unwrap();
    assert_eq!(limits(&w), [9, 5, 0], "queues keep their options");
    w.create(&p, "logs/3", changes(Status::Pull));
    assert_eq!(w.information("logs/3").options.message_limit, 0);
    let again = w.request(&p, Request::RemovePolicy { name: "big".into() });
    assert_eq!(again.unwrap_err().kind, RejectionKind::NotFound);
}

#[test]
fn the_policy_with_the_highest_priority_sets_an_option_in_any_order_of_setting() {
    for reversed in [false, true] {
        let mut w = World::new();
        let p = w.client("admin");
        w.create(&p, "logs/1", changes(Status::Pull));
        let timeout = QueueChanges { message_timeout: Some(Duration::from_secs(60)), ..limit(1) };
        let mut policies = [policy("low", "*", -1, timeout), policy("high", "logs/*", 1, limit(2))];
        if reversed {
            policies.reverse();
        }
        for policy in policies {
            assert_eq!(set(&mut w, &p, policy).unwrap().changed, 1);
        }
        w.create(&p, "logs/2", changes(Status::Pull));
        for address in ["logs/1", "logs/2"] {
            let options = w.information(address).options;
            assert_eq!((options.message_limit, options.message_timeout.as_secs()), (2, 60), "{address}");
        }
        let Ok(Reply::Policies(listed)) = w.request(&p, Request::ListPolicies) else { panic!("a list") };
        assert_eq!(listed.iter().map(|policy| &*policy.name).collect::<Vec<_>>(), ["low", "high"]);
    }
}

#[test]
fn a_queue_that_cannot_have_the_options_stays_and_can_still_be_created() {
    let mut w = World::new();
    let p = w.client("admin");
    for address in ["dead/1", "logs/1", "logs/2"] {
        w.create(&p, address, changes(Status::Pull));
    }
    let buried = QueueChanges {
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..QueueChanges::default()
    };
    let report = set(&mut w, &p, policy("buried", "*", 0, buried.clone())).unwrap();
    assert_eq!(report.changed, 2);
    let [(rejected, why)] = report.rejected.as_slice() else { panic!("{report:?}") };
    assert_eq!(*rejected, queue("dead/1"));
    assert!(why.contains("its own dead-letter queue"), "{why}");
    assert_eq!(w.information("dead/1").options.dead_letter, None);
    assert_eq!(w.information("logs/1").options.dead_letter, buried.dead_letter.unwrap());

    let waits = QueueChanges { wait_for_acknowledge: Some(true), ..QueueChanges::default() };
    set(&mut w, &p, policy("waits", "loud/*", 0, waits)).unwrap();
    w.create(&p, "loud/1", changes(Status::Broadcast));
    assert!(!w.information("loud/1").options.wait_for_acknowledge);
    w.create(&p, "loud/2", changes(Status::Pull));
    assert!(w.information("loud/2").options.wait_for_acknowledge);
}

#[test]
fn a_policy_that_a_queue_cannot_have_keeps_no_other_from_it() {
    let mut w = World::new();
    let p = w.client("admin");
    w.create(&p, "dead/1", changes(Status::Pull));
    let buried = QueueChanges {
        dead_letter: Some(Some(DeadLetter::Queue(queue("dead/1")))),
        ..QueueChanges::default()
    };
    set(&mut w, &p, policy("buried", "*", 0, buried)).unwrap();
    set(&mut w, &p, policy("high", "*", 1, limit(2))).unwrap();
    let report = set(&mut w, &p, policy("low", "*", -1, limit(1))).unwrap();
    assert_eq!(report, PolicyReport { changed: 1, ..PolicyReport::default() });
    assert_eq!(w.information("dead/1").options.message_limit, 2);
}

#[test]
fn declarations_agree_with_policies() {
    let mut w = World::new();
    let p = w.client("admin");
    set(&mut w, &p, policy("big", "logs/*", 0, limit(5))).unwrap();
    let declared = QueueChanges { tag: Some("declared".into()), ..limit(77) };
    let declaration = Declaration::Queue(queue("logs/1"), Box::new(declared));
    for expected in [Declared::Created, Declared::Unchanged] {
        let result = w.broker.declare(&declaration, w.now, &mut w.effects);
        assert_eq!(result, Ok(expected));
        assert_eq!(w.information("logs/1").options.message_limit, 5);
    }
    w.update(&p, "logs/1", QueueChanges { tag: Some("other".into()), ..QueueChanges::default() });
    let replaced = w.broker.declare(&declaration, w.now, &mut w.effects);
    assert_eq!(replaced, Ok(Declared::Replaced(vec!["tag is other, declared declared".into()])));
    assert_eq!(w.information("logs/1").options.message_limit, 5);
}

#[test]
fn dead_letter_queues_that_the_broker_creates_have_policies_too() {
    let mut w = World::new();
    let (p, a) = (w.client("p"), w.client("a"));
    set(&mut w, &p, policy("small", "ch/65535", 0, limit(9))).unwrap();
    w.create(&p, "ch/1", acknowledged(Status::RoundRobin));
    w.join(&a, "ch").unwrap();
    w.publish(&p, "ch/1", "1");
    w.nack_until(&a, "ch/1", "1", Retry::Never);
    w.transfer();
    assert_eq!(w.information("ch/65535").options.message_limit, 9);
}

#[test]
fn impossible_policies_are_rejected_and_change_nothing() {
    let mut w = World::new();
    let p = w.client("admin");
    w.create(&p, "logs/1", changes(Status::Pull));
    let unknown = QueueChanges { delivery_handler: Some("nonsense".into()), ..limit(1) };
    let missing = QueueChanges { dead_letter: Some(Some(DeadLetter::Queue(queue("none/1")))), ..limit(1) };
    for (options, kind) in [(unknown, RejectionKind::BadRequest), (missing, RejectionKind::NotFound)] {
        assert_eq!(set(&mut w, &p, policy("x", "*", 0, options)).unwrap_err().kind, kind);
    }
    assert_eq!(w.information("logs/1").options.message_limit, 0);
    for number in 0..POLICIES_MAX {
        set(&mut w, &p, policy(&format!("p{number}"), "none/1", 0, limit(1))).unwrap();
    }
    let more = set(&mut w, &p, policy("one more", "*", 0, limit(1)));
    assert_eq!(more.unwrap_err().kind, RejectionKind::LimitExceeded);
    set(&mut w, &p, policy("p0", "logs/1", 0, limit(3))).unwrap();
    assert_eq!(w.information("logs/1").options.message_limit, 3, "an existing one can still be replaced");
    let client = w.introduce("someone", false).unwrap();
    let denied = set(&mut w, &client, policy("p0", "*", 0, limit(1)));
    assert_eq!(denied.unwrap_err().kind, RejectionKind::Unauthorized);
}
