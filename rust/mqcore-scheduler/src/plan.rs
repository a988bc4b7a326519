//! When something is due, how often, and what becomes of what was missed.

use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::cron::{Cron, CronError};

/// The shortest interval, in milliseconds.
pub const INTERVAL_MS_MIN: u64 = 10;
/// The longest interval, in milliseconds: a hundred years.
pub const INTERVAL_MS_MAX: u64 = 100 * 366 * 24 * 3600 * 1000;
/// How late, in milliseconds, what is due may be and still happen with [`CatchUp::None`].
pub const LATE_MS_MAX: u64 = 60_000;
/// How far back, in milliseconds, [`CatchUp::All`] goes.
pub const CATCH_UP_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Why a plan cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The expression cannot be read.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// Nobody knows the zone.
    #[error("{0:?} is no time zone of the IANA database, such as Europe/Berlin")]
    Zone(Box<str>),
    /// The interval is too short or too long.
    #[error("an interval is {INTERVAL_MS_MIN} ms at least and a hundred years at most, not {0} ms")]
    Interval(u64),
    /// There is no moment that the expression names.
    #[error("the cron expression {0:?} names no moment in the next fifty years")]
    Never(Box<str>),
}

/// A cron expression in a zone. Shared by all plans that say the same.
#[derive(Debug)]
pub struct CronInZone {
    cron: Cron,
    name: Box<str>,
    zone: TimeZone,
}

impl CronInZone {
    /// Reads an expression and looks a zone up. The empty name is UTC.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(text: &str, zone: &str, zones: &TimeZoneDatabase) -> Result<Self, PlanError> {
        let cron = Cron::parse(text)?;
        let found = match zone {
            "" | "UTC" => TimeZone::UTC,
            name => zones.get(name).map_err(|_| PlanError::Zone(name.into()))?,
        };
        let name = found.iana_name().unwrap_or("UTC").into();
        Ok(Self { cron, name, zone: found })
    }

    /// The expression.
    #[must_use]
    pub fn text(&self) -> &str {
        self.cron.text()
    }

    /// The zone's name.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.name
    }

    /// The first moment after `after_ms`.
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

/// When something is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// Every so many milliseconds.
    Every(u64),
    /// At the moments of a cron expression.
    Cron(Arc<CronInZone>),
}

impl When {
    /// An interval in milliseconds.
    ///
    /// # Errors
    /// [`PlanError::Interval`].
    pub fn every(interval_ms: u64) -> Result<Self, PlanError> {
        let allowed = (INTERVAL_MS_MIN..=INTERVAL_MS_MAX).contains(&interval_ms);
        if allowed { Ok(Self::Every(interval_ms)) } else { Err(PlanError::Interval(interval_ms)) }
    }

    /// The first due time after one that was.
    #[must_use]
    pub fn after(&self, due_ms: u64) -> Option<u64> {
        match self {
            Self::Every(interval) => due_ms.checked_add(*interval),
            Self::Cron(cron) => cron.next(due_ms),
        }
    }

    /// The first due time that is not before `from_ms`, where `due_ms`, which is earlier, is one.
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

    /// The last due time up to `now_ms`, where `due_ms`, which is not later, is one.
    #[must_use]
    pub fn latest(&self, due_ms: u64, now_ms: u64) -> u64 {
        /// How far back a cron expression is looked for first, in milliseconds, and how much further each time.
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

/// What becomes of due times that were missed: of those whose successor is due as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum CatchUp {
    /// They are left out; so is the last one if it is more than a minute late.
    None,
    /// They are left out, and the last one happens however late it is.
    #[default]
    Latest,
    /// All of them happen, if they are not older than a week.
    All,
}

impl CatchUp {
    /// All of them.
    pub const EVERY: [Self; 3] = [Self::None, Self::Latest, Self::All];

    /// As people write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Latest => "latest",
            Self::All => "all",
        }
    }

    /// What [`CatchUp::as_str`] wrote.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|catch_up| catch_up.as_str() == text)
    }
}

/// What is planned for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// When it is due.
    pub when: When,
    /// What becomes of what was missed.
    pub catch_up: CatchUp,
    /// It is due at once, too, and its interval begins then.
    pub at_once: bool,
    /// How often in all. `None`: without end.
    pub runs: Option<NonZeroU32>,
}

impl Plan {
    /// When it is due first.
    ///
    /// # Errors
    /// [`PlanError::Never`].
    pub fn begin(&self, now_ms: u64) -> Result<State, PlanError> {
        let first = if self.at_once { Some(now_ms) } else { self.when.after(now_ms) };
        let due_ms = first.ok_or_else(|| match &self.when {
            When::Cron(cron) => PlanError::Never(cron.text().into()),
            When::Every(interval) => PlanError::Interval(*interval),
        })?;
        Ok(State { due_ms, fence: 0, left: self.runs })
    }
}

/// How far an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// When it is due next, in milliseconds since the epoch.
    pub due_ms: u64,
    /// How often it happened. The number of the next time is one more.
    pub fence: u64,
    /// How often it happens still. `None`: without end.
    pub left: Option<NonZeroU32>,
}
