//! Questions to a program's authorizer, its verdicts, and how long they can be reused.

use std::sync::Arc;

use mqcore_authority::action::Action;
use mqcore_authority::audit::{AuditPeer, AuditRecord};
use mqcore_authority::login::Identity;
use mqcore_broker::model::client::Client;
use mqcore_broker::model::time::Timestamp;
use tokio::sync::oneshot;

use super::port::{AuthorityAnswer, AuthorityPort, AuthorityQuestion, QuestionSubject};
use super::state::RequestOrigin;
use crate::hub::Hub;

/// Maximum verdicts cached for one connection.
pub(super) const VERDICTS_MAX: usize = 1024;

/// A verdict of the authorizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachedVerdict {
    pub(super) allowed: bool,
    /// Until when it can be reused.
    pub(super) until: Timestamp,
    /// The round in which it was requested. All commands of that round can use it, however long they took.
    pub(super) round: u64,
}

/// The verdicts on the questions of one batch.
pub(super) type Answers = Vec<((Action, Box<str>), bool)>;

impl CachedVerdict {
    pub(super) fn holds(&self, now: Timestamp, round: u64) -> bool {
        now < self.until || self.round == round
    }
}

/// Writes the audit line of one verdict.
pub(super) fn write(
    hub: &Hub,
    origin: &RequestOrigin,
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

/// Asks the authorizer. No answer within the timeout means no.
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
        let about = QuestionSubject::Action { client, identity, action: *action, resource: resource.clone() };
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
