//! Schedules: each due time becomes one run, while the schedule exists.
//!
//! No answer tells a client that its schedule was saved. So a request counts as executed when its connection and the broker live
//! long enough after it; if not, nothing is known until the next request. The oracle looks for missing runs when a calm ends.

use mqcore_broker::model::id::ConnectionId;
use mqcore_scheduler::plan::CatchUp;

use crate::scenario::schedules::SimulatedSchedule;
use crate::time::Micros;

/// Maximum time until a request is saved: packets, the check of rights, a round of the thread and a slow sync.
const SAVED_AFTER: Micros = 3_000_000;
/// Maximum time between the due time of a run and its arrival at a working consumer, in milliseconds.
const ARRIVES_MS: u64 = 5_000;

/// Knowledge of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The client has not requested it, or has ended it before this time of the system clock.
    Absent(u64),
    /// It exists, unless it has run as often as it should.
    Present,
    /// A request may have been executed.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct SeenRequest {
    link: ConnectionId,
    at: Micros,
    system_ms: u64,
    begins: bool,
}

#[derive(Debug, Clone, Copy)]
struct SeenRun {
    due_ms: u64,
    fence: u64,
    id: u64,
    label: u32,
    /// When it was delivered for the first time.
    at: Micros,
    /// It waited in its queue for long before that.
    is_late: bool,
}

#[derive(Debug)]
struct SeenSchedule {
    terms: SimulatedSchedule,
    phase: Phase,
    /// Requests that are too recent.
    open: Vec<SeenRequest>,
    /// Until here a request of a connection that ended may still arrive, even after requests of the next connection.
    overtaken_until: Micros,
    /// How often its client has requested it.
    begun: u64,
    runs: Vec<SeenRun>,
    /// Runs before the latest time at which the clock was set back.
    checked: usize,
    /// The clock was set back since the last calm, so that due times may repeat and change their distances.
    is_irregular: bool,
    /// The broker started with a clock that was set back: a run that was returned before waits until the clock shows that time
    /// again.
    may_wait: bool,
}

/// All schedules.
#[derive(Debug)]
pub(crate) struct SeenSchedules {
    schedules: Vec<SeenSchedule>,
    /// The latest time that the system clock has shown.
    latest_ms: u64,
    /// Until here the clock shows times again, because it was set back.
    repeats_until_ms: u64,
    /// A disk may refuse to save schedules.
    is_faulty: bool,
    /// Nothing is known any more.
    is_unknown: bool,
}

/// A run as a worker receives it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunDelivery {
    pub(crate) schedule: usize,
    pub(crate) due_ms: u64,
    pub(crate) fence: u64,
    /// A hash of the id of its message. A schedule that starts again has another run 1, possibly in the same millisecond.
    pub(crate) id: u64,
}

impl SeenSchedules {
    pub(super) fn new(schedules: &[SimulatedSchedule]) -> Self {
        let seen = |terms: &SimulatedSchedule| SeenSchedule {
            terms: *terms,
            phase: Phase::Absent(0),
            open: Vec::new(),
            overtaken_until: 0,
            begun: 0,
            runs: Vec::new(),
            checked: 0,
            is_irregular: false,
            may_wait: false,
        };
        let schedules = schedules.iter().map(seen).collect();
        Self { schedules, latest_ms: 0, repeats_until_ms: 0, is_faulty: false, is_unknown: false }
    }

    /// The client of a schedule requests or ends it. `is_doubtful`: the request may not arrive.
    pub(crate) fn requested(
        &mut self,
        schedule: usize,
        link: ConnectionId,
        begins: bool,
        is_doubtful: bool,
        (at, system_ms): (Micros, u64),
    ) {
        let seen = &mut self.schedules[schedule];
        seen.advance(at);
        seen.begun += u64::from(begins);
        if is_doubtful || self.is_faulty || at < seen.overtaken_until {
            seen.phase = Phase::Unknown;
            seen.open.clear();
        } else {
            seen.open.push(SeenRequest { link, at, system_ms, begins });
        }
    }

    /// A connection ended, or nothing arrives on it any more.
    pub(super) fn interrupted(&mut self, link: ConnectionId, now: Micros) {
        for seen in &mut self.schedules {
            if seen.interrupted(now, |request| request.link == link) {
                seen.overtaken_until = now + SAVED_AFTER;
            }
        }
    }

