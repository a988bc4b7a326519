//! All clients of the server, on the home shard, and the subscribers of their events.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use crate::context::Context;
use crate::model::client::{Client, ConnectionData, Introduction};
use crate::model::command::{ClientPattern, EventKind};
use crate::model::decision::Step;
use crate::model::effect::{Effect, Event, Notification, Subject};
use crate::model::id::ConnectionId;
use crate::model::intake::SCHEDULES;
use crate::model::node::{NodeInformation, Upstream};
use crate::model::observation::ObservedSubject;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::time::Timestamp;
use crate::shard::nodes::{NodePlace, Nodes};

/// Clients that share a name or a type, oldest connection first.
type Namesakes = HashMap<Box<str>, BTreeMap<ConnectionId, Arc<Client>>>;

/// All clients.
#[derive(Debug)]
pub(crate) struct ClientDirectory {
    by_connection: BTreeMap<ConnectionId, Arc<Client>>,
    by_id: HashMap<Box<str>, Arc<Client>>,
    by_name: Namesakes,
    by_kind: Namesakes,
    watchers: Vec<(EventKind, ConnectionId)>,
    nodes: Nodes,
}

impl ClientDirectory {
    pub(crate) fn new() -> Self {
        Self {
            by_connection: BTreeMap::new(),
            by_id: HashMap::new(),
            by_name: HashMap::new(),
            by_kind: HashMap::new(),
            watchers: Vec::new(),
            nodes: Nodes::default(),
        }
    }

    /// Accepts a peer as a client, or rejects it.
    pub(crate) fn welcome(
        &mut self,
        provisional: &Client,
        introduction: Introduction,
        context: &mut Context<'_>,
    ) -> Result<Arc<Client>, Rejection> {
        if introduction.node.is_some() {
            return self.welcome_node(provisional, introduction, context);
        }
        let text = |value: Option<String>| value.filter(|text| !text.is_empty()).map(String::into_boxed_str);
        let limit = context.state.config.client_limit as usize;
        if limit > 0 && self.by_id.len() >= limit {
            let reason = format!("this server has reached its limit of {limit} clients; try again later");
            return Err(Rejection::new(RejectionKind::Busy, reason));
        }
        if self.by_connection.contains_key(&provisional.connection) {
            return Err(Rejection::new(
                RejectionKind::BadRequest,
                "this connection has already introduced itself",
            ));
        }
        let id = text(introduction.id).unwrap_or_else(|| context.state.next_id().into());
        check_text("client id", Some(&id))?;
        let (name, kind) = (text(introduction.name), text(introduction.kind));
        check_text("client name", name.as_deref())?;
        check_text("client type", kind.as_deref())?;
        if self.by_id.contains_key(&id) {
            let reason =
                format!("a client with the id {id:?} is already connected; choose another id or none");
            return Err(Rejection::new(RejectionKind::Busy, reason));
        }
        let client = Arc::new(Client {
            connection: provisional.connection,
            id,
            authenticated: provisional.authenticated,
            name,
            kind,
            protocol: provisional.protocol,
            admin: provisional.admin,
            user: provisional.user.clone(),
            connected_at: context.now,
            data: ConnectionData {
                path: introduction.path,
                method: introduction.method,
                properties: introduction.properties,
            }
            .shared(),
        });
        self.add(&client);
        self.notify(EventKind::ClientConnected, &client, context);
        context.observe_everywhere(Step::ClientConnected, || ObservedSubject::Client(client.clone()));
        Ok(client)
    }

    /// Accepts a downstream broker. If an older connection of the same user has the same id, that connection has died
    /// unnoticed.
    fn welcome_node(
        &mut self,
        provisional: &Client,
        introduction: Introduction,
        context: &mut Context<'_>,
    ) -> Result<Arc<Client>, Rejection> {
        let text = |value: Option<String>| value.filter(|text| !text.is_empty()).map(String::into_boxed_str);
        let id = text(introduction.id).unwrap_or_else(|| context.state.next_id().into());
        let (name, kind) = (text(introduction.name), text(introduction.kind));
        let host = introduction.node.unwrap_or_default();
        for (what, value) in [("node id", Some(&*id)), ("node name", name.as_deref()), ("host", Some(&*host))]
        {
            check_text(what, value)?;
        }
        if *id == *SCHEDULES {
            let reason = format!("{SCHEDULES} is reserved and cannot be the id of a node; choose another id");
            return Err(Rejection::new(RejectionKind::Unacceptable, reason));
        }
        if let Some((older, user)) = self.nodes.connection(&id) {
            if user != provisional.user.as_deref() {
                let reason = format!("another user's node is connected with the id {id}; choose another id");
                return Err(Rejection::new(RejectionKind::Busy, reason));
            }
            let rejection =
                Rejection::new(RejectionKind::Unacceptable, "this node has opened a newer connection");
            context.effects.push(Effect::Close(older, rejection));
            self.leave_node(older, context);
        }
        let connected_at = context.now;
        let connection = provisional.connection;
        let protocol = provisional.protocol;
        let client = Arc::new(Client {
            connection,
            id,
            authenticated: provisional.authenticated,
            name,
            kind,
            user: None,
            admin: false,
            connected_at,
            protocol,
            data: None,
        });
        let information = self.nodes.add(&client, provisional.user.clone(), host, context.now);
        self.notify_node(EventKind::NodeConnected, information, context);
        Ok(client)
    }

