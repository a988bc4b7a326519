//! Results of jobs, and the jobs that follow when one ends. Contains no thread, clock or journal: the caller supplies the
//! time, saves the changes, and carries out what follows.
//!
//! Each end of a job is recorded once. The jobs that follow are recorded with it, in one batch of the journal, before the
//! delivery of the first job is settled. A crash therefore leaves either both or neither, and then the job runs again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_session::jobs::{
    EndReceiver, EndedJob, Flow, JobBoard, JobEnd, LedgerRequest, cancelled_result, failed_answer,
};
use serde_json::json;
use serde_json::value::RawValue;

use super::flows::{Flows, Next};
use super::record::{SavedResult, SavedStep};

/// Maximum results; beyond it, the ones that expire first are forgotten. Those of flows that have not ended do not count.
pub const RESULTS_MAX: usize = 100_000;
/// Maximum bytes of all results together, likewise.
pub const RESULT_BYTES_MAX: usize = 256 << 20;
/// Maximum jobs of all flows together.
pub const FLOW_JOBS_MAX: usize = 200_000;
/// Maximum bytes of all flows together.
pub const FLOW_BYTES_MAX: usize = 256 << 20;
/// Maximum requests that wait for results.
const WAITERS_MAX: usize = 200_000;
/// Milliseconds for which a cancelled job is remembered, if it is not known for how long its result is kept.
pub const CANCELLED_MS: u64 = 24 * 3600 * 1000;
/// Bytes that each result takes besides its body.
const RESULT_OVERHEAD: usize = 200;

/// A change to save.
#[derive(Debug)]
pub(crate) enum Change {
    Result(u64, SavedResult),
    Flow(u64, Flow),
    Step(u64, SavedStep),
    Settle(u64),
}

impl Change {
    /// The number of the record that it adds.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Result(number, _) | Self::Flow(number, _) | Self::Step(number, _) => Some(*number),
            Self::Settle(_) => None,
        }
    }
}

/// A job of a flow to send.
#[derive(Debug)]
pub(crate) struct StepJob {
    pub(crate) number: u64,
    pub(crate) id: Box<[u8]>,
    pub(crate) queue: QueueAddress,
    pub(crate) headers: Box<[u8]>,
    pub(crate) body: Box<[u8]>,
}

#[derive(Debug)]
struct KeptResult {
    number: u64,
    result: SavedResult,
    /// Its flow, until that has ended.
    flow: Option<u64>,
}

/// Results, cancellations and flows of jobs.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    board: Arc<JobBoard>,
    results: HashMap<Box<[u8]>, KeptResult, foldhash::fast::RandomState>,
    /// Results of jobs whose flows have ended, by the time at which they are forgotten.
    expiring: BTreeSet<(u64, u64)>,
    /// The jobs of `expiring`.
    by_number: BTreeMap<u64, Box<[u8]>>,
    bytes: usize,
    flows: Flows,
    waiters: HashMap<Box<[u8]>, Vec<ConnectionId>, foldhash::fast::RandomState>,
    waiting: usize,
    /// Changes for the caller to save.
    pub(crate) changes: VecDeque<Change>,
    pub(crate) notices: Vec<(ConnectionId, JobNotice)>,
    /// Approximate memory of the notices.
    pub(crate) notice_bytes: usize,
    /// Results for clients of jobs that no session has any more.
    pub(crate) answers: Vec<(Box<str>, Message)>,
    pub(crate) begun: VecDeque<StepJob>,
    /// Jobs whose cancellations are not saved yet.
    cancelling: Vec<Box<[u8]>>,
    /// Cancelled jobs that may wait in their queues.
    pub(crate) removed: Vec<(QueueAddress, Box<[u8]>)>,
}

impl Ledger {
    /// Lets sessions share running and cancelled jobs.
    pub(crate) fn share(&mut self, board: &Arc<JobBoard>) {
        for kept in self.results.values().filter(|kept| kept.result.end == JobEnd::Cancelled) {
            board.cancel(&kept.result.id, kept.result.queue.clone());
            board.cancellation_saved(&kept.result.id);
        }
        self.board = Arc::clone(board);
    }

    /// Number of results.
    pub(crate) fn results(&self) -> usize {
        self.results.len()
    }

