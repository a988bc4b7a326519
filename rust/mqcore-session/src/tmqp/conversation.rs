//! One conversation: input from the peer, events from the broker.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::{self, Frame, Kind};

use super::exchange::{Exchange, Next};
use super::keep_alive::{Due, KeepAlive};
use super::passing::Greeting;
use super::{handshake, lists, options, pending, publish};
use crate::session::{Session, SessionConfig, SessionError};

/// Maximum unanswered operations and pulls of one session; further ones are rejected as busy.
pub const OPEN_REQUESTS_MAX: usize = pending::OPEN_MAX;
/// At this many unanswered lists a session reads no further frames.
pub const OPEN_LISTS_MAX: usize = lists::OPEN_LISTS_MAX;
/// Maximum bytes of the first frame, including its body.
pub const HELLO_BYTES_MAX: u64 = handshake::HELLO_BYTES_MAX;
/// Maximum bytes of the JSON in an operation.
pub const OPTIONS_BYTES_MAX: usize = options::OPTIONS_BYTES_MAX;
/// Maximum copies that the CC headers of one message may ask for.
pub const COPIES_MAX: usize = publish::COPIES_MAX;

/// The stage of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The eight bytes of the protocol have not arrived yet.
    Preamble,
    /// The preamble was echoed; the first frame has not arrived yet.
    Hello,
    /// The broker decides whether to accept the peer; the session reads nothing until it answers.
    Introduced,
    /// The peer is a client.
    Open,
    /// The session reads and writes nothing any more.
    Over,
}

/// One TMQP/2.0 conversation.
#[derive(Debug)]
pub struct TmqpSession {
    config: SessionConfig,
    stage: Stage,
    opened_at: Timestamp,
    client: Option<Arc<Client>>,
    keep_alive: KeepAlive,
    exchange: Exchange,
    /// The numbering that the peer announced, if it is another broker.
    greeting: Option<Box<Greeting>>,
}

impl TmqpSession {
    /// The session of a connection that was opened just now.
    #[must_use]
    pub fn new(config: SessionConfig, now: Timestamp) -> Self {
        Self {
            stage: Stage::Preamble,
            opened_at: now,
            client: None,
            keep_alive: KeepAlive::new(config.ping_interval, config.pong_timeout, now),
            exchange: Exchange::new(&config, now),
            greeting: None,
            config,
        }
    }

