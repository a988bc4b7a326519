//! The connection task of a client: connects, reads, writes, sends heartbeats and reconnects.
//!
//! It runs no code of the program, so a busy program, or one that holds Python's lock, delays neither a PONG nor a
//! reconnect.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::sync::oneshot;

use crate::config::Transport;
use crate::confirmations::WakeList;
use crate::conversation::{FrameEvent, PullAnswer, RequestAnswer};
use crate::counters::ClientCounters;
use crate::dial::{Endpoint, OpenConnection, Stream, dial, shut_down};
use crate::error::ClientError;
use crate::mailbox::{Mailbox, QueuedMessage, lock};
use crate::post::Post;
use crate::random::{jittered, random_u64};
use crate::received::Received;
use crate::route::{Route, Routes};
use crate::shared::{Core, SharedClient};
use crate::socket_writer::SocketWriter;
use crate::state::ClientState;
use crate::waiter::Waiter;

/// Minimum room for a read in bytes.
const READ_BYTES: usize = 64 * 1024;
/// A read buffer that grew beyond this size is freed once it is empty.
const READ_BUFFER_KEPT_BYTES: usize = 1024 * 1024;
/// After a connection of this duration, the backoff starts with its shortest delay again.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// Delay before requesting an intent again that the broker refused after a reconnect.
const RESTORE_AFTER: Duration = Duration::from_secs(1);

/// Why the conversation on one connection ended.
enum ConnectionEnd {
    Lost(Arc<str>),
    /// The client is closed and all output is written.
    Done,
}

/// Starts the connection task. Returns when the first connection is established, or the error if there is none.
pub(crate) async fn start(shared: Arc<SharedClient>, transport: Transport) -> Result<(), ClientError> {
    let routes =
        Routes::prepare(&transport, &shared.config).inspect_err(|error| shared.ended(&error.to_string()))?;
    let (first, answer) = oneshot::channel();
    tokio::spawn(run(shared, routes, first));
    answer.await.unwrap_or(Err(ClientError::Closed))
}

async fn run(shared: Arc<SharedClient>, routes: Routes, first: oneshot::Sender<Result<(), ClientError>>) {
    let link = tokio::select! {
        link = first_link(&shared, &routes) => link,
        () = closed_or_abandoned(&shared, &first) => Err(ClientError::Closed),
    };
    let link = match link {
        Ok(link) => link,
        Err(error) => {
            shared.ended(&error.to_string());
            // The receiver is gone if the caller was cancelled.
            drop(first.send(Err(error)));
            return;
        }
    };
    let stood_since = shared.opened(&link);
    drop(first.send(Ok(())));
    let cause = keep_connected(&shared, &routes, link, stood_since).await;
    shared.ended(&cause);
}

/// Returns when the client closes, or the caller stops waiting for the first connection.
async fn closed_or_abandoned(shared: &SharedClient, first: &oneshot::Sender<Result<(), ClientError>>) {
    tokio::select! {
        () = shared.closing() => {}
        () = async { while !first.is_closed() { tokio::time::sleep(Duration::from_millis(50)).await } } => {}
    }
}