    /// All changes are saved.
    pub(crate) fn saved(&mut self) {
        for job in self.cancelling.drain(..) {
            self.board.cancellation_saved(&job);
        }
    }

    // ---- A start -------------------------------------------------------------------------------------------------

    /// Continues with what a journal has.
    pub(crate) fn restore(
        &mut self,
        flows: Vec<(u64, Flow)>,
        steps: Vec<(u64, SavedStep)>,
        results: Vec<(u64, SavedResult)>,
        next: &mut u64,
        now_ms: u64,
    ) {
        for (number, flow) in flows {
            let bytes = super::record::encode_flow(&flow).len();
            self.flows.insert(number, flow, bytes);
        }
        for (number, result) in results {
            let flow = self.flows.find(&result.id);
            if let Some((flow, step)) = flow
                && let Some(live) = self.flows.get_mut(flow)
                && live.step(step).address().is(&result.queue)
            {
                live.end(step, result.end);
            }
            self.insert(number, result, flow.map(|(flow, _)| flow));
        }
        for (number, saved) in steps {
            let live = self.flows.get_mut(saved.flow);
            let Some(live) = live.filter(|live| (saved.step as usize) < live.flow.steps.len()) else {
                self.changes.push_back(Change::Settle(number));
                continue;
            };
            live.begin(saved.step, number);
            if live.end_of(saved.step).is_some() {
                self.changes.push_back(Change::Settle(number));
                continue;
            }
            // Its queue may have it; then it accepts it no second time.
            let job = step_job(number, live.step(saved.step), saved.body);
            self.begun.push_back(job);
        }
        for number in self.flows.numbers() {
            self.catch_up(number, next, now_ms);
        }
        self.make_room();
    }

    /// A crash may have left the end of a step without what follows.
    fn catch_up(&mut self, number: u64, next: &mut u64, now_ms: u64) {
        let Some(live) = self.flows.get_mut(number) else { return };
        let ended: Vec<u32> =
            (0..live.flow.steps.len() as u32).filter(|step| live.end_of(*step).is_some()).collect();
        for step in ended {
            self.follow(number, step, next, now_ms);
        }
        let first = self.flows.get(number).map(super::flows::LiveFlow::first).unwrap_or_default();
        for step in first {
            self.begin_step(number, step, next);
        }
        self.end_flow(number);
    }

    // ---- Ends of jobs --------------------------------------------------------------------------------------------

    /// A job has ended.
    pub(crate) fn ended(&mut self, job: EndedJob, next: &mut u64, now_ms: u64) {
        let EndedJob { receiver, queue, result, end, ttl_ms } = job;
        let saved = SavedResult {
            id: result.id().into(),
            queue,
            end,
            expires_ms: now_ms.saturating_add(ttl_ms),
            body: result.body().into(),
        };
        let counts = self.record(saved, next, now_ms);
        let earlier = if counts { None } else { self.results.get(result.id()) };
        let result = earlier.map_or(result, |kept| result_message(&kept.result));
        match receiver {
            EndReceiver::Unneeded => {}
            EndReceiver::Session(session) => self.notify(session, JobNotice::Kept(result)),
            EndReceiver::Client(client) => self.answers.push((client, result)),
        }
    }

    /// Records the end of a job, unless its end is known. A job runs again if a crash comes before its delivery is settled; then
    /// a value or a cancellation that a client may have heard of stands. A failed job may be sent again, and has its last result.
    /// False: an earlier end of the job stands.
    fn record(&mut self, result: SavedResult, next: &mut u64, now_ms: u64) -> bool {
        let id = result.id.clone();
        let stands =
            |kept: &KeptResult| kept.result.end != JobEnd::Failed && kept.result.queue.is(&result.queue);
        if self.results.get(&id).is_some_and(stands) {
            return false;
        }
        let step = self.flows.find(&id).filter(|(flow, step)| {
            let live = self.flows.get(*flow);
            live.is_some_and(|live| live.step(*step).address().is(&result.queue))
        });
        match step {
            // It has run twice, and only its first end counts.
            Some((flow, step)) if self.flows.get(flow).is_some_and(|live| live.end_of(step).is_some()) => {
                return false;
            }
            Some((flow, step)) => {
                self.keep(result, Some(flow), next);
                self.end_step(flow, step, next, now_ms);
            }
            None => self.keep(result, None, next),
        }
        true
    }

