//! Logins: turns credentials into an identity. This part takes time, so it runs outside the connection's task.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use mqcore_authority::action::Action;
use mqcore_authority::audit::{AuditPeer, AuditRecord};
use mqcore_authority::credentials::Credentials;
use mqcore_authority::login::{Identity, LoginPeer, LoginProgress, LoginRejection, PasswordCheck};
use mqcore_authority::resource::Resource;
use mqcore_broker::model::client::{Client, Introduction, Peer};
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use tokio::sync::oneshot;

use super::port::{AuthorityAnswer, AuthorityPort, AuthorityQuestion, LoginView, QuestionSubject};
use super::state::{Authority, RequestOrigin, guesser};
use super::verdicts;
use crate::hub::Hub;

/// A login attempt.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) origin: RequestOrigin,
    pub(crate) peer: Arc<Peer>,
    /// How the peer introduces itself, with its token until that is checked.
    pub(crate) introduction: Introduction,
}

/// The result of a login attempt.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The introduction without its secrets, for the session.
    pub(crate) introduction: Introduction,
    pub(crate) result: Result<Arc<Identity>, LoginRejection>,
}

/// Identifies a peer, within the timeout of the authenticator.
pub(crate) async fn apply(hub: Arc<Hub>, arrival: Arrival) -> Applied {
    let Arrival { origin, peer, mut introduction } = arrival;
    let credentials = Credentials::read(introduction.token.take().as_deref());
    let authority = &hub.authority;
    let result = authority.identify(&hub, &origin, &peer, &introduction, credentials).await;
    let speaker = AuditPeer {
        client: introduction.id.as_deref(),
        connection: origin.connection,
        address: origin.address,
        protocol: origin.protocol,
    };
    let now_ms = hub.clock.now().0;
    authority.audit.write(AuditRecord::login(
        now_ms,
        &speaker,
        result.as_deref().map_err(|refusal| *refusal),
    ));
    let counter =
        if result.is_ok() { &authority.counters.logins } else { &authority.counters.logins_refused };
    counter.add(1);
    Applied { introduction, result }
}

impl Authority {
    async fn identify(
        &self,
        hub: &Hub,
        origin: &RequestOrigin,
        peer: &Arc<Peer>,
        introduction: &Introduction,
        credentials: Credentials,
    ) -> Result<Arc<Identity>, LoginRejection> {
        let guesses = matches!(credentials, Credentials::Password { .. });
        let from = guesser(origin.address);
        let attempts = || self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if guesses && !attempts().take(from, hub.clock.now().0) {
            return Err(LoginRejection::TooManyAttempts);
        }
        let known = self.look_up(hub, origin.address, peer, introduction, &credentials).await;
        let result = match self.port.as_ref().filter(|port| port.authenticates()) {
            Some(_) if known.as_ref().is_err_and(|refusal| refusal.is_temporary()) => known,
            Some(port) => ask(&**port, origin.protocol, peer, introduction, credentials, known).await,
            None => known,
        };
        if guesses && result.is_ok() {
            attempts().give_back(from);
        }
        result
    }

    /// Identifies a peer by users and tokens.
    async fn look_up(
        &self,
        hub: &Hub,
        address: Option<SocketAddr>,
        peer: &Peer,
        introduction: &Introduction,
        credentials: &Credentials,
    ) -> Result<Arc<Identity>, LoginRejection> {
        let names = certificate_names(peer);
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let text =
            |value: &'_ Option<String>| value.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
        let (id, name, kind) = (text(&introduction.id), text(&introduction.name), text(&introduction.kind));
        let applicant = LoginPeer {
            id: id.as_deref(),
            name: name.as_deref(),
            kind: kind.as_deref(),
            address: address.map(|address| address.ip()),
            certificate: &names,
        };
        let records = self.records();
        let authenticator = self.port.as_ref().is_some_and(|port| port.authenticates());
        // There is no password to compare with; hashing one would only waste time.
        if authenticator && records.users.is_empty() && matches!(credentials, Credentials::Password { .. }) {
            return Err(LoginRejection::WrongPassword);
        }
        // The last user was removed, but this broker has required a login before and continues to.
        if records.is_empty() && !self.is_open() && !authenticator {
            return Err(LoginRejection::NoCredentials);
        }
        match records.log_in(credentials, &applicant, hub.clock.expiry_ms()) {
            LoginProgress::Done(result) => result.map(Arc::new),
            LoginProgress::Check(check) => self.check(hub, check).await.map(Arc::new),
        }
    }

