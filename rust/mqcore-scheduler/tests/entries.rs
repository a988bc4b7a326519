//! Entries: who is due when, what becomes of what was missed, and that records bring them back.

use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::tz::TimeZoneDatabase;
use mqcore_scheduler::clock::{ClockStep, ClockWatch};
use mqcore_scheduler::plan::{CatchUp, CronInZone, Plan, PlanError, PlanProgress, Recurrence};
use mqcore_scheduler::record::{ScheduleDecodeError, decode_plan, encode_plan};
use mqcore_scheduler::scheduler::{EntryId, EntryIdError, Firing, ScheduleEntry, Scheduler};
use proptest::prelude::*;

const START: u64 = 1_800_000_000_000;
const HOUR: u64 = 3_600_000;

fn id(number: u32) -> EntryId {
    let mut id = [0; 20];
    id[..4].copy_from_slice(&number.to_le_bytes());
    EntryId(id)
}

fn plan(when: Recurrence, catch_up: CatchUp) -> Plan {
    Plan { when, catch_up, at_once: false, runs: None }
}

fn hourly() -> Recurrence {
    let zones = TimeZoneDatabase::bundled();
    Recurrence::Cron(Arc::new(CronInZone::new("0 * * * *", "Europe/Berlin", &zones).expect("a plan")))
}

fn with(plan: Plan) -> Scheduler<u32> {
    let state = plan.begin(START).expect("it begins");
    let mut scheduler = Scheduler::default();
    assert!(scheduler.insert(ScheduleEntry { id: id(1), plan, state, what: 7 }).is_none());
    scheduler
}

fn due(scheduler: &mut Scheduler<u32>, now: u64) -> Vec<Firing<u32>> {
    let mut firings = Vec::new();
    scheduler.take_due(now, usize::MAX, &mut firings);
    firings
}

fn times(scheduler: &mut Scheduler<u32>, now: u64) -> Vec<u64> {
    due(scheduler, now).iter().map(|firing| firing.due_ms - START).collect()
}

#[test]
fn the_id_of_an_entry_is_read_as_it_is_written_and_nothing_else_is_one() {
    let shown = EntryId(std::array::from_fn(|place| place as u8 * 13)).to_string();
    assert_eq!(shown.parse::<EntryId>().map(|id| id.to_string()), Ok(shown.clone()));
    assert_eq!(shown.to_uppercase().parse::<EntryId>(), shown.parse());
    let signed = format!("+{}", &shown[1..]);
    for other in
        ["", "00", &shown[1..], &format!("{shown}0"), &format!("{shown}00"), &signed, &"é".repeat(20)]
    {
        assert_eq!(other.parse::<EntryId>(), Err(EntryIdError), "{other}");
    }
}

#[test]
fn an_interval_keeps_its_grid_however_late_it_is_looked_at() {
    let mut scheduler = with(Plan { at_once: true, ..plan(Recurrence::Every(1000), CatchUp::Latest) });
    assert_eq!(scheduler.next_due(), Some(START));
    assert_eq!(times(&mut scheduler, START + 300), [0]);
    assert_eq!(times(&mut scheduler, START + 999), [0_u64; 0]);
    assert_eq!(times(&mut scheduler, START + 1700), [1000]);
    assert_eq!(times(&mut scheduler, START + 2000), [2000]);
    assert_eq!(scheduler.skipped(), 0);
}

#[test]
fn missed_runs_are_skipped_or_caught_up_as_configured() {
    for when in [Recurrence::Every(HOUR), hourly()] {
        let later = START + 5 * HOUR + 2_000;
        let mut none = with(plan(when.clone(), CatchUp::None));
        let first = none.next_due().expect("one") - START;
        let last = when.latest(START + first, later) - START;
        let all: Vec<u64> = (0..).map(|step| first + step * HOUR).take_while(|due| *due <= last).collect();
        assert!(all.len() >= 5);
        let within_a_minute = START + last + 59_000;
        assert_eq!(times(&mut none, within_a_minute), [last], "the others were missed");
        assert_eq!(none.skipped(), 1);
        let mut none = with(plan(when.clone(), CatchUp::None));
        assert_eq!(times(&mut none, START + last + 61_000), [0_u64; 0], "more than a minute late");
        assert_eq!(none.next_due(), Some(START + last + HOUR));
        let mut latest = with(plan(when.clone(), CatchUp::Latest));
        assert_eq!(times(&mut latest, START + last + 61_000), [last]);
        let mut every = with(plan(when.clone(), CatchUp::All));
        assert_eq!(times(&mut every, START + last + 61_000), all);
        let mut very_old = with(plan(when, CatchUp::All));

        assert_eq!(times(&mut very_old, START + last + 1000 * HOUR).len(), 7 * 24 + 1, "a week of them");
    }
}

