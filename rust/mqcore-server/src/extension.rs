//! The interface through which a program handles frames of vendor extensions, in any language.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_session::extension::{ExtensionFailure, VendorFrame};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Handles frames of vendor extensions.
pub trait ExtensionPort: Send + Sync {
    /// The names of its extensions; each begins with `x-`. Called once, at the start.
    fn names(&self) -> Vec<Box<str>>;

    /// Time to handle a frame of this extension, from when all earlier frames of the connection are answered: a frame
    /// that waits for them is not late. No answer within it is a failure.
    fn timeout(&self, name: &str) -> Duration;

    /// Receives frames of one connection in order. Must never block. Dropping a frame is a failure.
    fn handle(&self, frames: Vec<ExtensionFrame>);
}

/// A frame, and how to answer it.
#[derive(Debug)]
pub struct ExtensionFrame {
    /// The client that sent it.
    pub client: Arc<Client>,
    /// The extension.
    pub name: Box<str>,
    /// Its payload.
    pub payload: Box<[u8]>,
    /// Returns the answer. The connection may be closed by then.
    pub reply: ExtensionReply,
}

/// Returns one answer. Dropping it reports that the frame could not be handled.
pub type ExtensionReply = oneshot::Sender<ExtensionAnswer>;

/// The result of handling a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionAnswer {
    /// Send these payloads to the peer, as frames of the same extension.
    Frames(Vec<Vec<u8>>),
    /// Reject the frame, with a reason for the peer. This ends the connection.
    Refused(String),
    /// The handler failed. This ends the connection.
    Failed,
}

/// The answer to a frame, for its session: payloads of frames to send, or why the conversation ends.
type Answer = Result<Vec<Vec<u8>>, ExtensionFailure>;

/// The frames of one connection that wait for answers, in order.
#[derive(Default)]
pub(crate) struct OpenFrames {
    waiting: VecDeque<OpenFrame>,
    /// Runs until the first of them times out.
    alarm: Option<Pin<Box<Sleep>>>,
}

struct OpenFrame {
    id: u8,
    name: Box<str>,
    answer: oneshot::Receiver<ExtensionAnswer>,
    timeout: Duration,
    /// When it times out. `None` while earlier frames have no answer.
    until: Option<Instant>,
}

impl OpenFrames {
    /// Passes frames of a client to the program.
    pub(crate) fn hand_over(
        &mut self,
        frames: Vec<VendorFrame>,
        client: &Arc<Client>,
        port: &dyn ExtensionPort,
    ) {
        let mut handed = Vec::with_capacity(frames.len());
        for VendorFrame { id, name, payload } in frames {
            let (reply, answer) = oneshot::channel();
            let timeout = port.timeout(&name);
            self.waiting.push_back(OpenFrame { id, name: name.clone(), answer, timeout, until: None });
            handed.push(ExtensionFrame { client: Arc::clone(client), name, payload, reply });
        }
        port.handle(handed);
    }

    /// The answer to the first frame, with its extension's number, once it has arrived or timed out.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Option<(u8, Answer)> {
        let first = self.waiting.front_mut()?;
        let text = |why: &str| format!("{}: {why}", first.name);
        let result = match Pin::new(&mut first.answer).poll(context) {
            Poll::Ready(Ok(ExtensionAnswer::Frames(frames))) => Ok(frames),
            Poll::Ready(Ok(ExtensionAnswer::Refused(why))) => Err(ExtensionFailure::Rejected(text(&why))),
            Poll::Ready(Ok(ExtensionAnswer::Failed) | Err(_)) => {
                Err(ExtensionFailure::Failed(text("its handler failed")))
            }
            Poll::Pending => {
                let until = *first.until.get_or_insert_with(|| Instant::now() + first.timeout);
                let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                if alarm.deadline() != until {
                    alarm.as_mut().reset(until);
                }
                if alarm.as_mut().poll(context).is_pending() {
                    return None;
                }
                let late = format!("its handler took longer than {:?}", first.timeout);
                Err(ExtensionFailure::Failed(text(&late)))
            }
        };
        let id = first.id;
        self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.alarm = None;
        }
        Some((id, result))
    }
}
