//! The seam behind which a program's own authenticator runs, in whatever language.

use std::sync::Arc;
use std::time::Duration;

use mqcore_authority::action::Action;
use mqcore_authority::credentials::Secret;
pub use mqcore_authority::login::Identity;
use mqcore_authority::rule::Rule;
pub use mqcore_authority::rule::RuleError;
use mqcore_broker::model::client::{Client, Peer};
use tokio::sync::oneshot;

/// Who decides about logins and actions beside the users and tokens that the server knows itself.
pub trait AuthorityPort: Send + Sync {
    /// Whether it is asked about every login. Then its word counts.
    fn authenticates(&self) -> bool;

    /// Whether it is asked about every action that the rules allow.
    fn authorizes(&self) -> bool;

    /// How long it may take. No answer by then means no.
    fn timeout(&self) -> Duration;

    /// How long an answer about an action may be used again for the same client, action and resource.
    fn cache(&self) -> Duration;

    /// Takes questions, in their order. Must never block. A question that is dropped is answered by no.
    fn ask(&self, questions: Vec<AuthorityQuestion>);
}

/// The way back for one answer. Dropped, it says no.
pub type Reply = oneshot::Sender<AuthorityAnswer>;

/// A question, and where its answer goes.
#[derive(Debug)]
pub struct AuthorityQuestion {
    /// About what.
    pub about: About,
    /// The way back. Nobody may be there any more.
    pub reply: Reply,
}

/// What is asked about.
#[derive(Debug)]
pub enum About {
    /// May this peer come in, and as whom?
    Login(Box<LoginView>),
    /// May this client do this?
    Action {
        /// Who asks.
        client: Arc<Client>,
        /// As whom it came in.
        identity: Arc<Identity>,
        /// What it wants to do.
        action: Action,
        /// To what, as rules write it.
        resource: Box<str>,
    },
}

/// What an authenticator sees of a peer.
#[derive(Debug, Clone)]
pub struct LoginView {
    /// What it speaks: `tmqp`, `http`.
    pub protocol: &'static str,
    /// What the listener knows of it.
    pub peer: Arc<Peer>,
    /// The client id that it wants.
    pub id: Option<String>,
    /// Its client name.
    pub name: Option<String>,
    /// Its client type.
    pub kind: Option<String>,
    /// The token that it shows, unless that is a user and a password.
    pub token: Option<Secret>,
    /// The user and the password that it shows.
    pub login: Option<(String, Secret)>,
    /// What else it says of itself.
    pub properties: Vec<(String, String)>,
    /// Who it is by the users and tokens that the server knows, if it is one of them.
    pub identity: Option<Arc<Identity>>,
}

/// What an authenticator says.
#[derive(Debug)]
pub enum AuthorityAnswer {
    /// It is whoever the server itself took it for.
    Known,
    /// It is this, and may do that.
    Identity {
        /// For people.
        name: Box<str>,
        /// What it may do.
        allow: Vec<Rule>,
    },
    /// The action is allowed.
    Allowed,
    /// No.
    Denied,
    /// It raised, or answered something that is no answer. Counts as no.
    Failed,
}
