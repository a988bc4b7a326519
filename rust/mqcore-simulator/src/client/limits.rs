//! Throttr at the client's side: a client that uses one key, one request at a time.

use std::collections::VecDeque;

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::reply::{Expected, ThrottrReply, decode};
use mqcore_wire::throttr::request::{self, DECREASE, PATCH, QUOTA, Rule, ThrottrRequest};
use mqcore_wire::throttr::{SUCCESS, Ttl};

use super::throttr::{DIALECT, encoded};
use super::{Dialect, Received, SimulatedPeer};
use crate::oracle::limits::{LimitReply, LimitRequest};
use crate::scenario::ClientRole;
use crate::scenario::limits::{LimitAction, LimitKind, SimulatedLimit};
use crate::scene::Scene;

/// The state of one connection.
pub(super) struct LimitSide {
    terms: SimulatedLimit,
    key: String,
    /// The request that is not answered.
    open: Option<LimitRequest>,
    /// Requests that follow.
    next: VecDeque<LimitRequest>,
}

impl LimitSide {
    pub(super) fn new(index: usize, terms: SimulatedLimit) -> Self {
        Self { terms, key: SimulatedLimit::key(index), open: None, next: VecDeque::new() }
    }

    /// Reads the next answer, and its size.
    pub(super) fn next(&self, input: &[u8], limits: &Limits) -> Option<(Received, usize)> {
        let expected = match self.open? {
            LimitRequest::Query => Expected::Counter,
            LimitRequest::Get => Expected::Buffer,
            LimitRequest::Take(_) | LimitRequest::Refund(_) | LimitRequest::Peek => Expected::Verdict,
            _ => Expected::Status,
        };
        let decoded = decode(input, expected, DIALECT, limits);
        let (reply, size) = decoded.expect("the broker sends valid replies")?;
        let reply = match reply {
            ThrottrReply::Status(done) => LimitReply::Done(done),
            ThrottrReply::Counter(found) => LimitReply::Found(found.map(|(quota, ttl)| (quota, ttl.amount))),
            ThrottrReply::Buffer(found) => LimitReply::Found(found.map(|(ttl, value)| {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                (number.unwrap_or(u64::MAX), ttl.amount)
            })),
            ThrottrReply::Verdict(outcome) => LimitReply::Verdict {
                granted: outcome.status == SUCCESS,
                remaining: outcome.remaining,
                reset_after: outcome.reset_after,
            },
            other => panic!("the broker answers a request of a limit with {other:?}"),
        };
        Some((Received::Limit(reply), size))
    }

    fn encode(&self, request: LimitRequest) -> Vec<u8> {
        let key = self.key.as_bytes();
        let ttl = Ttl { unit: 2, amount: self.terms.period_micros };
        let update = |change, value| ThrottrRequest::Update { attribute: QUOTA, change, value, key };
        let consume = |mode, cost| {
            let algorithm = match self.terms.kind {
                LimitKind::Sliding => 1,
                LimitKind::Bucket => 2,
                _ => 0,
            };
            let rule = Rule { algorithm, limit: self.terms.limit, cost, period: ttl, key };
            ThrottrRequest::Consume { mode, rule }
        };
        let number;
        encoded(&match request {
            LimitRequest::Insert(quota) => ThrottrRequest::Insert { quota, ttl, key },
            LimitRequest::Patch(quota) => update(PATCH, quota),
            LimitRequest::Decrease(by) => update(DECREASE, by),
            LimitRequest::Query => ThrottrRequest::Query { key },
            LimitRequest::Set(value) => {
                number = value.to_string();
                ThrottrRequest::Set { ttl, key, value: number.as_bytes() }
            }
            LimitRequest::Get => ThrottrRequest::Get { key },
            LimitRequest::Take(cost) => consume(request::TAKE, cost),
            LimitRequest::Refund(cost) => consume(request::REFUND, cost),
            LimitRequest::Peek => consume(request::PEEK, 1),
            LimitRequest::Purge => ThrottrRequest::Purge { key },
        })
    }
}

impl SimulatedPeer {
    /// Whether it waits for the answer to a request of its limit.
    pub(crate) fn waits_for_limit(&self) -> bool {
        let dialect = self.link.as_ref().map(|link| &link.dialect);
        matches!(dialect, Some(Dialect::Limit(side)) if side.open.is_some())
    }

    /// Uses its limit, if it is connected.
    pub(crate) fn use_limit(&mut self, action: LimitAction, count: u32, scene: &mut Scene) {
        for _ in 0..count {
            let number = 1 + self.random.below(1_000_000);
            let Some(Dialect::Limit(side)) = self.link.as_mut().map(|link| &mut link.dialect) else { return };
            let limit = side.terms.limit;
            side.next.push_back(match (side.terms.kind, action) {
                (_, LimitAction::Purge) => LimitRequest::Purge,
                (LimitKind::Counter, LimitAction::Spend(1)) => LimitRequest::Insert(limit),
                (LimitKind::Counter, LimitAction::Spend(by)) => LimitRequest::Decrease(by),
                (LimitKind::Counter, LimitAction::Restore(quota)) => LimitRequest::Patch(quota),
                (LimitKind::Counter, LimitAction::Read) => LimitRequest::Query,
                (LimitKind::Buffer, LimitAction::Read) => LimitRequest::Get,
                (LimitKind::Buffer, _) => LimitRequest::Set(number),
                (_, LimitAction::Spend(cost)) => LimitRequest::Take(cost),
                (_, LimitAction::Restore(cost)) => LimitRequest::Refund(cost),
                (_, LimitAction::Read) => LimitRequest::Peek,
            });
        }
        self.request_limit(scene);
    }

    fn request_limit(&mut self, scene: &mut Scene) {
        let (ClientRole::Limited(limit), Some(link)) = (self.terms.role, &mut self.link) else { return };
        let Dialect::Limit(side) = &mut link.dialect else { return };
        if side.open.is_some() {
            return;
        }
        side.open = side.next.pop_front();
        let Some(request) = side.open else { return };
        let bytes = side.encode(request);
        scene.note(format_args!("client {} requests {request:?} of key {limit}", self.index));
        scene.oracle.limits.requested(limit, link.id, request, scene.now);
        self.send(&bytes, scene);
    }

    pub(super) fn take_limit(&mut self, reply: LimitReply, scene: &mut Scene) {
        let (ClientRole::Limited(limit), Some(link)) = (self.terms.role, &mut self.link) else { return };
        if let Dialect::Limit(side) = &mut link.dialect {
            side.open = None;
        }
        scene.note(format_args!("key {limit} answers {reply:?}"));
        if let Some(text) = scene.oracle.limits.answered(limit, reply, scene.now) {
            scene.oracle.find("limit", text);
        }
        self.request_limit(scene);
    }
}
