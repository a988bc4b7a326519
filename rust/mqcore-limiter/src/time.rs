//! Points in time and times to live.

/// A point in time: nanoseconds since a fixed origin, on a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A time that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Adds `nanos`, saturated at [`Nanos::NEVER`].
    #[inline]
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Subtracts `nanos`, saturated at 0.
    #[inline]
    #[must_use]
    pub const fn before(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this time; 0 if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Number of the minute that contains this time.
    #[inline]
    #[must_use]
    pub const fn minute(self) -> u32 {
        (self.0 / 60_000_000_000) as u32
    }
}

/// A time to live, in the unit that the client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// Time unit: 1 ns, 2 us, 3 ms, 4 s, 5 min, 6 h. Other values are preserved and mean seconds.
    pub unit: u8,
    /// Number of units.
    pub amount: u64,
}

impl Ttl {
    /// Nanoseconds per unit.
    #[inline]
    #[must_use]
    pub const fn unit_nanos(unit: u8) -> u64 {
        match unit {
            1 => 1,
            2 => 1_000,
            3 => 1_000_000,
            5 => 60_000_000_000,
            6 => 3_600_000_000_000,
            _ => 1_000_000_000,
        }
    }

    /// The time in nanoseconds, saturated at `u64::MAX`.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.amount.saturating_mul(Self::unit_nanos(self.unit))
    }

    /// Remaining time until `deadline` in units of `unit`, rounded down. The current nanosecond counts as elapsed: a new time
    /// to live of 60 s has 59 full seconds left. Of [`Nanos::NEVER`] it is `u64::MAX`.
    #[inline]
    #[must_use]
    pub const fn remaining(unit: u8, deadline: Nanos, now: Nanos) -> Self {
        if deadline.0 == Nanos::NEVER.0 {
            return Self { unit, amount: u64::MAX };
        }
        let left = deadline.since(now).saturating_sub(1);
        Self { unit, amount: left / Self::unit_nanos(unit) }
    }
}
