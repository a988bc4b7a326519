//! eMQP/1.0 (EventMQ) over ZMTP. Peers are workers, clients, schedulers, administrators, publishers or subscribers.
//!
//! | module | contents |
//! |---|---|
//! | [`conversation`] | the session: handshake, frames, events |
//! | [`listener`] | which kind of peer a listener is for |
//! | [`shared`] | what all sessions share: workers, schedulers, counters |
//! | [`ledger`] | results, cancellations and flows of jobs |
//! | [`schedules`] | requests to keep schedules |
//! | `worker` | slots, running jobs and their deadlines |
//! | `client` | jobs on their way into queues |
//! | `pending` | requests to the broker that are not answered yet |
//! | `job` | jobs as messages and messages as jobs |
//! | `ids` | ids of messages that the broker itself sends |
//!
//! A job is a message in the queue of its name. A worker subscribes to its queues; its free slots are the credit that all
//! its subscriptions share. Frames are addressed to connections: identities are names for people.

pub mod board;
mod client;
pub mod conversation;
mod ids;
mod job;
pub mod ledger;
pub mod listener;
mod pending;
pub mod schedules;
pub mod shared;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

pub use self::conversation::{
    EventmqSession, HEARTBEAT_INTERVAL, READY_BYTES_MAX, SILENCE_MAX, TOPICS_MAX, encode_publication,
};
use self::listener::{EventmqTerms, Role};
use self::shared::EventmqShared;
use crate::job_figures::JobFigures;
use crate::listener::{BadOption, Companion, ListenerOptions};
use crate::protocol::{
    EncodeDelivery, EncodePublication, Encoding, MetricFamily, Moment, ProtocolFactory, ServerParts,
};
use crate::session::SessionConfig;

/// eMQP/1.0 (EventMQ) over ZMTP.
#[derive(Debug)]
pub enum EventmqProtocol {}

impl ProtocolFactory for EventmqProtocol {
    const NAME: &'static str = job::PROTOCOL;
    const DEFAULT_PORT: u16 = 47_290;
    // A worker's session counts slots and deadlines of each job. Subscribers have no such state.
    const DELIVERIES: Encoding<EncodeDelivery> = Encoding::BySession;
    const PUBLICATIONS: Encoding<EncodePublication> = Encoding::Shared(encode_publication);
    const SCHEDULES: bool = true;

    type Terms = EventmqTerms;
    type Shared = Arc<EventmqShared>;
    type Session = Box<EventmqSession>;

    fn terms(options: &mut ListenerOptions) -> Result<EventmqTerms, BadOption> {
        EventmqTerms::read(options)
    }

    fn default_port(terms: &EventmqTerms) -> u16 {
        Self::DEFAULT_PORT + terms.role.port_offset()
    }

    fn companions(options: &mut ListenerOptions) -> Result<Vec<Companion<EventmqTerms>>, BadOption> {
        if options.has("role") {
            return Ok(Vec::new());
        }
        let others = Role::ALL.into_iter().filter(|role| *role != Role::Backend);
        others
            .map(|role| {
                let port = options.take(role.as_str()).map(|port| port.parse()).transpose();
                let port = port.map_err(|_| BadOption("a port must be a number from 0 to 65535"))?;
                Ok(Companion { terms: EventmqTerms { role }, port, offset: role.port_offset() })
            })
            .collect()
    }

    fn client_query(terms: &EventmqTerms) -> String {
        format!("?role={}", terms.role.as_str())
    }

    fn share(server: &ServerParts) -> Arc<EventmqShared> {
        let mut shared = EventmqShared::new(RandomState::new().hash_one(0), server.job_policy.clone());
        shared.topics_max = server.patterns_max;
        shared.keep_schedules(Arc::clone(&server.schedules));
        shared.keep_jobs(Arc::clone(&server.jobs));
        Arc::new(shared)
    }

    fn open(
        terms: &EventmqTerms,
        shared: &Arc<EventmqShared>,
        config: SessionConfig,
        now: Moment,
    ) -> Box<EventmqSession> {
        Box::new(EventmqSession::new(*terms, shared, config, now.now))
    }

    fn alone(config: SessionConfig, now: Timestamp) -> Box<EventmqSession> {
        Box::new(EventmqSession::alone(config, now))
    }

    fn add_jobs(shared: &Arc<EventmqShared>, jobs: &mut JobFigures) {
        shared.add_jobs(jobs);
    }

    fn metrics(shared: &Arc<EventmqShared>, _now: Nanos) -> Vec<MetricFamily> {
        let counters = &shared.counters;
        let outcomes = [
            ("dispatched", &counters.dispatched),
            ("finished", &counters.finished),
            ("failed", &counters.failed),
            ("retried", &counters.retried),
            ("lost", &counters.lost),
            ("fallen-back", &counters.fallen_back),
            ("duplicate", &counters.duplicates),
        ];
        let samples = outcomes.map(|(name, count)| (Some(("outcome", name)), count.load(Ordering::Relaxed)));
        let (workers, free, schedulers) = shared.present();
        let (reminders, ignored) =
            (counters.reminders.load(Ordering::Relaxed), counters.ignored.load(Ordering::Relaxed));
        vec![
            MetricFamily {
                name: "mqcore_eventmq_jobs_total",
                kind: "counter",
                help: "Jobs of EventMQ's workers, by outcome.",
                samples: samples.into(),
            },
            MetricFamily::single(
                "mqcore_eventmq_reminders_total",
                "counter",
                "Additional heartbeats that make busy workers look for finished jobs.",
                reminders,
            ),
            MetricFamily::single(
                "mqcore_eventmq_ignored_total",
                "counter",
                "Messages of EventMQ's peers that had no effect.",
                ignored,
            ),
            MetricFamily::single(
                "mqcore_eventmq_workers",
                "gauge",
                "Workers that are connected.",
                workers as u64,
            ),
            MetricFamily::single(
                "mqcore_eventmq_slots_free",
                "gauge",
                "Jobs that the connected workers can take at once.",
                free,
            ),
            MetricFamily::single(
                "mqcore_eventmq_schedulers",
                "gauge",
                "Schedulers that are connected.",
                schedulers as u64,
            ),
        ]
    }
}
