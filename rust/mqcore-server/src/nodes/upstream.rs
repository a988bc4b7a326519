//! The task of one upstream broker: dials, sends, receives confirmations, and reconnects.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use mqcore_broker::model::node::Upstream;
use mqcore_cluster::link::{Link, LinkAction};
use mqcore_session::uplink::{self, LinkInput};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::hub::Hub;
use crate::nodes::config::UpstreamConfig;
use crate::nodes::dial::{self, Accepted, LocalIdentity, Stream};
use crate::nodes::forwarder::{Forwarder, Frames};
use crate::runtime::shutdown::TaskGuard;
use crate::shard::inbox::Urgent;

/// Bytes fetched and written at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Longest wait for the time of a link, which is endless if nothing is due.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// The task of one upstream broker.
pub(crate) struct UpstreamTask {
    pub(crate) index: usize,
    pub(crate) config: UpstreamConfig,
    pub(crate) me: LocalIdentity,
    pub(crate) link: Link,
    pub(crate) forwarder: Forwarder,
    pub(crate) hub: Arc<Hub>,
    /// The origin of the times of `Link`.
    pub(crate) started: Instant,
    pub(crate) _alive: TaskGuard,
}

/// Input and output of a connection.
struct Conversation {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    input: BytesMut,
    output: BytesMut,
    /// The number that the upstream broker expects next; `None`: it has not received one.
    expects: Option<u64>,
    /// Requested, and not arrived yet.
    asked: Option<oneshot::Receiver<Frames>>,
    /// The last answer was empty; new frames will be announced.
    exhausted: bool,
    /// New frames were announced since the last request: an empty answer may be older than that.
    announced: bool,
}

/// An event of the connection.
enum LinkEvent {
    Stopped,
    Read(io::Result<usize>),
    Written(io::Result<usize>),
    Frames(Frames),
    News,
    Time,
}

