//! An independent model of the promises: what clients may see.
//!
//! The oracle sees only the clients' ends of the network, the faults, and which bytes the broker has processed. It uses no code
//! of the broker. Its rules:
//!
//! | rule | finding |
//! |---|---|
//! | A client receives only messages that were published to its queue or became dead letters of it, with their bodies. | `phantom` |
//! | A rejected message is not delivered, unless a faulty disk was the reason. | `rejected` |
//! | A message that an operator moves is in one of both queues, whatever crashes. | `lost`, `doubled` |
//! | A confirmed message is delivered until a consumer settles it, whatever crashed. | `lost` |
//! | A message that was settled before a calm, or seconds before a crash, is not delivered again. | `settled-returns` |
//! | A message is delivered again only after a rejection, a timeout, the end of a connection or a crash. | `doubled` |
//! | A job without guarantee runs once, unless a crash undoes that a worker has it. | `doubled`, `lost` |
//! | First deliveries of one producer's messages of equal priority keep their order, unless they are delayed. | `order` |
//! | A delayed message is not delivered before its time. | `early` |
//! | An expired message is not delivered, except as a dead letter. | `late` |
//! | A consumer has at most `prefetch` unsettled messages. | `prefetch` |
//! | Workers run at most so many jobs with one key at a time. | `concurrency` |
//! | A confirmation of a topic stands for all queues bound to it, one of a router for a queue of it. | `lost` |
//! | A downstream broker's messages are confirmed, each arrives once, and none is lost, whatever crashes. | `unanswered`, `lost` |
//! | Subscribers of a topic and consumers of a broadcast queue receive each message once, in order. | `missed`, `doubled`, `order` |
//! | A cache has the latest confirmed message. | `stale`, `lost` |
//! | A kept job runs until it ends, in its flow after those before it and with their results. It has one end, which its client
//!   hears. A cancelled job does not begin. | `job` |
//! | Each publish on a working connection is answered. | `unanswered` |
//! | A client may connect, bind and consume, unless a disk is faulty or a queue was removed. | `refused` |
//! | An operator may restore every queue in a calm. | `refused` |
//! | The broker does not panic, and comes to rest. | `panic`, `livelock` |
//! | The broker starts after every crash, and reports no damage. | `damage` |

mod fanout;
pub(crate) mod jobs;
pub(crate) mod labels;
pub(crate) mod limits;
mod redefinition;
mod redelivery;
pub(crate) mod schedules;

use std::collections::BTreeMap;
use std::fmt;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::{Durability, Status};

use crate::oracle::fanout::SeenFanout;
use crate::oracle::jobs::{SeenAttempt, SeenJobs};
use crate::oracle::labels::SeenLabel;
use crate::oracle::limits::SeenLimits;
use crate::oracle::schedules::SeenSchedules;
use crate::scenario::{ACKNOWLEDGE_TIMEOUT, PublishTerms, Scenario, SimulatedRoute, Target};
use crate::time::Micros;

/// By how much a timeout may seem early, because a message was on its way for some time.
const TRANSIT_MAX: Micros = 1_000_000;
/// Maximum time until a settlement has reached the broker and is synced.
const SETTLED_AFTER: Micros = 3_000_000;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// Description with queue and message.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.text)
    }
}

/// How the broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stopped,
    Killed,
    PowerLost,
}

