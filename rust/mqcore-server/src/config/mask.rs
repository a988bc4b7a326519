//! Rules that hide parts of messages from everyone who reads them over the admin side.

use mqcore_authority::pattern::Pattern;
use serde_json::Value;

use crate::config::error::ConfigError;

/// The text in place of what is hidden.
pub(crate) const HIDDEN: &str = "***";

/// Three bytes before a document that some programs write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
    /// The body itself.
    AsItIs,
    /// The same document, written anew, because text of a document may hide members from the parser: duplicates, for example.
    Rewritten {
        /// The document.
        text: String,
        /// Whether members are hidden in it.
        is_masked: bool,
    },
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
                text.to_lowercase().parse().map_err(broken)
            };
            texts.iter().map(pattern).collect::<Result<_, _>>()
        };
        Ok(Self { fields: parse("mask_fields", fields)?, bodies: parse("mask_bodies", bodies)? })
    }

    /// The value of a header as it may be shown.
    pub(crate) fn header<'a>(&self, name: &str, value: &'a str) -> &'a str {
        if self.hides(name) { HIDDEN } else { value }
    }

    /// Whether bodies of this queue are hidden as a whole.
    pub(crate) fn hides_bodies_of(&self, queue: &str) -> bool {
        matches_any(&self.bodies, queue)
    }

    /// Whether bodies are parsed to hide members.
    pub(crate) fn has_fields(&self) -> bool {
        !self.fields.is_empty()
    }

    /// A body as it may be shown, if it is not hidden as a whole. Bodies that are not JSON have no members to hide.
    pub(crate) fn body(&self, body: &[u8]) -> Shown {
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        if self.fields.is_empty() || !may_have_members(body) {
            return Shown::AsItIs;
        }
        if body.len() > PARSED_BYTES_MAX {
            return Shown::Nothing;
        }
        // Several documents, or one that is cut, may contain such members all the same.
        let Ok(mut content) = serde_json::from_slice(body) else { return Shown::Nothing };
        let is_masked = self.hide_members(&mut content);
        Shown::Rewritten { text: content.to_string(), is_masked }
    }

    /// Hides members at any depth, also in texts that are JSON themselves. Returns whether there were any.
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
            Value::String(text) if may_have_members(text.as_bytes()) => {
                if let Ok(mut inner) = serde_json::from_str(text)
                    && self.hide_members(&mut inner)
                {
                    *text = inner.to_string();
                    hidden = true;
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

/// Whether a text may be a JSON document with members.
fn may_have_members(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'))
}

/// Patterns are in lower case.
fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    if patterns.is_empty() {
        return false;
    }
    let name = name.to_lowercase();
    patterns.iter().any(|pattern| pattern.matches(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(fields: &[&str], bodies: &[&str]) -> MaskConfig {
        let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
        MaskConfig::new(&texts(fields), &texts(bodies)).expect("these are patterns")
    }

    /// The document that is shown, and whether members are hidden in it.
    fn shown(mask: &MaskConfig, body: &str) -> (Value, bool) {
        let Shown::Rewritten { text, is_masked } = mask.body(body.as_bytes()) else {
            panic!("{body} is JSON")
        };
        (serde_json::from_str(&text).expect("still JSON"), is_masked)
    }

    #[test]
    fn members_are_hidden_at_any_depth_and_in_any_case() {
        let mask = mask(&["*PASSWORD*", "card", "größe"], &[]);
        let body = r#"{"user":"ann","Password":"p","GRÖSSE":1,"GRÖßE":2,"list":[{"card":{"number":4111}},{"cards":1}]}"#;
        let expected = serde_json::json!({
            "user": "ann", "Password": "***", "GRÖSSE": 1, "GRÖßE": "***", "list": [{"card": "***"}, {"cards": 1}]
        });
        assert_eq!(shown(&mask, body), (expected, true));
        assert_eq!(mask.header("X-PASSWORD", "p"), "***");
        assert_eq!(mask.header("Country", "fr"), "fr");
    }

    #[test]
    fn members_do_not_escape_in_other_forms_of_a_document() {
        let mask = mask(&["card"], &[]);
        let marked = "\u{feff}{\"card\":4111}";
        assert_eq!(shown(&mask, marked), (serde_json::json!({"card": "***"}), true));
        assert_eq!(shown(&mask, r#"{"a":{"card":4111},"a":0}"#), (serde_json::json!({"a": 0}), false));
        let inner = r#""{\"card\":4111}""#;
        assert_eq!(shown(&mask, inner), (serde_json::json!(r#"{"card":"***"}"#), true));
        let nested = r#"{"text":"[{\"card\":4111}]"}"#;
        assert_eq!(shown(&mask, nested), (serde_json::json!({"text": r#"[{"card":"***"}]"#}), true));
    }

    #[test]
    fn documents_that_cannot_be_parsed_are_hidden_as_a_whole() {
        let mask = mask(&["card"], &["payments/*"]);
        let large = format!(r#"{{"filler":"{}"}}"#, "x".repeat(PARSED_BYTES_MAX));
        for body in [r#"{"card":1}{"card":2}"#, r#" [{"card": "#, &large] {
            assert_eq!(mask.body(body.as_bytes()), Shown::Nothing);
        }
        assert!(mask.hides_bodies_of("Payments/7") && !mask.hides_bodies_of("orders/7"));
    }

    #[test]
    fn other_bodies_are_shown_as_they_are() {
        for body in ["card: 4111", "", "7"] {
            assert_eq!(mask(&["card"], &[]).body(body.as_bytes()), Shown::AsItIs);
        }
        assert_eq!(mask(&[], &[]).body(br#"{"card":1}"#), Shown::AsItIs);
    }
}