    /// The broker ended.
    pub(super) fn ended(&mut self, now: Micros) {
        self.schedules.iter_mut().for_each(|seen| {
            seen.interrupted(now, |_| true);
        });
    }

    /// Disks have faults from now on, or no longer.
    pub(super) fn set_faulty(&mut self, is_faulty: bool, now: Micros) {
        self.is_faulty = is_faulty;
        if is_faulty {
            self.ended(now);
        }
    }

    /// The system clock was set, which showed this time before.
    pub(crate) fn clock_set(&mut self, shown_ms: u64, is_back: bool) {
        self.latest_ms = self.latest_ms.max(shown_ms);
        if is_back {
            self.repeats_until_ms = self.latest_ms;
            self.schedules.iter_mut().for_each(|seen| seen.is_irregular = true);
        }
    }

    /// The broker starts with a clock that was set back while it was down, or before.
    pub(super) fn started_earlier(&mut self) {
        self.schedules.iter_mut().for_each(|seen| seen.may_wait = true);
    }

    /// The disk may have lost anything without a trace.
    pub(crate) fn doubt(&mut self) {
        self.is_unknown = true;
    }

    /// The message of a run that was delivered before.
    pub(crate) fn label(&self, run: RunDelivery) -> Option<u32> {
        let runs = &self.schedules.get(run.schedule)?.runs;
        let is_it = |seen: &&SeenRun| (seen.due_ms, seen.fence, seen.id) == (run.due_ms, run.fence, run.id);
        runs.iter().find(is_it).map(|seen| seen.label)
    }

    /// The queue of a schedule.
    pub(crate) fn queue(&self, schedule: usize) -> Option<usize> {
        self.schedules.get(schedule).map(|seen| seen.terms.queue)
    }

    /// A run is delivered for the first time, as the message `label`. Returns the finding if that breaks a promise.
    pub(crate) fn ran(
        &mut self,
        run: RunDelivery,
        label: u32,
        now: Micros,
        system_ms: u64,
    ) -> Option<String> {
        self.latest_ms = self.latest_ms.max(system_ms);
        let RunDelivery { schedule, due_ms, fence, id } = run;
        let seen = self.schedules.get_mut(schedule)?;
        seen.advance(now);
        let twin = seen.runs.iter().find(|earlier| earlier.due_ms == due_ms);
        let repeats = seen.is_irregular || due_ms <= self.repeats_until_ms;
        let twin = twin.filter(|_| !repeats && seen.begun < 2).copied();
        // A run that is due later than now waited while the clock was set back.
        let is_late = due_ms.abs_diff(system_ms) > 2 * ARRIVES_MS;
        seen.runs.push(SeenRun { due_ms, fence, id, label, at: now, is_late });
        if self.is_unknown {
            return None;
        }
        if seen.begun == 0 {
            return Some(format!("schedule {schedule} runs, and was never requested"));
        }
        if let Some(twin) = twin {
            return Some(format!(
                "due time {due_ms} of schedule {schedule} is run {} and run {fence}",
                twin.fence
            ));
        }
        if due_ms > self.latest_ms {
            return Some(format!("run {fence} of schedule {schedule} comes before its due time {due_ms}"));
        }
        if seen.terms.runs > 0 && fence > seen.terms.runs {
            return Some(format!("schedule {schedule} has run {fence} of {}", seen.terms.runs));
        }
        match seen.phase {
            Phase::Absent(since) if due_ms > since && seen.open.is_empty() && !seen.is_irregular => Some(
                format!("schedule {schedule} has a run that was due at {due_ms}, and ended before {since}"),
            ),
            _ => None,
        }
    }

    /// A calm ends. `served`: the queues that had a working consumer all the time. Returns the findings.
    pub(super) fn calm(&mut self, served: &[bool], now: Micros, system_ms: u64) -> Vec<String> {
        let mut findings = Vec::new();
        for (index, seen) in self.schedules.iter_mut().enumerate() {
            seen.advance(now);
            if !served[seen.terms.queue] || self.is_unknown {
                continue;
            }
            let was_irregular = std::mem::take(&mut seen.is_irregular);
            let gap = if was_irregular || seen.has_backlog(now) { None } else { seen.gap(system_ms) };
            let missing = gap.or_else(|| seen.standstill(now));
            findings.extend(missing.map(|text| format!("schedule {index}: {text}")));
            // Each run that is on its way now belongs to the next calm, and follows the latest one. One from before the clock
            // was set back does not: later runs may have earlier due times.
            seen.move_latest_to_the_end();
            seen.checked = seen.runs.len().saturating_sub(usize::from(!was_irregular));
        }
        findings
    }

