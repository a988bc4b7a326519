//! What a session has to know of other brokers: which of its peer's frames go to which of them, and who may pass on to here.

use std::fmt;

use mqcore_cluster::filter::{Filter, ForwardKind, Sender};
use mqcore_cluster::log::Masters;
use mqcore_wire::tmqp::{self, Frame};

/// What a broker is among nodes.
#[derive(Clone, Default)]
pub struct NodeTerms {
    /// Its id, unique among nodes.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Whether other brokers may pass on to this one.
    pub accepts: bool,
    /// What they have to say then; `None`: nothing.
    pub token: Option<String>,
    /// Which of their frames are taken.
    pub accept: Filter,
    /// What is passed on, for each master in the order of the configuration.
    pub sends: Vec<Filter>,
}

impl fmt::Debug for NodeTerms {
    /// Without the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeTerms")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl NodeTerms {
    /// Whether a token opens this node to another one. Takes the same time wherever the tokens differ.
    #[must_use]
    pub fn admits(&self, token: Option<&str>) -> bool {
        let Some(expected) = self.token.as_deref().map(str::as_bytes) else { return true };
        let given = token.unwrap_or_default().as_bytes();
        let differing = expected
            .iter()
            .enumerate()
            .fold(0, |bits, (at, octet)| bits | (octet ^ given.get(at).copied().unwrap_or_default()));
        differing == 0 && expected.len() == given.len()
    }

    /// The masters that a frame goes to.
    #[must_use]
    pub fn masters(&self, frame: &Frame<'_>, sender: &Sender<'_>) -> Masters {
        let mut masters = Masters::default();
        if let Some(kind) = ForwardKind::of(frame.kind) {
            for (index, filter) in self.sends.iter().enumerate() {
                if filter.passes(kind, frame, sender) {
                    masters.insert(index);
                }
            }
        }
        masters
    }
}

/// Frames to be passed on, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forwards {
    octets: Vec<u8>,
    /// For whom, and where in `octets` each ends.
    frames: Vec<(Masters, usize)>,
}

impl Forwards {
    /// Adds a frame.
    pub(crate) fn push(&mut self, masters: Masters, frame: &Frame<'_>) {
        tmqp::encode(frame, &mut self.octets);
        self.frames.push((masters, self.octets.len()));
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// For whom, and the octets of each.
    pub fn iter(&self) -> impl Iterator<Item = (Masters, &[u8])> {
        let begins = std::iter::once(0).chain(self.frames.iter().map(|(_, end)| *end));
        begins.zip(&self.frames).map(|(begin, (masters, end))| (*masters, &self.octets[begin..*end]))
    }

    /// Octets of all of them.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.octets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_only_if_it_is_the_same() {
        let terms = NodeTerms { token: Some("secret".into()), ..NodeTerms::default() };
        for (token, expected) in [
            (Some("secret"), true),
            (Some("secres"), false),
            (Some("secret "), false),
            (Some("secre"), false),
            (None, false),
        ] {
            assert_eq!(terms.admits(token), expected, "{token:?}");
        }
        assert!(NodeTerms::default().admits(None));
        assert!(!format!("{terms:?}").contains("secret"));
    }
}
