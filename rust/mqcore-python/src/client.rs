//! The client for Python, as two classes. Calls of [`AsyncClient`] return asyncio awaitables. Calls of
//! [`BlockingClient`] wait without the interpreter lock, and check for signals ten times a second.
//!
//! Longer than 600 lines because PyO3 takes the methods of a class from one block.

mod bridge;
mod confirming;
mod connecting;
mod error;
mod membership;
mod models;
mod options;
mod process;
mod publishing;
mod received;
mod streams;
mod throttr;
mod wakeup;
mod way;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use mqcore_client::address::QueueAddress;
use mqcore_client::client::Client as CoreClient;
use mqcore_client::consume::{ConsumeTerms, UnusedQueue};
use mqcore_client::direct::{Inbox, SendOptions};
use mqcore_client::error::ClientError;
use mqcore_client::event::{EventKind, EventScope};
use mqcore_client::mqks::operations::Bindings;
use mqcore_client::publish::{BatchMessage, PublishOptions};
use mqcore_client::pull::PullOptions;
use mqcore_client::request::Clear;
use mqcore_wire::micromessage::handshake::Extension;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use self::connecting::{AsyncClient, BlockingClient};
use self::error::InvalidArgument;
use self::membership::Membership;
use self::models::{Model, Modelled};
use self::process::Owned;
use self::publishing::{Published, Publisher, Receipts, copies, outgoing, py_receipt};
use self::received::{Pulled, Received, ReceivedBatch};
use self::streams::{Consumer, EventStream, ExtensionFrames, Incoming, PullStream, States};
use self::way::CallStyle;
use crate::fields::seconds;

/// Adds the client's classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AsyncClient>()?;
    module.add_class::<BlockingClient>()?;
    module.add_class::<Consumer>()?;
    module.add_class::<EventStream>()?;
    module.add_class::<ExtensionFrames>()?;
    module.add_class::<Incoming>()?;
    module.add_class::<Membership>()?;
    module.add_class::<PullStream>()?;
    module.add_class::<Pulled>()?;
    module.add_class::<Received>()?;
    module.add_class::<ReceivedBatch>()?;
    module.add_class::<States>()?;
    module.add_class::<throttr::AsyncThrottrClient>()?;
    module.add_class::<throttr::BlockingThrottrClient>()?;
    module.add_function(wrap_pyfunction!(bridge::end_delivering, module)?)
}

/// Header keys and values from Python.
type Pairs = Vec<(String, String)>;
/// A connected client, the base of its two Python classes [`AsyncClient`] and [`BlockingClient`].
#[pyclass(frozen, subclass, module = "mqcore._core", name = "_Client")]
struct Client {
    core: Owned<CoreClient>,
    way: CallStyle,
    publisher: Publisher,
}

impl Client {
    /// Parses a queue or other destination in the protocol's spelling.
    fn address(&self, text: &str) -> PyResult<QueueAddress> {
        self.core.get()?.address(text).map_err(error::client)
    }

    /// Runs an operation of the client.
    fn run<'py, F, T>(
        &self,
        py: Python<'py>,
        operation: impl FnOnce(CoreClient) -> F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
        T: for<'a> IntoPyObject<'a> + Send + 'static,
    {
        let future = operation(self.core.get()?.clone());
        self.way.run(py, async move { future.await.map_err(error::client) })
    }

    /// Runs an operation that returns dataclasses.
    fn describe<'py, F, T>(
        &self,
        py: Python<'py>,
        operation: impl FnOnce(CoreClient) -> F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
        T: Model + Send + 'static,
    {
        let future = operation(self.core.get()?.clone());
        self.way.run(py, async move { future.await.map(Modelled).map_err(error::client) })
    }
}