impl UpstreamTask {
    /// Runs until the server has stopped.
    pub(crate) async fn run(mut self) {
        self.notify_home(None);
        let hub = Arc::clone(&self.hub);
        let mut quiet = false;
        loop {
            match self.link.poll(self.now()) {
                Some(LinkAction::Dial) => {}
                Some(_) => continue,
                None => {
                    let until = self.instant(self.link.next_timeout());
                    tokio::select! {
                        () = hub.shutdown.ended() => return,
                        () = sleep_until(until) => continue,
                    }
                }
            }
            let accepted = tokio::select! {
                () = hub.shutdown.ended() => return,
                accepted = self.dial() => accepted,
            };
            match accepted {
                Ok(accepted) => {
                    quiet = false;
                    if !self.converse(accepted).await {
                        return;
                    }
                }
                Err(why) => {
                    self.link.lost(self.now());
                    // Logged once each time it disconnects, however long that lasts.
                    if !std::mem::replace(&mut quiet, true) {
                        tracing::warn!(
                            upstream = self.config.address,
                            why,
                            "cannot connect to an upstream broker; the broker tries again"
                        );
                    }
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn instant(&self, at: u64) -> Instant {
        after(self.now(), at)
    }

    async fn dial(&mut self) -> Result<Accepted, String> {
        let until = self.instant(self.link.next_timeout());
        let late = |_| "it did not answer in time".to_owned();
        let stream = tokio::time::timeout_at(until, dial::connect(&self.config)).await.map_err(late)??;
        self.link.connected(self.now());
        let until = self.instant(self.link.next_timeout());
        tokio::time::timeout_at(until, dial::greet(stream, &self.config, &self.me)).await.map_err(late)?
    }

    /// Reports the state of this upstream broker to the home shard.
    fn notify_home(&self, accepted: Option<(&str, &str)>) {
        let (id, name) = accepted.unwrap_or_default();
        let upstream = Upstream {
            index: self.index,
            id: id.to_owned(),
            name: if name.is_empty() { self.config.address.clone() } else { name.to_owned() },
            host: self.config.address.clone(),
            connected_since: accepted.map(|_| self.hub.clock.now()),
        };
        self.hub.moved();
        self.hub.shards[0].send_urgent(Urgent::Upstream(Box::new(upstream)));
    }

    /// Runs until the connection ends. False: the server stops.
    async fn converse(&mut self, accepted: Accepted) -> bool {
        let Accepted { stream, input, acceptance: uplink::Acceptance { numbered, id, name } } = accepted;
        self.link.accepted(numbered, self.now());
        self.forwarder.here(self.index, true);
        self.notify_home(Some((&id, &name)));
        tracing::info!(upstream = self.config.address, name, numbered, "connected to an upstream broker");
        let (reader, writer) = split(stream);
        let output = BytesMut::new();
        let mut talk = Conversation {
            reader,
            writer,
            input,
            output,
            expects: None,
            asked: None,
            exhausted: false,
            announced: false,
        };
        let ended = self.talk(&mut talk).await;
        self.forwarder.here(self.index, false);
        self.notify_home(None);
        match ended {
            None => {
                // Sends a last message if that is possible at once. A stopping server does not wait for upstream
                // brokers.
                let mut bytes = Vec::new();
                uplink::encode_terminate(&mut bytes);
                let last = talk.writer.write_all(&bytes);
                let _ = tokio::time::timeout(Duration::from_millis(100), last).await;
                false
            }
            Some(why) => {
                self.link.lost(self.now());
                tracing::warn!(
                    upstream = self.config.address,
                    why,
                    "lost the connection to an upstream broker; the broker reconnects"
                );
                true
            }
        }
    }

    /// Runs until the connection ends, and returns why; `None`: the server stops.
    async fn talk(&mut self, talk: &mut Conversation) -> Option<String> {
        let hub = Arc::clone(&self.hub);
        let shared = Arc::clone(&self.forwarder.shared);
        let news = &shared.news[self.index];
        loop {
            if let Err(why) = self.read_frames(talk) {
                return Some(why);
            }
            while let Some(action) = self.link.poll(self.now()) {
                match action {
                    LinkAction::Ping => talk.output.extend_from_slice(&uplink::PING),
                    LinkAction::Close(reason) => return Some(format!("given up: {reason:?}")),
                    LinkAction::Dial => {}
                }
            }
            let room = talk.output.len() < CHUNK_BYTES && !talk.exhausted && talk.asked.is_none();
            if let Some(after) = self.link.may_send().filter(|_| room) {
                talk.announced = false;
                talk.asked = Some(self.forwarder.next(self.index, after, CHUNK_BYTES));
            }
            let until = self.instant(self.link.next_timeout());
            let Conversation { reader, writer, input, output, asked, .. } = talk;
            let event = tokio::select! {
                () = hub.shutdown.ended() => LinkEvent::Stopped,
                read = reader.read_buf(input) => LinkEvent::Read(read),
                written = writer.write_buf(output), if !output.is_empty() => LinkEvent::Written(written),
                frames = fetched(asked) => LinkEvent::Frames(frames),
                () = news.notified() => LinkEvent::News,
                () = sleep_until(until) => LinkEvent::Time,
            };
            match event {
                LinkEvent::Stopped => return None,
                LinkEvent::Read(Ok(0)) => return Some("the upstream broker closed the connection".into()),
                LinkEvent::Read(Ok(_)) => self.link.heard(self.now()),
                LinkEvent::Written(Ok(_)) => {
                    if talk.output.is_empty()
                        && let Err(error) = talk.writer.flush().await
                    {
                        return Some(error.to_string());
                    }
                }
                LinkEvent::Read(Err(error)) | LinkEvent::Written(Err(error)) => {
                    return Some(error.to_string());
                }
                LinkEvent::Frames(frames) => {
                    talk.asked = None;
                    talk.exhausted = frames.is_empty() && !talk.announced;
                    self.send(talk, frames);
                }
                LinkEvent::News => {
                    talk.announced = true;
                    talk.exhausted = false;
                }
                LinkEvent::Time => {}
            }
        }
    }

    fn send(&mut self, talk: &mut Conversation, frames: Frames) {
        let now = self.now();
        for (number, frame) in frames {
            // The window may be full by now; the rest is fetched again.
            if self.link.may_send().is_none() {
                return;
            }
            if self.link.is_numbered() && talk.expects != Some(number) {
                let mut position = Vec::new();
                uplink::encode_position(number, &mut position);
                talk.output.extend_from_slice(&position);
            }
            talk.expects = Some(number + 1);
            talk.output.extend_from_slice(&frame);
            self.link.sent(number, frame.len() as u32, now);
        }
    }

    /// Handles the frames that the upstream broker sent.
    fn read_frames(&mut self, talk: &mut Conversation) -> Result<(), String> {
        loop {
            let read = uplink::read_input(&talk.input).map_err(|error| error.to_string())?;
            let Some((input, size)) = read else { return Ok(()) };
            talk.input.advance(size);
            let now = self.now();
            let through = match input {
                LinkInput::Ping => {
                    talk.output.extend_from_slice(&uplink::PONG);
                    None
                }
                LinkInput::Pong => self.link.pong(now),
                LinkInput::Terminate => {
                    return Err("the upstream broker is stopping, or cannot take a message now".into());
                }
                LinkInput::Confirm(through) => self.link.confirm(through, now).then_some(through),
                // An original broker may answer messages; the answers are for its own clients, which this broker does
                // not have.
                LinkInput::Other => None,
            };
            if through.is_some() {
                // The confirmed messages may have filled the window.
                talk.exhausted = false;
                self.forwarder.confirm(self.index, self.link.confirmed());
            }
        }
    }
}

/// When the clock of a link, which shows `now` milliseconds, will show `at`.
fn after(now: u64, at: u64) -> Instant {
    Instant::now() + Duration::from_millis(at.saturating_sub(now)).min(WAIT_MAX)
}

/// The requested frames; pending forever if none are requested.
async fn fetched(asked: &mut Option<oneshot::Receiver<Frames>>) -> Frames {
    match asked {
        // The thread ends only with the server.
        Some(answer) => answer.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timeout_takes_as_long_in_the_second_month_as_on_the_first_day() {
        for now in [0, 40 * 86_400_000, 50 * 86_400_000, u64::MAX - 10_000] {
            assert_eq!(after(now, now + 10_000) - Instant::now(), Duration::from_secs(10));
            assert_eq!(after(now, now.saturating_sub(1)), Instant::now());
        }
        assert_eq!(after(0, u64::MAX) - Instant::now(), WAIT_MAX);
    }
}
