//! Authority from Python: the store of users and tokens for the command line, and the thread that runs a program's own
//! authenticator.
//!
//! The thread attaches to the interpreter once and receives batches, like those of delivery handlers. It passes
//! awaitables to the event loop together, each with a reply object. A lost answer denies access.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use mqcore_server::authority::port::{
    AnswerSender, AuthorityAnswer, AuthorityPort, AuthorityQuestion, Identity as ServerIdentity, LoginView,
    QuestionSubject,
};
use mqcore_server::authority::store::{Change, StoreError, UserStore};
use mqcore_server::authority::{AuthorityConfig, settings};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::error;
use crate::leaked_threads::LeakedThread;
use crate::view::ClientView;

/// Maximum waiting batches of questions; further questions are denied.
const BATCHES_MAX: usize = 16_384;
/// Maximum awaitables passed to the event loop at once.
const BURST_MAX: usize = 256;

/// The file of users and tokens of a broker. A running broker reloads it after changes.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct AuthorityStore {
    store: UserStore,
}

#[pymethods]
impl AuthorityStore {
    #[new]
    fn new(path: std::path::PathBuf) -> Self {
        Self { store: UserStore::at(path) }
    }

    /// Opens the store of a data directory.
    #[staticmethod]
    fn of_data_dir(directory: std::path::PathBuf) -> Self {
        Self { store: UserStore::of_data_dir(&directory) }
    }

    #[getter]
    fn path(&self) -> std::path::PathBuf {
        self.store.path().to_path_buf()
    }

    /// The store as JSON, without secrets and their hashes.
    fn show(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.store.show()).map_err(|broken| error::authority(&broken))
    }

    /// Adds a user from JSON, with an optional password.
    #[pyo3(signature = (user, password=None))]
    fn add_user(&self, py: Python<'_>, user: &str, password: Option<&str>) -> PyResult<()> {
        self.change(py, Change::AddUser { user, password })
    }

    fn set_password(&self, py: Python<'_>, name: &str, password: &str) -> PyResult<()> {
        self.change(py, Change::SetPassword { name, password })
    }

    fn remove_user(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.change(py, Change::RemoveUser { name })
    }

    /// Adds a token from JSON. Returns its id and the token itself, which is not stored.
    fn add_token(&self, py: Python<'_>, token: &str) -> PyResult<(String, String)> {
        py.detach(|| self.store.add_token(token)).map_err(|broken| error::authority(&broken))
    }

    fn remove_token(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        self.change(py, Change::RemoveToken { id })
    }
}

impl AuthorityStore {
    fn change(&self, py: Python<'_>, change: Change<'_>) -> PyResult<()> {
        py.detach(|| self.store.apply(change)).map_err(|broken| error::authority(&broken))
    }
}

/// Hashes a password for the configuration.
#[pyfunction]
pub(crate) fn hash_password(py: Python<'_>, password: &str) -> PyResult<String> {
    py.detach(|| mqcore_server::authority::store::hash_password(password))
        .map_err(|broken| error::authority(&broken))
}

/// Reads the users, tokens and audit log of `mqcore.BrokerConfig` from the JSON that the class generates.
pub(crate) fn config(text: &str) -> PyResult<AuthorityConfig> {
    settings(text).map_err(|broken: StoreError| error::ConfigError::new_err(broken.to_string()))
}

/// A registered authenticator of the program.
pub(crate) struct AuthenticatorDefinition {
    pub(crate) authenticate: Option<Py<PyAny>>,
    pub(crate) authorize: Option<Py<PyAny>>,
    pub(crate) timeout: Duration,
    pub(crate) cache: Duration,
    /// Passes bursts of awaitables to the event loop.
    pub(crate) submit: Py<PyAny>,
}

/// A running authenticator.
pub(crate) struct AuthorityThread {
    /// `None` ends the thread.
    inbox: Sender<Option<Vec<AuthorityQuestion>>>,
    authenticates: bool,
    authorizes: bool,
    timeout: Duration,
    cache: Duration,
    stopping: Arc<AtomicBool>,
    /// Disconnects when the thread ends; no message is ever sent.
    ended: Receiver<()>,
}

impl AuthorityThread {
    /// Starts the thread.
    pub(crate) fn start(py: Python<'_>, definition: &AuthenticatorDefinition) -> PyResult<Self> {
        let (inbox, questions) = crossbeam_channel::bounded(BATCHES_MAX);
        let (ending, ended) = crossbeam_channel::bounded(0);
        let stopping = Arc::new(AtomicBool::new(false));
        let clone = |method: &Option<Py<PyAny>>| method.as_ref().map(|method| method.clone_ref(py));
        let authenticator = Authenticator {
            authenticate: clone(&definition.authenticate),
            authorize: clone(&definition.authorize),
            submit: definition.submit.clone_ref(py),
            stopping: stopping.clone(),
            waiting: Vec::new(),
        };
        std::thread::Builder::new().name("mqcore-authority".into()).spawn(move || {
            run(authenticator, &questions);
            drop(ending);
        })?;
        Ok(Self {
            inbox,
            authenticates: definition.authenticate.is_some(),
            authorizes: definition.authorize.is_some(),
            timeout: definition.timeout,
            cache: definition.cache,
            stopping,
            ended,
        })
    }

