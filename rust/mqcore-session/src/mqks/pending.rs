//! Requests to the broker that are not answered yet.

use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::{QueueAddress, RequestId, Tag};
use mqcore_broker::model::rejection::Rejection;
use slab::Slab;

use super::statistics::Statistics;

/// At this many unanswered requests the session stops reading from its peer.
pub(super) const OPEN_MAX: usize = 65_536;

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// The request's id.
    pub(super) id: Box<[u8]>,
    /// Whether the peer wants an answer on success.
    pub(super) confirm: bool,
    /// No answer is sent if no shard has the consumer.
    pub(super) silent_if_missing: bool,
    /// The consumer that starts when the request succeeds.
    pub(super) consumes: Option<(QueueAddress, Tag)>,
    /// The session reads nothing until this request is answered.
    pub(super) holds: bool,
    /// The statistics that were requested.
    pub(super) statistics: Option<Statistics>,
    /// Shards that have not answered yet.
    pub(super) parts: usize,
    /// The merged answers so far, if several shards answer.
    pub(super) gathered: Option<Result<Reply, Rejection>>,
}

impl PendingRequest {
    pub(super) fn new(id: &[u8], confirm: bool) -> Self {
        Self {
            id: id.into(),
            confirm,
            silent_if_missing: false,
            consumes: None,
            holds: false,
            statistics: None,
            parts: 1,
            gathered: None,
        }
    }
}

/// All unanswered requests, by request id.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    open: Slab<PendingRequest>,
    /// Number of requests that pause reading.
    holding: usize,
}

impl PendingRequests {
    /// Whether no further request may be sent for now.
    pub(super) fn holds(&self) -> bool {
        self.holding > 0 || self.open.len() >= OPEN_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn expect(&mut self, asked: PendingRequest) -> RequestId {
        self.holding += usize::from(asked.holds);
        RequestId(u32::try_from(self.open.insert(asked)).expect("the number of open requests is limited"))
    }

    /// Takes a part of an answer. Returns the whole answer after the last part. A success of one shard is not undone if
    /// another fails.
    pub(super) fn answered(
        &mut self,
        number: RequestId,
        part: Result<Reply, Rejection>,
    ) -> Option<(PendingRequest, Result<Reply, Rejection>)> {
        let asked = self.open.get_mut(number.0 as usize)?;
        asked.parts = asked.parts.saturating_sub(1);
        let answer = match (asked.gathered.take(), part) {
            (None, part) => part,
            (Some(Ok(Reply::ObjectCounts(mut all))), Ok(Reply::ObjectCounts(more))) => {
                all.add(&more);
                Ok(Reply::ObjectCounts(all))
            }
            (Some(Ok(done)), _) => Ok(done),
            (Some(Err(_)), part) => part,
        };
        if asked.parts > 0 {
            asked.gathered = Some(answer);
            return None;
        }
        let asked = self.open.remove(number.0 as usize);
        self.holding -= usize::from(asked.holds);
        Some((asked, answer))
    }
}