    /// Reads one unit, the preamble or a frame, from the front of `input`; `None` if there is nothing to read now.
    #[inline]
    fn read(
        &mut self,
        input: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<Option<usize>, SessionError> {
        match self.stage {
            // A flood of lists waits in the buffers of the connection.
            Stage::Open if self.exchange.pending.has_too_many_lists() => Ok(None),
            Stage::Open => self.read_frame(input, commands, output),
            Stage::Preamble => self.read_preamble(input, output),
            Stage::Hello => self.read_hello(input, commands, output),
            Stage::Introduced | Stage::Over => Ok(None),
        }
    }

    fn read_preamble(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Option<usize>, SessionError> {
        let Some(preamble) = handshake::preamble(input)? else { return Ok(None) };
        output.extend_from_slice(&preamble);
        self.stage = Stage::Hello;
        Ok(Some(preamble.len()))
    }

    fn read_hello(
        &mut self,
        input: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<Option<usize>, SessionError> {
        let first = handshake::first_frame(input, &self.config);
        if let Err(SessionError::Wire(error @ WireError::TooLarge { .. })) = &first {
            let rejection = Rejection::new(RejectionKind::LimitExceeded, error.to_string());
            handshake::refuse(&self.exchange.fresh_id(), &rejection, output);
        }
        let Some((frame, size)) = first? else { return Ok(None) };
        match handshake::introduction(&frame, self.config.node.as_deref(), &self.config.peer) {
            Ok((introduction, greeting)) => {
                self.greeting = greeting.map(Box::new);
                commands.push(Command::Introduce(Box::new(introduction)));
            }
            Err(rejection) => {
                handshake::refuse(&self.exchange.fresh_id(), &rejection, output);
                return Err(SessionError::Misbehaved(rejection.reason));
            }
        }
        self.stage = Stage::Introduced;
        Ok(Some(size))
    }

    #[inline]
    fn read_frame(
        &mut self,
        input: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<Option<usize>, SessionError> {
        let Some((frame, size)) = tmqp::decode(input, &self.config.limits)? else { return Ok(None) };
        let Some(client) = &self.client else { return Ok(None) };
        match self.exchange.frame(client, frame, &input[..size], commands, output)? {
            Next::Continue => {}
            Next::Close => self.stage = Stage::Over,
        }
        Ok(Some(size))
    }

    fn welcomed(&mut self, client: Arc<Client>, now: Timestamp, output: &mut Vec<u8>) {
        let numbered_by = match self.greeting.as_deref() {
            Some(Greeting { epoch: Some(_) }) => self.config.node.as_deref(),
            _ => None,
        };
        handshake::accept(&self.exchange.fresh_id(), &client, numbered_by, output);
        if let Some(greeting) = &self.greeting {
            self.exchange.pass_on(&client, greeting);
        }
        self.client = Some(client);
        self.keep_alive.start(now);
        self.stage = Stage::Open;
    }

    fn handshake_deadline(&self) -> Timestamp {
        self.opened_at.after(self.config.handshake_timeout)
    }

    fn keep_alive_timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match self.keep_alive.due(now) {
            Due::Nothing => Ok(()),
            Due::Ping => {
                output.extend_from_slice(&tmqp::PING);
                Ok(())
            }
            Due::GiveUp => Err(SessionError::PingTimeout(self.config.pong_timeout)),
        }
    }

    /// Makes sure that a session that failed stays silent, should it be called again.
    fn end_on_error<T>(&mut self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        if result.is_err() {
            self.stage = Stage::Over;
        }
        result
    }
}

impl Session for TmqpSession {
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.keep_alive.offered(input.len(), now);
        let mut consumed = 0;
        loop {
            let result = self.read(&input[consumed..], commands, output);
            match self.end_on_error(result)? {
                Some(size) => consumed += size,
                None => break,
            }
        }
        self.exchange.answer_node(output);
        self.keep_alive.left(input.len() - consumed);
        Ok(consumed)
    }

    fn needed(&self, input: &[u8]) -> usize {
        let needed = match self.stage {
            Stage::Preamble => Ok(tmqp::PREAMBLE.len()),
            Stage::Hello => tmqp::needed(input, &handshake::limits(&self.config)),
            // Frames behind the Hello wait for the broker's answer, and no more of them is read.
            Stage::Introduced => Ok(input.len()),
            // An invalid frame behind too many lists waits like a valid one.
            Stage::Open if self.exchange.pending.has_too_many_lists() => {
                Ok(tmqp::needed(input, &self.config.limits).unwrap_or(input.len()))
            }
            Stage::Open => tmqp::needed(input, &self.config.limits),
            Stage::Over => Ok(0),
        };
        // A frame that is too large has no size: `receive` reports why.
        needed.unwrap_or(0)
    }

    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match (event, self.stage) {
            (Event::Welcomed(client), Stage::Introduced) => self.welcomed(client, now, output),
            (Event::Refused(rejection), Stage::Introduced) => {
                handshake::refuse(&self.exchange.fresh_id(), &rejection, output);
                self.stage = Stage::Over;
            }
            (event, Stage::Open) => {
                if let Some(client) = &self.client
                    && !self.exchange.event(client, event, output)
                {
                    self.shutdown(output);
                }
            }
            // There is no client that the event could concern.
            (_, _) => {}
        }
        Ok(())
    }

    fn take_commands(&mut self) -> Vec<Command> {
        self.exchange.pending.take_commands()
    }

    fn is_node(&self) -> bool {
        self.exchange.is_node()
    }

    fn ignored_frames(&self) -> u64 {
        self.exchange.ignored_frames()
    }

    fn next_timeout(&self) -> Timestamp {
        match self.stage {
            Stage::Preamble | Stage::Hello | Stage::Introduced => self.handshake_deadline(),
            Stage::Open => self.keep_alive.deadline(),
            Stage::Over => Timestamp::NEVER,
        }
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        let result = match self.stage {
            Stage::Preamble | Stage::Hello | Stage::Introduced if now >= self.handshake_deadline() => {
                Err(SessionError::HandshakeTimeout(self.config.handshake_timeout))
            }
            Stage::Open => self.keep_alive_timeout(now, output),
            _ => Ok(()),
        };
        self.end_on_error(result)
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        // Before the echo the peer does not expect frames.
        if matches!(self.stage, Stage::Hello | Stage::Introduced | Stage::Open) {
            tmqp::encode(&Frame::new(Kind::TERMINATE), output);
        }
        self.stage = Stage::Over;
    }

    fn client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    fn is_closing(&self) -> bool {
        self.stage == Stage::Over
    }
}