/// Tries every address, and repeats that until the config's `patience` has passed.
async fn first_link(shared: &SharedClient, routes: &Routes) -> Result<OpenConnection, ClientError> {
    let deadline = Instant::now() + shared.config.patience;
    let mut attempt = 1;
    loop {
        let error = match dial_all(shared, routes).await {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        let delay = jittered(shared.config.backoff.delay(attempt));
        if Instant::now() + delay > deadline || matches!(error, ClientError::InvalidArgument { .. }) {
            return Err(error);
        }
        tokio::time::sleep(delay).await;
        attempt += 1;
        shared.set_state(ClientState::Connecting { attempt });
    }
}

/// Tries each address once, starting with a random one.
async fn dial_all(shared: &SharedClient, routes: &Routes) -> Result<OpenConnection, ClientError> {
    let config = &shared.config;
    match routes {
        Routes::Local(factory) => dial(Endpoint::Local(factory), config).await,
        Routes::Remote(routes) => {
            let start = random_u64() as usize % routes.len().max(1);
            let mut last = ClientError::invalid("addresses", "the list is empty");
            for route in routes[start..].iter().chain(&routes[..start]) {
                match dial(Endpoint::Remote(route), config).await {
                    Ok(link) => return Ok(link),
                    Err(error) => last = error,
                }
            }
            Err(of_all(last, routes))
        }
    }
}

/// The same error with all addresses that were tried.
fn of_all(error: ClientError, routes: &[Route]) -> ClientError {
    match error {
        ClientError::ConnectFailed { cause, .. } => {
            let addresses: Vec<String> = routes.iter().map(|route| route.address().to_string()).collect();
            ClientError::ConnectFailed { addresses: addresses.join(", ").into(), cause }
        }
        other => other,
    }
}

/// Runs connections, and reconnects after every loss until the client closes or the attempts are used up. Returns the
/// reason.
async fn keep_connected(
    shared: &Arc<SharedClient>,
    routes: &Routes,
    mut link: OpenConnection,
    mut stood_since: Instant,
) -> Arc<str> {
    let mut attempt = 0;
    loop {
        let mut cause = match converse(shared, link).await {
            ConnectionEnd::Done => return "closed by the program".into(),
            ConnectionEnd::Lost(cause) => cause,
        };
        shared.lost(&cause);
        if stood_since.elapsed() >= GOOD_AFTER {
            attempt = 0;
        }
        link = loop {
            attempt += 1;
            if shared.config.backoff.attempts.is_some_and(|most| attempt > most) {
                tracing::error!(%cause, attempts = attempt - 1, "giving up reconnecting: attempt limit reached");
                return cause;
            }
            let delay = jittered(shared.config.backoff.delay(attempt));
            tracing::warn!(%cause, attempt, ?delay, "connection lost; reconnecting");
            shared.set_state(ClientState::Waiting { cause: cause.clone(), attempt, retry_in: delay });
            let next = tokio::select! {
                () = tokio::time::sleep(delay) => {
                    shared.set_state(ClientState::Connecting { attempt });
                    tokio::select! {
                        next = dial_all(shared, routes) => next,
                        () = shared.closing() => return "closed by the program".into(),
                    }
                }
                () = shared.closing() => return "closed by the program".into(),
            };
            match next {
                Ok(link) => break link,
                Err(error) => cause = error.to_string().into(),
            }
        };
        tracing::info!(address = %link.address, attempt, "reconnected");
        stood_since = shared.opened(&link);
    }
}

/// Deadlines of one connection.
struct Timers {
    heard: Instant,
    spoke: Instant,
    /// Deadline for data after a ping.
    pong_until: Option<Instant>,
    /// When to request refused intents again.
    restore_at: Option<Instant>,
    /// When to look for messages that wait too long for the program.
    check_at: Option<Instant>,
}

impl Timers {
    fn new() -> Self {
        let now = Instant::now();
        Self { heard: now, spoke: now, pong_until: None, restore_at: None, check_at: None }
    }

    /// Looks for messages that wait too long, at this time at the latest.
    fn check(&mut self, at: Option<Instant>) {
        self.check_at = [self.check_at, at].into_iter().flatten().min();
    }

    /// The next deadline. Without `reading`, silence of the broker has no meaning.
    fn next(
        &self,
        shared: &SharedClient,
        reading: bool,
        closing: Option<Instant>,
        expiry: Option<Instant>,
    ) -> Instant {
        let since = if reading { self.heard.min(self.spoke) } else { self.spoke };
        let ping = since + shared.config.ping_interval;
        let pong = if reading { self.pong_until } else { None };
        // Only one ping is outstanding.
        let ping = if pong.is_some() { None } else { Some(ping) };
        [ping, pong, self.restore_at, self.check_at, closing, expiry]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.spoke)
    }
}

