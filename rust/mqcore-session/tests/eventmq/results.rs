//! Jobs whose results the ledger keeps, and workers whose connections end before the jobs are settled.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::transfer::{MOVED_AT_ONCE_MAX, MoveMessages, MoveTarget};
use mqcore_session::jobs::{EndReceiver, EndedJob, JobBoard, JobEnd, JobLedger, LedgerRequest};
use mqcore_session::session::Session;
use mqcore_wire::zmtp::encode_message;

use super::World;

/// Records the ends of jobs; the test confirms them when it wants.
#[derive(Debug, Default)]
struct SlowLedger {
    board: Arc<JobBoard>,
    ended: Mutex<Vec<EndedJob>>,
}

impl JobLedger for SlowLedger {
    fn board(&self) -> &Arc<JobBoard> {
        &self.board
    }

    fn ended(&self, job: EndedJob) {
        self.ended.lock().unwrap().push(job);
    }

    fn request(&self, _: ConnectionId, request: LedgerRequest) {
        panic!("{request:?} is not expected here");
    }
}

impl SlowLedger {
    /// The ends since the last call, with their results.
    fn take(&self) -> Vec<(EndedJob, String)> {
        let ended = std::mem::take(&mut *self.ended.lock().unwrap());
        let text = |job: &EndedJob| String::from_utf8(job.result.body().to_vec()).unwrap();
        ended.into_iter().map(|job| (job.clone(), text(&job))).collect()
    }
}

const RESULT: &str = r#"{"value": 42}"#;
const FAILED: &str = r#"{"value": "no", "error": {"final": true}}"#;

fn world() -> (World, Arc<SlowLedger>, ConnectionId) {
    let mut world = World::new(2);
    let ledger = Arc::new(SlowLedger::default());
    assert!(world.exchange.keep_jobs(ledger.clone()));
    let client = world.client();
    (world, ledger, client)
}

impl World {
    /// The connection of a peer ends, and its session says what follows.
    fn lose(&mut self, connection: ConnectionId) {
        let mut commands = Vec::new();
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.session.leave(&mut commands);
        let mut effects = VecDeque::new();
        self.command(connection, commands, &mut effects);
        self.carry_out(&mut effects);
        self.close(connection);
    }

    /// The ledger confirms an end, as the schedules of the server do.
    fn confirm(&mut self, job: EndedJob) {
        let mut effects = VecDeque::new();
        match job.receiver {
            EndReceiver::Session(session) => {
                self.tell(session, Event::Job(Box::new(JobNotice::Kept(job.result))));
            }
            EndReceiver::Client(to) => {
                let home = *self.peers.keys().next().unwrap();
                self.command(home, vec![Command::Respond { to, message: job.result }], &mut effects);
            }
            EndReceiver::Unneeded => {}
        }
        self.carry_out(&mut effects);
    }

    /// Confirms the only end since the last one, if it is this one.
    fn confirm_end(&mut self, ledger: &SlowLedger, end: JobEnd, result: &str) {
        let (job, text) = ledger.take().pop().unwrap();
        assert_eq!((job.end, text.as_str()), (end, result));
        self.confirm(job);
    }

    fn results(&mut self, client: ConnectionId) -> Vec<String> {
        let said = self.messages(client).into_iter();
        // Not the answer that a queue has a job.
        said.filter(|said| said[2] == "REPLY" && said[4].starts_with('{'))
            .map(|said| said[4].clone())
            .collect()
    }
}

#[test]
fn a_client_that_closes_at_once_still_cancels_jobs_and_begins_flows() {
    let flow = r#"{"id": "f", "steps": [
        {"id": "s", "queue": "default", "headers": "result-ttl:60", "head": "[]"}
    ]}"#;
    for frames in [&["CANCEL", "c", "j", "default", "soft"][..], &["FLOW", "f", flow]] {
        let (mut world, _, client) = world();
        let (now, mut bytes, mut commands) = (world.now, Vec::new(), Vec::new());
        let message: Vec<&[u8]> =
            ["", "eMQP/1.0"].iter().chain(frames).map(|frame| frame.as_bytes()).collect();
        encode_message(&message, &mut bytes);
        let session = &mut world.peers.get_mut(&client).unwrap().session;
        session.receive_last(&bytes, now, &mut commands, &mut Vec::new()).unwrap();
        let [Command::Request(number, _)] = commands[..] else { panic!("{commands:?}") };
        assert!(!session.is_closing(), "its rights are being checked: {}", frames[0]);
        let refused = Err(Rejection::new(RejectionKind::Unauthorized, "no"));
        session.event(Event::Answered(number, refused), now, &mut Vec::new()).unwrap();
        assert!(session.is_closing());
        assert_eq!(world.request_errors(client), ["no"]);
    }
}

