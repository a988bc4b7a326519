//! The two Python classes of a client, and connecting them.

use mqcore_client::client::Client as CoreClient;
use pyo3::prelude::*;

use super::process::{self, Owned};
use super::publishing::Publisher;
use super::way::CallStyle;
use super::{Client, error, options};

/// A client whose calls return awaitables.
#[pyclass(frozen, extends = Client, module = "mqcore._core")]
pub(super) struct AsyncClient;

/// A client whose calls block.
#[pyclass(frozen, extends = Client, module = "mqcore._core")]
pub(super) struct BlockingClient;

#[pymethods]
impl AsyncClient {
    /// Connects: `target` is a list of URLs, or an embedded broker.
    #[staticmethod]
    fn connect<'py>(
        py: Python<'py>,
        target: &Bound<'py, PyAny>,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        connect(py, target, options, CallStyle::Awaitable)
    }
}

#[pymethods]
impl BlockingClient {
    /// Connects: `target` is a list of URLs, or an embedded broker.
    #[staticmethod]
    fn connect<'py>(
        py: Python<'py>,
        target: &Bound<'py, PyAny>,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        connect(py, target, options, CallStyle::Blocking)
    }
}

fn connect<'py>(
    py: Python<'py>,
    target: &Bound<'py, PyAny>,
    options: &Bound<'py, PyAny>,
    way: CallStyle,
) -> PyResult<Bound<'py, PyAny>> {
    process::check()?;
    let transport = options::transport(target)?;
    let local = options::local_clients(target);
    let config = options::client(options)?;
    way.run(py, async move {
        let core = CoreClient::connect(config, transport).await.map_err(error::client)?;
        if let Some(local) = local {
            local.add(core.output());
        }
        Ok(Connected(Client { core: Owned::new(core), way, publisher: Publisher::default() }))
    })
}

/// A client that converts to its Python class.
struct Connected(Client);

impl<'py> IntoPyObject<'py> for Connected {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let way = self.0.way;
        let client = PyClassInitializer::from(self.0);
        match way {
            CallStyle::Awaitable => Ok(Bound::new(py, client.add_subclass(AsyncClient))?.into_any()),
            CallStyle::Blocking => Ok(Bound::new(py, client.add_subclass(BlockingClient))?.into_any()),
        }
    }
}
