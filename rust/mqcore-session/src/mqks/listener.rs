//! The options of a listener: `mqks://127.0.0.1:25000?line_bytes_max=1048576`.

use crate::listener::{BadOption, ListenerOptions};

/// Maximum bytes of a line by default: 1 MiB.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// The smallest limit of lines that can be set: room for some names and a little data.
const LINE_BYTES_LEAST: u64 = 1024;

/// How MQKS is spoken on one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MqksTerms {
    /// Maximum bytes of a line; the limit of frames holds as well. Default [`LINE_BYTES_MAX`].
    pub line_bytes_max: u64,
}

impl Default for MqksTerms {
    fn default() -> Self {
        Self { line_bytes_max: LINE_BYTES_MAX }
    }
}

impl MqksTerms {
    pub(super) fn read(options: &mut ListenerOptions) -> Result<Self, BadOption> {
        let Some(given) = options.take("line_bytes_max") else { return Ok(Self::default()) };
        match given.parse() {
            Ok(line_bytes_max) if line_bytes_max >= LINE_BYTES_LEAST => Ok(Self { line_bytes_max }),
            _ => Err(BadOption("line_bytes_max must be a number of bytes, at least 1024")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_sets_the_maximum_line_length() {
        let read = |query| MqksTerms::read(&mut ListenerOptions::of(query)).map(|terms| terms.line_bytes_max);
        assert_eq!(read(""), Ok(1 << 20));
        assert_eq!(read("line_bytes_max=4096"), Ok(4096));
        for wrong in ["line_bytes_max=1023", "line_bytes_max=1k", "line_bytes_max="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
