//! Moments and times to live.

/// A moment: nanoseconds since some fixed one, on a clock that never runs backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// So late that it never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// This much later, at most [`Nanos::NEVER`].
    #[inline]
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This much earlier, at least the first moment of all.
    #[inline]
    #[must_use]
    pub const fn before(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this moment; 0 if it is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The number of the minute that this moment lies in.
    #[inline]
    #[must_use]
    pub const fn minute(self) -> u32 {
        (self.0 / 60_000_000_000) as u32
    }
}

/// A time to live, in the unit in which it was said and will be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// 1 ns, 2 us, 3 ms, 4 s, 5 min, 6 h. Others are kept and mean seconds.
    pub unit: u8,
    /// How many of them.
    pub amount: u64,
}

impl Ttl {
    /// Nanoseconds of one unit.
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

    /// All of it in nanoseconds; the largest number if it is more.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.amount.saturating_mul(Self::unit_nanos(self.unit))
    }

    /// What is left at `now` of a time to live in `unit` that ends at `deadline`, rounded down. The moment that is now
    /// counts as past already: what was given 60 s has 59 whole ones left from then on.
    #[inline]
    #[must_use]
    pub const fn remaining(unit: u8, deadline: Nanos, now: Nanos) -> Self {
        let left = deadline.since(now).saturating_sub(1);
        Self { unit, amount: left / Self::unit_nanos(unit) }
    }
}
