//! `GET /handlers/KEY/stack`: what a delivery handler executes at this moment.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::request::{Admin, PathText, SHARD_TIMEOUT, error};
use crate::handler::{StackRequest, ThreadStack};

/// Number of keys that an error lists.
const KEYS_MAX: usize = 20;
/// State of a handler whose threads run no Python code.
const IDLE: &str = "idle";
const RUNNING: &str = "running";
/// Another thread holds the interpreter, so nothing can be seen.
const GIL_HELD: &str = "gil-held";

/// The stacks of a handler.
#[derive(Serialize, ToSchema)]
pub(crate) struct StackAnswer {
    handler: String,
    /// `idle`: its threads run no Python code. `running`: they do. `gil-held`: for a second another thread has held the
    /// interpreter, so nothing can be seen.
    state: &'static str,
    threads: Vec<ThreadStackAnswer>,
}

/// The stack of one thread.
#[derive(Serialize, ToSchema)]
pub(crate) struct ThreadStackAnswer {
    /// `handler`, or `event loop` for the thread that awaits coroutines of handlers.
    thread: String,
    /// The innermost is the last. Empty: no Python code.
    frames: Vec<StackFrameAnswer>,
}

/// One frame of a stack.
#[derive(Serialize, ToSchema)]
pub(crate) struct StackFrameAnswer {
    file: String,
    line: u32,
    function: String,
    /// The source line, if it can be read.
    code: String,
}

#[utoipa::path(
    get,
    path = "/handlers/{key}/stack",
    tag = "health",
    params(("key" = String, Path, description = "The key of the handler")),
    responses(
        (status = 200, description = "The stacks of its threads", body = StackAnswer),
        (status = 404, description = "No such handler", body = ErrorAnswer),
    )
)]
pub(crate) async fn stack(State(admin): State<Admin>, PathText(key): PathText) -> Response {
    let answer = match admin.handlers.stack(&key) {
        StackRequest::Unknown => {
            let known: Vec<_> =
                admin.handlers.loads().into_iter().map(|load| load.key).take(KEYS_MAX).collect();
            let message = match known.as_slice() {
                [] => format!("no handler has the key {key:?}: this broker has no handlers"),
                known => format!("no handler has the key {key:?}; there are {}", known.join(", ")),
            };
            return error(StatusCode::NOT_FOUND, "not-found", &message);
        }
        // An earlier request still waits for the interpreter.
        StackRequest::Busy => None,
        StackRequest::Pending(answer) => Some(answer),
    };
    // An answer that does not come is an answer, too: no thread can run Python code in the meantime.
    let threads = match answer {
        Some(answer) => tokio::time::timeout(SHARD_TIMEOUT, answer).await.ok().and_then(Result::ok),
        None => None,
    };
    let state = match &threads {
        None => GIL_HELD,
        Some(threads) if threads.iter().all(|thread| thread.frames.is_empty()) => IDLE,
        Some(_) => RUNNING,
    };
    let threads = threads.unwrap_or_default().into_iter().map(describe).collect();
    Json(StackAnswer { handler: key, state, threads }).into_response()
}

fn describe(thread: ThreadStack) -> ThreadStackAnswer {
    let frames = thread.frames.into_iter().map(|frame| StackFrameAnswer {
        file: frame.file,
        line: frame.line,
        function: frame.function,
        code: frame.code,
    });
    ThreadStackAnswer { thread: thread.thread, frames: frames.collect() }
}
