//! The interface through which the program handles frames of vendor extensions, in whatever language.

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

/// Who handles the frames of vendors' extensions.
pub trait ExtensionPort: Send + Sync {
    /// The extensions that it handles, each a name that begins with `x-`. Asked for once, at the start.
    fn names(&self) -> Vec<Box<str>>;

    /// How long it may take over a frame of this extension. No answer by then is a failure.
    fn timeout(&self, name: &str) -> Duration;

    /// Takes frames of one connection, in their order. Must never block. A frame that is dropped has failed.
    fn handle(&self, frames: Vec<ExtensionFrame>);
}

/// A frame, and where its answer goes.
#[derive(Debug)]
pub struct ExtensionFrame {
    /// Whose it is.
    pub client: Arc<Client>,
    /// The extension.
    pub name: Box<str>,
    /// What it says.
    pub payload: Box<[u8]>,
    /// The way back. Nobody may be there any more.
    pub reply: ExtensionReply,
}

/// The way back for one answer. Dropped, it says that the frame could not be handled.
pub type ExtensionReply = oneshot::Sender<ExtensionAnswer>;

/// What becomes of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionAnswer {
    /// The peer gets these frames of the same extension.
    Frames(Vec<Vec<u8>>),
    /// The peer may not say this; why, for the peer. It ends the conversation.
    Refused(String),
    /// The handler failed. It ends the conversation.
    Failed,
}

/// The answer to a frame, for its session: the payloads of frames to send, or why the conversation ends.
type Answer = Result<Vec<Vec<u8>>, ExtensionFailure>;

/// The frames of one connection that wait for their answers, in their order.
#[derive(Default)]
pub(crate) struct OpenFrames {
    waiting: VecDeque<Waiting>,
    /// Until the first of them is late.
    alarm: Option<Pin<Box<Sleep>>>,
}

struct Waiting {
    id: u8,
    name: Box<str>,
    answer: oneshot::Receiver<ExtensionAnswer>,
    until: Instant,
    timeout: Duration,
}

impl OpenFrames {
    /// Hands frames of a client over.
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
            let until = Instant::now() + timeout;
            self.waiting.push_back(Waiting { id, name: name.clone(), answer, until, timeout });
            handed.push(ExtensionFrame { client: Arc::clone(client), name, payload, reply });
        }
        port.handle(handed);
    }

    /// The answer to the first frame, with its extension's number, once it is there or late.
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
                let until = first.until;
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
