//! Answers from the store of limits.

use mqcore_limiter::creation::Creation;
use mqcore_limiter::limiter::{Adjust, Limiter, StepRun};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, LimitDecision as Ruling, Rule};
use mqcore_limiter::time::Ttl;
use mqcore_wire::throttr::answer::{self, ConsumeOutcome};
use mqcore_wire::throttr::request;
use mqcore_wire::throttr::{FAILURE, IMPOSSIBLE, SUCCESS};

use super::{ThrottrSession, of_wire, to_wire};
use crate::throttr::listener;
use crate::throttr::minutes::Tally;

impl ThrottrSession {
    #[inline]
    pub(super) fn store(&self) -> &Limiter {
        self.directory.limiter()
    }

    /// Properties and owner of the keys that this client creates.
    #[inline]
    pub(super) fn created(&self) -> Creation<'_> {
        Creation { properties: self.terms.made(), owner: Some(&self.owner) }
    }

    #[inline]
    pub(super) fn query(&self, key: &[u8], run: &mut StepRun<'_>, output: &mut Vec<u8>) {
        match run.query(key, self.now) {
            Some(found) => {
                let remaining = Ttl::remaining(found.unit, found.deadline, self.now);
                answer::counter(found.quota, to_wire(remaining), self.terms.dialect.width, output);
            }
            None => answer::status(false, output),
        }
    }

    /// A value longer than this width can express counts as missing.
    pub(super) fn get(&self, key: &[u8], output: &mut Vec<u8>) {
        let (width, now) = (self.terms.dialect.width, self.now);
        self.store().get(key, now, |found| match found {
            Some(found) if found.value.len() as u64 <= width.max() => {
                let remaining = Ttl::remaining(found.unit, found.deadline, now);
                answer::buffer(to_wire(remaining), found.value, width, output);
            }
            _ => answer::status(false, output),
        });
    }

    #[inline]
    pub(super) fn update(
        &self,
        attribute: u8,
        change: u8,
        value: u64,
        key: &[u8],
        run: &mut StepRun<'_>,
    ) -> bool {
        let Some(adjust) = listener::adjust(change) else { return false };
        match attribute {
            request::QUOTA if self.terms.saturate && adjust == Adjust::Increase => {
                run.adjust_quota(key, Adjust::Raise, value, self.now)
            }
            request::QUOTA => run.adjust_quota(key, adjust, value, self.now),
            request::TTL => run.adjust_ttl(key, adjust, value, self.now),
            _ => false,
        }
    }

    pub(super) fn consume(
        &self,
        mode: u8,
        rule: &request::Rule<'_>,
        run: &mut StepRun<'_>,
    ) -> ConsumeOutcome {
        let (Some(mode), Some(applied)) = (mode_of(mode), rule_of(rule)) else {
            return ConsumeOutcome::IMPOSSIBLE;
        };
        let ruling = run.consume(rule.key, &applied, mode, self.created(), self.now);
        ruling.map_or(ConsumeOutcome::IMPOSSIBLE, verdict)
    }

    pub(super) fn consume_all<'a>(
        &mut self,
        mode: u8,
        rules: impl Iterator<Item = request::Rule<'a>>,
        output: &mut Vec<u8>,
    ) {
        self.tally(Tally::ConsumeAll);
        let rules: Vec<_> = rules.collect();
        let applied: Option<Vec<_>> =
            rules.iter().map(|rule| rule_of(rule).map(|applied| (rule.key, applied))).collect();
        let mut rulings = Vec::with_capacity(rules.len());
        let all = match (mode_of(mode), applied) {
            (Some(mode), Some(applied)) => {
                self.store().consume_all(&applied, mode, self.created(), self.now, &mut rulings).ok()
            }
            _ => None,
        };
        let verdicts: Vec<ConsumeOutcome> = match all {
            Some(_) => rulings.into_iter().map(verdict).collect(),
            None => vec![ConsumeOutcome::IMPOSSIBLE; rules.len()],
        };
        let status = match all {
            Some(true) => SUCCESS,
            Some(false) => FAILURE,
            None => IMPOSSIBLE,
        };
        self.count_refusal(status == FAILURE && mode == request::TAKE);
        answer::verdicts(status, &verdicts, self.terms.dialect.width, output);
    }
}

const fn mode_of(code: u8) -> Option<ConsumeMode> {
    match code {
        request::TAKE => Some(ConsumeMode::Take),
        request::PEEK => Some(ConsumeMode::Peek),
        request::DRY_RUN => Some(ConsumeMode::DryRun),
        request::REFUND => Some(ConsumeMode::Refund),
        _ => None,
    }
}

fn rule_of(rule: &request::Rule<'_>) -> Option<Rule> {
    let algorithm = match rule.algorithm {
        0 => Algorithm::FixedWindow,
        1 => Algorithm::SlidingWindow,
        2 => Algorithm::Gcra,
        _ => return None,
    };
    Some(Rule { algorithm, limit: rule.limit, cost: rule.cost, period: of_wire(rule.period) })
}

fn verdict(ruling: Ruling) -> ConsumeOutcome {
    ConsumeOutcome {
        status: if ruling.allowed { SUCCESS } else { FAILURE },
        limit: ruling.limit,
        remaining: ruling.remaining,
        retry_after: ruling.retry_after,
        reset_after: ruling.reset_after,
    }
}