#[test]
fn the_last_of_many_missed_moments_is_found_without_walking_through_all() {
    let zones = TimeZoneDatabase::bundled();
    let each_second = CronInZone::new("* * * * * *", "UTC", &zones).expect("a plan");
    let yearly = CronInZone::new("0 0 1 1 *", "UTC", &zones).expect("a plan");
    let later = START + 20 * 366 * 24 * HOUR + 500;
    let latest = Recurrence::Cron(Arc::new(each_second)).latest(START, later);
    assert_eq!(latest, later - 500);
    let when = Recurrence::Cron(Arc::new(yearly));
    let first = when.after(START).expect("a new year");
    let latest = when.latest(first, later);
    assert!(latest <= later && when.after(latest).expect("another") > later);
}

#[test]
fn a_set_clock_is_distinguished_from_a_running_or_slewed_one() {
    let mut watch = ClockWatch::default();
    assert_eq!(watch.look(START, 5), None);
    assert_eq!(watch.look(START + 60_000, 60_005), None);
    assert_eq!(watch.look(START + 60_900, 60_006), None, "pushed");
    assert_eq!(watch.look(START + HOUR + 60_900, 60_006), Some(ClockStep::Forward(HOUR)));
    assert_eq!(watch.look(START + HOUR + 60_910, 60_016), None);
    assert_eq!(watch.look(START + 60_920, 60_026), Some(ClockStep::Back(HOUR)));
    assert_eq!(watch.look(START - HOUR + 60_920, 60_026), Some(ClockStep::Back(HOUR)));
    assert_eq!(watch.look(0, 60_036), Some(ClockStep::Back(START - HOUR + 60_930)));
}

#[test]
fn runs_skipped_by_a_clock_set_forward_are_caught_up_as_configured() {
    for (catch_up, expected) in
        [(CatchUp::None, vec![]), (CatchUp::Latest, vec![5]), (CatchUp::All, vec![1, 2, 3, 4, 5])]
    {
        let mut scheduler = with(plan(Recurrence::Every(HOUR), catch_up));
        let hours: Vec<u64> = expected.iter().map(|hour| hour * HOUR).collect();
        assert_eq!(times(&mut scheduler, START + 1000), [0_u64; 0]);
        assert_eq!(times(&mut scheduler, START + 5 * HOUR + HOUR / 2), hours, "{catch_up:?}");
        assert_eq!(scheduler.next_due(), Some(START + 6 * HOUR));
    }
}

#[test]
fn a_clock_set_back_repeats_no_run_and_intervals_continue() {
    let mut cron = with(plan(hourly(), CatchUp::All));
    let mut every = with(plan(Recurrence::Every(HOUR), CatchUp::All));
    let before = times(&mut cron, START + 5 * HOUR);
    assert_eq!(times(&mut every, START + 5 * HOUR).len(), 5);
    let back = START + 2 * HOUR + 123;
    for scheduler in [&mut cron, &mut every] {
        scheduler.set_back(back);
    }
    assert_eq!((times(&mut cron, back), times(&mut every, back)), (vec![], vec![]));
    // The clock shows the same three hours again.
    assert_eq!(times(&mut cron, START + 5 * HOUR), [0_u64; 0]);
    let again = times(&mut cron, START + 7 * HOUR);
    assert!(again.len() == 2 && again[0] > before[before.len() - 1]);
    let firings = due(&mut every, START + 5 * HOUR + 123);
    let beats: Vec<_> = firings.iter().map(|firing| (firing.due_ms - back, firing.fence)).collect();
    assert_eq!(beats, [(HOUR, 6), (2 * HOUR, 7), (3 * HOUR, 8)]);
    assert_eq!(every.len(), 1);
    // Its place of before is none any more.
    assert_eq!(times(&mut every, START + 6 * HOUR + 122), [0_u64; 0]);
}

