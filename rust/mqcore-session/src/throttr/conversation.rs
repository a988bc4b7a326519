//! One conversation: input from the peer, events from the broker.

mod accounting;
mod channels;
mod counters;
mod server;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::Arc;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{ConnectionId, TopicName};
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::limiter::{Limiter, StepRun};
use mqcore_limiter::owner::KeyOwner;
use mqcore_limiter::time::{Nanos, Ttl};
use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::answer::{self, ConsumeOutcome};
use mqcore_wire::throttr::request::{self, ThrottrRequest};
use mqcore_wire::throttr::{self as wire, FAILURE, Family, IMPOSSIBLE};

use super::held::{AnswerUse, HeldRequests};
use super::listener::ThrottrTerms;
use super::minutes::{TALLIES, Tallies, Tally};
use super::peer::{Counted, Peer, PeerAddress};
use super::shared::{Subscription, ThrottrShared};
use super::stream::{ListKind, Stream};
use super::{permission, stream};
use crate::permission::{Permission, Permissions};
use crate::session::{Session, SessionConfig, SessionError};

/// Bytes of answers after which the session yields to others and writes its output first.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a fragmented answer that are encoded at once.
const STREAMED_BYTES_MAX: usize = 64 * 1024;

/// The name and the version in the answer to INFO, in 16 bytes.
const VERSION: &str = concat!("mqcore ", env!("CARGO_PKG_VERSION"));

/// The channel that every connection of family 7.3 is subscribed to.
const EVERYBODY: &[u8] = b"*";

/// One Throttr conversation.
#[derive(Debug)]
pub struct ThrottrSession {
    terms: ThrottrTerms,
    limits: Limits,
    connection: ConnectionId,
    directory: Arc<ThrottrShared>,
    peer: Arc<Peer>,
    client: Arc<Client>,
    /// The owner of the keys that it creates.
    owner: Arc<KeyOwner>,
    /// The time of the current call.
    now: Nanos,
    /// Subscriptions by channel.
    subscriptions: BTreeMap<TopicName, Arc<Subscription>>,
    /// The most recent channel: a message to it allocates no name.
    topic: Option<TopicName>,
    held: HeldRequests,
    /// Scratch for answers that are held back; empty between requests.
    fresh: Vec<u8>,
    stream: Option<Stream>,
    /// Messages that arrived while the answer in fragments is written.
    behind_stream: Vec<u8>,
    /// The output is large; it has to be written before the session continues.
    paused: bool,
    /// Counts since the last flush to the directory.
    tallies: Box<Tallies>,
    reported_read: u64,
    reported_written: u64,
    admitted: bool,
    /// `None`: the peer may make every request.
    permissions: Option<Arc<dyn Permissions>>,
    /// The next request waits for a decision about its permission.
    undecided: bool,
    /// The peer has closed its side.
    last: bool,
    over: bool,
}

/// Whether the session accepted a request.
enum Handled {
    Yes,
    /// The request has to wait until no answer is held back.
    Later,
}

impl ThrottrSession {
    /// The session of a connection that was opened just now.
    #[must_use]
    pub fn new(
        terms: ThrottrTerms,
        directory: &Arc<ThrottrShared>,
        config: &SessionConfig,
        at: Nanos,
        now: Timestamp,
    ) -> Self {
        let origin = PeerAddress::of(config.peer.address.as_deref());
        let peer = directory.join(config.connection, origin, at);
        let client = Client {
            connection: config.connection,
            id: hexadecimal(&peer.id).into(),
            authenticated: false,
            name: None,
            kind: None,
            protocol: "throttr",
            admin: config.admin,
            user: None,
            connected_at: now,
            data: None,
        };
        Self {
            terms,
            limits: config.limits,
            connection: config.connection,
            directory: Arc::clone(directory),
            peer,
            client: Arc::new(client),
            owner: directory.owner_of(None),
            now: at,
            subscriptions: BTreeMap::new(),
            topic: None,
            held: HeldRequests::default(),
            fresh: Vec::new(),
            stream: None,
            behind_stream: Vec::new(),
            paused: false,
            tallies: Box::new([0; TALLIES]),
            reported_read: 0,
            reported_written: 0,
            admitted: true,
            permissions: None,
            undecided: false,
            last: false,
            over: false,
        }
    }