async fn converse(shared: &Arc<SharedClient>, link: OpenConnection) -> ConnectionEnd {
    let OpenConnection { stream, mut input, .. } = link;
    let encrypted = matches!(stream, Stream::Tls(_));
    let (mut reader, mut writer) = tokio::io::split::<Stream>(stream);
    let (mut bytes, mut written) = (Vec::new(), 0);
    // TLS may still buffer written data.
    let mut unflushed = false;
    // When to take output that comes without a wake-up.
    let mut linger_until = None;
    let mut timers = Timers::new();
    if let Err(cause) = shared.receive(&mut input, &mut timers) {
        return ConnectionEnd::Lost(cause);
    }
    loop {
        if written == bytes.len() {
            written = 0;
            linger_until = shared.take_output(&mut bytes, linger_until);
        }
        let all_written = bytes.is_empty() && !unflushed;
        let (reading, closing, expiry) = match shared.next_step(all_written) {
            NextStep::Finished => {
                // Behind unwritten data, the end of TLS waits until the broker reads.
                if all_written {
                    shut_down(&mut writer).await;
                }
                return ConnectionEnd::Done;
            }
            NextStep::Continues { reading, closing, expiry } => (reading, closing, expiry),
        };
        let next = timers.next(shared, reading, closing, expiry);
        // New output waits until this write is complete.
        let next = if bytes.is_empty() { linger_until.map_or(next, |until| next.min(until)) } else { next };
        tokio::select! {
            read = reader.read_buf(&mut input), if reading => {
                match read {
                    Ok(0) => return ConnectionEnd::Lost("the broker closed the connection".into()),
                    // The error of TLS for an end without close_notify.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        return ConnectionEnd::Lost("the broker closed the connection without a TLS close_notify".into());
                    }
                    Err(error) => return ConnectionEnd::Lost(error.to_string().into()),
                    Ok(_) => {}
                }
                if let Err(cause) = shared.receive(&mut input, &mut timers) {
                    return ConnectionEnd::Lost(cause);
                }
            }
            wrote = write_or_flush(&mut writer, &bytes[written..]), if unflushed || written < bytes.len() => {
                match wrote {
                    Ok(count) => {
                        unflushed = encrypted && count > 0;
                        written += count;
                    }
                    Err(error) => return ConnectionEnd::Lost(error.to_string().into()),
                }
                timers.spoke = Instant::now();
            }
            () = shared.gauge.wake.notified() => {}
            () = tokio::time::sleep_until(next) => {
                if let Some(cause) = shared.keep_alive(&mut timers, reading) {
                    return ConnectionEnd::Lost(cause);
                }
            }
        }
    }
}

/// Writes some of `bytes`; when there is nothing to write, sees to it that what was written leaves.
async fn write_or_flush(writer: &mut WriteHalf<Stream>, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    writer.write(bytes).await
}

/// The next step of the connection task.
enum NextStep {
    /// The client closes, with nothing left to write or to wait for.
    Finished,
    Continues {
        reading: bool,
        closing: Option<Instant>,
        /// When to look for late confirmations.
        expiry: Option<Instant>,
    },
}

impl SharedClient {
    pub(crate) fn set_state(&self, state: ClientState) {
        self.state.send_replace(state);
    }

    /// Starts a connection: first restores intents, then wakes waiting calls.
    fn opened(&self, link: &OpenConnection) -> Instant {
        let mut core = lock(&self.core);
        core.epoch += 1;
        core.conversation.opened(&link.greeted);
        core.socket = SocketWriter::of(&link.stream);
        drop(core);
        ClientCounters::add(&self.counters.connects, 1);
        self.set_state(ClientState::Connected {
            address: link.address.clone(),
            client_id: link.greeted.own_id().into(),
        });
        self.room.notify_waiters();
        Instant::now()
    }

    /// Ends a connection: fails pending calls, and drops messages that can no longer be settled. The broker redelivers
    /// those.
    fn lost(&self, cause: &Arc<str>) {
        let now = Instant::now();
        let mut core = lock(&self.core);
        core.cause = cause.clone();
        let epoch = core.epoch;
        (core.writing, core.unannounced, core.deferrable, core.lingers) = (false, false, false, false);
        (core.socket, core.expire_at) = (None, None);
        let waiters = core.conversation.lost();
        core.forget_leaving();
        let is_stale = |queued: &QueuedMessage| queued.epoch == epoch && queued.message.wants_acknowledge();
        let discarded: usize = core.mailboxes().map(|mailbox| mailbox.extract(is_stale).len()).sum();
        let mut list = WakeList::default();
        // Under the lock, so that a caller that is cancelled finds its request or its answer.
        for (waiter, partial) in waiters {
            waiter.settle(outcome_of_loss(partial, cause), now, &mut list);
        }
        drop(core);
        ClientCounters::add(&self.counters.stale_discarded, discarded as u64);
        list.wake();
        self.room.notify_waiters();
        self.written.notify_waiters();
    }

