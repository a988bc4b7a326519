//! Time as the broker sees it: a number that it is given, never a clock that it reads.

use std::time::Duration;

/// Milliseconds since the Unix epoch, from a clock that never runs backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Later than everything: the deadline of what has none.
    pub const NEVER: Self = Self(u64::MAX);

    /// This moment plus `duration`; [`Timestamp::NEVER`] when that cannot be expressed.
    pub fn after(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}
