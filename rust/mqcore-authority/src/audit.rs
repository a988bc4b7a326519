//! One line about one verdict: who, from where, what, and why. No secret is ever part of one.

use serde::Serialize;

use crate::action::Action;
use crate::login::{Identity, Refusal};

/// Bytes of what a peer says of itself that are written down, at most.
const WORD_BYTES_MAX: usize = 255;

/// Which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// What was denied, and who logged in.
    #[default]
    Denied,
    /// Also what was allowed to those for whom it had to be looked up: those who may do everything are not asked about.
    All,
}

/// What was decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Somebody came.
    Login,
    /// Somebody wanted to do something.
    Action,
    /// What a connection rested on is gone.
    Revoked,
    /// Users and tokens were read again.
    Reload,
    /// Lines before this one were not written, because the disk did not keep up.
    Lost,
}

/// How it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Yes.
    Allowed,
    /// No.
    Denied,
}

/// One line. Absent fields are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// When, Unix milliseconds.
    pub time_ms: u64,
    /// About what.
    pub event: Subject,
    /// How it went.
    pub verdict: Verdict,
    /// Who it turned out to be; for a refused login, nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Box<str>>,
    /// Why it counts as that: `user`, `token`, `anonymous`, `authenticator`, `open`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
    /// The client id, or the one that was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<str>>,
    /// The number of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Where it came from, with its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What it speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// What it wanted to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    /// To what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The reason, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many: of connections ended, or of lines lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// Whom a line is about.
#[derive(Debug, Clone, Copy)]
pub struct Speaker<'a> {
    /// Its client id, if it has or wants one.
    pub client: Option<&'a str>,
    /// Its connection; admin requests have none.
    pub connection: Option<u64>,
    /// Where it comes from.
    pub address: Option<core::net::SocketAddr>,
    /// What it speaks.
    pub protocol: &'static str,
}

impl Line {
    /// A line that says nothing yet but when, about what and how.
    #[must_use]
    pub fn new(time_ms: u64, event: Subject, verdict: Verdict) -> Self {
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

    /// About a login.
    #[must_use]
    pub fn login(time_ms: u64, speaker: &Speaker<'_>, result: Result<&Identity, Refusal>) -> Self {
        let verdict = if result.is_ok() { Verdict::Allowed } else { Verdict::Denied };
        let line = Self::new(time_ms, Subject::Login, verdict).said_by(speaker);
        match result {
            Ok(identity) => line.identified(identity),
            Err(refusal) => Self { why: Some(refusal.to_string()), ..line },
        }
    }

    /// About an action.
    #[must_use]
    pub fn action(
        time_ms: u64,
        speaker: &Speaker<'_>,
        identity: &Identity,
        action: Action,
        resource: &str,
        denied: Option<&str>,
    ) -> Self {
        let verdict = if denied.is_none() { Verdict::Allowed } else { Verdict::Denied };
        let line = Self::new(time_ms, Subject::Action, verdict).said_by(speaker).identified(identity);
        Self {
            action: Some(action.as_str()),
            resource: Some(resource.to_owned()),
            why: denied.map(str::to_owned),
            ..line
        }
    }

    fn said_by(self, speaker: &Speaker<'_>) -> Self {
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
    use crate::login::Holder;

    const SPEAKER: Speaker<'_> =
        Speaker { client: Some("c-1"), connection: Some(7), address: None, protocol: "tmqp" };

    #[test]
    fn a_denial_says_who_wanted_what_and_why_not() {
        let identity = Identity::trusted(Holder::Open);
        let line = Line::action(5, &SPEAKER, &identity, Action::Push, "orders/1", Some("no rule allows it"));
        assert_eq!(line.verdict, Verdict::Denied);
        assert_eq!((line.action, line.resource.as_deref()), (Some("push"), Some("orders/1")));
        assert_eq!((line.who.as_deref(), line.connection), (Some("open"), Some(7)));
    }

    #[test]
    fn a_refused_login_names_nobody() {
        let line = Line::login(5, &SPEAKER, Err(Refusal::WrongPassword));
        assert_eq!((line.who, line.by), (None, None));
        assert_eq!(line.why.as_deref(), Some("wrong user or password"));
    }

    #[test]
    fn what_peers_say_of_themselves_is_cut() {
        let long = "€".repeat(500);
        let speaker = Speaker { client: Some(&long), ..SPEAKER };
        assert!(Line::login(0, &speaker, Err(Refusal::Busy)).client.unwrap().len() <= 255);
    }
}
