//! Time for the broker: an argument, never a clock that it reads.

use std::time::Duration;

/// Milliseconds since the Unix epoch, from a clock that never runs backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Later than everything: "no deadline".
    pub const NEVER: Self = Self(u64::MAX);

    /// This time plus `duration`; [`Timestamp::NEVER`] on overflow.
    pub fn after(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}
