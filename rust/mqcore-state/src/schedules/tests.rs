//! Tests of rounds and of single steps. `crashes` tests them together, with disks and shards.

use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_journal::options::Options;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};
use mqcore_scheduler::plan::PlanProgress;
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::jobs::LedgerRequest;
use mqcore_session::schedules::{Headers, ScheduleRequest};

use super::draft::{Crons, parse_request};
use super::ended::{EndedSchedule, EndedSchedules};
use super::keeper::Keeper;
use super::rounds::{IDLE_MS, RoundTerms, ScheduleRounds};
use super::store::{RunRecord, ScheduleJournal};

const START: u64 = 1_800_000_000_000;
/// Queues on different shards.
const QUEUES: [&str; 2] = ["mail", "reports"];
const PLACEMENT: Placement = Placement::unkeyed(2);

fn queue(name: &str) -> QueueAddress {
    QueueAddress::parse(name).expect("a good name")
}

fn rounds() -> ScheduleRounds<MemoryStorage> {
    ScheduleRounds::new(Keeper::in_memory(PLACEMENT, START))
}

/// Adds a schedule that runs each `interval_ms`.
fn schedule(rounds: &mut ScheduleRounds<MemoryStorage>, name: &str, interval_ms: u64, now: u64) {
    let headers = format!("interval-ms:{interval_ms},nohaste");
    let request = ScheduleRequest {
        id: Box::default(),
        queue: name.as_bytes().into(),
        wishes: Headers::parse(headers.as_bytes()),
        headers: headers.into_bytes().into(),
        interval: None,
        job: name.as_bytes().into(),
        cron: None,
    };
    let wanted = parse_request(&request, &[queue(name)], &Crons::default()).expect("it can be planned");
    rounds.schedule(wanted, now).expect("there is room");
}

fn terms(now_ms: u64) -> RoundTerms {
    RoundTerms { now_ms, system_ms: now_ms, is_running: true, housekeeping: None }
}

/// A round in which all queues exist. Returns the numbers of the runs that are sent, with their shards.
fn round(rounds: &mut ScheduleRounds<MemoryStorage>, now: u64) -> Vec<(usize, u64)> {
    let queues = rounds.begin(terms(now)).expect("no disk can fail");
    let (is_missing, saved) = rounds.found(queues.into_iter().map(|queue| (queue, true)));
    saved.expect("no disk can fail");
    assert!(!is_missing);
    let commands = rounds.keeper_mut().take_commands(now);
    let numbers = commands.into_iter().filter_map(|(shard, command)| match command {
        Command::PassedOn(passed_on) => Some((shard, passed_on.ticket.number)),
        _ => None,
    });
    numbers.collect()
}

#[test]
fn schedules_are_counted() {
    let mut rounds = rounds();
    assert_eq!((rounds.keeper().len(), rounds.keeper().is_empty()), (0, true));
    schedule(&mut rounds, QUEUES[0], 1_000, START);
    schedule(&mut rounds, QUEUES[1], 1_000, START);
    assert_eq!((rounds.keeper().len(), rounds.keeper().is_empty()), (2, false));
}

#[test]
fn the_next_round_is_when_a_run_is_due_or_repeated() {
    let mut rounds = rounds();
    assert_eq!(rounds.wait_ms(START, START, true), IDLE_MS, "there is nothing to do");
    schedule(&mut rounds, QUEUES[0], 1_000, START);
    let due = rounds.keeper().next_due().expect("it is planned");
    assert_eq!(rounds.wait_ms(START, due - 50, true), 50);
    assert_eq!(rounds.wait_ms(START, due - 5_000, true), IDLE_MS);
    assert_eq!(rounds.wait_ms(START, due, false), IDLE_MS, "it does not begin runs any more");
    assert_eq!(rounds.wait_ms(START, due + 1, true), 0);
    let sent = round(&mut rounds, due);
    assert_eq!(sent.len(), 1);
    rounds.event(Event::Deferred(sent[0].1, Rejection::new(RejectionKind::Busy, "full")), due);
    let retry = rounds.keeper().next_retry().expect("it is sent again");
    assert_eq!(rounds.wait_ms(retry - 20, due, true), 20, "the monotonic clock decides about repetitions");
}

#[test]
fn a_confirmed_run_is_over_and_a_deferred_one_is_sent_again_with_the_later_ones_of_its_shard() {
    let mut rounds = rounds();
    for name in QUEUES {
        schedule(&mut rounds, name, 1_000, START);
    }
    let mut now = rounds.keeper().next_due().expect("they are planned") + 10;
    let sent = round(&mut rounds, now);
    assert_eq!((sent.len(), rounds.keeper().outstanding()), (2, 2));
    assert_ne!(sent[0].0, sent[1].0, "they go to different shards");
    let ((shard, deferred), (_, confirmed)) = (sent[0], sent[1]);
    rounds.event(Event::Confirmed(vec![confirmed]), now);
    assert_eq!(rounds.keeper().outstanding(), 1);
    rounds.event(Event::Deferred(deferred, Rejection::new(RejectionKind::Busy, "full")), now);
    let retry = rounds.keeper().next_retry().expect("it is sent again");

    // Runs that become due meanwhile wait, so that they do not overtake it.
    now = rounds.keeper().next_due().expect("they continue") + 10;
    let meanwhile = if now < retry { round(&mut rounds, now) } else { Vec::new() };
    assert!(meanwhile.iter().all(|(at, _)| *at != shard), "its shard is blocked: {meanwhile:?}");
    let again = round(&mut rounds, now.max(retry));
    let of_shard: Vec<u64> = again.iter().filter(|(at, _)| *at == shard).map(|(_, number)| *number).collect();
    assert_eq!(of_shard.first(), Some(&deferred), "{again:?}");
    assert!(of_shard.is_sorted() && of_shard.windows(2).all(|pair| pair[0] != pair[1]), "{again:?}");
    let nothing = rounds.keeper_mut().take_commands(now.max(retry));
    assert!(nothing.is_empty(), "nothing is sent twice without a reason");
}