    /// Ends the client after its last connection.
    fn ended(&self, cause: &str) {
        let cause: Arc<str> = cause.into();
        self.lost(&cause);
        let mut core = lock(&self.core);
        core.ended = true;
        let mailboxes: Vec<Arc<Mailbox>> = core.mailboxes().cloned().collect();
        drop(core);
        for mailbox in mailboxes {
            mailbox.close();
        }
        self.set_state(ClientState::Closed { cause });
        self.room.notify_waiters();
    }

    /// Waits until the program closes the client.
    async fn closing(&self) {
        loop {
            if lock(&self.core).closing.is_some() {
                return;
            }
            self.gauge.wake.notified().await;
        }
    }

    fn next_step(&self, nothing_to_write: bool) -> NextStep {
        let core = lock(&self.core);
        let (outstanding, expiry) = (core.conversation.outstanding(), core.expire_at);
        let Some(until) = core.closing else {
            // The bytes of a closed consumer are released only when the broker's answer is read.
            let reading = core.is_leaving() || self.gauge.may_read();
            return NextStep::Continues { reading, closing: None, expiry };
        };
        let late = Instant::now() >= until;
        if late || (nothing_to_write && outstanding == 0) {
            return NextStep::Finished;
        }
        NextStep::Continues { reading: true, closing: Some(until), expiry }
    }

    /// Pings a silent broker, detects a dead one, and requests refused intents again.
    fn keep_alive(&self, timers: &mut Timers, reading: bool) -> Option<Arc<str>> {
        let now = Instant::now();
        if timers.restore_at.is_some_and(|at| at <= now) {
            timers.restore_at = None;
            lock(&self.core).conversation.restore();
        }
        if timers.check_at.is_some_and(|at| at <= now) {
            timers.check_at = lock(&self.core).check_waiting(now);
        }
        if reading && timers.pong_until.is_some_and(|until| until <= now) {
            let silence = now - timers.heard;
            return Some(format!("no heartbeat from the broker for {silence:?}").into());
        }
        self.expire_confirmations(now);
        let since = if reading { timers.heard.min(timers.spoke) } else { timers.spoke };
        let waits = reading && timers.pong_until.is_some();
        if now - since >= self.config.ping_interval && !waits {
            let answered = lock(&self.core).conversation.ping();
            timers.spoke = now;
            if reading && answered {
                timers.pong_until = Some(now + self.config.pong_timeout);
            }
        }
        None
    }

    /// Handles every complete frame in the buffer, and makes room for more.
    fn receive(&self, input: &mut BytesMut, timers: &mut Timers) -> Result<(), Arc<str>> {
        let limits = self.config.limits;
        let mut at = 0;
        let now = Instant::now();
        let mut post = Post::default();
        let mut core = lock(&self.core);
        let end = loop {
            match core.conversation.receive(&input[at..], &limits) {
                Ok(None) => break Ok(()),
                Err(cause) => break Err(cause),
                Ok(Some((arrival, size))) => {
                    at += size;
                    if let Err(cause) = self.arrived(&mut core, arrival, now, timers, &mut post) {
                        break Err(cause);
                    }
                }
            }
        };
        let needed = core.conversation.needed(&input[at..], &limits);
        drop(core);
        timers.check(post.check_at);
        post.deliver();
        if at > 0 {
            self.room.notify_waiters();
        }
        (timers.heard, timers.pong_until) = (now, None);
        input.advance(at);
        make_room(input, needed);
        end
    }

