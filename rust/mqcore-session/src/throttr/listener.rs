//! The options of a listener: `throttr://127.0.0.1:9000?value=uint16&protocol=7.1&metrics=on&overflow=wrap&persist=off`.

use mqcore_limiter::limiter::{Adjust, EntryProperties};
use mqcore_wire::throttr::{Dialect, Family, Width};

use crate::listener::{BadOption, ListenerOptions};

/// The options of a listener: `throttr://127.0.0.1:9000?value=uint16&protocol=7.1&metrics=on&overflow=wrap&persist=off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThrottrTerms {
    /// Value width and edition. Default `uint16` and 7.1.
    pub dialect: Dialect,
    /// Whether reads, writes and requests are counted. If not, answers contain zeros. Default yes.
    pub metrics: bool,
    /// Whether INCREASE beyond the width stays at the largest value instead of wrapping. Default no, as the original.
    pub saturate: bool,
    /// Whether counters and buffers that are created here survive a restart. Needs a data directory. Default no.
    pub persist: bool,
}

impl Default for ThrottrTerms {
    fn default() -> Self {
        Self { dialect: Dialect::default(), metrics: true, saturate: false, persist: false }
    }
}

/// The valid values of each option, for error messages.
const CHOICES: [(&str, &str); 5] = [
    ("value", "value must be uint8, uint16, uint32 or uint64"),
    ("protocol", "protocol must be 7.1 or 7.3"),
    ("metrics", "metrics must be on or off"),
    ("overflow", "overflow must be wrap or saturate"),
    ("persist", "persist must be on or off"),
];

impl ThrottrTerms {
    pub(super) fn read(options: &mut ListenerOptions) -> Result<Self, BadOption> {
        let mut terms = Self::default();
        for (name, choices) in CHOICES {
            if let Some(value) = options.take(name) {
                terms = terms.with(name, &value).ok_or(BadOption(choices))?;
            }
        }
        Ok(terms)
    }

    /// Sets the option with this name. `None`: its value is not one of [`CHOICES`].
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Option<Self> {
        match name {
            "value" => self.dialect.width = Width::from_name(value)?,
            "protocol" => self.dialect.family = Family::from_name(value)?,
            "metrics" => self.metrics = switch(value, "on", "off")?,
            "persist" => self.persist = switch(value, "on", "off")?,
            "overflow" => self.saturate = switch(value, "saturate", "wrap")?,
            _ => return None,
        }
        Some(self)
    }

    /// The properties of an entry that is created here.
    pub(super) const fn made(&self) -> EntryProperties {
        EntryProperties { bits: 8 * self.dialect.width.bytes() as u8, kept: self.persist }
    }
}

fn switch(value: &str, yes: &str, no: &str) -> Option<bool> {
    (value == yes || value == no).then_some(value == yes)
}

/// The change with this code.
pub(super) const fn adjust(change: u8) -> Option<Adjust> {
    use mqcore_wire::throttr::request::{DECREASE, INCREASE, PATCH};
    match change {
        PATCH => Some(Adjust::Patch),
        INCREASE => Some(Adjust::Increase),
        DECREASE => Some(Adjust::Decrease),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_by_name_and_invalid_values_are_rejected() {
        let terms =
            ThrottrTerms::default().with("value", "uint64").and_then(|terms| terms.with("protocol", "7.3"));
        let terms = terms.and_then(|terms| terms.with("metrics", "off")).unwrap();
        assert_eq!((terms.dialect.width, terms.dialect.family), (Width::U64, Family::V73));
        assert!(!terms.metrics && terms.made() == EntryProperties { bits: 64, kept: false });
        assert!(terms.with("persist", "on").unwrap().made().kept);
        for (name, value) in [
            ("value", "uint128"),
            ("protocol", "8"),
            ("metrics", ""),
            ("overflow", "no"),
            ("persist", "1"),
            ("x", "y"),
        ] {
            assert_eq!(ThrottrTerms::default().with(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn listener_sets_the_value_width() {
        let read = |query| ThrottrTerms::read(&mut ListenerOptions::of(query));
        let terms = read("value=uint64&protocol=7.3&metrics=off").unwrap();
        assert_eq!((terms.dialect.width.as_str(), terms.dialect.family.as_str()), ("uint64", "7.3"));
        assert!(!terms.metrics);
        assert!(read("value=uint128").is_err());
    }
}