    /// A session with a store of its own.
    #[must_use]
    pub fn alone(config: &SessionConfig, now: Timestamp) -> Self {
        let limiter = Arc::new(Limiter::new(Default::default(), RandomState::new()));
        let origin = now.0.saturating_mul(1_000_000);
        let directory = Arc::new(ThrottrShared::new(limiter, origin, Nanos(0), [0, 0]));
        Self::new(ThrottrTerms::default(), &directory, config, Nanos(0), now)
    }

    /// Whether a request is not answered yet.
    fn owes(&self) -> bool {
        self.has_more() || !self.held.is_empty() || !self.admitted || self.undecided
    }

    // --- requests -----------------------------------------------------------------------------------------------

    /// Answers one request into `output`, or behind the answers that are held back.
    #[inline]
    fn take(
        &mut self,
        request: &ThrottrRequest<'_>,
        size: usize,
        denied: bool,
        run: &mut StepRun<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Handled {
        let must_wait = matches!(
            request,
            ThrottrRequest::List
                | ThrottrRequest::Stats
                | ThrottrRequest::Connections
                | ThrottrRequest::Channels
                | ThrottrRequest::Event { .. }
        );
        if must_wait && !self.held.is_empty() {
            return Handled::Later;
        }
        if self.terms.metrics {
            self.tallies[Tally::Requests as usize] += 1;
            self.peer.add(Counted::ReadBytes, size as u64);
        }
        if self.held.is_empty() {
            let before = output.len();
            if denied {
                self.deny(request, output);
            } else {
                self.answer(request, run, commands, output);
            }
            self.count_written(output.len() - before);
        } else {
            let mut fresh = std::mem::take(&mut self.fresh);
            if denied {
                self.deny(request, &mut fresh);
            } else {
                self.answer(request, run, commands, &mut fresh);
            }
            self.held.hold(&fresh);
            fresh.clear();
            self.fresh = fresh;
        }
        Handled::Yes
    }

    #[inline]
    fn answer(
        &mut self,
        request: &ThrottrRequest<'_>,
        run: &mut StepRun<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        if !matches!(
            request,
            ThrottrRequest::Query { .. } | ThrottrRequest::Update { .. } | ThrottrRequest::Consume { .. }
        ) {
            // The other requests lock the store themselves, so no lock may be held here.
            run.store();
        }
        match *request {
            ThrottrRequest::Insert { quota, ttl, key } => {
                self.count_request(Tally::Insert, Counted::Insert);
                let made = self.store().insert(key, quota, self.created(), of_wire(ttl), self.now);
                answer::status(made, output);
            }
            ThrottrRequest::Query { key } => {
                self.count_request(Tally::Query, Counted::Query);
                self.query(key, run, output);
            }
            ThrottrRequest::Update { attribute, change, value, key } => {
                self.count_request(Tally::Update, Counted::Update);
                let done = self.update(attribute, change, value, key, run);
                self.count_refusal(!done && attribute == request::QUOTA && change == request::DECREASE);
                answer::status(done, output);
            }
            ThrottrRequest::Purge { key } => {
                self.count_request(Tally::Purge, Counted::Purge);
                answer::status(self.store().purge(key, self.now), output);
            }
            ThrottrRequest::Set { ttl, key, value } => {
                self.count_request(Tally::Set, Counted::Set);
                let (owner, kept) = (Some(&self.owner), self.terms.persist);
                let set = self.store().set_for(owner, key, value, kept, of_wire(ttl), self.now);
                answer::status(set, output);
            }
            ThrottrRequest::Get { key } => {
                self.count_request(Tally::Get, Counted::Get);
                self.get(key, output);
            }
            ThrottrRequest::Consume { mode, rule } => {
                self.tally(Tally::Consume);
                let verdict = self.consume(mode, &rule, run);
                self.count_refusal(verdict.status == FAILURE && mode == request::TAKE);
                verdict.write(self.terms.dialect.width, output);
            }
            ThrottrRequest::ConsumeAll { mode, rules } => self.consume_all(mode, rules.iter(), output),
            ThrottrRequest::Publish { channel, payload } => {
                self.count_request(Tally::Publish, Counted::Publish);
                self.publish(channel, payload, commands, output);
            }
            _ => self.answer_rare(request, run, commands, output),
        }
    }

    #[inline]
    fn permission(&self, request: &ThrottrRequest<'_>) -> Permission {
        match &self.permissions {
            None => Permission::Granted,
            Some(permissions) => {
                let how = (self.terms.dialect, &self.limits);
                permission::of_request(&**permissions, request, &self.peer.id, how)
            }
        }
    }

    /// A denied request gets the answer for a missing key, which every client understands.
    #[cold]
    fn deny(&mut self, request: &ThrottrRequest<'_>, output: &mut Vec<u8>) {
        let width = self.terms.dialect.width;
        match request {
            ThrottrRequest::List
            | ThrottrRequest::Stats
            | ThrottrRequest::Connections
            | ThrottrRequest::Channels => {
                answer::fragments(0, output);
            }
            ThrottrRequest::Consume { .. } => ConsumeOutcome::IMPOSSIBLE.write(width, output),
            ThrottrRequest::ConsumeAll { rules, .. } => {
                let verdicts = vec![ConsumeOutcome::IMPOSSIBLE; rules.iter().count()];
                answer::verdicts(IMPOSSIBLE, &verdicts, width, output);
            }
            _ => answer::status(false, output),
        }
    }

    /// Rare requests, out of the hot path.
    #[cold]
    fn answer_rare(
        &mut self,
        request: &ThrottrRequest<'_>,
        run: &mut StepRun<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        match *request {
            ThrottrRequest::List => {
                self.count_request(Tally::List, Counted::List);
                self.begin(Stream::keys(ListKind::List, &self.directory), output);
            }
            ThrottrRequest::Stats => {
                self.count_request(Tally::Stats, Counted::Stats);
                self.begin(Stream::keys(ListKind::Stats, &self.directory), output);
            }
            ThrottrRequest::Connections => {
                self.count_request(Tally::Connections, Counted::Connections);
                let stream = Stream::connections(&self.directory, &self.terms, output);
                self.begin(stream, output);
            }
            ThrottrRequest::Channels => {
                self.count_request(Tally::Channels, Counted::Channels);
                let stream = Stream::channels(&self.directory, output);
                self.begin(stream, output);
            }
            ThrottrRequest::Info => {
                self.count_request(Tally::Info, Counted::Info);
                self.info(output);
            }
            ThrottrRequest::Stat { key } => {
                self.count_request(Tally::Stat, Counted::Stat);
                match self.store().stat(key, self.now) {
                    Some(counts) => answer::stat(&stream::uses(counts, &self.terms), output),
                    None => answer::status(false, output),
                }
            }
            ThrottrRequest::Subscribe { channel } => {
                self.count_request(Tally::Subscribe, Counted::Subscribe);
                if !self.subscribe(channel, AnswerUse::Subscribed, commands) {
                    answer::status(self.subscriptions.contains_key(channel), output);
                }
            }
            ThrottrRequest::Unsubscribe { channel } => {
                self.count_request(Tally::Unsubscribe, Counted::Unsubscribe);
                if !self.unsubscribe(channel, commands) {
                    answer::status(false, output);
                }
            }
            ThrottrRequest::Connection { id } => {
                self.count_request(Tally::Connection, Counted::Connection);
                match self.directory.peer(&id) {
                    Some(peer) => self.record(&peer, output),
                    None => answer::status(false, output),
                }
            }
            ThrottrRequest::Channel { channel } => {
                self.count_request(Tally::Channel, Counted::Channel);
                self.channel(channel, output);
            }
            ThrottrRequest::WhoAmI => {
                self.count_request(Tally::WhoAmI, Counted::WhoAmI);
                answer::whoami(&self.peer.id, output);
            }
            ThrottrRequest::Event { request, .. } => self.event_request(request, run, commands, output),
            // Answered above.
            _ => {}
        }
    }
}

impl Session for ThrottrSession {
    fn open(&mut self, ask_admission: bool, commands: &mut Vec<Command>) {
        if ask_admission {
            // The protocol has no login, so the session asks on behalf of its peer and reads nothing before the answer.
            self.admitted = false;
            let introduction = Introduction {
                id: Some(self.client.id.as_ref().into()),
                kind: Some("throttr".into()),
                ..Introduction::default()
            };
            commands.push(Command::Introduce(Box::new(introduction)));
        }
        if self.terms.dialect.family == Family::V73 {
            // In family 7.3 every connection is subscribed to two channels from the start.
            let own = self.client.id.clone();
            for channel in [EVERYBODY, own.as_bytes()] {
                self.subscribe(channel, AnswerUse::Joined, commands);
            }
        }
    }