    fn arrived(
        &self,
        core: &mut Core,
        arrival: FrameEvent<Waiter>,
        now: Instant,
        timers: &mut Timers,
        post: &mut Post,
    ) -> Result<(), Arc<str>> {
        match arrival {
            FrameEvent::Nothing => {}
            FrameEvent::Settled(waiter, result) => waiter.settle(result, now, &mut post.confirmations),
            FrameEvent::SettledMany(all) => {
                for (waiter, result) in all {
                    waiter.settle(result, now, &mut post.confirmations);
                }
            }
            FrameEvent::Joined { queue, timeout, by_queue, settled } => {
                core.joined(&queue, timeout, by_queue);
                timers.check(timeout.map(|timeout| now + timeout / 3));
                if let Some((waiter, result)) = settled {
                    waiter.settle(result, now, &mut post.confirmations);
                }
            }
            FrameEvent::Left(queue) => core.left(&queue),
            FrameEvent::Delivery(message) => {
                let topics = core.topic_mailboxes(message.target());
                if !topics.is_empty() {
                    post.put_all(topics, core, &message, now);
                    return Ok(());
                }
                let (channel, queue) = (message.target(), message.content_type());
                match core.taker(channel, queue).or_else(|| core.leaving(channel, queue).cloned()) {
                    Some(mailbox) => post.put(mailbox, core, message, now),
                    None => self.unclaimed(core, &message),
                }
            }
            FrameEvent::Pulled(id, message) => {
                if let Some(mailbox) = core.conversation.pull_mailbox(&id) {
                    post.put(mailbox, core, message, now);
                }
            }
            FrameEvent::Direct(inbox, message) => match core.inbox(inbox).clone() {
                Some(mailbox) => post.put(mailbox, core, message, now),
                None => ClientCounters::add(&self.counters.unclaimed_direct, 1),
            },
            FrameEvent::Event(event) => {
                let streams = core.event_streams(&event).cloned().collect();
                post.put_all(streams, core, &event, now);
            }
            FrameEvent::Extension(frame) => {
                let streams: Vec<Arc<Mailbox>> = core.extension_streams(frame.target()).cloned().collect();
                if streams.is_empty() {
                    ClientCounters::add(&self.counters.unclaimed, 1);
                }
                post.put_all(streams, core, &frame, now);
            }
            FrameEvent::NotRestored(target, error) => {
                tracing::warn!(%target, %error, "the broker refused to restore this subscription; retrying soon");
                timers.restore_at = Some(now + RESTORE_AFTER);
            }
            FrameEvent::Terminated => return Err("the broker ended the conversation".into()),
            FrameEvent::Refused(why) => {
                return Err(format!("the broker ended the conversation: {why}").into());
            }
        }
        Ok(())
    }

    /// Handles a message of a queue without a consumer here, and returns it: its queue was just left, or its channel is
    /// joined for another queue and the broker delivers all queues of a channel.
    fn unclaimed(&self, core: &mut Core, message: &Received) {
        ClientCounters::add(&self.counters.unclaimed, 1);
        let (channel, queue) = (message.target(), message.content_type());
        core.conversation.leave_unused(message);
        if message.wants_acknowledge() {
            core.conversation.give_back(message);
        }
        if core.conversation.has_joined(channel) && core.note_unclaimed(channel, queue) {
            let channel = String::from_utf8_lossy(channel);
            tracing::warn!(
                %channel, queue,
                "received messages of a queue without a consumer in this client; its channel is joined for another queue"
            );
        }
    }
}

/// Returns the messages of a pull that the broker will not redeliver; every other request fails.
fn outcome_of_loss(partial: Option<PullAnswer>, cause: &Arc<str>) -> Result<RequestAnswer, ClientError> {
    match partial {
        Some(mut pull) => {
            pull.messages.retain(|message| !message.wants_acknowledge());
            if pull.messages.is_empty() { Err(lost(cause)) } else { Ok(RequestAnswer::Pulled(pull)) }
        }
        None => Err(lost(cause)),
    }
}

fn lost(cause: &Arc<str>) -> ClientError {
    ClientError::ConnectionLost { cause: cause.clone(), sent: true }
}

/// Makes room for the next read: for the rest of a large frame, but at most doubling the buffer, so that a false length
/// alone allocates nothing.
fn make_room(input: &mut BytesMut, needed: usize) {
    if input.is_empty() && input.capacity() > READ_BUFFER_KEPT_BYTES {
        *input = BytesMut::new();
    }
    let missing = needed.saturating_sub(input.len());
    input.reserve(missing.clamp(READ_BYTES, READ_BYTES.max(input.len())));
}

impl SharedClient {
    /// Starts closing: in-flight work may finish until the drain timeout.
    pub(crate) fn begin_closing(&self, drain: Duration) {
        let mut core = lock(&self.core);
        let until = Instant::now() + drain;
        core.closing = Some(core.closing.map_or(until, |before| before.min(until)));
        core.end_consumers(&self.gauge);
        drop(core);
        self.gauge.wake.notify_one();
        self.room.notify_waiters();
    }

    /// Number of established connections.
    pub(crate) fn connects(&self) -> u64 {
        self.counters.connects.load(Ordering::Relaxed)
    }
}
