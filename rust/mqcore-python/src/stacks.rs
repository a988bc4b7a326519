//! Looks at what a handler executes.
//!
//! A thread of its own looks, because it may wait for the interpreter for as long as a handler holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mqcore_server::handler::{StackFrame, StackRequest, ThreadStack};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::dispatcher::Dispatcher;

/// One frame as Python returns it: file, line, function, source line.
type Frame = (String, u32, String, String);

/// Allows one look at a time.
#[derive(Default)]
pub(crate) struct Stacks {
    is_looking: Arc<AtomicBool>,
}

impl Stacks {
    /// Begins to look at a handler.
    pub(crate) fn look(&self, handler: Arc<Dispatcher>) -> StackRequest {
        if self.is_looking.swap(true, Ordering::AcqRel) {
            return StackRequest::Busy;
        }
        let (reply, answer) = oneshot::channel();
        let is_looking = Arc::clone(&self.is_looking);
        let look = move || {
            // `None`: the interpreter is ending.
            let seen = Python::try_attach(|py| seen(py, &handler));
            is_looking.store(false, Ordering::Release);
            if let Some(Ok(threads)) = seen {
                // The caller may no longer wait.
                let _ = reply.send(threads);
            }
        };
        if std::thread::Builder::new().name("mqcore-stack".into()).spawn(look).is_err() {
            self.is_looking.store(false, Ordering::Release);
            return StackRequest::Busy;
        }
        StackRequest::Pending(answer)
    }
}

/// The identifier of this thread in Python; 0: it is unknown.
pub(crate) fn thread_number(py: Python<'_>) -> u64 {
    let number = py.import("threading").and_then(|threading| threading.call_method0("get_ident"));
    number.and_then(|number| number.extract()).unwrap_or(0)
}

fn seen(py: Python<'_>, handler: &Dispatcher) -> PyResult<Vec<ThreadStack>> {
    let of_handler = py.import("mqcore._stacks")?.getattr("of_handler")?;
    let threads: Vec<(String, Vec<Frame>)> =
        of_handler.call1((handler.python_thread(), handler.loop_thread()))?.extract()?;
    let frame = |(file, line, function, code)| StackFrame { file, line, function, code };
    let stack = |(thread, frames): (String, Vec<Frame>)| ThreadStack {
        thread,
        frames: frames.into_iter().map(frame).collect(),
    };
    Ok(threads.into_iter().map(stack).collect())
}
