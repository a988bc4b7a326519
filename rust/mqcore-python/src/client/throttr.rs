//! The Throttr client for Python, with batches of requests as tuples and answers as plain values.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mqcore_client::error::ClientError;
use mqcore_client::throttr::{
    Push, Questions, Subscriber, ThrottrAddress, ThrottrAnswer, ThrottrClient as Core, ThrottrConfig,
};
use mqcore_wire::throttr::answer::{ConnectionRecord, ConsumeOutcome, UsageCounts};
use mqcore_wire::throttr::reply::Listed;
use mqcore_wire::throttr::request::{Rule, ThrottrRequest, code};
use mqcore_wire::throttr::{IMPOSSIBLE, SUCCESS, Ttl};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::error::{self, InvalidArgument};
use super::process::{self, Owned};
use super::{CallStyle, optional_seconds, options};
use crate::fields::seconds;
use crate::ratelimit::Verdict;

/// A message: its channel, if the edition transmits it, and its payload.
type Message<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// A client of a Throttr listener, the base of its two Python classes. It connects at its first use.
#[pyclass(frozen, subclass, module = "mqcore._core", name = "_ThrottrClient")]
pub(super) struct ThrottrClient {
    core: Owned<Mutex<Option<Arc<Core>>>>,
    way: CallStyle,
}

impl ThrottrClient {
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Arc<Core>>>> {
        // Before locking: in a forked child the lock may be held by a thread that does not exist.
        process::check()?;
        Ok(self.core.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn core(&self) -> PyResult<Arc<Core>> {
        self.lock()?.clone().ok_or_else(|| error::client(ClientError::Closed))
    }
}

/// A client whose calls return awaitables.
#[pyclass(frozen, extends = ThrottrClient, module = "mqcore._core")]
pub(super) struct AsyncThrottrClient;

#[pymethods]
impl AsyncThrottrClient {
    #[new]
    fn new(
        url: &str,
        tls: Option<&Bound<'_, PyAny>>,
        connect_timeout: f64,
        request_timeout: f64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let client = ThrottrClient::new(url, tls, connect_timeout, request_timeout, CallStyle::Awaitable)?;
        Ok(PyClassInitializer::from(client).add_subclass(Self))
    }
}

/// A client whose calls block.
#[pyclass(frozen, extends = ThrottrClient, module = "mqcore._core")]
pub(super) struct BlockingThrottrClient;

#[pymethods]
impl BlockingThrottrClient {
    #[new]
    fn new(
        url: &str,
        tls: Option<&Bound<'_, PyAny>>,
        connect_timeout: f64,
        request_timeout: f64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let client = ThrottrClient::new(url, tls, connect_timeout, request_timeout, CallStyle::Blocking)?;
        Ok(PyClassInitializer::from(client).add_subclass(Self))
    }
}

impl ThrottrClient {
    fn new(
        url: &str,
        tls: Option<&Bound<'_, PyAny>>,
        connect_timeout: f64,
        request_timeout: f64,
        way: CallStyle,
    ) -> PyResult<Self> {
        process::check()?;
        let address = ThrottrAddress::parse(url).map_err(error::client)?;
        let config = ThrottrConfig {
            tls: tls.map(options::tls_config).transpose()?,
            connect_timeout: seconds(connect_timeout, "connect_timeout")?,
            request_timeout: seconds(request_timeout, "request_timeout")?,
            ..ThrottrConfig::default()
        };
        let _runtime = pyo3_asyncio::tokio::get_runtime().enter();
        let core = Core::new(address, &config).map_err(error::client)?;
        Ok(Self { core: Owned::new(Mutex::new(Some(Arc::new(core)))), way })
    }
}

#[pymethods]
impl ThrottrClient {
    /// The largest value of the listener.
    #[getter]
    fn value_max(&self) -> PyResult<u64> {
        Ok(self.core()?.width().max())
    }

    /// The edition of the protocol.
    #[getter]
    fn protocol(&self) -> PyResult<&'static str> {
        Ok(self.core()?.dialect().family.as_str())
    }

    /// Messages dropped because too many were waiting.
    #[getter]
    fn dropped(&self) -> PyResult<u64> {
        Ok(self.core()?.dropped())
    }

    /// Number of established connections.
    #[getter]
    fn connects(&self) -> PyResult<u64> {
        Ok(self.core()?.connects())
    }

    /// Sends requests and returns their answers.
    #[pyo3(signature = (requests, timeout=None))]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<Bound<'py, PyTuple>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core()?;
        let timeout = optional_seconds(timeout, "timeout")?;
        let mut questions = core.questions();
        for request in &requests {
            push(&mut questions, &Fields { tuple: request, max: core.width().max() })?;
        }
        let answers = core.ask(questions, timeout);
        // Not held while waiting, so that closing the client ends its connection.
        drop(core);
        self.way.run(py, async move { Ok(Answers(answers.await.map_err(error::client)?)) })
    }

