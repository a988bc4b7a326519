//! The permission check of a connection, before its commands go to shards.
//!
//! Most gates are open: one look at one flag for a whole batch. At a closed one, commands wait in order while the peer is
//! identified, or while an authorizer decides about one of them. Other connections do not wait.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hashbrown::HashMap;
use mqcore_authority::action::Action;
use mqcore_authority::audit::AuditDetail;
use mqcore_authority::login::{Identity, IdentitySource, LoginRejection};
use mqcore_broker::model::client::{Client, Introduction, Peer};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;

use super::admission::{self, Applied, Arrival};
use super::demand;
use super::keys::LimitKeys;
use super::port::AuthorityPort;
use super::state::{Authority, RequestOrigin};
use super::verdicts::{Answers, CachedVerdict, VERDICTS_MAX, ask, write};
use crate::hub::Hub;

/// The gate of one connection.
pub(crate) struct Gate {
    state: GateState,
    /// Held batches, each with the bytes from which it was decoded.
    held: VecDeque<(VecDeque<Command>, usize)>,
    origin: RequestOrigin,
    peer: Arc<Peer>,
}

enum GateState {
    /// Everything is allowed.
    Open,
    /// The peer is not identified.
    Stranger,
    /// The peer is being identified.
    Arriving(Pin<Box<dyn Future<Output = Applied> + Send>>),
    /// The peer is identified and has some permissions.
    Known(Box<KnownPeer>),
    /// The peer was rejected, or its rights have ended: no command passes.
    Shut,
}

struct KnownPeer {
    identity: Arc<Identity>,
    authorizer: Option<Arc<dyn AuthorityPort>>,
    /// For each action, the last queue for which the rules allowed it.
    last: [Option<QueueAddress>; Action::COUNT],
    /// Verdicts of the authorizer.
    verdicts: HashMap<(Action, Box<str>), CachedVerdict, foldhash::fast::RandomState>,
    /// Increases when held commands have passed.
    round: u64,
    asking: Option<Pin<Box<dyn Future<Output = Answers> + Send>>>,
}

/// The action of a connection after a check.
pub(crate) enum GateAction {
    /// These go to the shards.
    Pass(Vec<Command>, usize),
    /// Send this event to the peer.
    Tell(Event),
    /// From now on the peer is this client.
    Become(Arc<Client>),
}

/// The decision about a command.
enum CommandDecision {
    Allowed,
    Denied(Action, String),
    Undecided,
}

impl Gate {
    /// The gate of a new connection. `local` connections are inside this process and trusted.
    pub(crate) fn new(authority: &Authority, origin: RequestOrigin, peer: Arc<Peer>, local: bool) -> Self {
        let connection = origin.connection.map(ConnectionId);
        let free = local
            || (authority.is_open()
                && authority.authorizer().is_none()
                && connection.is_none_or(|connection| authority.enter_unauthenticated(connection)));
        let state = if free { GateState::Open } else { GateState::Stranger };
        if local {
            let identity = Arc::new(Identity::trusted(IdentitySource::Local));
            if let Some(connection) = connection {
                authority.enter(connection, &identity, 0);
            }
        }
        Self { state, held: VecDeque::new(), origin, peer }
    }