    fn leave_node(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        if let Some(information) = self.nodes.remove(connection, context.now) {
            self.notify_node(EventKind::NodeDisconnected, information, context);
        }
    }

    /// An upstream broker connected or disconnected.
    pub(crate) fn upstream(&mut self, upstream: Upstream, context: &mut Context<'_>) {
        let connected = upstream.connected_since.is_some();
        if let Some(information) = self.nodes.upstream(upstream, context.now) {
            let kind = if connected { EventKind::NodeConnected } else { EventKind::NodeDisconnected };
            self.notify_node(kind, information, context);
        }
    }

    /// The nodes that follow this place in lists.
    pub(crate) fn nodes_following(
        &self,
        after: Option<NodePlace>,
        now: Timestamp,
    ) -> impl Iterator<Item = (NodePlace, NodeInformation)> {
        self.nodes.following(after, now)
    }

    /// All nodes.
    pub(crate) fn nodes(&self, now: Timestamp) -> Vec<NodeInformation> {
        self.nodes.list(now)
    }

    fn add(&mut self, client: &Arc<Client>) {
        self.by_connection.insert(client.connection, client.clone());
        self.by_id.insert(client.id.clone(), client.clone());
        for (index, key) in [(&mut self.by_name, &client.name), (&mut self.by_kind, &client.kind)] {
            if let Some(key) = key {
                index.entry(key.clone()).or_default().insert(client.connection, client.clone());
            }
        }
    }

    /// Removes a closed connection.
    pub(crate) fn leave(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        self.watchers.retain(|(_, watcher)| *watcher != connection);
        self.leave_node(connection, context);
        let Some(client) = self.by_connection.remove(&connection) else { return };
        self.by_id.remove(&client.id);
        for (index, key) in [(&mut self.by_name, &client.name), (&mut self.by_kind, &client.kind)] {
            let Some(key) = key else { continue };
            let Some(namesakes) = index.get_mut(key) else { continue };
            namesakes.remove(&connection);
            if namesakes.is_empty() {
                index.remove(key);
            }
        }
        self.notify(EventKind::ClientDisconnected, &client, context);
        context.observe_everywhere(Step::ClientDisconnected, || ObservedSubject::Client(client));
    }

    /// The receivers of a direct message: all matching clients, or the oldest of them.
    pub(crate) fn receivers(&self, pattern: &ClientPattern, oldest_only: bool) -> Vec<ConnectionId> {
        let namesakes = match pattern {
            ClientPattern::Id(id) => return self.by_id.get(id).map(|c| c.connection).into_iter().collect(),
            ClientPattern::Name(name) => self.by_name.get(name),
            ClientPattern::Kind(kind) => self.by_kind.get(kind),
        };
        let most = if oldest_only { 1 } else { usize::MAX };
        namesakes.into_iter().flat_map(BTreeMap::keys).take(most).copied().collect()
    }

    /// Number of connected clients.
    pub(crate) fn len(&self) -> usize {
        self.by_connection.len()
    }

    /// The clients whose connections are newer than `after`, oldest first.
    pub(crate) fn following(&self, after: Option<ConnectionId>) -> impl Iterator<Item = &Arc<Client>> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_connection.range((begin, Bound::Unbounded)).map(|(_, client)| client)
    }

    pub(crate) fn watch(&mut self, kind: EventKind, connection: ConnectionId, on: bool) {
        self.watchers.retain(|watcher| *watcher != (kind, connection));
        if on {
            self.watchers.push((kind, connection));
        }
    }

    fn notify(&self, kind: EventKind, client: &Client, context: &mut Context<'_>) {
        if self.is_watched(kind) {
            let subject = Subject::Client {
                id: client.id.clone(),
                name: client.name.clone(),
                kind: client.kind.clone(),
            };
            self.notify_watchers(kind, subject, context);
        }
    }

    fn notify_node(&self, kind: EventKind, information: NodeInformation, context: &mut Context<'_>) {
        let connected = kind == EventKind::NodeConnected;
        let step = if connected { Step::NodeConnected } else { Step::NodeDisconnected };
        context.observe_everywhere(step, || ObservedSubject::Node(information.clone()));
        if self.is_watched(kind) {
            self.notify_watchers(kind, Subject::Node(Box::new(information)), context);
        }
    }

    fn is_watched(&self, kind: EventKind) -> bool {
        self.watchers.iter().any(|(watched, _)| *watched == kind)
    }

    fn notify_watchers(&self, kind: EventKind, subject: Subject, context: &mut Context<'_>) {
        let watchers = self.watchers.iter().filter(|(watched, _)| *watched == kind);
        let notification = Arc::new(Notification { kind, channel: None, queue: None, subject });
        for (_, watcher) in watchers {
            context.notify(*watcher, Event::Notified(notification.clone()));
        }
    }
}

/// Texts of peers are shown to others, so they must fit a frame and stay on one line.
fn check_text(what: &str, text: Option<&str>) -> Result<(), Rejection> {
    let Some(text) = text else { return Ok(()) };
    let wrong = if text.len() > 255 {
        "is longer than 255 bytes"
    } else if text.chars().any(char::is_control) {
        "contains control characters"
    } else {
        return Ok(());
    };
    Err(Rejection::new(RejectionKind::BadRequest, format!("the {what} {wrong}")))
}
