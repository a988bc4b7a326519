//! The interface to an authenticator and authorizer that a program provides, in any language.

use std::sync::Arc;
use std::time::Duration;

use mqcore_authority::action::Action;
use mqcore_authority::credentials::Secret;
pub use mqcore_authority::login::Identity;
use mqcore_authority::rule::PermissionRule;
pub use mqcore_authority::rule::PermissionRuleError;
use mqcore_broker::model::client::{Client, Peer};
use tokio::sync::oneshot;

/// Decides about logins and actions in addition to the users and tokens of the server.
pub trait AuthorityPort: Send + Sync {
    /// Whether it decides about every login.
    fn authenticates(&self) -> bool;

    /// Whether it also decides about every action that the rules allow.
    fn authorizes(&self) -> bool;

    /// Time to answer. No answer within it means no.
    fn timeout(&self) -> Duration;

    /// How long a verdict may be reused for the same client, action and resource.
    fn cache(&self) -> Duration;

    /// Receives questions in order. Must never block. Dropping a question answers it with no.
    fn ask(&self, questions: Vec<AuthorityQuestion>);
}

/// Returns one answer. Dropping it means no.
pub type AnswerSender = oneshot::Sender<AuthorityAnswer>;

/// A question, and how to answer it.
#[derive(Debug)]
pub struct AuthorityQuestion {
    /// The subject of the question.
    pub about: QuestionSubject,
    /// Returns the answer. The connection may be closed by then.
    pub reply: AnswerSender,
}

/// The subject of a question.
#[derive(Debug)]
pub enum QuestionSubject {
    /// May this peer log in, and with which identity?
    Login(Box<LoginView>),
    /// May this client perform this action?
    Action {
        /// The client that requests the action.
        client: Arc<Client>,
        /// The identity with which it logged in.
        identity: Arc<Identity>,
        /// The requested action.
        action: Action,
        /// The resource, in the syntax of rules.
        resource: Box<str>,
    },
}

/// A login attempt as an authenticator sees it.
#[derive(Debug, Clone)]
pub struct LoginView {
    /// The protocol: `tmqp`, `http`.
    pub protocol: &'static str,
    /// Address and certificate of the peer.
    pub peer: Arc<Peer>,
    /// The requested client ID.
    pub id: Option<String>,
    /// Its client name.
    pub name: Option<String>,
    /// Its client type.
    pub kind: Option<String>,
    /// Its token, unless it sent a user and a password.
    pub token: Option<Secret>,
    /// Its user and password.
    pub login: Option<(String, Secret)>,
    /// Further properties of its introduction.
    pub properties: Vec<(String, String)>,
    /// The identity that the server's own users and tokens give it, if any.
    pub identity: Option<Arc<Identity>>,
}

/// The answer of an authenticator or authorizer.
#[derive(Debug)]
pub enum AuthorityAnswer {
    /// Accept the identity that the server itself has found.
    Known,
    /// Accept the peer with this identity and these permissions.
    Identity {
        /// A name for people.
        name: Box<str>,
        /// Its permissions.
        allow: Vec<PermissionRule>,
    },
    /// The action is allowed.
    Allowed,
    /// Denied.
    Denied,
    /// The callback raised or returned an invalid value. Counts as denied.
    Failed,
}