    /// Whether a peer without a connection may do something: by the rules, and by the authorizer if there is one.
    pub(crate) async fn may(
        &self,
        identity: &Arc<Identity>,
        action: Action,
        resource: Resource<'_>,
        protocol: &'static str,
    ) -> bool {
        if !identity.grants.allow(action, &resource) {
            return false;
        }
        let Some(authorizer) = self.authorizer() else { return true };
        let client = Arc::new(Client {
            connection: ConnectionId(0),
            id: protocol.into(),
            authenticated: true,
            protocol,
            name: Some(identity.name.clone()),
            kind: None,
            admin: true,
            user: None,
            connected_at: Timestamp(0),
            data: None,
        });
        let wanted = vec![(action, Box::from(resource.to_string()))];
        let answers = verdicts::ask(Arc::clone(authorizer), client, Arc::clone(identity), wanted).await;
        answers.iter().all(|(_, allowed)| *allowed)
    }

    /// Checks a password on a blocking thread.
    async fn check(&self, hub: &Hub, check: PasswordCheck) -> Result<Identity, LoginRejection> {
        let place = Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| LoginRejection::Busy)?;
        let turn = Arc::clone(&self.checks).acquire_owned().await.map_err(|_| LoginRejection::Busy)?;
        let checked = hub.runtime.spawn_blocking(move || {
            // Held until the check ends, even if the peer has disconnected by then.
            let _held = (place, turn);
            check.finish()
        });
        checked.await.unwrap_or(Err(LoginRejection::Busy))
    }
}

/// Why the admin side rejects a request.
#[derive(Debug)]
pub(crate) enum Denial {
    /// The caller is not identified.
    Unknown(LoginRejection),
    /// The caller lacks the permission.
    Forbidden,
}

/// Pages that the permission to inspect is enough for, besides those of single queues.
const INSPECTIONS: [&str; 15] = [
    "/access",
    "/attention",
    "/cluster",
    "/connections",
    "/errors",
    "/healthz",
    "/jobs",
    "/metrics",
    "/openapi.json",
    "/overview",
    "/policies",
    "/queues",
    "/schedules",
    "/stream",
    "/totals",
];

/// A request to the admin side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageRequest<'a> {
    /// Its `Authorization` header.
    pub(crate) authorization: Option<&'a str>,
    /// The page, with its leading slash.
    pub(crate) page: &'a str,
    /// Whether the request changes something: then it must carry a token, even if anyone may read.
    pub(crate) changes: bool,
}

impl PageRequest<'_> {
    /// Whether the permission to inspect is enough: it reads, but no messages of users. A page that is not listed here,
    /// such as a new one, needs the permission to administer.
    fn is_inspection(&self) -> bool {
        let is_queue = self.page.strip_prefix("/queues/").is_some_and(|queue| queue.split('/').count() == 2);
        !self.changes && (is_queue || INSPECTIONS.contains(&self.page))
    }
}

