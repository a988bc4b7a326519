//! Cron expressions, and the times that they match in a time zone.
//!
//! The syntax and the rules for daylight saving time are those of Debian's cron, with seconds and some extensions. A
//! five-field expression in which neither minute nor hour begins with a star names *times of day*. Each runs once per day,
//! at its first occurrence if the clock shows it twice, and at the end of the gap if the clock skips it. All other expressions
//! follow the clock: they run twice at times shown twice, and not at all at skipped times.
//!
//! ```
//! use jiff::tz::TimeZone;
//! use mqcore_scheduler::cron::Cron;
//!
//! let weekdays_at_nine = Cron::parse("0 9 * * MON-FRI")?;
//! let friday_noon_ms = 1_767_960_000_000; // 2026-01-09 12:00 UTC
//! let monday_nine_ms = 1_768_208_400_000; // 2026-01-12 09:00 UTC
//! assert_eq!(weekdays_at_nine.next(friday_noon_ms, &TimeZone::UTC), Some(monday_nine_ms));
//! # Ok::<(), mqcore_scheduler::cron::CronError>(())
//! ```

use std::fmt;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// Maximum size of an expression in bytes.
pub const TEXT_BYTES_MAX: usize = 512;
/// Number of years to search for a match. A leap day on a given weekday recurs after at most forty years.
const YEARS_MAX: i16 = 50;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const NICKNAMES: [(&str, &str); 7] = [
    ("@YEARLY", "0 0 1 1 *"),
    ("@ANNUALLY", "0 0 1 1 *"),
    ("@MONTHLY", "0 0 1 * *"),
    ("@WEEKLY", "0 0 * * 0"),
    ("@DAILY", "0 0 * * *"),
    ("@MIDNIGHT", "0 0 * * *"),
    ("@HOURLY", "0 * * * *"),
];

/// Why a cron expression is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// The expression is too long.
    #[error("a cron expression must have at most {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The number of fields is wrong.
    #[error("a cron expression must have five fields, or six with seconds first; this one has {0}")]
    Fields(usize),
    /// A field is invalid.
    #[error("{text:?} is not a valid {field} in a cron expression: expected {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value as given.
        text: String,
        /// Accepted values.
        expected: &'static str,
    },
    /// None of the selected months has such a day.
    #[error("none of the selected months has a day {0}")]
    NoSuchDay(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CronFieldKind {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
}

impl CronFieldKind {
    const ALL: [Self; 6] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Weekday];

    /// Smallest and largest number. Sunday is both 0 and 7.
    const fn range(self) -> (u8, u8) {
        match self {
            Self::Second | Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::Day => (1, 31),
            Self::Month => (1, 12),
            Self::Weekday => (0, 7),
        }
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Second => ("second", "0-59"),
            Self::Minute => ("minute", "0-59"),
            Self::Hour => ("hour", "0-23"),
            Self::Day => ("day of the month", "1-31, L or LW"),
            Self::Month => ("month", "1-12 or JAN-DEC"),
            Self::Weekday => ("day of the week", "0-7 or SUN-SAT, with #N or L behind it"),
        }
    }

    fn error(self, text: &str) -> CronError {
        let (field, expected) = self.words();
        CronError::Field { field, text: text.to_owned(), expected }
    }

    fn number(self, text: &str) -> Result<u8, CronError> {
        let names: &[&str] = match self {
            Self::Month => &MONTHS,
            Self::Weekday => &WEEKDAYS,
            _ => &[],
        };
        if let Some(place) = names.iter().position(|name| *name == text) {
            return Ok(place as u8 + u8::from(self == Self::Month));
        }
        let (low, high) = self.range();
        let number = plain(text).and_then(|number| u8::try_from(number).ok());
        number.filter(|number| (low..=high).contains(number)).ok_or_else(|| self.error(text))
    }

    /// Parses a field: comma-separated terms.
    fn parse(self, text: &str) -> Result<CronField, CronError> {
        let mut field = CronField::default();
        for term in text.split(',') {
            let term = self.term(term)?;
            field.bits |= term.bits;
            field.last |= term.last;
            field.last_weekday |= term.last_weekday;
            for (all, more) in field.nth.iter_mut().zip(term.nth) {
                *all |= more;
            }
        }
        Ok(field)
    }

    fn term(self, text: &str) -> Result<CronField, CronError> {
        let bits = |bits| Ok(CronField { bits, ..CronField::default() });
        let (low, high) = self.range();
        if text == "*" {
            return bits(span(low, high));
        }
        match self {
            Self::Day if text == "L" => return Ok(CronField { last: true, ..CronField::default() }),
            Self::Day if text == "LW" => return Ok(CronField { last_weekday: true, ..CronField::default() }),
            Self::Weekday => {
                if let Some(day) = text.strip_suffix('L') {
                    let day = plain(day).ok_or_else(|| self.error(text)).and_then(|_| self.number(day))?;
                    return Ok(CronField::nth(day, LAST));
                }
                if let Some((day, nth)) = text.split_once('#') {
                    let nth = plain(nth).filter(|nth| (1..=5).contains(nth));
                    let nth = nth.ok_or_else(|| self.error(text))?;
                    return Ok(CronField::nth(self.number(day)?, nth as usize - 1));
                }
            }
            _ => {}
        }
        if let Some((term, step)) = text.split_once('/') {
            let step = plain(step).filter(|step| *step > 0).ok_or_else(|| self.error(text))?;
            let items = self.term(term)?;
            if items.bits == 0 {
                return if items.nth == [0; 6] { Ok(items) } else { Err(self.error(text)) };
            }
            let from = items.bits.trailing_zeros() as u8;
            // A single number with a step extends to the end of the range.
            let all = if items.bits.count_ones() == 1 { span(from, high) } else { items.bits };
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            let kept = (0..64).filter(|bit| all & (1 << bit) != 0).step_by(step);
            return bits(kept.fold(0, |bits, bit| bits | (1 << bit)));
        }
        if let Some((from, to)) = text.split_once('-') {
            let (from, to) = (self.number(from)?, self.number(to)?);
            return if from <= to { bits(span(from, to)) } else { Err(self.error(text)) };
        }
        bits(1 << self.number(text)?)
    }
}