/// A job does not run again, and its client does not hear that it is lost, if its worker is lost after its end.
#[test]
fn a_job_that_has_ended_does_not_run_again_if_its_worker_is_lost_before_it_is_settled() {
    for (result, earlier_losses) in [(RESULT, 0), (RESULT, 1), (FAILED, 0), (FAILED, 1)] {
        let (mut world, ledger, client) = world();
        world.request(client, "j", "default", "reply-requested,retry-count:1,result-ttl:60");
        world.messages(client);
        for _ in 0..earlier_losses {
            let worker = world.worker("", 1);
            assert_eq!(world.jobs(worker), ["j"]);
            world.lose(worker);
        }
        let worker = world.worker("", 1);
        assert_eq!(world.jobs(worker), ["j"]);
        world.say(worker, &["REPLY", "x", result, "j"]);
        let (ended, text) = ledger.take().pop().unwrap();
        assert_eq!(text, result);
        world.lose(worker);
        assert!(ledger.take().is_empty(), "its end is known");
        assert!(world.results(client).is_empty());

        let other = world.worker("", 1);
        assert!(world.jobs(other).is_empty(), "it has ended");
        let (again, text) = ledger.take().pop().unwrap();
        assert_eq!(
            (&again.receiver, again.end, text.as_str()),
            (&EndReceiver::Session(other), ended.end, result)
        );
        world.confirm(again);
        assert_eq!(world.results(client), [result]);
        world.request(client, "next", "default", "reply-requested,guarantee");
        assert_eq!(world.jobs(other), ["next"], "its slot is free");
        world.lose(other);
        let third = world.worker("", 1);
        assert_eq!(world.jobs(third), ["next"], "the first job is settled");
    }
}

/// A job that is settled when a worker gets it has no other end than the worker's result.
#[test]
fn the_client_of_a_job_that_ended_before_its_worker_was_lost_hears_its_result() {
    let (mut world, ledger, client) = world();
    world.request(client, "j", "default", "reply-requested,result-ttl:60");
    world.messages(client);
    let worker = world.worker("", 1);
    assert_eq!(world.jobs(worker), ["j"]);
    world.say(worker, &["REPLY", "x", RESULT, "j"]);
    assert_eq!(ledger.take().len(), 1);
    world.lose(worker);
    assert!(world.results(client).is_empty(), "a crash could undo it");
    world.confirm_end(&ledger, JobEnd::Done, RESULT);
    assert_eq!(world.results(client), [RESULT]);
}

/// A job that is lost may have been cancelled before: the ledger knows.
#[test]
fn the_ledger_tells_the_client_of_a_lost_job_which_end_counts() {
    for headers in ["reply-requested,result-ttl:60", "reply-requested,retry-count:1,result-ttl:60"] {
        let (mut world, ledger, client) = world();
        world.request(client, "j", "default", headers);
        world.messages(client);
        for _ in 0..=u32::from(headers.contains("retry-count")) {
            let worker = world.worker("", 1);
            assert_eq!(world.jobs(worker), ["j"]);
            assert!(ledger.take().is_empty());
            world.lose(worker);
        }
        world.worker("", 1);
        let (lost, text) = ledger.take().pop().unwrap();
        assert!(lost.end == JobEnd::Failed && text.contains("Lost"), "{text}");
        assert!(world.results(client).is_empty(), "the ledger has not told");
        let cancelled = Message::from_parts(b"j", b"", b"{\"error\": 1}", Properties::default(), None);
        world.confirm(EndedJob { result: cancelled, ..lost });
        assert_eq!(world.results(client), [r#"{"error": 1}"#]);
    }
}

/// The end of a job whose queue was purged does not count for another job with its id.
#[test]
fn a_job_that_is_sent_again_runs_whatever_became_of_the_one_before() {
    let (mut world, ledger, client) = world();
    let headers = "reply-requested,retry-count:1,result-ttl:60";
    world.request(client, "j", "default", headers);
    let worker = world.worker("", 1);
    assert_eq!(world.jobs(worker), ["j"]);
    world.say(worker, &["REPLY", "x", FAILED, "j"]);
    assert_eq!(ledger.take().len(), 1);
    world.lose(worker);
    let purge = MoveMessages {
        queue: QueueAddress::parse("default").unwrap(),
        to: MoveTarget::Nowhere,
        ids: Vec::new(),
        max: MOVED_AT_ONCE_MAX,
    };
    let mut effects = VecDeque::new();
    let purge = Command::Request(RequestId(0), Box::new(Request::MoveMessages(Box::new(purge))));
    world.command(client, vec![purge], &mut effects);
    world.carry_out(&mut effects);
    world.messages(client);

    world.request(client, "j", "default", headers);
    let worker = world.worker("", 2);
    assert_eq!(world.jobs(worker), ["j"]);
    world.say(worker, &["REPLY", "x", r#"{"value": "boom", "error": "ValueError"}"#, "j"]);
    world.pass(Duration::from_millis(1_100));
    assert_eq!(world.jobs(worker), ["j"], "its second attempt");
    world.say(worker, &["REPLY", "x", RESULT, "j"]);
    world.confirm_end(&ledger, JobEnd::Done, RESULT);
    assert_eq!(world.results(client), [RESULT]);
}
