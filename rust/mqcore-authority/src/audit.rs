//! Records of the audit log: who did what, from where, and why it was denied. A record never contains a secret.

use serde::Serialize;

use crate::action::Action;
use crate::login::{Identity, LoginRejection};

/// Maximum size in bytes of a client id in a record.
const WORD_BYTES_MAX: usize = 255;

/// The amount of detail in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuditDetail {
    /// Denied actions, and all logins.
    #[default]
    Denied,
    /// Also allowed actions that required a check. Identities with all permissions are not checked and not recorded.
    All,
}

/// The event that a record describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A login attempt.
    Login,
    /// An attempted action.
    Action,
    /// The record on which a connection's identity is based was removed or changed.
    Revoked,
    /// Users and tokens were reloaded.
    Reload,
    /// Records before this one were lost because the disk was too slow.
    Lost,
}

/// The outcome of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditOutcome {
    /// Yes.
    Allowed,
    /// No.
    Denied,
}

/// A record of the audit log. Absent fields are omitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// Time in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Event.
    pub event: AuditEvent,
    /// Outcome.
    pub verdict: AuditOutcome,
    /// Name of the identity; absent for a rejected login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Box<str>>,
    /// Source of the identity: `user`, `token`, `anonymous`, `authenticator` or `open`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
    /// Client id, or the requested one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<str>>,
    /// Connection number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Peer address with port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// Requested action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    /// Resource of the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Reason, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of closed connections or lost records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// The peer that a record describes.
#[derive(Debug, Clone, Copy)]
pub struct AuditPeer<'a> {
    /// Client id, if the peer has or requested one.
    pub client: Option<&'a str>,
    /// Connection number; `None` for admin requests.
    pub connection: Option<u64>,
    /// Peer address.
    pub address: Option<core::net::SocketAddr>,
    /// Protocol.
    pub protocol: &'static str,
}

impl AuditRecord {
    /// Creates a record with a time, an event and an outcome.
    #[must_use]
    pub fn new(time_ms: u64, event: AuditEvent, verdict: AuditOutcome) -> Self {
        Self {
            time_ms,
            event,
            verdict,
            who: None,
            by: None,
            client: None,
            connection: None,
            address: None,
            protocol: None,
            action: None,
            resource: None,
            why: None,
            count: None,
        }
    }

    /// Creates the record of a login.
    #[must_use]
    pub fn login(time_ms: u64, speaker: &AuditPeer<'_>, result: Result<&Identity, LoginRejection>) -> Self {
        let verdict = if result.is_ok() { AuditOutcome::Allowed } else { AuditOutcome::Denied };
        let line = Self::new(time_ms, AuditEvent::Login, verdict).said_by(speaker);
        match result {
            Ok(identity) => line.identified(identity),
            Err(refusal) => Self { why: Some(refusal.to_string()), ..line },
        }
    }

    /// Creates the record of an action. `denied` is the reason if it was denied.
    #[must_use]
    pub fn action(
        time_ms: u64,
        speaker: &AuditPeer<'_>,
        identity: &Identity,
        action: Action,
        resource: &str,
        denied: Option<&str>,
    ) -> Self {
        let verdict = if denied.is_none() { AuditOutcome::Allowed } else { AuditOutcome::Denied };
        let line = Self::new(time_ms, AuditEvent::Action, verdict).said_by(speaker).identified(identity);
        Self {
            action: Some(action.as_str()),
            resource: Some(resource.to_owned()),
            why: denied.map(str::to_owned),
            ..line
        }
    }

    fn said_by(self, speaker: &AuditPeer<'_>) -> Self {
        Self {
            client: speaker.client.filter(|id| !id.is_empty()).map(cut),
            connection: speaker.connection,
            address: speaker.address.map(|address| address.to_string()),
            protocol: Some(speaker.protocol),
            ..self
        }
    }

    fn identified(self, identity: &Identity) -> Self {
        Self { who: Some(identity.name.clone()), by: Some(identity.holder.as_str()), ..self }
    }
}

fn cut(word: &str) -> Box<str> {
    let end = (0..=WORD_BYTES_MAX.min(word.len())).rev().find(|end| word.is_char_boundary(*end));
    word[..end.unwrap_or(0)].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::IdentitySource;

    const SPEAKER: AuditPeer<'_> =
        AuditPeer { client: Some("c-1"), connection: Some(7), address: None, protocol: "tmqp" };

    #[test]
    fn denied_action_names_identity_action_and_reason() {
        let identity = Identity::trusted(IdentitySource::Open);
        let line =
            AuditRecord::action(5, &SPEAKER, &identity, Action::Push, "orders/1", Some("no rule allows it"));
        assert_eq!(line.verdict, AuditOutcome::Denied);
        assert_eq!((line.action, line.resource.as_deref()), (Some("push"), Some("orders/1")));
        assert_eq!((line.who.as_deref(), line.connection), (Some("open"), Some(7)));
    }

    #[test]
    fn rejected_login_names_no_identity() {
        let line = AuditRecord::login(5, &SPEAKER, Err(LoginRejection::WrongPassword));
        assert_eq!((line.who, line.by), (None, None));
        assert_eq!(line.why.as_deref(), Some("wrong user or password"));
    }

    #[test]
    fn long_client_ids_are_truncated() {
        let long = "€".repeat(500);
        let speaker = AuditPeer { client: Some(&long), ..SPEAKER };
        assert!(AuditRecord::login(0, &speaker, Err(LoginRejection::Busy)).client.unwrap().len() <= 255);
    }
}
