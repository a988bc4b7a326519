//! The limiter's store in this process, for `mqcore.ratelimit`: a check is one call that allocates only its verdict.
//!
//! A check keeps the interpreter lock, because releasing and reacquiring it costs more than the check. So no thread
//! holds a lock of the store while it waits for the interpreter, or across `fork`.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Instant;

use mqcore_limiter::limiter::{KEY_BYTES_MAX, Limiter, LimiterConfig};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, LimitDecision as CoreVerdict, Rule};
use mqcore_limiter::time::{Nanos, Ttl};
use mqcore_wire::throttr::answer::ConsumeOutcome;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::error::{self, InvalidArgument};

/// Counters of fixed windows have the largest width, because this store has no listener.
const BITS: u8 = 64;
/// The unit of periods: nanoseconds.
const NANOSECONDS: u8 = 1;

/// The result of a check.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Verdict {
    #[pyo3(get)]
    allowed: bool,
    #[pyo3(get)]
    limit: u64,
    #[pyo3(get)]
    remaining: u64,
    #[pyo3(get)]
    available: bool,
    retry_nanos: u64,
    reset_nanos: u64,
}

impl Verdict {
    fn of(verdict: CoreVerdict) -> Self {
        let CoreVerdict { allowed, limit, remaining, retry_after, reset_after } = verdict;
        Self {
            allowed,
            limit,
            remaining,
            available: true,
            retry_nanos: retry_after,
            reset_nanos: reset_after,
        }
    }

    /// Creates a verdict from a broker's answer.
    pub(crate) fn answered(verdict: &ConsumeOutcome, allowed: bool) -> Self {
        Self {
            allowed,
            limit: verdict.limit,
            remaining: verdict.remaining,
            available: true,
            retry_nanos: verdict.retry_after,
            reset_nanos: verdict.reset_after,
        }
    }
}

#[pymethods]
impl Verdict {
    #[new]
    #[pyo3(signature = (allowed, limit, remaining, retry_after=0.0, reset_after=0.0, available=true))]
    fn new(
        allowed: bool,
        limit: u64,
        remaining: u64,
        retry_after: f64,
        reset_after: f64,
        available: bool,
    ) -> Self {
        // The conversion saturates, as intended.
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let (retry_nanos, reset_nanos) = (nanos(retry_after), nanos(reset_after));
        Self { allowed, limit, remaining, available, retry_nanos, reset_nanos }
    }

    #[getter]
    fn retry_after(&self) -> f64 {
        seconds(self.retry_nanos)
    }

    #[getter]
    fn reset_after(&self) -> f64 {
        seconds(self.reset_nanos)
    }

    fn __bool__(&self) -> bool {
        self.allowed
    }

    fn __repr__(&self) -> String {
        format!(
            "Verdict(allowed={}, limit={}, remaining={}, retry_after={:?}, reset_after={:?})",
            if self.allowed { "True" } else { "False" },
            self.limit,
            self.remaining,
            self.retry_after(),
            self.reset_after()
        )
    }
}

/// The largest number means never.
fn seconds(nanos: u64) -> f64 {
    if nanos == u64::MAX { f64::INFINITY } else { nanos as f64 / 1e9 }
}

struct LimiterStore {
    limiter: Limiter,
    began: Instant,
}

impl LimiterStore {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn apply(&self, key: &Bound<'_, PyAny>, rule: &Rule, mode: ConsumeMode) -> PyResult<Verdict> {
        let bytes = bytes(key)?;
        let verdict = self.limiter.consume(bytes, rule, mode, BITS, self.now());
        verdict.map(Verdict::of).map_err(error::rule)
    }
}

/// The bytes of a key, without a copy.
fn bytes<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let bytes = match key.cast::<PyString>() {
        Ok(text) => text.to_str()?.as_bytes(),
        Err(_) => match key.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => return Err(InvalidArgument::new_err("a key must be text or bytes")),
        },
    };
    if bytes.len() > KEY_BYTES_MAX {
        let words =
            format!("a key of {} bytes exceeds the limit of {KEY_BYTES_MAX}; use a hash of it", bytes.len());
        return Err(InvalidArgument::new_err(words));
    }
    Ok(bytes)
}

fn algorithm(number: u8) -> PyResult<Algorithm> {
    match number {
        0 => Ok(Algorithm::FixedWindow),
        1 => Ok(Algorithm::SlidingWindow),
        2 => Ok(Algorithm::Gcra),
        _ => Err(InvalidArgument::new_err("unknown algorithm; use 0, 1 or 2")),
    }
}

fn mode(number: u8) -> PyResult<ConsumeMode> {
    match number {
        0 => Ok(ConsumeMode::Take),
        1 => Ok(ConsumeMode::Peek),
        2 => Ok(ConsumeMode::DryRun),
        3 => Ok(ConsumeMode::Refund),
        _ => Err(InvalidArgument::new_err("unknown mode; use 0 to 3")),
    }
}

/// A store of this process.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct LimitStore(Arc<LimiterStore>);

/// A prepared limit of a store.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct LimitRule {
    store: Arc<LimiterStore>,
    rule: Rule,
}

#[pymethods]
impl LimitStore {
    #[new]
    #[pyo3(signature = (keys_max, bytes_max))]
    fn new(keys_max: u64, bytes_max: u64) -> Self {
        let config = LimiterConfig { keys_max, bytes_max, metrics: false, ..LimiterConfig::default() };
        let limiter = Limiter::new(config, RandomState::new());
        Self(Arc::new(LimiterStore { limiter, began: Instant::now() }))
    }

    /// Prepares a limit: `limit` per period in nanoseconds.
    fn rule(&self, number: u8, limit: u64, period: u64) -> PyResult<LimitRule> {
        let rule = Rule {
            algorithm: algorithm(number)?,
            limit,
            cost: 1,
            period: Ttl { unit: NANOSECONDS, amount: period },
        };
        Ok(LimitRule { store: self.0.clone(), rule })
    }

    /// Applies limits to several keys, all or none.
    fn apply_all(
        &self,
        parts: Vec<(Bound<'_, PyAny>, Py<LimitRule>, u64)>,
        number: u8,
    ) -> PyResult<(bool, Vec<Verdict>)> {
        let mode = mode(number)?;
        let requests: Vec<(&[u8], Rule)> = parts
            .iter()
            .map(|(key, rule, cost)| Ok((bytes(key)?, Rule { cost: *cost, ..rule.get().rule })))
            .collect::<PyResult<_>>()?;
        let mut verdicts = Vec::with_capacity(requests.len());
        let allowed = self.0.limiter.consume_all(&requests, mode, BITS, self.0.now(), &mut verdicts);
        let allowed = allowed.map_err(error::rule)?;
        Ok((allowed, verdicts.into_iter().map(Verdict::of).collect()))
    }

    /// Resets the usage of a key.
    fn purge(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.limiter.purge(bytes(key)?, self.0.now()))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.0.limiter.keys()).unwrap_or(usize::MAX)
    }
}

#[pymethods]
impl LimitRule {
    /// Takes `cost` from the quota of `key`, if there is enough.
    #[pyo3(signature = (key, cost=1))]
    fn check(&self, key: &Bound<'_, PyAny>, cost: u64) -> PyResult<Verdict> {
        self.store.apply(key, &Rule { cost, ..self.rule }, ConsumeMode::Take)
    }

    /// The same in another mode.
    fn apply(&self, key: &Bound<'_, PyAny>, cost: u64, number: u8) -> PyResult<Verdict> {
        self.store.apply(key, &Rule { cost, ..self.rule }, mode(number)?)
    }
}
