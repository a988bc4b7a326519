//! The options of a listener, such as `mm2://127.0.0.1:2623?require=batch-ack&window_max=100`.

use std::time::Duration;

use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind, WINDOW_MAX};
use mqcore_wire::micromessage::handshake::{Extension, parse_list};
use mqcore_wire::micromessage::properties::Typing;

use crate::listener::{BadOption, ListenerOptions};

/// Default maximum bytes of a message, all its parts together: 64 MiB.
pub const MESSAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How MicroMessage2 is spoken on one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroMessageTerms {
    /// Extensions that every client must have. Default none.
    pub required: Vec<Extension<'static>>,
    /// Maximum unacknowledged messages with `batch-ack`, 1 to 32,767. Default 32,767.
    pub window_max: u16,
    /// How the values of properties are read. Default [`Typing::Typed`].
    pub typing: Typing,
    /// Maximum bytes of a message, all its parts together. Default [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: u64,
    /// The destination of messages that name none. Default none: they are rejected.
    pub default_destination: Option<Box<str>>,
    /// Time without input after which the connection is closed; zero: never. Default zero.
    pub idle_timeout: Duration,
}

impl Default for MicroMessageTerms {
    fn default() -> Self {
        Self {
            required: Vec::new(),
            window_max: WINDOW_MAX,
            typing: Typing::default(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            default_destination: None,
            idle_timeout: Duration::ZERO,
        }
    }
}

/// The smallest limit of messages that can be set: some names and a little data.
const MESSAGE_BYTES_LEAST: u64 = 1024;

impl MicroMessageTerms {
    pub(super) fn read(options: &mut ListenerOptions) -> Result<Self, BadOption> {
        let mut terms = Self::default();
        if let Some(list) = options.take("require") {
            let known = parse_list(list.as_bytes()).ok().filter(|list| list.iter().all(is_official));
            let required: Vec<_> = known.into_iter().flatten().map(Extension::into_owned).collect();
            if required.is_empty() || Agreement::of(required.clone()).is_err() {
                return Err(BadOption(
                    "require must be a list of extensions such as batch-ack:max-count=100;json, without vendor extensions",
                ));
            }
            terms.required = required;
        }
        if let Some(count) = options.take("window_max") {
            let count = count.parse().ok().filter(|count| (1..=WINDOW_MAX).contains(count));
            terms.window_max =
                count.ok_or(BadOption("window_max must be a number of messages, 1 to 32767"))?;
        }
        if let Some(bytes) = options.take("message_bytes_max") {
            let bytes = bytes.parse().ok().filter(|bytes| *bytes >= MESSAGE_BYTES_LEAST);
            terms.message_bytes_max =
                bytes.ok_or(BadOption("message_bytes_max must be a number of bytes, at least 1024"))?;
        }
        terms.typing = match options.take("properties").as_deref() {
            None | Some("typed") => Typing::Typed,
            Some("untyped") => Typing::Untyped,
            Some(_) => return Err(BadOption("properties must be 'typed' or 'untyped'")),
        };
        let destination = options.take("default_destination");
        terms.default_destination = destination.filter(|name| !name.is_empty()).map(Into::into);
        if let Some(seconds) = options.take("idle_timeout") {
            let timeout = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            terms.idle_timeout =
                timeout.ok_or(BadOption("idle_timeout must be a number of seconds; 0 disables it"))?;
        }
        Ok(terms)
    }
}

fn is_official(extension: &Extension<'_>) -> bool {
    ExtensionKind::of(&extension.name).is_some_and(|kind| kind != ExtensionKind::Vendor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_sets_the_required_extensions() {
        let read = |query| MicroMessageTerms::read(&mut ListenerOptions::of(query));
        assert_eq!(read(""), Ok(MicroMessageTerms::default()));
        let terms = read(
            "require=batch-ack:max-count=5;json&window_max=50&message_bytes_max=4096&properties=untyped\
             &default_destination=inbox&idle_timeout=1.5",
        )
        .unwrap();
        let names: Vec<_> = terms.required.iter().map(|extension| &*extension.name).collect();
        assert_eq!((names, terms.window_max), (vec!["batch-ack", "json"], 50));
        assert_eq!((terms.message_bytes_max, terms.typing), (4096, Typing::Untyped));
        assert_eq!(terms.default_destination.as_deref(), Some("inbox"));
        assert_eq!(terms.idle_timeout, Duration::from_millis(1500));
        for wrong in [
            "require=microauth",
            "require=",
            "require=ack;batch-ack",
            "require=x-own",
            "window_max=0",
            "window_max=40000",
            "message_bytes_max=10",
            "properties=some",
            "idle_timeout=-1",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