    /// Whether commands can skip the gate.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, GateState::Open)
    }

    /// Whether commands are held here, so that the connection should read no more.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Lets nothing more pass: the peer disconnected before it was identified, or lost its rights.
    pub(crate) fn shut(&mut self) {
        self.state = GateState::Shut;
        self.held.clear();
    }

    /// The peer has disconnected. Commands of an identified peer still count.
    pub(crate) fn peer_gone(&mut self) {
        if matches!(self.state, GateState::Stranger | GateState::Arriving(_)) {
            self.shut();
        }
    }

    /// Takes commands, and adds to `steps` what can be done at once.
    pub(crate) fn take(
        &mut self,
        commands: Vec<Command>,
        bytes: usize,
        client: &Arc<Client>,
        hub: &Arc<Hub>,
        steps: &mut Vec<GateAction>,
    ) {
        if commands.is_empty() {
            return;
        }
        self.held.push_back((commands.into(), bytes));
        self.advance(client, hub, steps);
    }

    /// Checks whether a pending decision has arrived. True if it has.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        client: &Arc<Client>,
        hub: &Arc<Hub>,
        steps: &mut Vec<GateAction>,
    ) -> bool {
        match &mut self.state {
            GateState::Arriving(arriving) => {
                let Poll::Ready(applied) = arriving.as_mut().poll(context) else { return false };
                self.arrived(applied, client, hub, steps);
            }
            GateState::Known(known) => {
                let Some(asking) = &mut known.asking else { return false };
                let Poll::Ready(answers) = asking.as_mut().poll(context) else { return false };
                known.asking = None;
                known.remember(answers, hub.clock.now());
            }
            GateState::Open | GateState::Stranger | GateState::Shut => return false,
        }
        hub.moved();
        let client = became(steps).unwrap_or_else(|| Arc::clone(client));
        self.advance(&client, hub, steps);
        true
    }

    fn arrived(&mut self, applied: Applied, client: &Client, hub: &Hub, steps: &mut Vec<GateAction>) {
        let Applied { introduction, result } = applied;
        let connection = client.connection;
        let upheld =
            |identity: &Arc<Identity>| hub.authority.enter(connection, identity, hub.clock.expiry_ms());
        match result {
            Ok(identity) if upheld(&identity) => {
                steps.push(GateAction::Become(Arc::new(Client {
                    admin: is_admin(&identity, client),
                    authenticated: is_authenticated(&identity),
                    user: user_of(&identity),
                    ..client.clone()
                })));
                self.held.push_front((VecDeque::from([Command::Introduce(Box::new(introduction))]), 0));
                self.state = known(identity, &hub.authority);
            }
            Ok(_) => self.turn_away(LoginRejection::UnknownToken, steps),
            Err(refusal) => self.turn_away(refusal, steps),
        }
    }

    /// Decides which limits `client` may request; some sessions answer such requests themselves, without a command.
    /// `None`: the client may request all limits, or is not identified yet.
    pub(crate) fn limit_keys(&self, client: &Arc<Client>, hub: &Arc<Hub>) -> Option<Arc<LimitKeys>> {
        let GateState::Known(known) = &self.state else { return None };
        let (identity, authorizer) = (Arc::clone(&known.identity), known.authorizer.clone());
        Some(Arc::new(LimitKeys::new(identity, authorizer, Arc::clone(client), self.origin, Arc::clone(hub))))
    }

    fn turn_away(&mut self, refusal: LoginRejection, steps: &mut Vec<GateAction>) {
        let kind = if refusal.is_temporary() { RejectionKind::Busy } else { RejectionKind::Unauthorized };
        steps.push(GateAction::Tell(Event::Refused(Rejection::new(kind, refusal.for_peer()))));
        self.shut();
    }

    /// Passes or rejects, in order, every command that can be decided now.
    fn advance(&mut self, client: &Arc<Client>, hub: &Arc<Hub>, steps: &mut Vec<GateAction>) {
        while let Some((mut commands, bytes)) = self.held.pop_front() {
            match &mut self.state {
                GateState::Open => steps.push(GateAction::Pass(commands.into(), bytes)),
                GateState::Shut => {}
                GateState::Arriving(_) => return self.held.push_front((commands, bytes)),
                GateState::Stranger => {
                    let first = commands.pop_front();
                    if !commands.is_empty() {
                        self.held.push_front((commands, bytes));
                    }
                    match first {
                        // The session has checked the node's token, the only credential of a node.
                        Some(Command::Introduce(introduction)) if introduction.node.is_some() => {
                            if hub.nodes.as_ref().is_none_or(|nodes| nodes.terms.token.is_none()) {
                                // If clients must log in here, nodes must as well.
                                return self.turn_away(LoginRejection::UnknownToken, steps);
                            }
                            commands_of_node(&mut self.held, introduction, bytes);
                            self.state = GateState::Open;
                        }
                        Some(Command::Introduce(introduction)) => {
                            let peer = Arc::clone(&self.peer);
                            let arrival = Arrival { origin: self.origin, peer, introduction: *introduction };
                            self.state =
                                GateState::Arriving(Box::pin(admission::apply(Arc::clone(hub), arrival)));
                            if self.held.is_empty() {
                                // Stops reading until the peer is identified.
                                self.held.push_front((VecDeque::new(), 0));
                            }
                            return;
                        }
                        // No session emits other commands before it has introduced its peer.
                        Some(command) => refuse_stranger(command, hub, steps),
                        None => {}
                    }
                }
                GateState::Known(known) => {
                    let rest = known.judge(commands, bytes, &self.origin, client, hub, steps);
                    if let Some(rest) = rest {
                        return self.held.push_front((rest, bytes));
                    }
                }
            }
        }
    }
}

