//! State that the sessions of one life of the broker share, and how they are opened.

use std::sync::Arc;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_session::any::{AnySession, ListenerTerms};
use mqcore_session::eventmq::EventmqSession;
use mqcore_session::eventmq::shared::EventmqShared;
use mqcore_session::jobs::{EndedJob, JobBoard, JobLedger, LedgerRequest};
use mqcore_session::node::NodeTerms;
use mqcore_session::session::SessionConfig;
use mqcore_session::throttr::ThrottrSession;
use mqcore_session::throttr::shared::ThrottrShared;

use crate::schedules::SimulatedPort;

/// Which jobs run, in scenarios in which no client asks for results, cancellations or flows.
#[derive(Debug, Default)]
struct RunningJobs(Arc<JobBoard>);

impl JobLedger for RunningJobs {
    fn board(&self) -> &Arc<JobBoard> {
        &self.0
    }

    fn ended(&self, _: EndedJob) {}

    fn request(&self, _: ConnectionId, _: LedgerRequest) {}
}

/// State that sessions of one protocol share.
pub(crate) struct SharedSessions {
    eventmq: Arc<EventmqShared>,
    throttr: Arc<ThrottrShared>,
    /// The broker among nodes.
    pub(crate) node: Arc<NodeTerms>,
}

impl SharedSessions {
    /// The state of a broker that starts. `seed` makes the ids that clients see.
    pub(crate) fn new(seed: u64, limiter: &Arc<Limiter>, now: Nanos) -> Self {
        let node = NodeTerms { id: "upstream".to_owned(), accepts: true, ..NodeTerms::default() };
        let eventmq = Arc::new(EventmqShared::new(seed, Some("at-least-once".into())));
        Self {
            node: Arc::new(node),
            eventmq,
            throttr: Arc::new(ThrottrShared::new(Arc::clone(limiter), 0, now, [seed, now.0])),
        }
    }

    /// Lets EventMQ's sessions create and end schedules.
    pub(crate) fn keep_schedules(&self, port: Arc<SimulatedPort>) {
        self.eventmq.keep_schedules(port);
    }

    /// Lets EventMQ's sessions keep results, cancellations and flows of jobs. `None`: nothing keeps them.
    pub(crate) fn keep_jobs(&self, port: Option<Arc<SimulatedPort>>) {
        let ledger = port.map(|port| port as Arc<dyn JobLedger>);
        let ledger = ledger.unwrap_or_else(|| Arc::new(RunningJobs::default()));
        self.eventmq.keep_jobs(ledger);
    }

    pub(crate) fn open(
        &self,
        terms: &ListenerTerms,
        config: SessionConfig,
        now: Timestamp,
        nanos: Nanos,
    ) -> AnySession {
        match terms {
            ListenerTerms::Eventmq(terms) => {
                AnySession::Eventmq(Box::new(EventmqSession::new(*terms, &self.eventmq, config, now)))
            }
            ListenerTerms::Throttr(terms) => {
                AnySession::Throttr(ThrottrSession::new(*terms, &self.throttr, &config, nanos, now))
            }
            other => AnySession::new(other.protocol(), config, now),
        }
    }
}