    /// Keeps a result and tells those who wait for it.
    fn keep(&mut self, result: SavedResult, flow: Option<u64>, next: &mut u64) {
        let number = take(next);
        for waiter in self.waiters.remove(&result.id).unwrap_or_default() {
            self.waiting -= 1;
            self.notify(waiter, told_result(&result));
        }
        self.changes.push_back(Change::Result(number, result.clone()));
        self.insert(number, result, flow);
        self.make_room();
    }

    fn insert(&mut self, number: u64, result: SavedResult, flow: Option<u64>) {
        let id = result.id.clone();
        if let Some(before) = self.results.remove(&id) {
            self.forget_place(&before);
            if before.result.end == JobEnd::Cancelled && result.end != JobEnd::Cancelled {
                // The cancelled job was one of another queue.
                self.board.forget(&id);
            }
            self.changes.push_back(Change::Settle(before.number));
        }
        self.bytes += result.body.len() + RESULT_OVERHEAD;
        if flow.is_none() {
            self.expiring.insert((result.expires_ms, number));
            self.by_number.insert(number, id.clone());
        }
        self.results.insert(id, KeptResult { number, result, flow });
    }

    fn forget_place(&mut self, kept: &KeptResult) {
        self.bytes -= kept.result.body.len() + RESULT_OVERHEAD;
        self.expiring.remove(&(kept.result.expires_ms, kept.number));
        self.by_number.remove(&kept.number);
    }