/// One copy of a message: what one queue gets of it.
#[derive(Debug)]
struct SeenMessage {
    label: u32,
    /// The queues of which one gets it. Mostly one.
    queues: Vec<usize>,
    target: Target,
    /// The connection that published it.
    link: ConnectionId,
    at: Micros,
    terms: PublishTerms,
    /// `None`: not answered. True: confirmed.
    answer: Option<bool>,
    /// Whether it has to be answered.
    is_answered: bool,
    /// When it was answered.
    answered: Option<Micros>,
    /// A crash may have lost it.
    is_unsafe: bool,
    /// It was confirmed when a router had passed it on; its queue may not have saved it.
    is_handed_on: bool,
    /// The clock jumped while a queue had it, so its times mean others.
    is_timeless: bool,
    /// The clock was set back, which lengthens delays, also those before another attempt.
    may_wait: bool,
    /// It was published again.
    is_repeated: bool,
    /// It may have moved to another queue, where it has another place.
    was_moved: bool,
    /// An operator cleared its queue, which still knows its id.
    was_cleared: bool,
    /// A downstream broker sends it until it is confirmed, whatever crashes.
    is_forwarded: bool,
    /// A job that the broker gives to one worker, and does not keep. Consumers of other protocols settle it.
    runs_once: bool,
    /// The key of a job, of which workers run a limited number at a time.
    key: Option<u32>,
    /// Settled before a calm, or long enough before a crash.
    is_over: bool,
    /// A crash came too soon after its latest settlement, and may have undone it.
    is_undone: bool,
    /// It was rejected because of a faulty disk, which may have it nevertheless.
    is_doubtful: bool,
    /// A crash may have interrupted its way to the dead-letter queue: both queues may have it.
    may_be_doubled: bool,
    /// A faulty disk may have it although it was settled in the dead-letter queue.
    may_return: bool,
    deliveries: Vec<SeenDelivery>,
}

#[derive(Debug)]
struct SeenDelivery {
    queue: usize,
    link: ConnectionId,
    at: Micros,
    outcome: Option<SeenOutcome>,
}

#[derive(Debug)]
struct SeenOutcome {
    positive: bool,
    /// The position of its end in the stream of its connection.
    offset: u64,
}

#[derive(Debug)]
struct SeenLink {
    prefetch: u32,
    /// Bytes that the broker had processed when it ended; `None`: it is open.
    ended: Option<u64>,
    /// It was silent or its client did not read, so times say nothing.
    is_doubtful: bool,
    /// The latest first delivery of the messages of each producer's connection, target and priority.
    latest: BTreeMap<(ConnectionId, Target, u8), u32>,
    fanout: Option<SeenFanout>,
    /// Its client is a worker of EventMQ.
    is_worker: bool,
}

#[derive(Debug)]
struct QueueRules {
    address: String,
    saves: bool,
    durability: Durability,
    status: Status,
    /// Whether a handler decides. It may delay a message or refuse its delivery, so that others overtake it, and it requeues a
    /// message for all consumers although one of them has settled it.
    has_handler: bool,
    /// An operator removed it. A client may have created it again with other options, until the next calm.
    was_removed: bool,
    /// Whether a handler may requeue messages that have expired: its fallback keeps them.
    keeps_expired: bool,
    /// Whether it may reject a message for another reason than a faulty disk: a handler refuses it, or an operator has limited it.
    may_reject: bool,
    /// How many jobs with the same key its workers run at a time.
    concurrency: Option<u32>,
    /// Whether it rejects messages after a restart, until the program registers its handler.
    awaits_handler: bool,
    /// The index of its dead-letter queue.
    dead_letter: Option<usize>,
    /// Queues to which messages of it move since the last calm.
    moved_to: Vec<usize>,
}

