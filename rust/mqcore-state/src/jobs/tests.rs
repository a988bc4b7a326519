//! Consequences of the ends of jobs, and of a crash between two records.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_session::jobs::{
    Cancellation, EndReceiver, EndedJob, Flow, FlowStep, JobBoard, JobEnd, LedgerRequest,
};

use super::ledger::{CANCELLED_MS, Change, Ledger, RESULTS_MAX};
use super::record::{SavedResult, SavedStep, decode_flow, encode_flow};

const ASKER: ConnectionId = ConnectionId(7);
const NOW: u64 = 1_000;

/// A ledger and what its journal has.
#[derive(Default)]
struct Kept {
    ledger: Ledger,
    next: u64,
    changes: Vec<Change>,
    /// How often each job was sent.
    sent: BTreeMap<String, (u32, String)>,
}

fn queue() -> QueueAddress {
    QueueAddress::parse("mail").unwrap()
}

fn step(id: &str, after: &[u32], gathers: bool) -> FlowStep {
    FlowStep {
        id: id.to_owned(),
        queue: "mail".to_owned(),
        headers: "guarantee,result-ttl:60".to_owned(),
        head: format!("{id}("),
        tail: ")".to_owned(),
        after: after.to_vec(),
        gathers,
    }
}

fn flow(steps: Vec<FlowStep>) -> Flow {
    Flow { id: "flow".to_owned(), steps }
}

/// A group of three and a callback, which another job follows.
fn group() -> Flow {
    let members = ["a", "b", "c"].map(|id| step(id, &[], false));
    flow(members.into_iter().chain([step("all", &[0, 1, 2], true), step("last", &[3], false)]).collect())
}

impl Kept {
    fn settle(&mut self) {
        self.changes.extend(self.ledger.changes.drain(..));
        for job in self.ledger.begun.drain(..) {
            let id = String::from_utf8(job.id.into()).unwrap();
            let sent = self.sent.entry(id).or_default();
            *sent = (sent.0 + 1, String::from_utf8(job.body.into()).unwrap());
        }
    }

    fn begin(&mut self, flow: Flow) -> String {
        let request = LedgerRequest::Begin { request: (*b"r").into(), flow: Box::new(flow) };
        self.ask(request)
    }

