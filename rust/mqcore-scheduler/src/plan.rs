//! Plans: when an entry is due, how often, and what happens to missed runs.

use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::cron::{Cron, CronError};

/// Shortest interval in milliseconds.
pub const INTERVAL_MS_MIN: u64 = 10;
/// Longest interval in milliseconds: a hundred years.
pub const INTERVAL_MS_MAX: u64 = 100 * 366 * 24 * 3600 * 1000;
/// Maximum delay in milliseconds with which a run still happens under [`CatchUp::None`].
pub const LATE_MS_MAX: u64 = 60_000;
/// Maximum age in milliseconds of missed runs that [`CatchUp::All`] makes up for.
pub const CATCH_UP_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The cron expression is invalid.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// The time zone is unknown.
    #[error("{0:?} is not a time zone of the IANA database, such as Europe/Berlin")]
    Zone(Box<str>),
    /// The interval is too short or too long.
    #[error("an interval must be between {INTERVAL_MS_MIN} ms and a hundred years, not {0} ms")]
    Interval(u64),
    /// The expression never matches.
    #[error("the cron expression {0:?} matches no time within the next fifty years")]
    Never(Box<str>),
}

/// A cron expression in a time zone. Shared by all plans with the same expression and zone.
#[derive(Debug)]
pub struct CronInZone {
    cron: Cron,
    name: Box<str>,
    zone: TimeZone,
}

impl CronInZone {
    /// Parses an expression and looks up a zone. An empty zone name means UTC.
    ///
    /// # Errors
    /// [`PlanError`] if the expression is invalid or the zone is unknown.
    pub fn new(text: &str, zone: &str, zones: &TimeZoneDatabase) -> Result<Self, PlanError> {
        let cron = Cron::parse(text)?;
        let found = match zone {
            "" | "UTC" => TimeZone::UTC,
            name => zones.get(name).map_err(|_| PlanError::Zone(name.into()))?,
        };
        let name = found.iana_name().unwrap_or("UTC").into();
        Ok(Self { cron, name, zone: found })
    }

    /// Returns the expression.
    #[must_use]
    pub fn text(&self) -> &str {
        self.cron.text()
    }

    /// Returns the name of the zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.name
    }

    /// Returns the first matching time after `after_ms`, both in milliseconds since the Unix epoch.
    #[must_use]
    pub fn next(&self, after_ms: u64) -> Option<u64> {
        self.cron.next(after_ms, &self.zone)
    }
}

impl PartialEq for CronInZone {
    fn eq(&self, other: &Self) -> bool {
        (&self.cron, &self.name) == (&other.cron, &other.name)
    }
}

impl Eq for CronInZone {}

/// How an entry recurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recurrence {
    /// At an interval in milliseconds.
    Every(u64),
    /// At the times of a cron expression.
    Cron(Arc<CronInZone>),
}

impl Recurrence {
    /// Creates an interval in milliseconds.
    ///
    /// # Errors
    /// [`PlanError::Interval`] if it is out of range.
    pub fn every(interval_ms: u64) -> Result<Self, PlanError> {
        let allowed = (INTERVAL_MS_MIN..=INTERVAL_MS_MAX).contains(&interval_ms);
        if allowed { Ok(Self::Every(interval_ms)) } else { Err(PlanError::Interval(interval_ms)) }
    }

    /// Returns the due time that follows `due_ms`.
    #[must_use]
    pub fn after(&self, due_ms: u64) -> Option<u64> {
        match self {
            Self::Every(interval) => due_ms.checked_add(*interval),
            Self::Cron(cron) => cron.next(due_ms),
        }
    }

    /// Returns the first due time that is at least `from_ms`, given an earlier due time `due_ms`.
    #[must_use]
    pub fn from(&self, due_ms: u64, from_ms: u64) -> Option<u64> {
        match self {
            Self::Every(interval) => {
                let steps = from_ms.saturating_sub(due_ms).div_ceil(*interval);
                due_ms.checked_add(steps.checked_mul(*interval)?)
            }
            Self::Cron(cron) => cron.next(from_ms.saturating_sub(1)),
        }
    }

    /// Returns the last due time that is at most `now_ms`, given a due time `due_ms` that is not later.
    #[must_use]
    pub fn latest(&self, due_ms: u64, now_ms: u64) -> u64 {
        /// How far back to search for a cron match first, in milliseconds, and the factor for each further attempt.
        const LOOK_BACK_MS: u64 = 1000;
        const FURTHER: u64 = 32;
        match self {
            Self::Every(interval) => due_ms + (now_ms - due_ms) / interval * interval,
            Self::Cron(cron) => {
                let mut back = LOOK_BACK_MS;
                while now_ms - due_ms > back {
                    if let Some(first) = cron.next(now_ms - back).filter(|first| *first <= now_ms) {
                        return last_until(cron, first, now_ms);
                    }
                    back = back.saturating_mul(FURTHER);
                }
                last_until(cron, due_ms, now_ms)
            }
        }
    }
}

fn last_until(cron: &CronInZone, mut due_ms: u64, now_ms: u64) -> u64 {
    while let Some(next) = cron.next(due_ms).filter(|next| *next <= now_ms) {
        due_ms = next;
    }
    due_ms
}

/// Policy for missed runs. A run is missed if its successor is also due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum CatchUp {
    /// Skip them, and also the last one if it is more than a minute late.
    None,
    /// Skip them, but run the last one, however late it is.
    #[default]
    Latest,
    /// Run all of them that are at most a week old.
    All,
}

impl CatchUp {
    /// All policies.
    pub const EVERY: [Self; 3] = [Self::None, Self::Latest, Self::All];

    /// Name used in options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Latest => "latest",
            Self::All => "all",
        }
    }

    /// Parses the name returned by [`CatchUp::as_str`].
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|catch_up| catch_up.as_str() == text)
    }
}

/// The plan of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How the entry recurs.
    pub when: Recurrence,
    /// Policy for missed runs.
    pub catch_up: CatchUp,
    /// Whether the first run is immediate, so that the interval begins now.
    pub at_once: bool,
    /// Total number of runs. `None`: no limit.
    pub runs: Option<NonZeroU32>,
}

impl Plan {
    /// Computes the first due time.
    ///
    /// # Errors
    /// [`PlanError::Never`] if the cron expression never matches, [`PlanError::Interval`] if the due time overflows.
    pub fn begin(&self, now_ms: u64) -> Result<PlanProgress, PlanError> {
        let first = if self.at_once { Some(now_ms) } else { self.when.after(now_ms) };
        let due_ms = first.ok_or_else(|| match &self.when {
            Recurrence::Cron(cron) => PlanError::Never(cron.text().into()),
            Recurrence::Every(interval) => PlanError::Interval(*interval),
        })?;
        Ok(PlanProgress { due_ms, fence: 0, left: self.runs })
    }
}

/// The progress of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanProgress {
    /// Next due time, in milliseconds since the Unix epoch.
    pub due_ms: u64,
    /// Number of runs so far. It serves as fencing token: the next run has this number plus one.
    pub fence: u64,
    /// Number of remaining runs. `None`: no limit.
    pub left: Option<NonZeroU32>,
}
