//! Rules that hide parts of messages from everyone who reads them over the admin side.

use mqcore_authority::pattern::Pattern;
use mqcore_broker::model::id::QueueAddress;
use serde_json::Value;

use crate::config::error::ConfigError;

/// The text in place of what is hidden.
pub(crate) const HIDDEN: &str = "***";

/// Maximum size of a body that is parsed. The whole of a larger one is hidden if it could have hidden members.
const PARSED_BYTES_MAX: usize = 1 << 20;

/// Rules about names and queues. Default: none, so that nothing is hidden.
#[derive(Debug, Clone, Default)]
pub struct MaskConfig {
    fields: Vec<Pattern>,
    bodies: Vec<Pattern>,
}

/// A body as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Nothing is hidden.
    AsItIs,
    /// This text, in which members are hidden.
    Masked(String),
    /// Nothing of it.
    Nothing,
}

impl MaskConfig {
    /// `fields`: patterns of names of headers, and of members of JSON objects at any depth, whose values are hidden. `bodies`:
    /// patterns of queues, `CHANNEL/ID`, whose bodies are hidden. Upper and lower case are the same.
    ///
    /// # Errors
    /// [`ConfigError::BadPattern`] names the malformed pattern.
    pub fn new(fields: &[String], bodies: &[String]) -> Result<Self, ConfigError> {
        let parse = |setting, texts: &[String]| {
            let pattern = |text: &String| {
                let broken = |why| ConfigError::BadPattern { setting, pattern: text.clone(), why };
                text.parse().map_err(broken)
            };
            texts.iter().map(pattern).collect::<Result<_, _>>()
        };
        Ok(Self { fields: parse("mask_fields", fields)?, bodies: parse("mask_bodies", bodies)? })
    }

    /// The value of a header as it may be shown.
    pub(crate) fn header<'a>(&self, name: &str, value: &'a str) -> &'a str {
        if self.hides(name) { HIDDEN } else { value }
    }

    /// The body of a message as it may be shown. Bodies that are not JSON have no members to hide.
    pub(crate) fn body(&self, queue: &QueueAddress, body: &[u8]) -> Shown {
        if !self.bodies.is_empty() && matches_any(&self.bodies, &queue.to_string()) {
            return Shown::Nothing;
        }
        let has_members = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
        if self.fields.is_empty() || !has_members {
            return Shown::AsItIs;
        }
        if body.len() > PARSED_BYTES_MAX {
            return Shown::Nothing;
        }
        // Several documents, or one that is cut, may contain such members all the same.
        let Ok(mut content) = serde_json::from_slice(body) else { return Shown::Nothing };
        if self.hide_members(&mut content) { Shown::Masked(content.to_string()) } else { Shown::AsItIs }
    }

    /// Hides members at any depth. Returns whether there were any.
    fn hide_members(&self, value: &mut Value) -> bool {
        let mut hidden = false;
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if self.hides(name) {
                        *value = HIDDEN.into();
                        hidden = true;
                    } else {
                        hidden |= self.hide_members(value);
                    }
                }
            }
            Value::Array(values) => {
                for value in values {
                    hidden |= self.hide_members(value);
                }
            }
            _ => {}
        }
        hidden
    }

    fn hides(&self, name: &str) -> bool {
        matches_any(&self.fields, name)
    }
}

fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches_folded(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(fields: &[&str], bodies: &[&str]) -> MaskConfig {
        let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
        MaskConfig::new(&texts(fields), &texts(bodies)).expect("these are patterns")
    }

    fn shown(mask: &MaskConfig, body: &str) -> Shown {
        mask.body(&QueueAddress::parse("orders/1").expect("an address"), body.as_bytes())
    }

    #[test]
    fn members_are_hidden_at_any_depth_and_in_any_case() {
        let mask = mask(&["*password*", "card"], &[]);
        let body = r#"{"user":"ann","Password":"p","list":[{"card":{"number":4111}},{"cards":1}]}"#;
        let Shown::Masked(text) = shown(&mask, body) else { panic!("members are hidden") };
        let content: Value = serde_json::from_str(&text).expect("still JSON");
        let expected = serde_json::json!({
            "user": "ann", "Password": "***", "list": [{"card": "***"}, {"cards": 1}]
        });
        assert_eq!(content, expected);
        assert_eq!(mask.header("X-PASSWORD", "p"), "***");
        assert_eq!(mask.header("Country", "fr"), "fr");
    }

    #[test]
    fn what_cannot_be_masked_member_by_member_is_hidden_as_a_whole() {
        let mask = mask(&["card"], &["payments/*"]);
        assert_eq!(shown(&mask, r#"{"card":1}{"card":2}"#), Shown::Nothing);
        assert_eq!(shown(&mask, r#" [{"card": "#), Shown::Nothing);
        let large = format!(r#"{{"filler":"{}"}}"#, "x".repeat(PARSED_BYTES_MAX));
        assert_eq!(shown(&mask, &large), Shown::Nothing);
        let queue = QueueAddress::parse("Payments/7").expect("an address");
        assert_eq!(mask.body(&queue, b"plain"), Shown::Nothing);
    }

    #[test]
    fn a_body_without_hidden_members_is_shown_byte_by_byte() {
        let mask = mask(&["card"], &["payments/*"]);
        for body in [r#"{"b":1,  "a":2}"#, "card: 4111", "", "7"] {
            assert_eq!(shown(&mask, body), Shown::AsItIs);
        }
    }
}