    fn ask(&mut self, request: LedgerRequest) -> String {
        self.ledger.request(ASKER, request, &mut self.next, NOW);
        self.settle();
        match self.ledger.notices.pop() {
            Some((ASKER, JobNotice::Told { message, .. })) => {
                String::from_utf8(message.body().to_vec()).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    fn cancel(&mut self, id: &str) -> String {
        let (request, job) = ((*b"r").into(), id.as_bytes().into());
        self.ask(LedgerRequest::Cancel { request, job, queue: queue(), hard: false })
    }

    fn state(&mut self, id: &str) -> String {
        self.ask(LedgerRequest::Lookup { request: (*b"r").into(), job: id.as_bytes().into() })
    }

    fn ended(&mut self, id: &str, result: &str, end: JobEnd) {
        let result = Message::from_parts(id.as_bytes(), b"", result.as_bytes(), Properties::default(), None);
        let job =
            EndedJob { receiver: EndReceiver::Session(ASKER), queue: queue(), result, end, ttl_ms: 60_000 };
        self.ledger.ended(job, &mut self.next, NOW);
        let kept = self.ledger.notices.drain(..).any(|(_, notice)| matches!(notice, JobNotice::Kept(_)));
        assert!(kept, "the ledger confirms it even if it knew the end");
        self.settle();
    }

    fn done(&mut self, id: &str) {
        self.ended(id, &format!("{{\"value\": \"{id}\"}}"), JobEnd::Done);
    }

    fn sent(&self) -> Vec<(&str, u32)> {
        self.sent.iter().map(|(id, (count, _))| (&**id, *count)).collect()
    }

    /// The ledger after a crash that leaves `count` records.
    fn crashed_after(&self, count: usize) -> Self {
        let mut live: BTreeMap<u64, &Change> = BTreeMap::new();
        for change in &self.changes[..count] {
            match change {
                Change::Settle(number) => drop(live.remove(number)),
                change => drop(live.insert(change.number().unwrap(), change)),
            }
        }
        let (mut flows, mut steps, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (number, change) in live {
            match change {
                Change::Flow(_, flow) => flows.push((number, decode_flow(&encode_flow(flow)).unwrap())),
                Change::Step(_, step) => steps.push((number, SavedStep::decode(&step.encode()).unwrap())),
                Change::Result(_, result) => {
                    results.push((number, SavedResult::decode(&result.encode()).unwrap()));
                }
                Change::Settle(_) => {}
            }
        }
        let mut kept = Self { next: self.next, ..Self::default() };
        kept.ledger.restore(flows, steps, results, &mut kept.next, NOW);
        kept.settle();
        kept
    }
}

#[test]
fn a_chain_continues_with_each_result_once() {
    let mut kept = Kept::default();
    let begun = kept.begin(flow(vec![step("a", &[], false), step("b", &[0], false)]));
    assert_eq!(begun, r#"{"begun":true}"#);
    assert_eq!(kept.sent(), [("a", 1)]);
    assert!(kept.state("b").contains("waiting"));
    kept.done("a");
    assert_eq!(kept.sent["b"], (1, "b(\"a\")".to_owned()));
    kept.ended("a", r#"{"value": "again"}"#, JobEnd::Done);
    assert_eq!(kept.sent(), [("a", 1), ("b", 1)], "a job that ran twice is followed once");
    kept.done("b");
    kept.done("a");
    assert_eq!(kept.sent(), [("a", 1), ("b", 1)], "also after the end of the flow");
    assert!(kept.begin(flow(vec![step("a", &[], false)])).contains("exists already"));
}

#[test]
fn a_callback_gets_the_results_of_its_group_in_order() {
    let mut kept = Kept::default();
    kept.begin(group());
    for id in ["c", "a"] {
        kept.done(id);
        assert!(!kept.sent.contains_key("all"));
    }
    kept.done("b");
    assert_eq!(kept.sent["all"], (1, r#"all(["a","b","c"])"#.to_owned()));
}

#[test]
fn steps_after_a_failure_or_a_cancelled_one_end_like_it() {
    for end in [JobEnd::Failed, JobEnd::Cancelled] {
        let mut kept = Kept::default();
        kept.begin(group());
        if end == JobEnd::Failed {
            kept.ended("b", r#"{"error": {"type": "ValueError"}}"#, end);
        } else {
            assert_eq!(kept.cancel("b"), r#"{"cancelled":true,"state":"waiting"}"#);
            assert_eq!(kept.ledger.removed.len(), 1, "it is removed from its queue");
        }
        for id in ["b", "all", "last"] {
            assert!(kept.state(id).contains(end.as_str()), "{id}: {}", kept.state(id));
        }
        kept.done("a");
        kept.done("c");
        assert_eq!(kept.sent(), [("a", 1), ("b", 1), ("c", 1)]);
    }
}

/// The records of a batch may be cut anywhere. In each case, jobs that are not settled run again.
#[test]
fn after_a_crash_between_any_two_records_every_step_begins_and_the_flow_ends() {
    let mut before = Kept { next: 1, ..Kept::default() };
    before.begin(group());
    for id in ["b", "a", "c", "all", "last"] {
        before.done(id);
    }
    let records = before.changes.len();
    for count in 1..=records {
        let mut kept = before.crashed_after(count);
        for id in ["a", "b", "c", "all", "last"] {
            // Deliveries that were settled before the crash are not repeated.
            kept.done(id);
        }
        assert!(kept.sent().iter().all(|(_, sent)| *sent == 1), "{count}: {:?}", kept.sent());
        for id in ["a", "b", "c", "all", "last"] {
            assert!(kept.state(id).contains("done"), "{count} of {records}: {id}");
        }
    }
}

/// Only jobs that the crash left unfinished run again; the others must not be needed.
#[test]
fn after_a_crash_only_what_had_not_ended_is_needed() {
    let mut before = Kept { next: 1, ..Kept::default() };
    before.begin(group());
    let mut ended: Vec<(usize, &str)> = Vec::new();
    for id in ["b", "a", "c", "all", "last"] {
        before.done(id);
        ended.push((before.changes.len(), id));
    }
    for count in 1..=before.changes.len() {
        let mut kept = before.crashed_after(count);
        for (records, id) in &ended {
            if *records > count {
                kept.done(id);
            }
        }
        assert!(kept.state("last").contains("done"), "{count}: {}", kept.state("last"));
    }
}

#[test]
fn waiting_clients_receive_results_which_expire_in_time() {
    let mut kept = Kept::default();
    kept.ledger.request(ASKER, LedgerRequest::Await { job: (*b"a").into() }, &mut kept.next, NOW);
    assert!(kept.ledger.notices.is_empty());
    let result = Message::from_parts(b"a", b"", b"{}", Properties::default(), None);
    let job = EndedJob {
        receiver: EndReceiver::Unneeded,
        queue: queue(),
        result,
        end: JobEnd::Done,
        ttl_ms: 60_000,
    };
    kept.ledger.ended(job, &mut kept.next, NOW);
    let told = kept.ledger.notices.pop().unwrap();
    assert!(
        matches!(&told, (ASKER, JobNotice::Told { queue: Some(of), message }) if of.is(&queue()) && message.id() == b"a"),
        "{told:?}"
    );
    kept.ledger.expire(NOW + 59_999);
    assert!(kept.state("a").contains("done"));
    kept.ledger.expire(NOW + 60_000);
    assert!(kept.state("a").contains("unknown"));
    kept.settle();
    assert!(matches!(kept.changes[..], [Change::Result(0, _), Change::Settle(0)]), "{:?}", kept.changes);
}

#[test]
fn an_end_that_was_never_settled_is_forgotten_with_its_result() {
    let (mut kept, board) = (Kept::default(), Arc::new(JobBoard::default()));
    kept.ledger.share(&board);
    let result = Message::from_parts(b"a", b"", b"{}", Properties::default(), None);
    let job = EndedJob {
        receiver: EndReceiver::Unneeded,
        queue: queue(),
        result,
        end: JobEnd::Done,
        ttl_ms: 60_000,
    };
    board.ended(&job);
    kept.ledger.ended(job, &mut kept.next, NOW);
    kept.ledger.expire(NOW + 59_999);
    assert!(board.end_of(b"a", &queue()).is_some());
    kept.ledger.expire(NOW + 60_000);
    assert!(board.end_of(b"a", &queue()).is_none());
}

#[test]
fn a_job_that_fails_again_or_succeeds_later_has_its_last_result() {
    let mut kept = Kept::default();
    kept.ended("a", "{}", JobEnd::Failed);
    kept.done("a");
    assert!(kept.state("a").contains("done"));
    assert_eq!(kept.cancel("a"), r#"{"cancelled":false,"state":"done"}"#);
    assert!(matches!(kept.changes[..], [Change::Result(0, _), Change::Result(1, _), Change::Settle(0)]));
}

#[test]
fn a_job_that_has_succeeded_keeps_its_result_whatever_another_run_ends_with() {
    let mut kept = Kept::default();
    kept.done("a");
    kept.ended("a", "{}", JobEnd::Failed);
    kept.ended("a", r#"{"value": "again"}"#, JobEnd::Done);
    assert!(kept.state("a").contains("done"));
    assert!(
        matches!(&kept.changes[..], [Change::Result(0, result)] if *result.body == *br#"{"value": "a"}"#)
    );
}

#[test]
fn the_session_of_a_job_hears_of_the_end_that_counts() {
    let mut kept = Kept::default();
    kept.cancel("a");
    let result = Message::from_parts(b"a", b"", b"true", Properties::default(), None);
    let job = EndedJob {
        receiver: EndReceiver::Session(ASKER),
        queue: queue(),
        result,
        end: JobEnd::Done,
        ttl_ms: 60_000,
    };
    kept.ledger.ended(job, &mut kept.next, NOW);
    let Some((ASKER, JobNotice::Kept(counts))) = kept.ledger.notices.pop() else { panic!("no notice") };
    assert!(String::from_utf8_lossy(counts.body()).contains("Cancelled"));
}

#[test]
fn a_cancelled_job_stays_cancelled_whatever_its_worker_says() {
    let mut kept = Kept { next: 1, ..Kept::default() };
    kept.cancel("a");
    kept.done("a");
    assert!(kept.state("a").contains("cancelled"));
    let board = std::sync::Arc::default();
    let mut again = kept.crashed_after(kept.changes.len());
    again.ledger.share(&board);
    assert_eq!(board.cancellation(b"a", &queue()), Some(Cancellation::Saved), "also after a restart");
    again.ledger.expire(NOW + CANCELLED_MS);
    assert_eq!(board.cancellation(b"a", &queue()), None);
}

#[test]
fn a_cancellation_counts_only_once_it_is_saved() {
    let (mut kept, board) = (Kept::default(), std::sync::Arc::default());
    kept.ledger.share(&board);
    let (request, job) = ((*b"r").into(), (*b"a").into());
    let cancel = LedgerRequest::Cancel { request, job, queue: queue(), hard: false };
    kept.ledger.request(ASKER, cancel, &mut kept.next, NOW);
    assert_eq!(board.cancellation(b"a", &queue()), Some(Cancellation::Requested));
    kept.ledger.saved();
    assert_eq!(board.cancellation(b"a", &queue()), Some(Cancellation::Saved));
}

#[test]
fn the_results_that_expire_first_make_room_for_others() {
    let mut kept = Kept::default();
    for number in 0..RESULTS_MAX + 2 {
        let id = number.to_string();
        let result = Message::from_parts(id.as_bytes(), b"", b"{}", Properties::default(), None);
        let ttl_ms = if number == 1 { 1_000 } else { 60_000 };
        let job =
            EndedJob { receiver: EndReceiver::Unneeded, queue: queue(), result, end: JobEnd::Done, ttl_ms };
        kept.ledger.ended(job, &mut kept.next, NOW);
    }
    assert_eq!(kept.ledger.results(), RESULTS_MAX);
    assert!(kept.state("1").contains("unknown") && kept.state("0").contains("unknown"));
    assert!(kept.state("2").contains("done"));
}