    /// Ends the thread as soon as its current call returns.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // If the channel is full or closed, the thread sees the flag.
        let _ = self.inbox.try_send(None);
    }
}

impl LeakedThread for AuthorityThread {
    fn join(&self, deadline: Instant) -> bool {
        self.ended.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout)
    }
}

impl AuthorityPort for AuthorityThread {
    fn authenticates(&self) -> bool {
        self.authenticates
    }

    fn authorizes(&self) -> bool {
        self.authorizes
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn cache(&self) -> Duration {
        self.cache
    }

    fn ask(&self, questions: Vec<AuthorityQuestion>) {
        // A dropped batch counts as an answer.
        let _ = self.inbox.try_send(Some(questions));
    }
}

/// State of the thread.
struct Authenticator {
    authenticate: Option<Py<PyAny>>,
    authorize: Option<Py<PyAny>>,
    submit: Py<PyAny>,
    stopping: Arc<AtomicBool>,
    waiting: Vec<(Py<PyAny>, Py<AuthorityReply>)>,
}

/// Runs the thread.
fn run(mut authenticator: Authenticator, questions: &Receiver<Option<Vec<AuthorityQuestion>>>) {
    // `None`: the interpreter is ending and must not be used.
    let ran = Python::try_attach(|py| {
        while let Some(asked) = authenticator.next(py, questions) {
            for question in asked {
                if authenticator.stopping.load(Ordering::Acquire) {
                    return;
                }
                authenticator.answer(py, question);
            }
        }
    });
    if ran.is_none() {
        std::mem::forget(authenticator);
        return;
    }
    Python::try_attach(|_| drop(authenticator));
}

impl Authenticator {
    /// Returns the next questions. Passes awaitables on before it waits.
    fn next(
        &mut self,
        py: Python<'_>,
        questions: &Receiver<Option<Vec<AuthorityQuestion>>>,
    ) -> Option<Vec<AuthorityQuestion>> {
        if self.waiting.len() >= BURST_MAX {
            self.hand_over(py);
        }
        match questions.try_recv() {
            Ok(asked) => return asked,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => self.hand_over(py),
        }
        py.detach(|| questions.recv()).ok().flatten()
    }

    fn answer(&mut self, py: Python<'_>, question: AuthorityQuestion) {
        let AuthorityQuestion { about, reply } = question;
        let reply = AuthorityReply::new(&about, reply);
        let outcome = self.call(py, about, reply);
        if let Err((method, exception)) = outcome {
            report(py, method, &exception);
        }
    }

    fn call(
        &mut self,
        py: Python<'_>,
        about: QuestionSubject,
        mut reply: AuthorityReply,
    ) -> Result<(), (&'static str, PyErr)> {
        let method = reply.method;
        let failed = |exception| (method, exception);
        let result = match about {
            QuestionSubject::Login(view) => {
                let hello = hello(py, *view, &mut reply).map_err(failed)?;
                let Some(authenticate) = &self.authenticate else { return Ok(()) };
                authenticate.bind(py).call1((hello,))
            }
            QuestionSubject::Action { client, action, resource, .. } => {
                let Some(authorize) = &self.authorize else { return Ok(()) };
                let client = ClientView::connected(client);
                word(py, action.as_str())
                    .and_then(|action| authorize.bind(py).call1((client, action, &*resource)))
            }
        };
        let result = result.map_err(failed)?;
        if result.get_type().hasattr(pyo3::intern!(py, "__await__")).map_err(failed)? {
            let reply = Py::new(py, reply).map_err(failed)?;
            self.waiting.push((result.unbind(), reply));
            return Ok(());
        }
        reply.settle(&result).map_err(failed)
    }

    fn hand_over(&mut self, py: Python<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let burst = std::mem::take(&mut self.waiting);
        if let Err(broken) = self.submit.bind(py).call1((burst,)) {
            report(py, "authorize", &broken);
        }
    }
}

/// The reply of one question. Dropping it without an answer denies access.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct AuthorityReply {
    method: &'static str,
    reply: Mutex<Option<AnswerSender>>,
    /// For a login, the identity that the server determined.
    known: Option<Py<PyAny>>,
}

impl AuthorityReply {
    fn new(about: &QuestionSubject, reply: AnswerSender) -> Self {
        let method = match about {
            QuestionSubject::Login(_) => "authenticate",
            QuestionSubject::Action { .. } => "authorize",
        };
        Self { method, reply: Mutex::new(Some(reply)), known: None }
    }