proptest! {
    #[test]
    fn however_the_clock_is_set_runs_are_numbered_without_gaps_and_no_cron_moment_comes_twice(
        turns in proptest::collection::vec((0..3_u8, 0..200_000_u64), 1..60),
    ) {
        let zones = TimeZoneDatabase::bundled();
        let minutes = Recurrence::Cron(Arc::new(CronInZone::new("* * * * *", "UTC", &zones).expect("a plan")));
        let mut scheduler = with(plan(minutes, CatchUp::All));
        let beat = plan(Recurrence::Every(7_000), CatchUp::All);
        let state = beat.begin(START).expect("it begins");
        scheduler.insert(ScheduleEntry { id: id(2), plan: beat, state, what: 8 });
        let mut now = START;
        let (mut last_moment, mut fences) = (0, [0_u64; 3]);
        for (how, by) in turns {
            match how {
                0 => {
                    now = now.saturating_sub(by);
                    scheduler.set_back(now);
                    let next = scheduler.get(&id(2)).expect("it goes on").state.due_ms;
                    prop_assert!(next <= now + 7_000, "nobody waits for longer than the interval");
                }
                _ => now += by,
            }
            for firing in due(&mut scheduler, now) {
                prop_assert!(firing.due_ms <= now);
                let fence = &mut fences[usize::from(firing.id == id(2)) + 1];
                *fence += 1;
                prop_assert_eq!(firing.fence, *fence);
                if firing.id == id(1) {
                    prop_assert!(firing.due_ms > last_moment);
                    last_moment = firing.due_ms;
                }
            }
        }
    }
}

#[test]
fn runs_are_counted_down_and_the_last_one_ends_the_entry() {
    let runs = NonZeroU32::new(3);
    let mut scheduler = with(Plan { runs, ..plan(Recurrence::Every(10), CatchUp::All) });
    let firings = due(&mut scheduler, START + 1000);
    let fences: Vec<_> = firings.iter().map(|firing| (firing.due_ms - START, firing.fence)).collect();
    assert_eq!(fences, [(10, 1), (20, 2), (30, 3)]);
    let left: Vec<_> = firings.iter().map(|firing| firing.state.and_then(|state| state.left)).collect();
    assert_eq!(left, [NonZeroU32::new(2), NonZeroU32::new(1), None]);
    assert!(firings[2].state.is_none() && scheduler.is_empty());
    assert!(due(&mut scheduler, u64::MAX / 2).is_empty());
}

#[test]
fn an_equal_entry_takes_the_place_of_the_one_before() {
    let mut scheduler = with(plan(Recurrence::Every(1000), CatchUp::All));
    let faster = plan(Recurrence::Every(100), CatchUp::All);
    let state = faster.begin(START).expect("it begins");
    let before =
        scheduler.insert(ScheduleEntry { id: id(1), plan: faster, state, what: 8 }).expect("there was one");
    assert_eq!((before.what, scheduler.len(), scheduler.is_empty()), (7, 1, false));
    assert_eq!(due(&mut scheduler, START + 1000).len(), 10);
    assert!(scheduler.remove(&id(1)).is_some() && scheduler.remove(&id(1)).is_none());
    assert!(due(&mut scheduler, START + HOUR).is_empty());
}

#[test]
fn entries_that_come_and_go_leave_nothing_behind() {
    let mut scheduler = Scheduler::default();
    for round in 0..100_000_u32 {
        let plan = plan(Recurrence::Every(HOUR), CatchUp::All);
        let state = plan.begin(START + u64::from(round)).expect("it begins");
        scheduler.insert(ScheduleEntry { id: id(round % 10), plan, state, what: round });
    }
    assert_eq!(scheduler.len(), 10);
    let shown = format!("{scheduler:?}").len();
    assert!(shown < 100_000, "it still knows {shown} bytes about ten entries");
    let next: Vec<_> = scheduler.upcoming(3).iter().map(|entry| entry.what).collect();
    assert_eq!(next, [99_990, 99_991, 99_992]);
}

#[test]
fn clock_set_back_often_leaves_nothing_behind() {
    let mut scheduler = Scheduler::default();
    for number in 0..100 {
        let when = if number < 60 { Recurrence::Every(HOUR) } else { hourly() };
        let plan = plan(when, CatchUp::All);
        let state = plan.begin(START).expect("it begins");
        scheduler.insert(ScheduleEntry { id: id(number), plan, state, what: number });
    }
    for step in 1..1000 {
        scheduler.set_back(START - step);
    }
    let shown = format!("{scheduler:?}").len();
    assert!(shown < 200_000, "it still knows {shown} bytes about a hundred entries");
    assert_eq!(scheduler.next_due(), Some(START - 999 + HOUR));
}