    /// Takes received messages.
    fn take<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Vec<Message<'py>>> {
        let Ok(core) = self.core() else { return Ok(Vec::new()) };
        let message = |Push { channel, payload }: Push| {
            (channel.map(|channel| PyBytes::new(py, &channel)), PyBytes::new(py, &payload))
        };
        Ok(core.take(count).into_iter().map(message).collect())
    }

    /// Waits until a message is available or the client is closed (true), or until `timeout` (false).
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = optional_seconds(timeout, "timeout")?;
        let ready = self.core()?.ready();
        self.way.run(py, async move {
            Ok(match timeout {
                None => {
                    ready.await;
                    true
                }
                Some(timeout) => tokio::time::timeout(timeout, ready).await.is_ok(),
            })
        })
    }

    #[getter]
    fn is_closed(&self) -> PyResult<bool> {
        Ok(self.lock()?.is_none())
    }

    /// Closes the connection after all pending answers.
    fn close(&self) -> PyResult<()> {
        let taken = self.lock()?.take();
        drop(taken);
        Ok(())
    }
}

/// The fields of a request: its code and arguments.
struct Fields<'a, 'py> {
    tuple: &'a Bound<'py, PyTuple>,
    /// The largest value.
    max: u64,
}

impl Fields<'_, '_> {
    fn byte(&self, at: usize) -> PyResult<u8> {
        self.tuple.get_item(at)?.extract()
    }

    fn value(&self, at: usize) -> PyResult<u64> {
        let value: u64 = self.tuple.get_item(at)?.extract()?;
        if value <= self.max {
            return Ok(value);
        }
        let max = self.max;
        let words = format!(
            "{value} exceeds {max}, the largest value of the listener; use a listener with ?value=uint64"
        );
        Err(InvalidArgument::new_err(words))
    }

    fn bytes(&self, at: usize) -> PyResult<PyBackedBytes> {
        Ok(self.tuple.get_item(at)?.extract()?)
    }

    fn ttl(&self, at: usize) -> PyResult<Ttl> {
        Ok(Ttl { unit: self.byte(at)?, amount: self.value(at + 1)? })
    }

    /// Algorithm, limit, cost, unit and period from index `at`; the caller holds the key.
    fn rule<'k>(&self, at: usize, key: &'k [u8]) -> PyResult<Rule<'k>> {
        Ok(Rule {
            algorithm: self.byte(at)?,
            limit: self.value(at + 1)?,
            cost: self.value(at + 2)?,
            period: self.ttl(at + 3)?,
            key,
        })
    }
}

fn push(questions: &mut Questions, fields: &Fields<'_, '_>) -> PyResult<()> {
    // A key or channel follows the code.
    let name = || fields.bytes(1);
    let pushed = match fields.byte(0)? {
        code::INSERT => {
            let (key, quota, ttl) = (name()?, fields.value(2)?, fields.ttl(3)?);
            questions.push(&ThrottrRequest::Insert { quota, ttl, key: &key })
        }
        code::QUERY => questions.push(&ThrottrRequest::Query { key: &name()? }),
        code::UPDATE => {
            let (key, attribute, change) = (name()?, fields.byte(2)?, fields.byte(3)?);
            questions.push(&ThrottrRequest::Update { attribute, change, value: fields.value(4)?, key: &key })
        }
        code::PURGE => questions.push(&ThrottrRequest::Purge { key: &name()? }),
        code::SET => {
            let (key, value, ttl) = (name()?, fields.bytes(2)?, fields.ttl(3)?);
            questions.push(&ThrottrRequest::Set { ttl, key: &key, value: &value })
        }
        code::GET => questions.push(&ThrottrRequest::Get { key: &name()? }),
        code::LIST => questions.push(&ThrottrRequest::List),
        code::INFO => questions.push(&ThrottrRequest::Info),
        code::STAT => questions.push(&ThrottrRequest::Stat { key: &name()? }),
        code::STATS => questions.push(&ThrottrRequest::Stats),
        code::SUBSCRIBE => questions.push(&ThrottrRequest::Subscribe { channel: &name()? }),
        code::UNSUBSCRIBE => questions.push(&ThrottrRequest::Unsubscribe { channel: &name()? }),
        code::PUBLISH => {
            let (channel, payload) = (name()?, fields.bytes(2)?);
            questions.push(&ThrottrRequest::Publish { channel: &channel, payload: &payload })
        }
        code::CONNECTIONS => questions.push(&ThrottrRequest::Connections),
        code::CONNECTION => {
            let id = <[u8; 16]>::try_from(&*name()?);
            let id = id.map_err(|_| InvalidArgument::new_err("a connection id must have 16 bytes"))?;
            questions.push(&ThrottrRequest::Connection { id })
        }
        code::CHANNELS => questions.push(&ThrottrRequest::Channels),
        code::CHANNEL => questions.push(&ThrottrRequest::Channel { channel: &name()? }),
        code::WHOAMI => questions.push(&ThrottrRequest::WhoAmI),
        code::CONSUME => {
            let key = name()?;
            let rule = fields.rule(3, &key)?;
            questions.push(&ThrottrRequest::Consume { mode: fields.byte(2)?, rule })
        }
        code::CONSUME_ALL => return push_all(questions, fields),
        other => return Err(InvalidArgument::new_err(format!("unknown request {other}"))),
    };
    pushed.map_err(error::client)
}