    /// Entries expire to the nanosecond.
    #[inline]
    fn set_time(&mut self, now: impl FnOnce() -> Nanos) {
        self.now = now();
    }

    fn receive(
        &mut self,
        input: &[u8],
        _now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let before = output.len();
        let mut consumed = 0;
        let mut result = Ok(());
        let directory = Arc::clone(&self.directory);
        let mut run = directory.limiter().run();
        self.undecided = false;
        while self.admitted && !self.has_more() && !self.held.is_full() {
            match request::decode(&input[consumed..], self.terms.dialect, &self.limits) {
                Ok(None) => break,
                Ok(Some((request, size))) => {
                    let permission = self.permission(&request);
                    self.undecided = permission == Permission::Undecided;
                    let denied = permission == Permission::Denied;
                    if self.undecided {
                        break;
                    }
                    if let Handled::Later = self.take(&request, size, denied, &mut run, commands, output) {
                        break;
                    }
                    consumed += size;
                    self.paused = output.len() - before >= OUTPUT_BYTES_MAX;
                }
                // Earlier requests are answered first.
                Err(_) if !self.held.is_empty() => break,
                Err(error) => {
                    self.over = true;
                    result = Err(error);
                    break;
                }
            }
        }
        drop(run);
        self.flush_tallies();
        match result {
            Ok(()) => Ok(consumed),
            Err(error) => Err(SessionError::Wire(error)),
        }
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.last = true;
        self.receive(input, now, commands, output)
    }

