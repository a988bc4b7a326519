//! Messages that no filter of a connection passed because their filters exceeded the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqcore_broker::model::id::{ConnectionId, TopicName};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::error::EscapedBytes;
use mqcore_wire::micromessage::filter::OverBudget;

use crate::request_error::{ErrorNumbers, RequestError};

/// Time between two reports of a connection in the log.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Shared by all sessions of a server.
#[derive(Debug, Default)]
pub struct MicroMessageShared {
    /// Names of the vendor extensions that the program handles.
    pub vendors: Arc<[Box<str>]>,
    /// Messages that matched no filter of a connection within the budget.
    pub filters_over_budget: Arc<AtomicU64>,
}

/// Counts and reports the messages of one connection.
#[derive(Debug)]
pub(super) struct FilterBudget {
    all: Arc<AtomicU64>,
    count: u64,
    next_report: Timestamp,
    numbers: ErrorNumbers,
    reports: Vec<RequestError>,
}

impl FilterBudget {
    pub(super) fn new(connection: ConnectionId) -> Self {
        Self {
            all: Arc::default(),
            count: 0,
            next_report: Timestamp(0),
            numbers: ErrorNumbers::new(connection),
            reports: Vec::new(),
        }
    }

    /// Counts the messages of all connections here.
    pub(super) fn share(&mut self, all: &Arc<AtomicU64>) {
        self.all = Arc::clone(all);
    }

    /// Filters need too much work for a message, which therefore matches none of them.
    pub(super) fn exceeded(&mut self, topic: &TopicName, over: OverBudget, now: Timestamp) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.count += 1;
        if now < self.next_report {
            return;
        }
        self.next_report = now.after(REPORT_EVERY);
        let (count, topic) = (self.count, EscapedBytes::new(topic.as_bytes()));
        let reason = format!(
            "{over}, so a message to topic {topic} counts as not matched ({count} messages so far); use fewer or shorter filters"
        );
        self.reports.push(RequestError { number: self.numbers.next(now), request: Box::default(), reason });
    }

    pub(super) fn take_reports(&mut self) -> Vec<RequestError> {
        std::mem::take(&mut self.reports)
    }
}