/// Mode and rules, each with its key first.
fn push_all(questions: &mut Questions, fields: &Fields<'_, '_>) -> PyResult<()> {
    let parts: Vec<Bound<'_, PyTuple>> = fields.tuple.get_item(2)?.extract()?;
    let of = |part| Fields { tuple: part, max: fields.max };
    let keys = parts.iter().map(|part| of(part).bytes(0)).collect::<PyResult<Vec<_>>>()?;
    let rules = parts.iter().zip(&keys).map(|(part, key)| of(part).rule(1, key));
    let rules = rules.collect::<PyResult<Vec<_>>>()?;
    questions.push_all(fields.byte(1)?, &rules).map_err(error::client)
}

/// Answers that become Python values on the attached thread.
struct Answers(Vec<ThrottrAnswer>);

impl<'py> IntoPyObject<'py> for Answers {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let list = PyList::empty(py);
        for answer in self.0 {
            list.append(value(py, answer)?)?;
        }
        Ok(list)
    }
}

fn value(py: Python<'_>, answer: ThrottrAnswer) -> PyResult<Bound<'_, PyAny>> {
    match answer {
        ThrottrAnswer::Status(yes) => yes.into_bound_py_any(py),
        ThrottrAnswer::Counter(found) => {
            found.map(|(quota, ttl)| (quota, ttl.unit, ttl.amount)).into_bound_py_any(py)
        }
        ThrottrAnswer::Buffer(found) => {
            found.map(|(ttl, value)| (PyBytes::new(py, &value), ttl.unit, ttl.amount)).into_bound_py_any(py)
        }
        ThrottrAnswer::Stat(found) => found.map(uses).into_bound_py_any(py),
        ThrottrAnswer::List(rows) => {
            let row = |(key, row): (Bytes, Listed)| {
                (PyBytes::new(py, &key), row.key_type, row.unit, row.deadline, row.bytes_used)
            };
            rows.into_iter().map(row).collect::<Vec<_>>().into_bound_py_any(py)
        }
        ThrottrAnswer::Stats(rows) => {
            let row = |(key, row): (Bytes, UsageCounts)| (PyBytes::new(py, &key), uses(row));
            rows.into_iter().map(row).collect::<Vec<_>>().into_bound_py_any(py)
        }
        ThrottrAnswer::Channels(rows) => {
            let row = |(name, row): (Bytes, [u64; 3])| (PyBytes::new(py, &name), row);
            rows.into_iter().map(row).collect::<Vec<_>>().into_bound_py_any(py)
        }
        ThrottrAnswer::Connections(rows) => {
            rows.iter().map(|row| connection(py, row)).collect::<PyResult<Vec<_>>>()?.into_bound_py_any(py)
        }
        ThrottrAnswer::Connection(found) => {
            found.map(|row| connection(py, &row)).transpose()?.into_bound_py_any(py)
        }
        ThrottrAnswer::Channel(found) => found.map(|rows| subscribers(py, &rows)).into_bound_py_any(py),
        ThrottrAnswer::Info(numbers, version) => (numbers.to_vec(), text(&version)).into_bound_py_any(py),
        ThrottrAnswer::Id(id) => PyBytes::new(py, &id).into_bound_py_any(py),
        ThrottrAnswer::Verdict(verdict) => judged(&verdict).into_bound_py_any(py),
        ThrottrAnswer::Verdicts(status, verdicts) => {
            let verdicts = if status == IMPOSSIBLE { Vec::new() } else { verdicts };
            let each: Vec<Option<Verdict>> = verdicts.iter().map(judged).collect();
            (status, each).into_bound_py_any(py)
        }
    }
}

/// `None`: the rule cannot be applied to that key.
fn judged(verdict: &ConsumeOutcome) -> Option<Verdict> {
    (verdict.status != IMPOSSIBLE).then(|| Verdict::answered(verdict, verdict.status == SUCCESS))
}

fn uses(uses: UsageCounts) -> (u64, u64, u64, u64) {
    (uses.reads_per_minute, uses.writes_per_minute, uses.reads, uses.writes)
}

fn subscribers<'py>(py: Python<'py>, rows: &[Subscriber]) -> Vec<(Bound<'py, PyBytes>, u64, u64, u64)> {
    rows.iter().map(|row| (PyBytes::new(py, &row.id), row.since, row.read_bytes, row.write_bytes)).collect()
}

fn connection<'py>(py: Python<'py>, row: &ConnectionRecord) -> PyResult<Bound<'py, PyTuple>> {
    let id = PyBytes::new(py, &row.id);
    let numbers = row.numbers.to_vec();
    (id, row.transport == 1, text(&row.address), row.port, row.connected_at, numbers).into_pyobject(py)
}

/// Text padded with zeros.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