#[test]
fn runs_for_a_queue_that_does_not_exist_need_the_default_queue() {
    for (has_default, needs) in [(true, false), (false, true)] {
        let mut rounds = rounds();
        schedule(&mut rounds, QUEUES[0], 1_000, START);
        let due = rounds.keeper().next_due().expect("it is planned");
        let queues = rounds.begin(terms(due)).expect("no disk can fail");
        assert_eq!(queues, [queue(QUEUES[0]), queue("default")]);
        let (is_missing, saved) = rounds.found([(queue(QUEUES[0]), false), (queue("default"), has_default)]);
        saved.expect("no disk can fail");
        assert_eq!(is_missing, needs);
    }
}

#[test]
fn the_record_of_an_ended_schedule_is_returned_once_it_is_not_needed() {
    let ended = |sequence, byte| EndedSchedule { sequence, id: EntryId([byte; 20]), terms: [byte; 32] };
    let mut schedules = EndedSchedules::default();
    assert_eq!(schedules.insert(ended(1, 7)), None);
    assert_eq!(schedules.insert(ended(2, 8)), None);
    assert_eq!(schedules.insert(ended(3, 7)), Some(1), "it ended again");
    assert!(schedules.has(&EntryId([7; 20]), &[7; 32]));
    assert_eq!(schedules.remove(&EntryId([7; 20])), Some(3));
    assert_eq!(schedules.remove(&EntryId([7; 20])), None);
    assert!(!schedules.has(&EntryId([7; 20]), &[7; 32]) && schedules.has(&EntryId([8; 20]), &[8; 32]));
}

/// The only schedule of a keeper: its runs so far.
fn runs_of(keeper: &Keeper<MemoryStorage>) -> u64 {
    keeper.list(1).schedules[0].runs
}

fn reopened(disk: &MemoryStorage, now: u64) -> Keeper<MemoryStorage> {
    let options = Options { now_ms: now, ..Options::default() };
    let opened = Keeper::open(disk.clone(), options, PLACEMENT, &Crons::default(), &mut |_| Ok(()));
    opened.expect("it opens").0
}

/// Sends a request about jobs, and ends a round. Returns the answers.
fn answers(rounds: &mut ScheduleRounds<MemoryStorage>, request: LedgerRequest) -> Vec<String> {
    rounds.job_request(ConnectionId(1), request, START);
    let saved = rounds.begin(terms(START)).and_then(|_| rounds.write()).and_then(|()| rounds.sync());
    rounds.end(saved);
    let texts = rounds.take_notices().into_iter().filter_map(|(_, notice)| match notice {
        JobNotice::Told { message, .. } => Some(String::from_utf8_lossy(message.body()).into_owned()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_request_about_jobs_that_cannot_be_saved_is_refused_at_once() {
    for is_full in [true, false] {
        let disk = MemoryStorage::new(1);
        let mut rounds = ScheduleRounds::new(reopened(&disk, START));
        let cancel = |job: String| LedgerRequest::Cancel {
            request: (*b"r").into(),
            job: job.into_bytes().into(),
            queue: queue("mail"),
            hard: false,
        };
        if is_full {
            disk.set_capacity(Some(0));
        } else {
            disk.inject(StorageCall::Write, 0, Fault::Error, true);
        }
        let mut number = 0;
        while !rounds.is_failing() {
            answers(&mut rounds, cancel(number.to_string()));
            number += 1;
        }
        let lookup = LedgerRequest::Lookup { request: (*b"l").into(), job: (*b"0").into() };
        for request in [cancel("late".to_owned()), lookup] {
            let refused = answers(&mut rounds, request);
            assert!(refused.iter().any(|answer| answer.contains("Busy")), "full: {is_full}, {refused:?}");
        }
    }
}

/// A power failure may lose the progress of a schedule, which is written after its run.
#[test]
fn a_run_whose_schedule_lost_its_progress_is_not_repeated_after_the_next_crash() {
    let disk = MemoryStorage::new(1);
    let mut rounds = ScheduleRounds::new(reopened(&disk, START));
    schedule(&mut rounds, QUEUES[0], 1_000, START);
    rounds.keeper_mut().commit().expect("the disk works");
    drop(rounds);

    let options = Options { now_ms: START, ..Options::default() };
    let mut find = |text: &str, zone: &str| Crons::default().find(text, zone, jiff::tz::db());
    let (mut store, saved) =
        ScheduleJournal::open(disk.clone(), options, &mut find, &mut |_| Ok(())).expect("it opens");
    let planned = &saved.schedules[0];
    let state = PlanProgress { due_ms: planned.state.due_ms + 1_000, fence: 1, left: planned.state.left };
    let run = RunRecord {
        schedule: planned.sequence,
        id: planned.id,
        due_ms: planned.state.due_ms,
        fence: 1,
        state: Some(state),
        fallen_back: false,
        run: planned.run.clone().into(),
    };
    store.put_run(saved.next, &run).expect("the disk works");
    store.write().and_then(|()| store.sync()).expect("the disk works");
    drop(store);

    let mut keeper = reopened(&disk, START + 2_000);
    assert_eq!((runs_of(&keeper), keeper.outstanding()), (1, 1), "the run has the progress");
    keeper.confirmed(&[saved.next]);
    keeper.commit().expect("the disk works");
    drop(keeper);

    let keeper = reopened(&disk, START + 2_000);
    assert_eq!((runs_of(&keeper), keeper.outstanding()), (1, 0));
}
