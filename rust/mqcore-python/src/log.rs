//! Forwards log lines of the Rust side to Python's `logging`, under names such as `mqcore.server.tls`.
//!
//! Logging never waits for Python: a line goes into a bounded channel, and a separate thread forwards it. Lines over
//! the limit are counted, and the count is logged. The thread is stopped and joined before Python ends.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use pyo3::prelude::*;
use pyo3::types::PyModule;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Maximum lines waiting for Python.
const WAITING_MAX: usize = 4096;

/// Maximum lines per [`WINDOW`], because peers can cause lines, and each costs interpreter time.
const LINES_MAX: u32 = 1000;

/// The period of the limit of lines.
const WINDOW: Duration = Duration::from_secs(1);

/// Maximum time that the end of the program waits for a blocked logging handler.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum time to write lines before the process of a deposed leader is replaced or ends. Meanwhile the broker confirms nothing, because the caller
/// is the thread that commits.
const DEPOSED_PATIENCE: Duration = Duration::from_millis(100);

struct Line {
    level: Level,
    /// The module of the line.
    target: &'static str,
    text: String,
}

/// Receives the log lines of the Rust side.
struct Logs {
    lines: Sender<Line>,
}

static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines that were sent to the thread, and lines that Python has.
static SENT: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// The state of the thread.
static SETTLED: AtomicBool = AtomicBool::new(false);

static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

enum Writer {
    /// No line yet, so there is no thread.
    Idle(Receiver<Line>),
    Busy(Thread),
}

/// The thread that forwards lines.
struct Thread {
    end: Sender<()>,
    done: Receiver<()>,
    handle: JoinHandle<()>,
    /// The process of the thread: after a fork the child has this value, but not the thread.
    process: u32,
}

/// Forwards lines to Python from now on, until Python ends.
pub(crate) fn begin(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let (sender, lines) = crossbeam_channel::bounded(WAITING_MAX);
    // If the process already has a subscriber, it keeps the lines.
    if tracing::subscriber::set_global_default(Logs { lines: sender }).is_err() {
        return Ok(());
    }
    *writer() = Some(Writer::Idle(lines));
    // Functions registered first are called last, so brokers and clients have ended by then.
    let register = module.py().import("atexit")?.getattr("register")?;
    register.call1((wrap_pyfunction!(end_logging, module)?,))?;
    Ok(())
}

fn writer() -> MutexGuard<'static, Option<Writer>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread with the first line, so that importing the module starts none.
fn start() {
    let mut writer = writer();
    if let Some(Writer::Idle(lines)) = &*writer {
        let lines = lines.clone();
        let (end, ended) = crossbeam_channel::bounded(1);
        let (all_done, done) = crossbeam_channel::bounded(1);
        let write = move || {
            hand_on(&lines, &ended);
            drop(all_done);
        };
        // Without a thread lines wait, and the next line tries again.
        let Ok(handle) = std::thread::Builder::new().name("mqcore-logs".into()).spawn(write) else { return };
        *writer = Some(Writer::Busy(Thread { end, done, handle, process: std::process::id() }));
    }
    SETTLED.store(true, Ordering::Release);
}

/// Forwards the remaining lines and ends.
#[pyfunction]
fn end_logging(py: Python<'_>) {
    let Some(Writer::Busy(thread)) = writer().take() else { return };
    if thread.process != std::process::id() {
        std::mem::forget(thread);
        return;
    }
    py.detach(|| {
        // The channel has room for the one end signal.
        let _ = thread.end.send(());
        // A blocked logging handler does not delay the end of the program.
        let hangs = thread.done.recv_timeout(END_PATIENCE).is_err_and(|error| error.is_timeout());
        if !hangs {
            let _ = thread.handle.join();
        }
    });
}

/// Waits until Python has all lines, but only for a short time: an interpreter that is busy must not delay a restart.
pub(crate) fn write_out() {
    let (sent, until) = (SENT.load(Ordering::Acquire), Instant::now() + DEPOSED_PATIENCE);
    while WRITTEN.load(Ordering::Acquire) < sent && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hand_on(lines: &Receiver<Line>, ended: &Receiver<()>) {
    let (mut since, mut said) = (Instant::now(), 0);
    let mut batch = Vec::new();
    loop {
        let last = crossbeam_channel::select! {
            recv(lines) -> line => { batch.extend(line); false }
            recv(ended) -> _ => true,
        };
        batch.extend(lines.try_iter());
        let taken = batch.len() as u64;
        if since.elapsed() >= WINDOW {
            (since, said) = (Instant::now(), 0);
        }
        let room = (LINES_MAX - said) as usize;
        if batch.len() > room {
            LOST.fetch_add((batch.len() - room) as u64, Ordering::Relaxed);
            batch.truncate(room);
        }
        said += batch.len() as u32;
        if said < LINES_MAX {
            let lost = LOST.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let text = format!("{lost} log lines were dropped: more than the limit per second");
                batch.push(Line { level: Level::WARN, target: "mqcore_server", text });
            }
        }
        if !batch.is_empty() {
            // No logging after the interpreter has ended.
            let _ = Python::try_attach(|py| say(py, &batch));
            batch.clear();
        }
        WRITTEN.fetch_add(taken, Ordering::Release);
        if last {
            return;
        }
    }
}

fn say(py: Python<'_>, batch: &[Line]) {
    let Ok(logging) = py.import("logging") else { return };
    for line in batch {
        let name = line.target.replacen('_', ".", 1).replace("::", ".");
        let level = match line.level {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            _ => 10,
        };
        let logger = logging.call_method1("getLogger", (name,));
        if let Err(failed) = logger.and_then(|logger| logger.call_method1("log", (level, "%s", &line.text))) {
            // Python's logging reports its own failures; other exceptions go to stderr.
            failed.write_unraisable(py, None);
        }
    }
}

impl Subscriber for Logs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("mqcore")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        match self.lines.try_send(Line { level, target, text: text.finish() }) {
            Ok(()) => SENT.fetch_add(1, Ordering::Release),
            Err(_) => LOST.fetch_add(1, Ordering::Relaxed),
        };
        if !SETTLED.load(Ordering::Acquire) {
            start();
        }
    }

    // Nothing here uses spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line under construction: its text, and its fields in brackets.
#[derive(Default)]
struct Text {
    message: String,
    about: String,
}

impl Text {
    fn finish(mut self) -> String {
        if !self.about.is_empty() {
            let _ = write!(self.message, " ({})", self.about);
        }
        self.message
    }

    fn add(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let comma = if self.about.is_empty() { "" } else { ", " };
            write!(self.about, "{comma}{}={value:?}", field.name())
        };
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &format_args!("{value}"));
    }
}
