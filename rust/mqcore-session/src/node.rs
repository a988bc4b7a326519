//! The configuration of this broker as a node: the filters of its upstream brokers, and which brokers may forward to
//! it.

use std::fmt;

use mqcore_cluster::filter::LinkFilter;

/// The configuration of a broker among nodes.
#[derive(Clone, Default)]
pub struct NodeTerms {
    /// Its id, unique among nodes.
    pub id: String,
    /// Its display name.
    pub name: String,
    /// Whether other brokers may forward to this one.
    pub accepts: bool,
    /// The token that they have to present; `None` if they need none.
    pub token: Option<String>,
    /// Which of their frames are accepted.
    pub accept: LinkFilter,
    /// The filters of frames for each upstream broker, in the order of the configuration.
    pub sends: Vec<LinkFilter>,
}

impl fmt::Debug for NodeTerms {
    /// Omits the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeTerms")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl NodeTerms {
    /// Whether a token grants another node access. Takes the same time wherever the tokens differ.
    #[must_use]
    pub fn admits(&self, token: Option<&str>) -> bool {
        let Some(expected) = self.token.as_deref().map(str::as_bytes) else { return true };
        let given = token.unwrap_or_default().as_bytes();
        let differing = expected
            .iter()
            .enumerate()
            .fold(0, |bits, (at, byte)| bits | (byte ^ given.get(at).copied().unwrap_or_default()));
        differing == 0 && expected.len() == given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_grants_access() {
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