#[pymethods]
impl Client {
    /// The id that the broker assigned to this client.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.core.get()?.id())
    }

    /// The current state of the connection.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.core.get()?.state().to_python(py)
    }

    /// A stream of states.
    fn states(&self) -> PyResult<States> {
        Ok(States::new(self.core.get()?.states()))
    }

    /// Counters since the client was created.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.core.get()?.stats().to_python(py)
    }

    #[pyo3(signature = (drain=None))]
    fn close<'py>(&self, py: Python<'py>, drain: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let drain = optional_seconds(drain, "drain")?;
        // Now, and not when the runtime comes to it: the program's next call is rejected.
        let core = self.core.get()?;
        py.detach(|| core.begin_closing(drain));
        self.run(py, |core| async move {
            core.close(drain).await;
            Ok(())
        })
    }

    /// Closes without waiting; harmless in a forked child.
    fn abort(&self) {
        if let Ok(core) = self.core.get() {
            core.abort();
        }
    }

    /// Returns `None` if the message is queued for writing and requests no confirmation. Otherwise the result is a
    /// confirmation, or `None` if it requests none.
    #[pyo3(signature = (queue, body, message_id=None, headers=None, high_priority=false, confirm=true, cc=None, timeout=None,
                        retry=false, terms=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of publishing, named in Python")]
    fn publish<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        body: &[u8],
        message_id: Option<String>,
        headers: Option<Pairs>,
        high_priority: bool,
        confirm: bool,
        cc: Option<Vec<(String, Option<String>)>>,
        timeout: Option<f64>,
        retry: bool,
        terms: Option<PyTerms>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let core = self.core.get()?;
        let queue = self.publisher.address(core, queue)?;
        let options = PublishOptions {
            id: message_id,
            headers: headers.unwrap_or_default(),
            high_priority,
            confirm,
            cc: copies(cc.unwrap_or_default())?,
            timeout: optional_seconds(timeout, "timeout")?,
            retry,
            ..with_terms(terms.unwrap_or_default())?
        };
        match self.publisher.publish(py, core, self.way, &queue, body, &options)? {
            Published::Queued => return Ok(None),
            Published::Result(result) => return Ok(Some(result)),
            Published::NotNow => {}
        }
        let body = body.to_vec();
        let publish = |core: CoreClient| async move {
            let receipt = core.publish(&queue, body, &options).await;
            receipt.map(|receipt| options.confirm.then(|| py_receipt(receipt)))
        };
        self.run(py, publish).map(Some)
    }

    /// Stops waiting for the confirmation that `awaitable`, a result of `publish`, would have.
    fn abandon(&self, awaitable: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(id) = self.publisher.forget(awaitable)? {
            self.core.get()?.forget_confirmation(&id);
        }
        Ok(())
    }

    /// Publishes many messages in one call.
    #[pyo3(signature = (queue, bodies, *, headers=Vec::new(), high_priority=false, confirm=true, cc=Vec::new(),
                        timeout=None, terms=(None, None, None)))]
    #[allow(clippy::too_many_arguments, reason = "the options of publishing, named in Python")]
    fn publish_many<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        bodies: Vec<PyBackedBytes>,
        headers: Pairs,
        high_priority: bool,
        confirm: bool,
        cc: Vec<(String, Option<String>)>,
        timeout: Option<f64>,
        terms: PyTerms,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let timeout = optional_seconds(timeout, "timeout")?;
        let cc = copies(cc)?;
        let options = PublishOptions { headers, high_priority, confirm, cc, timeout, ..with_terms(terms)? };
        let messages = outgoing(&bodies);
        self.run(py, |core| async move { Ok(Receipts(core.publish_many(&queue, &messages, &options).await)) })
    }

    /// Like `publish_many`, for messages with an id and headers of their own.
    #[pyo3(signature = (queue, messages, *, high_priority=false, confirm=true, timeout=None, terms=(None, None, None)))]
    #[allow(clippy::too_many_arguments, reason = "the options of publishing, named in Python")]
    fn publish_each<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        messages: Vec<(PyBackedBytes, Option<String>, Pairs)>,
        high_priority: bool,
        confirm: bool,
        timeout: Option<f64>,
        terms: PyTerms,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let timeout = optional_seconds(timeout, "timeout")?;
        let options = PublishOptions { high_priority, confirm, timeout, ..with_terms(terms)? };
        let messages: Vec<BatchMessage> = messages
            .into_iter()
            .map(|(body, id, headers)| BatchMessage { body: Bytes::copy_from_slice(&body), id, headers })
            .collect();
        self.run(py, |core| async move { Ok(Receipts(core.publish_many(&queue, &messages, &options).await)) })
    }

    #[pyo3(signature = (queue, prefetch, *, events=None, add_events=Vec::new(), delete_unused=None, filter=None,
                        manual_ack=true))]
    #[allow(clippy::too_many_arguments, reason = "the terms of consuming, named in Python")]
    fn consume<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        prefetch: usize,
        events: Option<Vec<String>>,
        add_events: Vec<String>,
        delete_unused: Option<f64>,
        filter: Option<String>,
        manual_ack: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let delete_unused = optional_seconds(delete_unused, "delete_unused")?;
        let delete_unused = delete_unused.map_or(UnusedQueue::Stays, UnusedQueue::Deleted);
        let terms = ConsumeTerms { events, add_events, delete_unused, filter, manual_ack };
        self.run(py, |core| async move { Ok(Consumer::new(core.consume_on(&queue, prefetch, terms).await?)) })
    }

    #[pyo3(signature = (queue, *, replace=None, remove=Vec::new(), remove_masks=Vec::new(), add=Vec::new()))]
    fn rebind<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        replace: Option<Vec<String>>,
        remove: Vec<String>,
        remove_masks: Vec<String>,
        add: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let bindings = Bindings { replace, remove, remove_masks, add };
        self.run(py, |core| async move { core.rebind(&queue, &bindings).await })
    }

    fn statistic<'py>(&self, py: Python<'py>, expression: String) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |core| async move { core.statistic(&expression).await })
    }

    /// The agreed extensions in the order of their numbers: names and properties.
    #[getter]
    fn extensions(&self) -> PyResult<Vec<(String, Pairs)>> {
        let agreement = self.core.get()?.agreement().map_err(error::client)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let extension = |extension: &Extension<'_>| {
            let properties = extension.properties.iter();
            // Tokens are secret.
            let shown = properties.filter(|(key, _)| key != "token");
            let pairs = shown.map(|(key, value)| (key.to_string(), text(value))).collect();
            (extension.name.to_string(), pairs)
        };
        Ok(agreement.all().map(extension).collect())
    }

    /// Frames of a vendor's extension from now on.
    fn extension(&self, name: &str) -> PyResult<ExtensionFrames> {
        let core = self.core.get()?.extension(name).map_err(error::client)?;
        Ok(ExtensionFrames::new(core))
    }

    fn send_extension<'py>(
        &self,
        py: Python<'py>,
        name: String,
        payload: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let payload = payload.to_vec();
        self.run(py, |core| async move { core.send_extension(&name, &payload).await })
    }

    /// The protocol, as the scheme of its URLs.
    #[getter]
    fn protocol(&self) -> PyResult<&'static str> {
        Ok(self.core.get()?.protocol().scheme())
    }

    fn join<'py>(&self, py: Python<'py>, channel: String) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, |core| async move { Ok(Membership::new(core.join(&channel).await?)) })
    }

    #[pyo3(signature = (queue, count, *, lifo=false, clear_high_priority=false, clear_normal=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of pulling, named in Python")]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        count: u32,
        lifo: bool,
        clear_high_priority: bool,
        clear_normal: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let clear = Clear { high_priority: clear_high_priority, normal: clear_normal };
        let timeout = optional_seconds(timeout, "timeout")?;
        let options = PullOptions { count, lifo, clear, info: true, timeout };
        self.run(py, |core| async move {
            // Returned whole, because the call may be cancelled until the program gets it.
            Ok(Pulled::new(core.pull(&queue, &options).await?))
        })
    }

    #[pyo3(signature = (queue, count, *, lifo=false, clear_high_priority=false, clear_normal=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of pulling, named in Python")]
    fn pull_stream<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        count: u32,
        lifo: bool,
        clear_high_priority: bool,
        clear_normal: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let clear = Clear { high_priority: clear_high_priority, normal: clear_normal };
        let timeout = optional_seconds(timeout, "timeout")?;
        let options = PullOptions { count, lifo, clear, info: true, timeout };
        self.run(py, |core| async move { Ok(PullStream::new(core.pull_stream(&queue, &options).await?)) })
    }

    #[pyo3(signature = (queue, *, timeout=None))]
    fn get_cached<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let timeout = optional_seconds(timeout, "timeout")?;
        self.run(py, |core| async move { Ok(core.get_cached(&queue, timeout).await?.map(Received::plain)) })
    }

    /// Returns the seconds until the acknowledgement, or `None` if none was requested.
    #[pyo3(signature = (target, body, *, content_type=0, message_id=None, headers=Vec::new(), high_priority=false,
                        only_first=false, confirm=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of sending, named in Python")]
    fn send<'py>(
        &self,
        py: Python<'py>,
        target: String,
        body: &[u8],
        content_type: u16,
        message_id: Option<String>,
        headers: Pairs,
        high_priority: bool,
        only_first: bool,
        confirm: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = optional_seconds(timeout, "timeout")?;
        let options =
            SendOptions { content_type, id: message_id, headers, high_priority, only_first, timeout };
        let body = body.to_vec();
        self.run(py, move |core| async move {
            if confirm {
                let latency = core.send_confirmed(&target, body, &options).await?;
                return Ok(Some(latency.as_secs_f64()));
            }
            core.send(&target, body, &options).await.map(|()| None)
        })
    }

    #[pyo3(signature = (target, body, *, content_type=0, message_id=None, headers=Vec::new(), high_priority=false,
                        only_first=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "the options of sending, named in Python")]
    fn request<'py>(
        &self,
        py: Python<'py>,
        target: String,
        body: &[u8],
        content_type: u16,
        message_id: Option<String>,
        headers: Pairs,
        high_priority: bool,
        only_first: bool,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = optional_seconds(timeout, "timeout")?;
        let options =
            SendOptions { content_type, id: message_id, headers, high_priority, only_first, timeout };
        let body = body.to_vec();
        self.run(
            py,
            move |core| async move { core.request(&target, body, &options).await.map(Received::plain) },
        )
    }

    /// Direct messages, or custom messages of the broker, from now on.
    #[pyo3(signature = (*, custom=false))]
    fn incoming(&self, custom: bool) -> PyResult<Incoming> {
        let inbox = if custom { Inbox::Custom } else { Inbox::Direct };
        Ok(Incoming::new(self.core.get()?.incoming(inbox).map_err(error::client)?))
    }

    #[pyo3(signature = (body, *, content_type=0, message_id=None, headers=Vec::new()))]
    fn send_custom<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        content_type: u16,
        message_id: Option<String>,
        headers: Pairs,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = SendOptions { content_type, id: message_id, headers, ..SendOptions::default() };
        let body = body.to_vec();
        self.run(py, |core| async move { core.send_custom(body, &options).await })
    }

    fn respond<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, Received>,
        status: u16,
        body: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = message.get().message()?.clone();
        let body = body.to_vec();
        self.run(py, move |core| async move { core.respond(&message, status, body).await })
    }

    #[pyo3(signature = (message, refusal=None))]
    fn acknowledge_direct<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, Received>,
        refusal: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = message.get().message()?.clone();
        self.run(py, move |core| async move { core.acknowledge_direct(&message, refusal.as_deref()).await })
    }

    /// Each of `subscriptions` is an event name, an optional channel and an optional queue.
    fn subscribe_events<'py>(
        &self,
        py: Python<'py>,
        subscriptions: Vec<(String, Option<String>, Option<u16>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted: PyResult<Vec<EventScope>> = subscriptions.into_iter().map(event_scope).collect();
        let wanted = wanted?;
        self.run(py, move |core| async move { Ok(EventStream::new(core.subscribe_events(&wanted).await?)) })
    }

    fn create_channel<'py>(
        &self,
        py: Python<'py>,
        channel: String,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options::channel_options(options)?;
        self.run(py, move |core| async move { core.create_channel(&channel, &options).await })
    }

    fn update_channel<'py>(
        &self,
        py: Python<'py>,
        channel: String,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options::channel_options(options)?;
        self.run(py, move |core| async move { core.update_channel(&channel, &options).await })
    }

    fn remove_channel<'py>(&self, py: Python<'py>, channel: String) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.remove_channel(&channel).await })
    }

    fn channel_information<'py>(&self, py: Python<'py>, channel: String) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.channel(&channel).await })
    }

    #[pyo3(signature = (pattern=None))]
    fn channels<'py>(&self, py: Python<'py>, pattern: Option<String>) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.channels(pattern.as_deref()).await })
    }

    fn channel_consumers<'py>(&self, py: Python<'py>, channel: String) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.channel_consumers(&channel).await })
    }

    fn create_queue<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let options = options::queue_options(options)?;
        self.run(py, move |core| async move { core.create_queue(&queue, &options).await })
    }

    fn update_queue<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        let options = options::queue_options(options)?;
        self.run(py, move |core| async move { core.update_queue(&queue, &options).await })
    }

    fn remove_queue<'py>(&self, py: Python<'py>, queue: &str) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        self.run(py, move |core| async move { core.remove_queue(&queue).await })
    }

    fn clear_queue<'py>(
        &self,
        py: Python<'py>,
        queue: &str,
        high_priority: bool,
        normal: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        self.run(
            py,
            move |core| async move { core.clear_queue(&queue, Clear { high_priority, normal }).await },
        )
    }

    fn queue_information<'py>(&self, py: Python<'py>, queue: &str) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.address(queue)?;
        self.describe(py, move |core| async move { core.queue(&queue).await })
    }

    fn queues<'py>(&self, py: Python<'py>, channel: String) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.queues(&channel).await })
    }

    #[pyo3(signature = (pattern=None))]
    fn clients<'py>(&self, py: Python<'py>, pattern: Option<String>) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.clients(pattern.as_deref()).await })
    }

    fn create_router<'py>(
        &self,
        py: Python<'py>,
        router: String,
        method: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.create_router(&router, &method).await })
    }

    fn remove_router<'py>(&self, py: Python<'py>, router: String) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.remove_router(&router).await })
    }

    fn enable_router<'py>(
        &self,
        py: Python<'py>,
        router: String,
        enabled: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.enable_router(&router, enabled).await })
    }

    fn disconnect<'py>(&self, py: Python<'py>, client: String) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.disconnect(&client).await })
    }

    #[pyo3(signature = (pattern=None))]
    fn routers<'py>(&self, py: Python<'py>, pattern: Option<String>) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.routers(pattern.as_deref()).await })
    }

    fn bindings<'py>(&self, py: Python<'py>, router: String) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.bindings(&router).await })
    }

    /// `binding` is a `mqcore.Binding`.
    fn add_binding<'py>(
        &self,
        py: Python<'py>,
        router: String,
        binding: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let binding = models::binding(binding)?;
        self.run(py, move |core| async move { core.add_binding(&router, &binding).await })
    }

    fn remove_binding<'py>(
        &self,
        py: Python<'py>,
        router: String,
        binding: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, move |core| async move { core.remove_binding(&router, &binding).await })
    }

    fn test_router<'py>(
        &self,
        py: Python<'py>,
        router: String,
        body: Vec<u8>,
        headers: Pairs,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move {
            let headers: Vec<_> = headers.iter().map(|(key, value)| (&**key, &**value)).collect();
            core.test_router(&router, body, &headers).await
        })
    }

    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.describe(py, move |core| async move { core.nodes().await })
    }
}

/// The priority of a message, and its delay and expiry in seconds.
type PyTerms = (Option<u8>, Option<f64>, Option<f64>);

/// Default options with these terms.
fn with_terms((priority, delay, expires_in): PyTerms) -> PyResult<PublishOptions> {
    let delay = optional_seconds(delay, "delay")?;
    let expires_in = optional_seconds(expires_in, "expires_in")?;
    Ok(PublishOptions { priority, delay, expires_in, ..PublishOptions::default() })
}

fn optional_seconds(value: Option<f64>, name: &str) -> PyResult<Option<Duration>> {
    value.map(|value| seconds(value, name)).transpose()
}

fn event_scope((name, channel, queue): (String, Option<String>, Option<u16>)) -> PyResult<EventScope> {
    let Some(kind) = EventKind::from_name(&name) else {
        let known: Vec<&str> = EventKind::ALL.into_iter().map(EventKind::as_str).collect();
        let text = format!("unknown event {name:?}; use one of {}", known.join(", "));
        return Err(InvalidArgument::new_err(text));
    };
    Ok(EventScope { kind, channel, queue })
}