/// The model, and everything that clients have seen so far.
#[derive(Debug)]
pub struct Oracle {
    queues: Vec<QueueRules>,
    routes: Vec<SimulatedRoute>,
    /// Whether the broker has confirmed the definition of a route.
    defined: Vec<bool>,
    labels: Vec<SeenLabel>,
    messages: Vec<SeenMessage>,
    output_bytes_max: usize,
    links: BTreeMap<ConnectionId, SeenLink>,
    has_faulty_disk: bool,
    pub(crate) limits: SeenLimits,
    pub(crate) schedules: SeenSchedules,
    pub(crate) jobs: SeenJobs,
    findings: Vec<Finding>,
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let index_of = |address: &String| scenario.queues.iter().position(|queue| queue.address == *address);
        let rules = scenario.queues.iter().map(|queue| QueueRules {
            address: queue.address.clone(),
            saves: queue.saves,
            durability: queue.promise,
            status: queue.status,
            has_handler: queue.handler.is_some(),
            was_removed: false,
            keeps_expired: queue.handler.is_some_and(|handler| handler.keeps_expired()),
            may_reject: queue.handler.is_some_and(|handler| handler.refuses + handler.fails > 0),
            concurrency: queue.concurrency,
            awaits_handler: queue.handler.is_some_and(|handler| handler.registered_after > 0),
            dead_letter: queue.dead_letter.as_ref().and_then(|(_, address)| index_of(address)),
            moved_to: Vec::new(),
        });
        Self {
            queues: rules.collect(),
            routes: scenario.routes.clone(),
            defined: vec![false; scenario.routes.len()],
            labels: Vec::new(),
            messages: Vec::new(),
            output_bytes_max: scenario.output_bytes_max,
            links: BTreeMap::new(),
            has_faulty_disk: false,
            limits: SeenLimits::new(&scenario.limits),
            schedules: SeenSchedules::new(&scenario.schedules),
            jobs: SeenJobs::new(scenario.jobs),
            findings: Vec::new(),
        }
    }

    /// The first broken promise.
    #[must_use]
    pub fn finding(&self) -> Option<&Finding> {
        self.findings.first()
    }

    pub(crate) fn find(&mut self, rule: &'static str, text: String) {
        self.findings.push(Finding { rule, text });
    }

    // ---- What happens ------------------------------------------------------------------------------------------

    pub(crate) fn opened(&mut self, link: ConnectionId, prefetch: u32) {
        let seen = SeenLink {
            prefetch,
            ended: None,
            is_doubtful: false,
            latest: BTreeMap::new(),
            fanout: None,
            is_worker: false,
        };
        self.links.insert(link, seen);
    }

    pub(crate) fn doubt(&mut self, link: ConnectionId, now: Micros) {
        self.schedules.interrupted(link, now);
        self.jobs.interrupted(Some(link), now);
        self.risk_jobs(link);
        if let Some(link) = self.links.get_mut(&link) {
            link.is_doubtful = true;
        }
    }

    /// Disks have faults from now on, or no longer.
    pub(crate) fn doubt_rejections(&mut self, has_faulty_disk: bool, now: Micros) {
        self.has_faulty_disk = has_faulty_disk;
        self.schedules.set_faulty(has_faulty_disk, now);
        self.jobs.set_faulty(has_faulty_disk);
        self.limits.set_unsaved(has_faulty_disk.then_some(now));
        if has_faulty_disk {
            for message in &mut self.messages {
                message.may_return |= message.has_dead_letters(&self.queues);
            }
        }
    }

    /// The broker starts with a clock that jumped while it was down.
    pub(crate) fn clock_jumped(&mut self, is_back: bool) {
        for message in &mut self.messages {
            message.is_timeless = true;
            message.may_wait |= is_back;
        }
        if is_back {
            self.jobs.clock_set_back();
            self.schedules.started_earlier();
        }
    }

    /// A disk may have lost the newest settlements without a trace, so that their messages return.
    pub(crate) fn doubt_settlements(&mut self) {
        self.messages.iter_mut().for_each(|message| message.may_return = true);
    }

    /// The broker refuses what a client needs before it can publish or consume.
    pub(crate) fn refused(&mut self, text: String) {
        let may_be_missing = self.queues.iter().any(|queue| queue.was_removed);
        if !self.has_faulty_disk && !may_be_missing {
            self.find("refused", text);
        }
    }

    /// A connection ended. `processed`: bytes of its client that the broker has processed.
    pub(crate) fn closed(&mut self, link: ConnectionId, processed: u64, now: Micros) {
        self.limits.closed(link, now);
        self.schedules.interrupted(link, now);
        self.jobs.interrupted(Some(link), now);
        self.risk_jobs(link);
        if let Some(link) = self.links.get_mut(&link) {
            link.ended.get_or_insert(processed);
        }
    }

    /// The broker ended. The caller reports the ends of connections.
    pub(crate) fn ended(&mut self, ending: Ending, now: Micros) {
        self.limits.ended(ending == Ending::Stopped, now);
        self.schedules.ended(now);
        self.jobs.interrupted(None, now);
        for copy in 0..self.messages.len() {
            let is_gone = self.is_gone(&self.messages[copy], now);
            self.messages[copy].is_over |= is_gone;
            self.messages[copy].is_undone |= !is_gone;
            // A crash may undo that a worker has it.
            self.messages[copy].may_be_doubled |= self.messages[copy].runs_once && !is_gone;
        }
        for message in &mut self.messages {
            let is_safe = message.queues.iter().all(|queue| {
                let QueueRules { saves, durability, .. } = self.queues[*queue];
                match ending {
                    Ending::Stopped => saves,
                    Ending::Killed => saves && durability != Durability::None,
                    Ending::PowerLost => saves && durability == Durability::Fsync,
                }
            });
            let is_confirmed = message.answer == Some(true) && !message.is_handed_on;
            // The broker may know the number of a message that it had in memory only.
            let is_saved = message.queues.iter().all(|queue| self.queues[*queue].saves);
            let is_sent_again = message.is_forwarded && message.answer.is_none() && is_saved;
            message.is_unsafe |= !is_sent_again && (!is_safe || !is_confirmed);
            message.may_be_doubled |= message.has_dead_letters(&self.queues);
            // A queue that broadcasts delivers what it had saved, and not yet settled, to the next consumer.
            message.may_return |= message.queues.iter().any(|queue| !self.queues[*queue].keeps());
        }
    }

    /// A consumer sends an acknowledgement or a rejection, which ends at `offset` of its connection's stream.
    pub(crate) fn settled(&mut self, label: u32, link: ConnectionId, positive: bool, offset: u64) {
        let copies = self.labels.get(label as usize).map_or(0..0, |seen| seen.copies.clone());
        let mut deliveries =
            self.messages[copies].iter_mut().flat_map(|copy| copy.deliveries.iter_mut().rev());
        // Each settlement is about one delivery. A slow consumer may settle one that has timed out after the next one.
        let is_open = |delivery: &&mut SeenDelivery| delivery.link == link && delivery.outcome.is_none();
        if let Some(delivery) = deliveries.find(is_open) {
            delivery.outcome = Some(SeenOutcome { positive, offset });
        }
    }

    /// Whether a message was published to this queue, so that its delivery there is not that of a dead letter.
    pub(crate) fn is_of(&self, label: u32, queue: usize) -> bool {
        self.copies(label).iter().any(|copy| copy.queues.contains(&queue))
    }

    /// A consumer of a queue receives a message. `repeated`: the broker says that this is not the first attempt.
    pub(crate) fn delivered(
        &mut self,
        label: u32,
        queue: usize,
        link: ConnectionId,
        repeated: bool,
        now: Micros,
    ) {
        let address = self.queues[queue].address.clone();
        let Some(copy) = self.copy_for(label, queue) else {
            let was_published = (label as usize) < self.labels.len();
            let why = if was_published { "which is not for it" } else { "which was never published" };
            return self.find("phantom", format!("{address} delivers message {label}, {why}"));
        };
        if self.queues[queue].was_removed {
            return self.messages[copy].deliveries.push(SeenDelivery { queue, link, at: now, outcome: None });
        }
        let message = &self.messages[copy];
        if message.answer == Some(false) && !message.is_doubtful {
            self.find("rejected", format!("{address} delivers message {label}, which it rejected"));
        } else if message.is_over {
            if !message.may_return {
                let text = format!("{address} delivers message {label} after it was settled");
                self.find("settled-returns", text);
            }
        } else if let Some(why) = self.doubled(message, queue, link, now) {
            self.find("doubled", format!("{address} delivers message {label} again: {why}"));
        }
        if self.messages[copy].queues.contains(&queue) {
            self.check_time(copy, &address, link, now);
            self.check_order(copy, &address, link, repeated);
        }
        self.messages[copy].deliveries.push(SeenDelivery { queue, link, at: now, outcome: None });
        self.messages[copy].is_undone = false;
        if self.queues[queue].status != Status::Broadcast {
            self.check_prefetch(queue, link, now);
        }
        self.check_key(copy, queue, link);
    }

    /// A worker receives a job whose result the broker keeps, with the results of these jobs.
    pub(crate) fn job_delivered(&mut self, job: u32, inputs: &[u32], link: ConnectionId, now: Micros) {
        if !self.jobs.is_requested(job) {
            return self.find("phantom", format!("a worker gets job {job}, which was never requested"));
        }
        let is_doubtful = self.links.get(&link).is_some_and(|link| link.is_doubtful);
        let other = self.job_runs_elsewhere(job, now);
        let why = self.jobs.delivered(job, inputs, link, now);
        let why = why.or_else(|| Some(format!("runs twice: connection {} has it too", other?.0)));
        if let Some(why) = why.filter(|_| !is_doubtful) {
            self.find("job", format!("job {job} {why}"));
        }
        self.check_key_of_job(job);
    }

    /// A worker has received a job whose key allows so many at a time.
    fn check_key_of_job(&mut self, job: u32) {
        let Some((key, most, attempts)) = self.jobs.of_key(job) else { return };
        let is_running = |attempt: &&SeenAttempt| {
            let link = self.links.get(&attempt.link);
            attempt.report.is_none() && link.is_some_and(|link| link.ended.is_none() && !link.is_doubtful)
        };
        let running = attempts.filter(is_running).count();
        if running > most as usize {
            self.find("concurrency", format!("{running} jobs run with the key {key}, which allows {most}"));
        }
    }

    /// Another connection whose worker has a job, or has ended it.
    fn job_runs_elsewhere(&self, job: u32, now: Micros) -> Option<ConnectionId> {
        let is_open = |attempt: &&SeenAttempt| {
            let link = self.links.get(&attempt.link);
            let is_connected = link.is_some_and(|link| link.ended.is_none() && !link.is_doubtful);
            let is_recent = now + TRANSIT_MAX < attempt.at + ACKNOWLEDGE_TIMEOUT;
            is_connected && (attempt.has_ended() || attempt.report.is_none() && is_recent)
        };
        self.jobs.attempts(job).iter().find(is_open).map(|attempt| attempt.link)
    }

    /// A calm ends. `is_heard`: the client of jobs was connected all the time.
    pub(crate) fn jobs_calm(&mut self, served: &[bool], is_heard: bool) {
        let is_served = self.jobs.queue.is_some_and(|queue| served[queue]);
        for text in self.jobs.calm(is_served, is_heard) {
            self.find("job", text);
        }
    }

    // ---- Rules -------------------------------------------------------------------------------------------------

    /// The queue and those to which its messages move as dead letters.
    fn way(&self, queue: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(queue), |queue| self.queues[*queue].dead_letter)
    }

    fn check_time(&mut self, copy: usize, address: &str, link: ConnectionId, now: Micros) {
        let SeenMessage { label, at, terms: PublishTerms { delay_ms, expires_ms, .. }, .. } =
            self.messages[copy];
        if self.messages[copy].is_timeless {
            return;
        }
        let age = now - at;
        // The broker counts whole milliseconds.
        if age + 1_000 < delay_ms * 1_000 {
            let text = format!("{address} delivers message {label} after {age} us, delay {delay_ms} ms");
            return self.find("early", text);
        }
        let is_doubtful = self.links.get(&link).is_some_and(|link| link.is_doubtful);
        // A pull that has begun ends with the messages that it was promised, whatever a handler takes to decide.
        let is_pulled =
            |queue: &usize| self.queues[*queue].has_handler && self.queues[*queue].status == Status::Pull;
        let is_kept = |queue: &usize| self.queues[*queue].keeps_expired || is_pulled(queue);
        let is_kept = self.messages[copy].queues.iter().any(is_kept);
        // It may be on its way to the broker, and then to the consumer, for some time.
        if expires_ms > 0 && !is_doubtful && !is_kept && age > expires_ms * 1_000 + 2 * TRANSIT_MAX {
            let text = format!("{address} delivers message {label} after {age} us, expiry {expires_ms} ms");
            self.find("late", text);
        }
    }

    fn check_order(&mut self, copy: usize, address: &str, link: ConnectionId, repeated: bool) {
        let message = &self.messages[copy];
        // A job waits until there is room for its key, and others overtake it.
        let may_be_late = message.is_repeated || message.was_moved || message.key.is_some();
        let is_first = !repeated && message.deliveries.is_empty() && !may_be_late;
        // A router that chooses one queue passes a message on to the next one if the first one is missing or full, or its disk
        // refuses the message. Later messages overtake it meanwhile.
        let may_reject = message.queues.iter().any(|queue| {
            let QueueRules { may_reject, awaits_handler, .. } = self.queues[*queue];
            may_reject || awaits_handler
        });
        let is_passed_on = message.queues.len() > 1 && (self.has_faulty_disk || may_reject);
        let has_handler = message.queues.iter().any(|queue| self.queues[*queue].has_handler);
        if !is_first || has_handler || is_passed_on || message.terms.delay_ms > 0 || message.is_doubtful {
            return;
        }
        let (label, producer) = (message.label, (message.link, message.target, message.terms.priority));
        let Some(seen) = self.links.get_mut(&link) else { return };
        let latest = seen.latest.entry(producer).or_insert(label);
        let earlier = *latest;
        *latest = earlier.max(label);
        if earlier > label {
            let text =
                format!("{address} delivers message {label} for the first time after message {earlier}");
            self.find("order", text);
        }
    }

    /// A calm ends. `served`: the queues that had a working consumer all the time.
    pub(crate) fn calm(&mut self, served: &[bool], now: Micros, system_ms: u64) {
        for text in self.schedules.calm(served, now, system_ms) {
            self.find("schedule", text);
        }
        let is_drained = |(queue, served): (usize, &bool)| *served && !self.schedules.are_behind(queue, now);
        let served: Vec<bool> = served.iter().enumerate().map(is_drained).collect();
        for copy in 0..self.messages.len() {
            let message = &self.messages[copy];
            let label = message.label;
            let address = &self.queues[message.queues[0]].address;
            let link = self.links.get(&message.link);
            let is_open = message.answer.is_none() && message.is_answered;
            if is_open && link.is_some_and(|link| link.ended.is_none() && !link.is_doubtful) {
                let text = format!("{address} never answers message {label}");
                self.find("unanswered", text);
                continue;
            }
            let is_served = |queue: &usize| self.way(*queue).all(|queue| served[queue]);
            if !message.queues.iter().all(is_served) {
                continue;
            }
            let keeps = message.queues.iter().all(|queue| self.queues[*queue].keeps());
            let expires = message.terms.expires_ms > 0;
            // A clock that was set back lengthens delays, also those before another attempt.
            if message.may_wait {
                continue;
            }
            let must_be_settled = message.answer == Some(true) && !message.is_unsafe && !expires && keeps;
            if must_be_settled && !self.is_settled(message) {
                let count = message.deliveries.len();
                let text = format!(
                    "{address} confirmed message {label}, delivered it {count} times, and has no more"
                );
                self.find("lost", text);
            }
            // No confirmation waits for a settlement, so a crash may undo one that is not synced yet.
            let latest = self.messages[copy].deliveries.last();
            let is_recent = latest.is_some_and(|last| last.at + SETTLED_AFTER > now);
            self.messages[copy].is_over |= !is_recent;
        }
        self.check_fanout();
        for queue in &mut self.queues {
            queue.was_removed = false;
            queue.moved_to.clear();
        }
    }
}

impl QueueRules {
    /// Whether it has a message until a consumer settles it.
    fn keeps(&self) -> bool {
        !matches!(self.status, Status::Broadcast | Status::Cache)
    }
}

impl SeenMessage {
    fn has_dead_letters(&self, queues: &[QueueRules]) -> bool {
        self.queues.iter().any(|queue| queues[*queue].dead_letter.is_some())
    }
}

#[cfg(test)]
mod tests;