    /// Whether many runs still wait in a queue, and other messages behind them.
    pub(super) fn are_behind(&self, queue: usize, now: Micros) -> bool {
        self.schedules.iter().any(|seen| seen.terms.queue == queue && seen.has_backlog(now))
    }
}

impl SeenSchedule {
    /// Requests that are old enough count as executed.
    fn advance(&mut self, now: Micros) {
        while let Some(first) = self.open.first().filter(|first| first.at + SAVED_AFTER <= now) {
            self.phase = if first.begins {
                Phase::Present
            } else {
                Phase::Absent(first.system_ms + SAVED_AFTER / 1000)
            };
            self.open.remove(0);
        }
    }

    /// Forget requests that may not be executed. Returns whether there are any.
    fn interrupted(&mut self, now: Micros, is_of: impl Fn(&SeenRequest) -> bool) -> bool {
        self.advance(now);
        let is_interrupted = self.open.iter().any(&is_of);
        if is_interrupted {
            self.phase = Phase::Unknown;
            self.open.retain(|request| !is_of(request));
        }
        is_interrupted
    }

    /// Whether many runs still wait in the queue, as after the clock was set forward. Rejected ones change their order.
    fn has_backlog(&self, now: Micros) -> bool {
        self.runs.iter().rev().take_while(|run| run.at + ARRIVES_MS * 1000 > now).any(|run| run.is_late)
    }

    /// Moves the latest run to the end. Several consumers may get runs in another order than they were due.
    fn move_latest_to_the_end(&mut self) {
        let unchecked = &mut self.runs[self.checked..];
        let latest = (0..unchecked.len()).max_by_key(|&at| (unchecked[at].due_ms, unchecked[at].fence));
        if let Some(latest) = latest {
            unchecked[latest..].rotate_left(1);
        }
    }

    /// A run that is missing between others, or has a wrong due time.
    fn gap(&self, system_ms: u64) -> Option<String> {
        let mut runs = self.runs[self.checked..].to_vec();
        runs.sort_unstable_by_key(|run| (run.due_ms, run.fence));
        let SimulatedSchedule { interval_ms, catch_up, .. } = self.terms;
        let arrived = |run: &&SeenRun| run.due_ms + ARRIVES_MS < system_ms;
        if self.checked == 0
            && let Some(first) = runs.first().filter(arrived)
            && first.fence != 1
        {
            return Some(format!("its first run is number {}", first.fence));
        }
        for pair in runs.windows(2) {
            let [before, after] = pair else { continue };
            if !arrived(&after) || (after.fence == 1 && self.begun > 1) {
                continue;
            }
            if after.fence != before.fence + 1 {
                return Some(format!("run {} follows run {}", after.fence, before.fence));
            }
            let distance = after.due_ms - before.due_ms;
            let is_right = match catch_up {
                CatchUp::All => distance == interval_ms,
                CatchUp::None | CatchUp::Latest => distance > 0 && distance % interval_ms == 0,
            };
            if !is_right {
                return Some(format!("run {} is due {distance} ms after the previous one", after.fence));
            }
        }
        None
    }