    /// Earlier requests are answered, however long that takes.
    fn outlives_input(&self) -> bool {
        self.owes()
    }

    fn needed(&self, input: &[u8]) -> usize {
        if !self.admitted {
            return input.len();
        }
        // Bytes that cannot be a request are rejected as soon as everything before them is answered.
        request::needed(input, self.terms.dialect, &self.limits).unwrap_or(1)
    }

    fn event(&mut self, event: Event, _now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        let before = output.len();
        match event {
            Event::Published { topic, message } => self.push(&topic, &message, output),
            Event::Answered(request, result) => {
                let yes = result.ok().map(|reply| match reply {
                    Reply::Published(receivers) => receivers > 0,
                    _ => true,
                });
                let refused = self.held.answered(request, yes, output);
                if let Some(topic) = refused
                    && let Some(subscription) = self.subscriptions.remove(&topic)
                {
                    self.directory.unsubscribe(topic.as_bytes(), &subscription);
                }
            }
            Event::Welcomed(client) => {
                if client.user.is_some() {
                    self.owner = self.directory.owner_of(client.user.as_ref());
                }
                self.client = client;
                self.admitted = true;
            }
            Event::Refused(rejection) => {
                self.over = true;
                return Err(SessionError::Misbehaved(rejection.reason));
            }
            // The session sends no other requests to the broker.
            _ => {}
        }
        self.count_written(output.len() - before);
        self.flush_tallies();
        Ok(())
    }

    #[inline]
    fn has_more(&self) -> bool {
        self.stream.is_some() || self.paused
    }

    fn pump(&mut self, output: &mut Vec<u8>) {
        self.paused = false;
        let before = output.len();
        self.go_on(output);
        self.count_written(output.len() - before);
        self.flush_tallies();
    }

    fn waiting_bytes(&self) -> usize {
        self.held.bytes() + self.behind_stream.len()
    }

    fn answers_limits(&self) -> bool {
        true
    }

    fn restrict(&mut self, permissions: Arc<dyn Permissions>) {
        self.permissions = Some(permissions);
    }

    fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }

    fn timeout(&mut self, _now: Timestamp, _output: &mut Vec<u8>) -> Result<(), SessionError> {
        Ok(())
    }

    fn shutdown(&mut self, _output: &mut Vec<u8>) {}

    fn leave(&mut self, _commands: &mut Vec<Command>) {
        self.unregister();
    }

    fn client(&self) -> Option<&Arc<Client>> {
        self.admitted.then_some(&self.client)
    }

    fn is_closing(&self) -> bool {
        self.over || self.last && !self.owes()
    }
}

impl Drop for ThrottrSession {
    fn drop(&mut self) {
        self.unregister();
    }
}

const fn of_wire(ttl: wire::Ttl) -> Ttl {
    Ttl { unit: ttl.unit, amount: ttl.amount }
}

const fn to_wire(ttl: Ttl) -> wire::Ttl {
    wire::Ttl { unit: ttl.unit, amount: ttl.amount }
}

/// In the form used in names of channels: lower case, two digits per byte.
fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
