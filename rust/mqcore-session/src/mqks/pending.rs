//! What was asked of the broker and is not answered yet.

use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::{QueueAddress, RequestId, Tag};
use mqcore_broker::model::rejection::Rejection;
use slab::Slab;

use super::statistics::Statistic;

/// A peer that asks faster than it is answered is not read any further at this many.
pub(super) const OPEN_MAX: usize = 65_536;

/// Who waits for an answer, and for which.
#[derive(Debug)]
pub(super) struct Asked {
    /// The request's id.
    pub(super) id: Box<[u8]>,
    /// Whether success is answered.
    pub(super) confirm: bool,
    /// There is no answer if no shard has the consumer.
    pub(super) silent_if_missing: bool,
    /// The consumer that begins if it is done.
    pub(super) consumes: Option<(QueueAddress, Tag)>,
    /// What comes behind it is not read before it is answered.
    pub(super) holds: bool,
    /// The number that is wanted.
    pub(super) statistic: Option<Statistic>,
    /// Shards that have not answered yet.
    pub(super) parts: usize,
    /// The parts so far, if there are several.
    pub(super) gathered: Option<Result<Reply, Rejection>>,
}

impl Asked {
    pub(super) fn new(id: &[u8], confirm: bool) -> Self {
        Self {
            id: id.into(),
            confirm,
            silent_if_missing: false,
            consumes: None,
            holds: false,
            statistic: None,
            parts: 1,
            gathered: None,
        }
    }
}

/// Everything that waits, by the number that the broker was given for it.
#[derive(Debug, Default)]
pub(super) struct Pending {
    open: Slab<Asked>,
    /// How many of them hold what comes behind them.
    holding: usize,
}

impl Pending {
    /// Whether nothing more may be asked for now.
    pub(super) fn holds(&self) -> bool {
        self.holding > 0 || self.open.len() >= OPEN_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn expect(&mut self, asked: Asked) -> RequestId {
        self.holding += usize::from(asked.holds);
        RequestId(u32::try_from(self.open.insert(asked)).expect("there are never so many as to overflow"))
    }

    /// Takes a part of an answer; the whole, once it was the last. What one shard could do was done.
    pub(super) fn answered(
        &mut self,
        number: RequestId,
        part: Result<Reply, Rejection>,
    ) -> Option<(Asked, Result<Reply, Rejection>)> {
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