    /// Whether it does not run although it exists. A calm lasts longer than any interval.
    fn standstill(&self, now: Micros) -> Option<String> {
        if self.phase != Phase::Present || !self.open.is_empty() || self.may_wait {
            return None;
        }
        let at = self.runs.iter().map(|run| run.at).max().unwrap_or_default();
        // Runs that are due at once may arrive in another order, and a consumer may keep earlier ones and return them late.
        let begins_again = |run: &SeenRun, last: &SeenRun| {
            self.begun > 1 && run.at > last.at + ARRIVES_MS * 1000 && run.due_ms > last.due_ms
        };
        let last = self.runs.iter().filter(|run| run.fence == self.terms.runs).max_by_key(|run| run.at);
        let has_finished = last.is_some_and(|last| !self.runs.iter().any(|run| begins_again(run, last)));
        if !has_finished && at + (self.terms.interval_ms + ARRIVES_MS) * 1000 < now {
            return Some(format!("nothing has run since {at} us, it is {now} us"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: ConnectionId = ConnectionId(1);
    const SECOND: Micros = 1_000_000;

    fn requested(catch_up: CatchUp, runs: u64) -> SeenSchedules {
        let terms = SimulatedSchedule { queue: 0, interval_ms: 10_000, catch_up, runs, at_once: true };
        let mut seen = SeenSchedules::new(&[terms]);
        seen.requested(0, LINK, true, false, (0, 0));
        seen
    }

    /// Runs by their seconds of the system clock and their numbers, each delivered when it is due.
    fn run(seen: &mut SeenSchedules, runs: &[(u64, u64)]) -> Option<String> {
        let mut found = None;
        for (label, (due, fence)) in (0..).zip(runs) {
            let run = RunDelivery { schedule: 0, due_ms: due * 1000, fence: *fence, id: 0 };
            found = found.or(seen.ran(run, label, due * SECOND, due * 1000));
        }
        found
    }

    fn calm(seen: &mut SeenSchedules, second: u64) -> Vec<String> {
        seen.calm(&[true], second * SECOND, second * 1000)
    }

    #[test]
    fn a_request_of_an_ended_connection_may_arrive_after_the_next_one() {
        let mut seen = requested(CatchUp::All, 0);
        seen.interrupted(LINK, SECOND / 10);
        seen.requested(0, ConnectionId(2), false, false, (SECOND / 5, 200));
        assert_eq!(run(&mut seen, &[(10, 1)]), None);
        // Packets of the ended connection have arrived by then.
        seen.requested(0, ConnectionId(2), false, false, (12 * SECOND, 12_000));
        assert!(run(&mut seen, &[(20, 2)]).is_some_and(|text| text.contains("ended before")));
    }

    #[test]
    fn late_runs_tell_that_other_messages_wait_behind_them() {
        let mut seen = requested(CatchUp::All, 0);
        assert_eq!(run(&mut seen, &[(10, 1)]), None);
        assert!(!seen.are_behind(0, 12 * SECOND), "it came when it was due");
        let late = RunDelivery { schedule: 0, due_ms: 20_000, fence: 2, id: 0 };
        assert_eq!(seen.ran(late, 1, 90 * SECOND, 90_000), None);
        assert!(seen.are_behind(0, 92 * SECOND));
        assert!(!seen.are_behind(1, 92 * SECOND), "another queue");
        assert!(!seen.are_behind(0, 200 * SECOND), "nothing has come for long");
    }

    #[test]
    fn runs_on_the_grid_break_no_rule_and_gaps_do() {
        for (runs, catch_up, is_right) in [
            (&[(0, 1), (10, 2), (20, 3)][..], CatchUp::All, true),
            (&[(0, 1), (20, 2), (30, 3)], CatchUp::Latest, true),
            (&[(0, 1), (20, 2), (30, 3)], CatchUp::All, false),
            (&[(0, 1), (10, 3), (20, 4)], CatchUp::All, false),
            (&[(0, 1), (15, 2), (25, 3)], CatchUp::Latest, false),
            (&[(10, 2), (20, 3)], CatchUp::All, false),
        ] {
            let mut seen = requested(catch_up, 0);
            assert_eq!(run(&mut seen, runs), None);
            assert_eq!(calm(&mut seen, 33).is_empty(), is_right, "{runs:?}, {catch_up:?}");
        }
    }

    #[test]
    fn a_schedule_that_exists_runs_unless_it_has_finished() {
        for (runs, is_right) in [(0, false), (2, true), (3, false)] {
            let mut seen = requested(CatchUp::All, runs);
            assert_eq!(run(&mut seen, &[(0, 1), (10, 2)]), None);
            assert_eq!(calm(&mut seen, 60).is_empty(), is_right, "{runs} runs");
        }
        let mut seen = requested(CatchUp::All, 0);
        seen.ended(SECOND);
        assert_eq!(calm(&mut seen, 60), [""; 0], "the broker ended before the request was saved");
    }

    #[test]
    fn earlier_run_that_is_returned_late_does_not_begin_a_finished_schedule_again() {
        for (begun, due, is_right) in [(2, 10_000, true), (2, 40_000, false), (1, 40_000, true)] {
            let mut seen = requested(CatchUp::All, 3);
            for _ in 1..begun {
                seen.requested(0, LINK, true, false, (0, 0));
            }
            assert_eq!(run(&mut seen, &[(0, 1), (20, 3)]), None);
            seen.clock_set(21_000, true);
            let late = RunDelivery { schedule: 0, due_ms: due, fence: 2, id: 0 };
            assert_eq!(seen.ran(late, 2, 40 * SECOND, 40_000), None);
            assert_eq!(
                calm(&mut seen, 100).is_empty(),
                is_right,
                "{begun} requests, run 2 is due at {due} ms"
            );
        }
    }

    #[test]
    fn runs_that_come_twice_too_early_or_after_the_end_break_a_rule() {
        assert!(run(&mut requested(CatchUp::All, 0), &[(0, 1), (10, 2), (10, 3)]).is_some());
        assert!(run(&mut requested(CatchUp::All, 1), &[(0, 1), (10, 2)]).is_some());
        let early = RunDelivery { schedule: 0, due_ms: 10_000, fence: 1, id: 0 };
        assert!(requested(CatchUp::All, 0).ran(early, 0, 5 * SECOND, 5_000).is_some());
        let mut ended = requested(CatchUp::All, 0);
        assert_eq!(run(&mut ended, &[(0, 1)]), None);
        ended.requested(0, LINK, false, false, (11 * SECOND, 11_000));
        assert_eq!(run(&mut ended, &[(10, 2)]), None);
        assert!(run(&mut ended, &[(20, 3)]).is_some());
    }

    #[test]
    fn a_run_that_may_still_wait_in_a_long_queue_is_not_missing() {
        for (calm_ends, is_right) in [(104, true), (108, false)] {
            let mut seen = requested(CatchUp::All, 0);
            assert_eq!(run(&mut seen, &[(0, 1), (10, 2)]), None);
            seen.clock_set(11_000, false);
            // Run 3 waits, or is lost.
            let late = RunDelivery { schedule: 0, due_ms: 30_000, fence: 4, id: 0 };
            assert_eq!(seen.ran(late, 2, 102 * SECOND, 102_000), None);
            assert_eq!(calm(&mut seen, calm_ends).is_empty(), is_right);
        }
    }

    #[test]
    fn a_run_before_the_clock_was_set_back_is_not_compared_with_later_ones() {
        let mut seen = requested(CatchUp::Latest, 0);
        assert_eq!(run(&mut seen, &[(60, 1)]), None);
        seen.requested(0, LINK, false, false, (61 * SECOND, 61_000));
        seen.clock_set(62_000, true);
        assert!(calm(&mut seen, 110).is_empty());
        seen.requested(0, LINK, true, false, (110 * SECOND, 50_000));
        assert_eq!(run(&mut seen, &[(57, 1), (67, 2)]), None);
        assert!(calm(&mut seen, 75).is_empty());
        assert_eq!(run(&mut seen, &[(87, 3)]), None);
        assert_eq!(run(&mut seen, &[(90, 4)]), None);
        assert!(!calm(&mut seen, 99).is_empty());
    }

    #[test]
    fn a_clock_set_back_excuses_due_times_and_not_a_standstill() {
        let mut seen = requested(CatchUp::All, 0);
        assert_eq!(run(&mut seen, &[(0, 1), (10, 2)]), None);
        seen.clock_set(11_000, true);
        let again = RunDelivery { schedule: 0, due_ms: 4_000, fence: 3, id: 0 };
        assert_eq!(seen.ran(again, 9, 15 * SECOND, 4_000), None);
        assert_eq!(calm(&mut seen, 20), [""; 0]);
        seen.clock_set(20_000, true);
        assert_ne!(calm(&mut seen, 80), [""; 0]);
    }

    #[test]
    fn a_clock_set_back_shows_due_times_again_after_a_calm() {
        let mut seen = requested(CatchUp::All, 0);
        assert_eq!(run(&mut seen, &[(0, 1), (10, 2)]), None);
        seen.clock_set(10_500, true);
        let run = |due_ms, fence| RunDelivery { schedule: 0, due_ms, fence, id: 0 };
        assert_eq!(seen.ran(run(4_000, 3), 9, 15 * SECOND, 4_000), None);
        assert_eq!(calm(&mut seen, 20), [""; 0]);
        assert_eq!(seen.ran(run(10_000, 4), 10, 21 * SECOND, 10_000), None);
        assert_eq!(seen.ran(run(20_000, 5), 11, 31 * SECOND, 20_000), None);
        assert_ne!(seen.ran(run(20_000, 6), 12, 31 * SECOND, 20_000), None, "not shown before");
    }
}
