//! Questions to the authorizer of a program, what it answered, and how long an answer may be used again.

use std::sync::Arc;

use mqcore_authority::action::Action;
use mqcore_authority::audit::{AuditPeer, AuditRecord};
use mqcore_authority::login::Identity;
use mqcore_broker::model::client::Client;
use mqcore_broker::model::time::Timestamp;
use tokio::sync::oneshot;

use super::port::{About, AuthorityAnswer, AuthorityPort, AuthorityQuestion};
use super::state::Origin;
use crate::hub::Hub;

/// Verdicts of an authorizer that are remembered for one connection at most.
pub(super) const VERDICTS_MAX: usize = 1024;

/// A verdict of the authorizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachedVerdict {
    pub(super) allowed: bool,
    /// How long it may be used again.
    pub(super) until: Timestamp,
    /// The round for whose commands it was asked, which it serves however long they took.
    pub(super) round: u64,
}

/// What came of the questions about one batch.
pub(super) type Answers = Vec<((Action, Box<str>), bool)>;

impl CachedVerdict {
    pub(super) fn holds(&self, now: Timestamp, round: u64) -> bool {
        now < self.until || self.round == round
    }
}

/// Has one verdict written down.
pub(super) fn write(
    hub: &Hub,
    origin: &Origin,
    client: &Client,
    identity: &Identity,
    (action, resource): (Action, &str),
    denied: Option<&str>,
) {
    let speaker = AuditPeer {
        client: Some(&client.id),
        connection: origin.connection,
        address: origin.address,
        protocol: origin.protocol,
    };
    let line = AuditRecord::action(hub.clock.now().0, &speaker, identity, action, resource, denied);
    hub.authority.audit.write(line);
}

/// Asks the authorizer; no answer in time means no.
pub(super) async fn ask(
    authorizer: Arc<dyn AuthorityPort>,
    client: Arc<Client>,
    identity: Arc<Identity>,
    wanted: Vec<(Action, Box<str>)>,
) -> Answers {
    let mut questions = Vec::with_capacity(wanted.len());
    let mut answers = Vec::with_capacity(wanted.len());
    for (action, resource) in &wanted {
        let (reply, answer) = oneshot::channel();
        let (client, identity) = (Arc::clone(&client), Arc::clone(&identity));
        let about = About::Action { client, identity, action: *action, resource: resource.clone() };
        questions.push(AuthorityQuestion { about, reply });
        answers.push(answer);
    }
    authorizer.ask(questions);
    let deadline = tokio::time::Instant::now() + authorizer.timeout();
    let mut verdicts = Vec::with_capacity(wanted.len());
    for (key, answer) in wanted.into_iter().zip(answers) {
        let answer = tokio::time::timeout_at(deadline, answer).await;
        verdicts.push((key, matches!(answer, Ok(Ok(AuthorityAnswer::Allowed)))));
    }
    verdicts
}