/// Announces a node before the commands that it sent after its Hello.
fn commands_of_node(
    held: &mut VecDeque<(VecDeque<Command>, usize)>,
    introduction: Box<Introduction>,
    bytes: usize,
) {
    held.push_front((VecDeque::from([Command::Introduce(introduction)]), bytes));
}

fn became(steps: &[GateAction]) -> Option<Arc<Client>> {
    steps.iter().rev().find_map(|step| match step {
        GateAction::Become(client) => Some(Arc::clone(client)),
        GateAction::Pass(..) | GateAction::Tell(_) => None,
    })
}

fn known(identity: Arc<Identity>, authority: &Authority) -> GateState {
    let authorizer = authority.authorizer().cloned();
    if identity.grants.is_everything() && authorizer.is_none() && authority.detail == AuditDetail::Denied {
        return GateState::Open;
    }
    GateState::Known(Box::new(KnownPeer {
        identity,
        authorizer,
        last: [const { None }; Action::COUNT],
        verdicts: HashMap::default(),
        round: 0,
        asking: None,
    }))
}

/// Without logins, the clients on this machine are administrators; otherwise those that may administer everything.
fn is_admin(identity: &Identity, client: &Client) -> bool {
    match identity.holder {
        IdentitySource::Open => client.admin,
        _ => identity.grants.allow_some(Action::Administer),
    }
}

/// Whether the peer showed credentials, or the program's authenticator accepted it.
fn is_authenticated(identity: &Identity) -> bool {
    match identity.holder {
        IdentitySource::User(_) | IdentitySource::Token(_) | IdentitySource::Authenticator => true,
        IdentitySource::Open | IdentitySource::Local | IdentitySource::Anonymous(_) => false,
    }
}

/// The name under which limits for users count the peer; `None`: it has no credentials, and they do not apply.
fn user_of(identity: &Identity) -> Option<Arc<str>> {
    match identity.holder {
        IdentitySource::Open | IdentitySource::Local => None,
        _ => Some(identity.name.as_ref().into()),
    }
}

fn refuse_stranger(command: Command, hub: &Hub, steps: &mut Vec<GateAction>) {
    let rejection = Rejection::new(RejectionKind::Unauthorized, LoginRejection::NoCredentials.for_peer());
    hub.authority.counters.actions_denied.add(1);
    demand::refuse(command, rejection, hub.shards.len(), &mut |event| steps.push(GateAction::Tell(event)));
}

impl KnownPeer {
    /// Checks commands in order. Returns the first one that the authorizer must decide and all after it, and asks the
    /// authorizer about all of these at once.
    fn judge(
        &mut self,
        commands: VecDeque<Command>,
        bytes: usize,
        origin: &RequestOrigin,
        client: &Arc<Client>,
        hub: &Arc<Hub>,
        steps: &mut Vec<GateAction>,
    ) -> Option<VecDeque<Command>> {
        let now = hub.clock.now();
        let bytes_each = bytes.checked_div(commands.len()).unwrap_or(0);
        let mut passed = Vec::with_capacity(commands.len());
        let mut commands = commands.into_iter();
        let mut held = None;
        while let Some(command) = commands.next() {
            match self.decision(&command, now) {
                CommandDecision::Allowed => {
                    self.write_allowed(&command, origin, client, hub);
                    passed.push(command);
                }
                CommandDecision::Denied(action, resource) => {
                    self.write_denied((action, &resource), origin, client, hub);
                    let reason = format!("you are not allowed to {action} on {resource}");
                    let rejection = Rejection::new(RejectionKind::Unauthorized, reason);
                    // Earlier commands go to their shard before the peer receives this rejection.
                    pass(&mut passed, bytes_each, steps);
                    demand::refuse(command, rejection, hub.shards.len(), &mut |event| {
                        steps.push(GateAction::Tell(event));
                    });
                }
                CommandDecision::Undecided => {
                    held = Some(std::iter::once(command).chain(commands).collect::<VecDeque<_>>());
                    break;
                }
            }
        }
        pass(&mut passed, bytes_each, steps);
        let Some(held) = held else {
            self.round += 1;
            return None;
        };
        self.ask(&held, client, now);
        Some(held)
    }