/// Decides about a request to the admin side. Writes an audit line if it is denied or changes something. `None`: there are
/// no users yet, so anyone may read.
pub(crate) async fn admit_request(
    hub: &Hub,
    address: SocketAddr,
    peer: Arc<Peer>,
    request: PageRequest<'_>,
) -> Result<Option<Arc<Identity>>, Denial> {
    let authority = &hub.authority;
    if authority.is_open() && !request.changes {
        return Ok(None);
    }
    let address = Some(address);
    let origin = RequestOrigin { connection: None, address, protocol: "http" };
    let credentials = Credentials::read(request.authorization);
    // A browser sends such credentials by itself, possibly for another site, so they must not authorize a change.
    let identified = if request.changes && !matches!(credentials, Credentials::Token(_)) {
        Err(LoginRejection::NoCredentials)
    } else {
        let nothing_said = Introduction::default();
        authority.identify(hub, &origin, &peer, &nothing_said, credentials).await
    };
    let speaker = AuditPeer { client: None, connection: None, address, protocol: origin.protocol };
    let now_ms = hub.clock.now().0;
    let identity = match identified {
        Ok(identity) => identity,
        Err(refusal) => {
            authority.counters.logins_refused.add(1);
            authority.audit.write(AuditRecord::login(now_ms, &speaker, Err(refusal)));
            return Err(Denial::Unknown(refusal));
        }
    };
    let page = request.page;
    let may = |action| authority.may(&identity, action, Resource::Page(page), origin.protocol);
    let allowed = may(Action::Administer).await || (request.is_inspection() && may(Action::Inspect).await);
    if !allowed || request.changes {
        let why = (!allowed).then_some("no rule allows it, or the authorizer says no");
        let shown = Resource::Page(page).to_string();
        authority.audit.write(AuditRecord::action(
            now_ms,
            &speaker,
            &identity,
            Action::Administer,
            &shown,
            why,
        ));
    }
    if allowed {
        return Ok(Some(identity));
    }
    authority.counters.actions_denied.add(1);
    Err(Denial::Forbidden)
}

/// Writes an audit line about what a request to the admin side does, or why it is denied although its page is allowed.
pub(crate) fn note_request(
    hub: &Hub,
    address: SocketAddr,
    identity: &Identity,
    (action, resource): (Action, &Resource<'_>),
    denied: Option<&str>,
) {
    let address = Some(address);
    let speaker = AuditPeer { client: None, connection: None, address, protocol: "http" };
    let (now_ms, resource) = (hub.clock.now().0, resource.to_string());
    hub.authority.audit.write(AuditRecord::action(now_ms, &speaker, identity, action, &resource, denied));
    if denied.is_some() {
        hub.authority.counters.actions_denied.add(1);
    }
}

/// All names in a certificate, each with its kind.
fn certificate_names(peer: &Peer) -> Vec<Box<str>> {
    let Some(certificate) = &peer.certificate else { return Vec::new() };
    let subject = Some(&certificate.subject).filter(|subject| !subject.is_empty());
    let subject = subject.map(|subject| format!("cn:{subject}").into());
    subject.into_iter().chain(certificate.names.iter().cloned()).collect()
}

async fn ask(
    port: &dyn AuthorityPort,
    protocol: &'static str,
    peer: &Arc<Peer>,
    introduction: &Introduction,
    credentials: Credentials,
    known: Result<Arc<Identity>, LoginRejection>,
) -> Result<Arc<Identity>, LoginRejection> {
    // A broker without logins has not verified any identity.
    let known = known
        .ok()
        .filter(|identity| !matches!(identity.holder, mqcore_authority::login::IdentitySource::Open));
    let (token, login) = match credentials {
        Credentials::Token(token) => (Some(token), None),
        Credentials::Password { user, password } => (None, Some((user, password))),
        Credentials::None => (None, None),
        Credentials::Unreadable => return Err(LoginRejection::Unreadable),
    };
    let view = LoginView {
        protocol,
        peer: Arc::clone(peer),
        id: introduction.id.clone(),
        name: introduction.name.clone(),
        kind: introduction.kind.clone(),
        token,
        login,
        properties: introduction.properties.clone(),
        identity: known.clone(),
    };
    let (reply, answer) = oneshot::channel();
    port.ask(vec![AuthorityQuestion { about: QuestionSubject::Login(Box::new(view)), reply }]);
    match tokio::time::timeout(port.timeout(), answer).await {
        Ok(Ok(AuthorityAnswer::Identity { name, allow })) => Ok(Arc::new(Identity::named(&name, &allow))),
        Ok(Ok(AuthorityAnswer::Known)) => known.ok_or(LoginRejection::Authenticator),
        Ok(Ok(AuthorityAnswer::Denied)) => Err(LoginRejection::Authenticator),
        Ok(Ok(AuthorityAnswer::Allowed | AuthorityAnswer::Failed) | Err(_)) | Err(_) => {
            Err(LoginRejection::AuthenticatorFailed)
        }
    }
}
