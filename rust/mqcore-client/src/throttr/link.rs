//! The connection task of a client: connects on demand, writes, reads, and fails lost requests.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use mqcore_wire::throttr::Dialect;
use mqcore_wire::throttr::reply::Expected;
use mqcore_wire::throttr::request::{ThrottrRequest, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::conversation::{Conversation, RequestBatch, Sender};
use super::pushes::Pushes;
use super::{Questions, ThrottrConfig, width};
use crate::dial::{Stream, shut_down};
use crate::error::ClientError;
use crate::random::jittered;
use crate::route::Route;

/// Maximum requests without an answer; at the limit the task accepts no further call.
const OUTSTANDING_MAX: usize = 262_144;
/// Maximum bytes of unwritten output; at the limit the task accepts no further call.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Room for a read in bytes.
const READ_BYTES: usize = 64 * 1024;

/// A call.
#[derive(Debug)]
pub(crate) struct ThrottrCall {
    pub(crate) questions: Questions,
    pub(crate) deadline: Instant,
    pub(crate) answers: Option<Sender>,
}

impl ThrottrCall {
    fn fail(self, error: &ClientError) {
        if let Some(answers) = self.answers {
            // The receiver is gone if the caller gave up.
            drop(answers.send(Err(error.clone())));
        }
    }
}

/// How a connection ended.
enum LinkEnd {
    /// The client is closed, and every request is answered.
    Closed,
    Lost(ClientError),
}

struct ThrottrLink {
    route: Route,
    dialect: Dialect,
    config: ThrottrConfig,
    calls: mpsc::Receiver<ThrottrCall>,
    pushes: Arc<Pushes>,
    /// Subscribed channels, restored first on every new connection.
    wanted: BTreeSet<Box<[u8]>>,
    /// Consecutive failed attempts.
    failures: u32,
    /// Until when calls fail with the error of the last attempt.
    refusing: Option<(Instant, ClientError)>,
    /// When to reconnect without a call.
    again_at: Instant,
}

/// Runs until the client is closed.
pub(crate) async fn run(
    route: Route,
    dialect: Dialect,
    config: ThrottrConfig,
    calls: mpsc::Receiver<ThrottrCall>,
    pushes: Arc<Pushes>,
) {
    let wanted = BTreeSet::new();
    let again_at = Instant::now();
    let link =
        ThrottrLink { route, dialect, config, calls, pushes, wanted, failures: 0, refusing: None, again_at };
    let pushes = link.pushes.clone();
    link.run().await;
    pushes.end();
}

impl ThrottrLink {
    async fn run(mut self) {
        loop {
            let first = tokio::select! {
                call = self.calls.recv() => match call {
                    Some(call) => Some(call),
                    None => return,
                },
                () = tokio::time::sleep_until(self.again_at), if !self.wanted.is_empty() => None,
            };
            if let (Some((until, error)), Some(_)) = (&self.refusing, &first)
                && Instant::now() < *until
            {
                let error = error.clone();
                first.into_iter().for_each(|call| call.fail(&error));
                continue;
            }
            match self.open().await {
                Err(error) => self.failed(first, &error),
                Ok(stream) => {
                    self.pushes.connected();
                    self.refusing = None;
                    if let LinkEnd::Closed = self.converse(stream, first).await {
                        return;
                    }
                    self.again_at = Instant::now() + self.delay();
                }
            }
        }
    }

    fn delay(&self) -> Duration {
        jittered(self.config.backoff.delay(self.failures.max(1)))
    }

    /// Fails the waiting calls with the error.
    fn failed(&mut self, first: Option<ThrottrCall>, error: &ClientError) {
        self.failures = self.failures.saturating_add(1);
        let until = Instant::now() + self.delay();
        self.again_at = until;
        self.refusing = Some((until, error.clone()));
        first.into_iter().for_each(|call| call.fail(error));
        while let Ok(call) = self.calls.try_recv() {
            call.fail(error);
        }
    }

    async fn open(&self) -> Result<Stream, ClientError> {
        let timeout = self.config.connect_timeout;
        let address: Arc<str> = self.route.address().to_string().into();
        let attempt = async {
            let mut stream = self.route.open().await?;
            width::check(&mut stream, self.dialect.width, &address).await?;
            Ok(stream)
        };
        match tokio::time::timeout(timeout, attempt).await {
            Ok(opened) => opened,
            Err(_) => Err(ClientError::ConnectFailed {
                addresses: address.clone(),
                cause: format!("no answer within {timeout:?}").into(),
            }),
        }
    }

    async fn converse(&mut self, stream: Stream, first: Option<ThrottrCall>) -> LinkEnd {
        let mut conversation = Conversation::new(self.dialect);
        let mut output = BytesMut::new();
        self.subscribe_again(&mut conversation, &mut output);
        if let Some(call) = first {
            self.take(call, &mut conversation, &mut output);
        }
        let end = self.exchange(stream, &mut conversation, output).await;
        if let LinkEnd::Lost(error) = &end {
            conversation.fail(error);
        }
        end
    }

    async fn exchange(
        &mut self,
        stream: Stream,
        conversation: &mut Conversation,
        mut output: BytesMut,
    ) -> LinkEnd {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut input = BytesMut::new();
        let mut open = true;
        let mut unflushed = false;
        loop {
            if !open && conversation.outstanding() == 0 && output.is_empty() && !unflushed {
                shut_down(&mut writer).await;
                return LinkEnd::Closed;
            }
            input.reserve(READ_BYTES);
            let has_room = conversation.outstanding() < OUTSTANDING_MAX && output.len() < OUTPUT_BYTES_MAX;
            let deadline = conversation.deadline();
            let due = deadline.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                read = reader.read_buf(&mut input) => match read {
                    Ok(0) => return LinkEnd::Lost(lost("the broker closed the connection")),
                    Err(error) => return LinkEnd::Lost(lost(&error.to_string())),
                    Ok(_) => match conversation.receive(&mut input) {
                        Err(error) => return LinkEnd::Lost(error.into()),
                        Ok(received) => {
                            self.failures = 0;
                            self.wanted.extend(received.subscribed);
                            self.pushes.put(received.pushes);
                        }
                    }
                },
                written = advance(&mut writer, &mut output), if !output.is_empty() || unflushed => match written {
                    Ok(more) => unflushed = more,
                    Err(error) => return LinkEnd::Lost(lost(&error.to_string())),
                },
                call = self.calls.recv(), if open && has_room => match call {
                    None => open = false,
                    Some(call) => {
                        self.take(call, conversation, &mut output);
                        // Takes all waiting calls into the same write.
                        while conversation.outstanding() < OUTSTANDING_MAX && output.len() < OUTPUT_BYTES_MAX {
                            let Ok(call) = self.calls.try_recv() else { break };
                            self.take(call, conversation, &mut output);
                        }
                    }
                },
                () = tokio::time::sleep_until(due), if deadline.is_some() => {
                    return LinkEnd::Lost(lost("an answer timed out"));
                }
            }
        }
    }

    fn take(&mut self, call: ThrottrCall, conversation: &mut Conversation, output: &mut BytesMut) {
        let ThrottrCall { questions, deadline, answers } = call;
        for channel in &questions.unsubscribes {
            self.wanted.remove(channel);
        }
        output.extend_from_slice(&questions.bytes);
        let answered = Vec::with_capacity(questions.expected.len());
        let (expected, subscribes) = (questions.expected, questions.subscribes);
        conversation.asked(RequestBatch { expected, answered, answers, deadline, subscribes });
    }

    fn subscribe_again(&self, conversation: &mut Conversation, output: &mut BytesMut) {
        let mut bytes = Vec::new();
        let encoded = self.wanted.iter().filter(|channel| {
            let request = ThrottrRequest::Subscribe { channel };
            encode(&request, self.dialect, &mut bytes).is_ok()
        });
        let expected = encoded.map(|_| Expected::Status).collect::<VecDeque<_>>();
        if expected.is_empty() {
            return;
        }
        output.extend_from_slice(&bytes);
        conversation.asked(RequestBatch {
            expected,
            answered: Vec::new(),
            answers: None,
            deadline: Instant::now() + self.config.request_timeout,
            subscribes: Vec::new(),
        });
    }
}

/// Writes output, or flushes if there is none. True if a flush is needed. Cancel-safe.
async fn advance(writer: &mut WriteHalf<Stream>, output: &mut BytesMut) -> io::Result<bool> {
    if output.is_empty() {
        writer.flush().await?;
        Ok(false)
    } else {
        writer.write_buf(output).await?;
        Ok(true)
    }
}

fn lost(cause: &str) -> ClientError {
    ClientError::ConnectionLost { cause: cause.into(), sent: true }
}