    fn decision(&mut self, command: &Command, now: Timestamp) -> CommandDecision {
        if let (Command::Publish { queue, .. }, None) = (command, &self.authorizer)
            && self.last[Action::Push as usize].as_ref().is_some_and(|last| same(last, queue))
        {
            return CommandDecision::Allowed;
        }
        let mut decision = CommandDecision::Allowed;
        let (grants, authorizer, verdicts) = (&self.identity.grants, &self.authorizer, &self.verdicts);
        let round = self.round;
        demand::demands(command, &mut |action, resource| {
            if matches!(decision, CommandDecision::Denied(..)) {
                return;
            }
            if !grants.allow(action, &resource) {
                decision = CommandDecision::Denied(action, resource.to_string());
            } else if authorizer.is_some() {
                let name = resource.to_string();
                let said = verdicts.get(&(action, name.as_str().into()));
                match said.filter(|said| said.holds(now, round)) {
                    Some(said) if said.allowed => {}
                    Some(_) => decision = CommandDecision::Denied(action, name),
                    None => decision = CommandDecision::Undecided,
                }
            }
        });
        if let (CommandDecision::Allowed, Command::Publish { queue, .. }) = (&decision, command) {
            self.last[Action::Push as usize] = Some(queue.clone());
        }
        decision
    }

    /// Asks about every permission that `commands` need and no cached verdict covers, each once.
    fn ask(&mut self, commands: &VecDeque<Command>, client: &Arc<Client>, now: Timestamp) {
        let Some(authorizer) = &self.authorizer else { return };
        let mut wanted: Vec<(Action, Box<str>)> = Vec::new();
        for command in commands {
            demand::demands(command, &mut |action, resource| {
                let key = (action, Box::from(resource.to_string()));
                let fresh = self.verdicts.get(&key).is_some_and(|said| said.holds(now, self.round));
                if !fresh && wanted.len() < VERDICTS_MAX / 2 && !wanted.contains(&key) {
                    wanted.push(key);
                }
            });
        }
        self.asking = Some(Box::pin(ask(
            Arc::clone(authorizer),
            Arc::clone(client),
            Arc::clone(&self.identity),
            wanted,
        )));
    }

    fn remember(&mut self, answers: Answers, now: Timestamp) {
        if self.verdicts.len() + answers.len() > VERDICTS_MAX {
            self.verdicts.retain(|_, said| now < said.until);
        }
        if self.verdicts.len() + answers.len() > VERDICTS_MAX {
            self.verdicts.clear();
        }
        let cache = self.authorizer.as_ref().map(|port| port.cache()).unwrap_or_default();
        let (until, round) = (now.after(cache), self.round);
        for (key, allowed) in answers {
            self.verdicts.insert(key, CachedVerdict { allowed, until, round });
        }
    }

    fn write_denied(&self, wanted: (Action, &str), origin: &RequestOrigin, client: &Client, hub: &Hub) {
        hub.authority.counters.actions_denied.add(1);
        let (action, resource) = wanted;
        let by_rules = self.verdicts.get(&(action, resource.into())).is_none_or(|said| said.allowed);
        let why = if by_rules { "no rule allows it" } else { "the authorizer says no" };
        write(hub, origin, client, &self.identity, wanted, Some(why));
    }

    fn write_allowed(&self, command: &Command, origin: &RequestOrigin, client: &Client, hub: &Hub) {
        if hub.authority.detail == AuditDetail::All {
            demand::demands(command, &mut |action, resource| {
                write(hub, origin, client, &self.identity, (action, &resource.to_string()), None);
            });
        }
    }
}

fn same(last: &QueueAddress, queue: &QueueAddress) -> bool {
    last.id == queue.id && (last.channel.is_same(&queue.channel) || last.channel == queue.channel)
}

fn pass(passed: &mut Vec<Command>, bytes_each: usize, steps: &mut Vec<GateAction>) {
    if !passed.is_empty() {
        let bytes = bytes_each * passed.len();
        steps.push(GateAction::Pass(mem::take(passed), bytes));
    }
}