/// Parses a text that consists of digits only.
fn plain(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

const fn span(low: u8, high: u8) -> u64 {
    (u64::MAX >> (63 - (high - low))) << low
}

/// Index of "last of the month" in [`CronField::nth`].
const LAST: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CronField {
    bits: u64,
    /// The last day of the month, and its last working day.
    last: bool,
    last_weekday: bool,
    /// Weekdays that apply once per month: the first, ..., the fifth, the last.
    nth: [u8; 6],
}

impl CronField {
    fn nth(day: u8, place: usize) -> Self {
        let mut nth = [0; 6];
        nth[place] = 1 << day;
        Self { nth, ..Self::default() }
    }
}

/// A parsed cron expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: Box<str>,
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: CronField,
    months: u64,
    weekdays: CronField,
    /// Whether both day of the month and weekday must match, instead of either.
    both: bool,
    /// Whether the expression names times of day, which run once whatever the clock does.
    fixed: bool,
}

impl Cron {
    /// Parses five fields (minute, hour, day of the month, month, weekday), six with seconds first, or a nickname:
    /// `@yearly`, `@monthly`, `@weekly`, `@daily` or `@hourly`. Case is ignored.
    ///
    /// # Errors
    /// [`CronError`] names the invalid field.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CronError::TooLong);
        }
        let upper = text.trim().to_ascii_uppercase();
        let expanded = NICKNAMES.iter().find(|(name, _)| *name == upper).map_or(&*upper, |(_, meant)| meant);
        let mut parts: Vec<&str> = expanded.split_whitespace().collect();
        let five = parts.len() == 5;
        if five {
            parts.insert(0, "0");
        }
        let parts: [&str; 6] = parts.try_into().map_err(|parts: Vec<_>| CronError::Fields(parts.len()))?;
        let mut fields = [CronField::default(); 6];
        for ((field, kind), part) in fields.iter_mut().zip(CronFieldKind::ALL).zip(parts) {
            *field = kind.parse(part)?;
        }
        let [seconds, minutes, hours, days, months, weekdays] = fields;
        let star = |part: usize| parts[part].starts_with('*');
        let cron = Self {
            text: text.split_whitespace().collect::<Vec<_>>().join(" ").into(),
            seconds: seconds.bits,
            minutes: minutes.bits,
            hours: hours.bits,
            days,
            months: months.bits,
            weekdays,
            both: star(3) || star(5),
            fixed: five && !star(1) && !star(2),
        };
        cron.check_days()?;
        Ok(cron)
    }

    /// Rejects dates that never exist, such as February 30.
    fn check_days(&self) -> Result<(), CronError> {
        let first = self.days.bits.trailing_zeros() as u8;
        let longest = (1..=12_u8).filter(|month| self.months & (1 << month) != 0).map(|month| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        });
        let by_date = self.days.last || self.days.last_weekday;
        if self.both && !by_date && longest.max().is_none_or(|longest| first > longest) {
            return Err(CronError::NoSuchDay(first));
        }
        Ok(())
    }

    /// Returns the expression with single spaces between its fields.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first matching time after `after_ms` in this zone, both in milliseconds since the Unix epoch. `None`: there is
    /// none within the next fifty years.
    #[must_use]
    pub fn next(&self, after_ms: u64, zone: &TimeZone) -> Option<u64> {
        let after = Timestamp::from_second(i64::try_from(after_ms / 1000).ok()?).ok()?;
        let found = if self.fixed { self.next_fixed(after, zone) } else { self.next_running(after, zone) };
        u64::try_from(found?.as_millisecond()).ok()
    }

    /// Times of day: a time shown twice counts at its first occurrence, a skipped time at the end of the gap.
    fn next_fixed(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = zone.to_datetime(after);
        let mut shown = start.checked_add(1.second()).ok()?;
        loop {
            shown = self.next_shown(shown, start.year() + YEARS_MAX)?;
            let moment = match zone.to_ambiguous_timestamp(shown).compatible() {
                Ok(moment) if zone.to_datetime(moment) == shown => moment,
                // The clock skips this time, so it runs at the end of the gap.
                Ok(moment) => zone.preceding(moment.checked_add(1.second()).ok()?).next()?.timestamp(),
                Err(_) => return None,
            };
            if moment > after {
                return Some(moment);
            }
            shown = shown.checked_add(1.second()).ok()?;
        }
    }

    /// Follows the clock: between two changes of the offset, it shows every second exactly once.
    fn next_running(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut from = after.checked_add(1.second()).ok()?;
        let last_year = zone.to_datetime(after).year() + YEARS_MAX;
        loop {
            let offset = zone.to_offset(from);
            let change = zone.following(from).next().map(|change| change.timestamp());
            let shown = self.next_shown(offset.to_datetime(from), last_year)?;
            let moment = offset.to_timestamp(shown).ok()?;
            match change {
                Some(change) if moment >= change => from = change,
                _ => return Some(moment),
            }
        }
    }

    /// Returns the first matching calendar date and time from `from` on.
    fn next_shown(&self, from: DateTime, last_year: i16) -> Option<DateTime> {
        let from = if from.subsec_nanosecond() == 0 {
            from
        } else {
            from.with().subsec_nanosecond(0).build().ok()?
        };
        let (mut date, mut time) = (from.date(), Some(from.time()));
        loop {
            if date.year() > last_year {
                return None;
            }
            if self.months & (1 << date.month()) == 0 {
                date = date.last_of_month().tomorrow().ok()?;
                time = None;
                continue;
            }
            if self.fits_day(date)
                && let Some(found) = self.next_time(time.unwrap_or(Time::midnight()))
            {
                return Some(date.to_datetime(found));
            }
            date = date.tomorrow().ok()?;
            time = None;
        }
    }

    /// Returns the first matching time of a day from `from` on.
    fn next_time(&self, from: Time) -> Option<Time> {
        let (hour, minute, second) = (from.hour() as u8, from.minute() as u8, from.second() as u8);
        let found = at_or_after(self.hours, hour)?;
        if found == hour {
            let within = match at_or_after(self.minutes, minute) {
                Some(same) if same == minute => match at_or_after(self.seconds, second) {
                    Some(second) => Some((minute, second)),
                    None => at_or_after(self.minutes, minute + 1).zip(at_or_after(self.seconds, 0)),
                },
                later => later.zip(at_or_after(self.seconds, 0)),
            };
            if let Some((minute, second)) = within {
                return Time::new(hour as i8, minute as i8, second as i8, 0).ok();
            }
        }
        let hour = if found == hour { at_or_after(self.hours, hour + 1)? } else { found };
        let (minute, second) = (at_or_after(self.minutes, 0)?, at_or_after(self.seconds, 0)?);
        Time::new(hour as i8, minute as i8, second as i8, 0).ok()
    }

    fn fits_day(&self, date: Date) -> bool {
        let (by_date, by_weekday) = (self.fits_date(date), self.fits_weekday(date));
        if self.both { by_date && by_weekday } else { by_date || by_weekday }
    }

    fn fits_date(&self, date: Date) -> bool {
        let (day, length) = (date.day(), date.days_in_month());
        let last_weekday = || {
            let weekday = date.last_of_month().weekday().to_monday_zero_offset();
            length - (weekday - 4).max(0)
        };
        self.days.bits & (1 << day) != 0
            || (self.days.last && day == length)
            || (self.days.last_weekday && day == last_weekday())
    }

    fn fits_weekday(&self, date: Date) -> bool {
        // Sunday has two numbers.
        let day = match date.weekday().to_sunday_zero_offset() {
            0 => 1 | 1 << 7,
            day => 1_u8 << day,
        };
        let nth = usize::from(date.day().unsigned_abs().div_ceil(7)) - 1;
        let is_last = date.day() + 7 > date.days_in_month();
        self.weekdays.bits & u64::from(day) != 0
            || self.weekdays.nth[nth] & day != 0
            || (is_last && self.weekdays.nth[LAST] & day != 0)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Returns the smallest number in the set that is at least `from`.
fn at_or_after(bits: u64, from: u8) -> Option<u8> {
    let rest = if from < 64 { bits >> from << from } else { 0 };
    (rest != 0).then(|| rest.trailing_zeros() as u8)
}
