//! The options in the URL of a listener, as protocols read them.

/// The options of one URL, percent-decoded. Protocols take the options that they know by name; the server rejects a URL
/// with options that are left over.
#[derive(Debug, Clone, Default)]
pub struct ListenerOptions {
    given: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl ListenerOptions {
    /// Options without any; [`ListenerOptions::add`] adds them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an option. False if it was given before.
    pub fn add(&mut self, name: &str, value: String) -> bool {
        let is_new = !self.has(name);
        if is_new {
            self.given.push((name.to_owned(), value));
        }
        is_new
    }

    /// Whether an option is given and not taken yet.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| given == name)
    }

    /// Takes the value of an option.
    pub fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let place = self.given.iter().position(|(given, _)| given == name)?;
        Some(self.given.swap_remove(place).1)
    }

    /// The name of an option that was not taken, and the names of those that could have been.
    #[must_use]
    pub fn unknown(&self) -> Option<(&str, &[&'static str])> {
        self.given.first().map(|(name, _)| (&**name, &*self.known))
    }
}

/// The value of an option is invalid. The text says what is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadOption(pub &'static str);

/// A further listener that a URL opens beside its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion<T> {
    /// How its protocol is spoken there.
    pub terms: T,
    /// The port in the URL; `None`: the URL's own port plus `offset`.
    pub port: Option<u16>,
    /// Distance from the URL's own port.
    pub offset: u16,
}

impl<T> Companion<T> {
    /// The same listener with other terms.
    pub fn map<U>(self, terms: impl FnOnce(T) -> U) -> Companion<U> {
        Companion { terms: terms(self.terms), port: self.port, offset: self.offset }
    }
}

#[cfg(test)]
impl ListenerOptions {
    /// The options of `name=value&other=value`, without escapes.
    pub(crate) fn of(query: &str) -> Self {
        let mut options = Self::new();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            assert!(options.add(name, value.into()), "{name} is given twice");
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_by_name_and_those_left_over_are_unknown() {
        let mut options = ListenerOptions::of("path=/a&other=x");
        assert!(!options.add("path", "b".into()) && options.has("other"));
        assert_eq!(options.take("path").as_deref(), Some("/a"));
        assert_eq!(options.take("missing"), None);
        assert_eq!(options.unknown(), Some(("other", ["path", "missing"].as_slice())));
        assert_eq!(options.take("other").as_deref(), Some("x"));
        assert_eq!(options.unknown(), None);
    }
}