#[test]
fn meaningless_plans_are_rejected() {
    assert!(matches!(Recurrence::every(9), Err(PlanError::Interval(9))));
    assert!(matches!(Recurrence::every(u64::MAX), Err(PlanError::Interval(_))));
    let zones = TimeZoneDatabase::bundled();
    for zone in ["Mars/Olympus", "../etc/passwd", "local", "Europe/Berlin\0"] {
        let plan = CronInZone::new("* * * * *", zone, &zones);
        assert!(matches!(plan, Err(PlanError::Zone(_))), "{zone}");
    }
}

#[test]
fn plans_are_equal_only_with_the_same_times_zone_and_terms() {
    let zones = TimeZoneDatabase::bundled();
    let cron = |text: &str, zone: &str| {
        let cron = CronInZone::new(text, zone, &zones).expect("a plan");
        plan(Recurrence::Cron(Arc::new(cron)), CatchUp::All)
    };
    assert_eq!(cron("0 * * * *", "Europe/Berlin"), plan(hourly(), CatchUp::All));
    assert_ne!(cron("1 * * * *", "Europe/Berlin"), plan(hourly(), CatchUp::All));
    assert_ne!(cron("0 * * * *", "Europe/Paris"), plan(hourly(), CatchUp::All));
    assert_ne!(plan(hourly(), CatchUp::None), plan(hourly(), CatchUp::All));
}

fn plans() -> impl Strategy<Value = Plan> {
    let when = prop_oneof![(10_u64..5_000).prop_map(Recurrence::Every), Just(hourly())];
    let catch_up = prop_oneof![Just(CatchUp::None), Just(CatchUp::Latest), Just(CatchUp::All)];
    (when, catch_up, any::<bool>(), 0_u32..50).prop_map(|(when, catch_up, at_once, runs)| Plan {
        when,
        catch_up,
        at_once,
        runs: NonZeroU32::new(runs),
    })
}

proptest! {
    #[test]
    fn every_due_time_happens_once_in_order_however_often_one_looks(
        plans in proptest::collection::vec(plans(), 1..8),
        steps in proptest::collection::vec((1_u64..10_000, 1_usize..20), 1..60),
    ) {
        let mut scheduler = Scheduler::default();
        for (number, plan) in plans.iter().enumerate() {
            let state = plan.begin(START).expect("it begins");
            scheduler.insert(ScheduleEntry { id: id(number as u32), plan: plan.clone(), state, what: number });
        }
        let mut now = START;
        let mut last: Vec<Option<(u64, u64)>> = vec![None; plans.len()];
        for (step, max) in steps {
            now += step;
            let mut firings = Vec::new();
            scheduler.take_due(now, max, &mut firings);
            prop_assert!(firings.len() <= max);
            for firing in firings {
                let plan = &plans[firing.what];
                prop_assert!(firing.due_ms <= now);
                let before = last[firing.what].replace((firing.due_ms, firing.fence));
                let (due, fence) = before.unwrap_or((START - 1, 0));
                prop_assert_eq!(firing.fence, fence + 1);
                prop_assert!(firing.due_ms > due);
                if plan.catch_up == CatchUp::All && before.is_some() {
                    prop_assert_eq!(plan.when.after(due), Some(firing.due_ms), "none is left out");
                }
                prop_assert!(plan.runs.is_none_or(|runs| firing.fence <= u64::from(runs.get())));
            }
        }
    }

    #[test]
    fn records_bring_plans_and_states_back(plan in plans(), due_ms: u64, fence: u64, left: u32) {
        let mut bytes = Vec::new();
        encode_plan(&id(9), &plan, &mut bytes);
        bytes.extend_from_slice(b"rest");
        let zones = TimeZoneDatabase::bundled();
        let mut find = |text: &str, zone: &str| CronInZone::new(text, zone, &zones).map(Arc::new);
        let (found, back, rest) = decode_plan(&bytes, &mut find).expect("just written");
        prop_assert_eq!((found, rest), (id(9), &b"rest"[..]));
        prop_assert_eq!(format!("{:?}", back), format!("{:?}", plan));
        for cut in 0..bytes.len() - 4 {
            prop_assert!(decode_plan(&bytes[..cut], &mut find).is_err());
        }
        bytes[0] = 2;
        prop_assert_eq!(decode_plan(&bytes, &mut find).err(), Some(ScheduleDecodeError::Version(2)));
        let state = PlanProgress { due_ms, fence, left: NonZeroU32::new(left) };
        prop_assert_eq!(PlanProgress::decode(&state.encode()), Ok(state));
    }
}