    /// Forgets the results that expire first, if there are too many.
    fn make_room(&mut self) {
        while self.by_number.len() > RESULTS_MAX || self.bytes > RESULT_BYTES_MAX {
            let Some((_, number)) = self.expiring.pop_first() else { return };
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(id) = self.by_number.remove(&number) else { return };
        let Some(kept) = self.results.remove(&id) else { return };
        self.forget_place(&kept);
        self.board.settled(&id);
        if kept.result.end == JobEnd::Cancelled {
            self.board.forget(&id);
        }
        self.changes.push_back(Change::Settle(number));
    }

    /// Forgets results whose time is over.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some((_, number)) = self.expiring.first().filter(|(at, _)| *at <= now_ms).copied() {
            self.expiring.pop_first();
            self.forget(number);
        }
    }

    // ---- Flows ---------------------------------------------------------------------------------------------------

    fn end_step(&mut self, flow: u64, step: u32, next: &mut u64, now_ms: u64) {
        let Some(live) = self.flows.get_mut(flow) else { return };
        let id = live.step(step).id.as_bytes().to_vec();
        let Some(end) = self.results.get(&*id).map(|kept| kept.result.end) else { return };
        let begun = live.end(step, end);
        self.follow(flow, step, next, now_ms);
        // After the records of what follows: a crash in between leaves both.
        self.changes.extend(begun.map(Change::Settle));
        self.end_flow(flow);
    }

    /// Begins the steps that waited for this one only, or ends those that wait in vain.
    fn follow(&mut self, flow: u64, step: u32, next: &mut u64, now_ms: u64) {
        let mut ended = vec![step];
        while let Some(step) = ended.pop() {
            let follows = self.flows.get_mut(flow).map(|live| live.after(step)).unwrap_or_default();
            for follower in follows {
                match follower {
                    Next::Begins(step) => self.begin_step(flow, step, next),
                    Next::EndsLike { step, end, like } => {
                        self.end_like(flow, (step, like), end, next, now_ms);
                        ended.push(step);
                    }
                }
            }
        }
    }

    /// Ends a step with the result of a step before it, which did not return a value.
    fn end_like(&mut self, flow: u64, (step, like): (u32, u32), end: JobEnd, next: &mut u64, now_ms: u64) {
        let Some(live) = self.flows.get_mut(flow) else { return };
        let (like, ending) = (live.step(like).id.clone(), live.step(step).clone());
        let body = self.results.get(like.as_bytes()).map(|kept| kept.result.body.clone());
        let result = SavedResult {
            id: ending.id.as_bytes().into(),
            queue: ending.address(),
            end,
            expires_ms: now_ms.saturating_add(ending.ttl_ms()),
            body: body
                .unwrap_or_else(|| failed_answer("Lost", "a job before it has no result").as_bytes().into()),
        };
        live.end(step, end);
        self.keep(result, Some(flow), next);
    }

    fn begin_step(&mut self, flow: u64, step: u32, next: &mut u64) {
        let number = take(next);
        let Some(live) = self.flows.get_mut(flow) else { return };
        live.begin(step, number);
        let beginning = live.step(step);
        let results: Vec<&[u8]> = beginning
            .after
            .iter()
            .filter_map(|before| self.results.get(live.step(*before).id.as_bytes()))
            .map(|kept| &*kept.result.body)
            .collect();
        let body: Box<[u8]> = beginning.job(&results).into();
        self.begun.push_back(step_job(number, beginning, body.clone()));
        self.changes.push_back(Change::Step(number, SavedStep { flow, step, body }));
    }

    /// Ends a flow all of whose steps have ended.
    fn end_flow(&mut self, number: u64) {
        if !self.flows.get(number).is_some_and(super::flows::LiveFlow::has_ended) {
            return;
        }
        let Some(flow) = self.flows.remove(number) else { return };
        for step in flow.steps {
            let Some(kept) = self.results.get_mut(step.id.as_bytes()) else { continue };
            kept.flow = None;
            self.expiring.insert((kept.result.expires_ms, kept.number));
            self.by_number.insert(kept.number, kept.result.id.clone());
        }
        self.changes.push_back(Change::Settle(number));
        self.make_room();
    }

    // ---- Requests ------------------------------------------------------------------------------------------------

    /// Handles a request of a client.
    pub(crate) fn request(
        &mut self,
        asker: ConnectionId,
        request: LedgerRequest,
        next: &mut u64,
        now_ms: u64,
    ) {
        match request {
            LedgerRequest::Await { job } => self.await_result(asker, job),
            LedgerRequest::Lookup { request, job } => {
                let (queue, answer) = self.look_up(&job);
                self.tell(asker, queue, &request, &answer);
            }
            LedgerRequest::Cancel { request, job, queue, hard } => {
                let answer = self.cancel(&job, queue, hard, next, now_ms);
                self.tell(asker, None, &request, &answer);
            }
            LedgerRequest::Begin { request, flow } => {
                let answer = match self.begin(*flow, next, now_ms) {
                    Ok(()) => json!({"begun": true}).to_string(),
                    Err(why) => failed_answer("Rejected", &why),
                };
                self.tell(asker, None, &request, &answer);
            }
        }
    }

    fn notify(&mut self, connection: ConnectionId, notice: JobNotice) {
        self.notice_bytes += notice.pending_bytes();
        self.notices.push((connection, notice));
    }

    /// Takes the notices for sessions.
    pub(crate) fn take_notices(&mut self) -> Vec<(ConnectionId, JobNotice)> {
        self.notice_bytes = 0;
        std::mem::take(&mut self.notices)
    }

    fn tell(&mut self, asker: ConnectionId, queue: Option<QueueAddress>, request: &[u8], answer: &str) {
        self.notify(asker, answered(queue, request, answer));
    }

    fn await_result(&mut self, asker: ConnectionId, job: Box<[u8]>) {
        if let Some(kept) = self.results.get(&job) {
            let result = told_result(&kept.result);
            return self.notify(asker, result);
        }
        if self.waiting >= WAITERS_MAX {
            // Waiters that have left are not known here; all ask again, and those who wait still do.
            self.waiters.clear();
            self.waiting = 0;
        }
        let waiters = self.waiters.entry(job).or_default();
        if !waiters.contains(&asker) {
            waiters.push(asker);
            self.waiting += 1;
        }
    }

    fn look_up(&self, job: &[u8]) -> (Option<QueueAddress>, String) {
        if let Some(KeptResult { result, .. }) = self.results.get(job) {
            let answer = json!({
                "state": result.end.as_str(),
                "queue": result.queue.to_string(),
                "expires_ms": result.expires_ms,
            });
            return (Some(result.queue.clone()), answer.to_string());
        }
        if let Some(running) = self.board.running(job) {
            let progress = running.progress.and_then(|text| RawValue::from_string(text.into()).ok());
            let (queue, progress) =
                (running.queue.to_string(), progress.as_deref().map_or("null", RawValue::get));
            let answer =
                format!("{{\"state\":\"running\",\"queue\":{},\"progress\":{progress}}}", json!(queue));
            return (Some(running.queue), answer);
        }
        if let Some((flow, step)) = self.flows.find(job)
            && let Some(live) = self.flows.get(flow)
        {
            let queue = live.step(step).address();
            return (
                Some(queue.clone()),
                json!({"state": "waiting", "queue": queue.to_string()}).to_string(),
            );
        }
        (None, json!({"state": "unknown"}).to_string())
    }

    fn cancel(&mut self, job: &[u8], queue: QueueAddress, hard: bool, next: &mut u64, now_ms: u64) -> String {
        if let Some(kept) = self.results.get(job)
            && (kept.result.end != JobEnd::Cancelled || !kept.result.queue.is(&queue))
        {
            return json!({"cancelled": false, "state": kept.result.end.as_str()}).to_string();
        }
        let step = self.flows.find(job);
        let live = step.and_then(|(flow, step)| Some((self.flows.get(flow)?, step)));
        let (named, ttl_ms, begun) = match live {
            Some((live, step)) => (live.step(step).address(), live.step(step).ttl_ms(), live.has_begun(step)),
            None => (queue.clone(), CANCELLED_MS, true),
        };
        if !named.is(&queue) {
            return json!({"cancelled": false, "state": "unknown"}).to_string();
        }
        // Before the look at what runs: a worker that gets the job meanwhile does the opposite.
        self.board.cancel(job, queue.clone());
        self.cancelling.push(job.into());
        let result = SavedResult {
            id: job.into(),
            queue: queue.clone(),
            end: JobEnd::Cancelled,
            expires_ms: now_ms.saturating_add(ttl_ms.max(CANCELLED_MS)),
            body: cancelled_result().as_bytes().into(),
        };
        self.record(result, next, now_ms);
        let running = self.board.running(job).filter(|running| running.queue.is(&queue));
        let state = match &running {
            Some(_) => "running",
            None => "waiting",
        };
        if let Some(running) = running {
            let stop = JobNotice::Stop { job: job.into(), queue, hard };
            self.notify(running.worker, stop);
        } else if begun {
            self.removed.push((queue, job.into()));
        }
        json!({"cancelled": true, "state": state}).to_string()
    }

    fn begin(&mut self, flow: Flow, next: &mut u64, now_ms: u64) -> Result<(), String> {
        let known = flow.steps.iter().find(|step| {
            self.flows.find(step.id.as_bytes()).is_some() || self.results.contains_key(step.id.as_bytes())
        });
        if let Some(step) = known {
            return Err(format!("job {} exists already; give each job of a flow a new id", step.id));
        }
        let bytes = super::record::encode_flow(&flow).len();
        if self.flows.jobs() + flow.steps.len() > FLOW_JOBS_MAX || self.flows.bytes() + bytes > FLOW_BYTES_MAX
        {
            return Err(format!(
                "flows that have not ended have at most {FLOW_JOBS_MAX} jobs and {FLOW_BYTES_MAX} bytes; try again when some have"
            ));
        }
        let number = take(next);
        self.changes.push_back(Change::Flow(number, flow.clone()));
        self.flows.insert(number, flow, bytes);
        self.catch_up(number, next, now_ms);
        Ok(())
    }
}

fn take(next: &mut u64) -> u64 {
    let number = *next;
    *next += 1;
    number
}

fn step_job(number: u64, step: &mqcore_session::jobs::FlowStep, body: Box<[u8]>) -> StepJob {
    StepJob {
        number,
        id: step.id.as_bytes().into(),
        queue: step.address(),
        headers: step.headers.as_bytes().into(),
        body,
    }
}

/// The answer to a request while nothing can be saved. Nothing has changed.
pub(crate) fn unsaved_answer(request: &[u8]) -> JobNotice {
    let why = "the broker cannot save what happens to jobs now, because its disk is full or has failed; see its log, and try again";
    answered(None, request, &failed_answer("Busy", why))
}

fn answered(queue: Option<QueueAddress>, request: &[u8], answer: &str) -> JobNotice {
    let message = Message::from_parts(request, b"", answer.as_bytes(), Properties::default(), None);
    JobNotice::Told { queue, message }
}

fn result_message(result: &SavedResult) -> Message {
    Message::from_parts(&result.id, b"", &result.body, Properties::default(), None)
}

fn told_result(result: &SavedResult) -> JobNotice {
    JobNotice::Told { queue: Some(result.queue.clone()), message: result_message(result) }
}