    fn send(&self, answer: AuthorityAnswer) {
        let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reply) = reply {
            // The receiver may be gone.
            let _ = reply.send(answer);
        }
    }

    fn read(&self, result: &Bound<'_, PyAny>) -> PyResult<AuthorityAnswer> {
        if self.method == "authorize" {
            let allowed = result.cast::<PyBool>().map_err(|_| nonsense(self.method, result, "a bool"))?;
            return Ok(if allowed.is_true() { AuthorityAnswer::Allowed } else { AuthorityAnswer::Denied });
        }
        if result.is_none() {
            return Ok(AuthorityAnswer::Denied);
        }
        let py = result.py();
        if self.known.as_ref().is_some_and(|known| result.is(known.bind(py))) {
            return Ok(AuthorityAnswer::Known);
        }
        if !result.is_instance(identity_class(py)?)? {
            return Err(nonsense(self.method, result, "a mqcore.authority.Identity or None"));
        }
        let name: String = result.getattr("name")?.extract()?;
        let rules: Vec<String> = result.getattr("allow")?.extract()?;
        let allow = rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>();
        let allow = allow.map_err(|broken: mqcore_server::authority::port::PermissionRuleError| {
            error::ConfigError::new_err(broken.to_string())
        })?;
        Ok(AuthorityAnswer::Identity { name: name.into(), allow })
    }
}

#[pymethods]
impl AuthorityReply {
    /// The name of the awaited method.
    #[getter]
    fn method(&self) -> &'static str {
        self.method
    }

    /// Settles with the method's result. Raises and denies access if it is invalid.
    fn settle(&self, result: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.read(result) {
            Ok(answer) => {
                self.send(answer);
                Ok(())
            }
            Err(broken) => {
                self.send(AuthorityAnswer::Failed);
                Err(broken)
            }
        }
    }

    /// Denies access, because there is no answer.
    fn fail(&self) {
        self.send(AuthorityAnswer::Failed);
    }
}

fn nonsense(method: &str, given: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    // Without the value itself, which may contain a credential.
    let kind = given.get_type();
    let kind = kind.name().map_or_else(|_| "something".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{method} returned a {kind}, not {wanted}"))
}

fn identity_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "mqcore.authority", "Identity")
}

fn word<'py>(py: Python<'py>, word: &str) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "mqcore.authority", "Action")?.call1((word,))
}

/// Arguments of an authenticator.
fn hello<'py>(py: Python<'py>, view: LoginView, reply: &mut AuthorityReply) -> PyResult<Bound<'py, PyAny>> {
    static HELLO: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CERTIFICATE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let known = view.identity.as_deref().map(|identity| identity_of(py, identity)).transpose()?;
    reply.known = known.as_ref().map(|known| known.clone().unbind());
    let certificate = match &view.peer.certificate {
        None => None,
        Some(found) => {
            let names = PyTuple::new(py, found.names.iter().map(|name| &**name))?;
            let class = CERTIFICATE.import(py, "mqcore.authority", "Certificate")?;
            Some(class.call1((&*found.subject, names, &*found.fingerprint))?)
        }
    };
    let fields = PyDict::new(py);
    fields.set_item("protocol", view.protocol)?;
    fields.set_item("address", view.peer.address.as_deref())?;
    fields.set_item("encrypted", view.peer.encrypted)?;
    fields.set_item("certificate", certificate)?;
    fields.set_item("id", view.id)?;
    fields.set_item("name", view.name)?;
    fields.set_item("kind", view.kind)?;
    fields.set_item("token", view.token.as_ref().map(|token| token.expose()))?;
    fields.set_item("user", view.login.as_ref().map(|(user, _)| user))?;
    fields.set_item("password", view.login.as_ref().map(|(_, password)| password.expose()))?;
    fields
        .set_item("properties", view.properties.into_iter().collect::<std::collections::BTreeMap<_, _>>())?;
    fields.set_item("identity", known)?;
    HELLO.import(py, "mqcore.authority", "Hello")?.call((), Some(&fields))
}

fn identity_of<'py>(py: Python<'py>, identity: &ServerIdentity) -> PyResult<Bound<'py, PyAny>> {
    let rules = PyTuple::new(py, identity.rules().iter().map(ToString::to_string))?;
    identity_class(py)?.call1((&*identity.name, rules))
}

/// Logs that a method raised. The number of lines is limited, because each question is a login or a command.
fn report(py: Python<'_>, method: &str, exception: &PyErr) {
    static REPORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let reported = REPORT
        .import(py, "mqcore.authority", "_report")
        .and_then(|report| report.call1((method, exception.value(py))));
    if let Err(broken) = reported {
        broken.write_unraisable(py, None);
    }
}
