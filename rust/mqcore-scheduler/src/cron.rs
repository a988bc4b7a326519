//! Cron expressions, and the moments that they name in a zone.
//!
//! The grammar and the rules for days when clocks are turned are those of Debian's cron, with seconds and a few words
//! beyond it. An expression of five fields with neither minutes nor hours beginning with a star names times of the day: each
//! happens once a day, the first time that a clock shows it; times that are skipped happen when the clocks go on. Every other
//! expression follows the clocks as they run: what is shown twice happens twice, what is not shown does not happen.

use std::fmt;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// Bytes of an expression at most.
pub const TEXT_BYTES_MAX: usize = 512;
/// Years in which a moment is looked for. Leap days on one day of the week are at most forty years apart.
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

/// Why an expression means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// It is too long to be meant.
    #[error("a cron expression has at most {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// Too few fields, or too many.
    #[error("a cron expression has five fields, or six with seconds in front; this one has {0}")]
    Fields(usize),
    /// A field cannot be read.
    #[error("{text:?} is no {field} of a cron expression: expected {expected}")]
    Field {
        /// What the field is for.
        field: &'static str,
        /// What it says.
        text: String,
        /// What it could say.
        expected: &'static str,
    },
    /// None of its months has such a day.
    #[error("none of the months has a day {0}")]
    NoSuchDay(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Weekday];

    /// The smallest and the largest number. Sunday is 0, and 7.
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

    /// Reads a field: terms between commas.
    fn parse(self, text: &str) -> Result<Field, CronError> {
        let mut field = Field::default();
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

    fn term(self, text: &str) -> Result<Field, CronError> {
        let bits = |bits| Ok(Field { bits, ..Field::default() });
        let (low, high) = self.range();
        if text == "*" {
            return bits(span(low, high));
        }
        match self {
            Self::Day if text == "L" => return Ok(Field { last: true, ..Field::default() }),
            Self::Day if text == "LW" => return Ok(Field { last_weekday: true, ..Field::default() }),
            Self::Weekday => {
                if let Some(day) = text.strip_suffix('L') {
                    let day = plain(day).ok_or_else(|| self.error(text)).and_then(|_| self.number(day))?;
                    return Ok(Field::nth(day, LAST));
                }
                if let Some((day, nth)) = text.split_once('#') {
                    let nth = plain(nth).filter(|nth| (1..=5).contains(nth));
                    let nth = nth.ok_or_else(|| self.error(text))?;
                    return Ok(Field::nth(self.number(day)?, nth as usize - 1));
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
            // One number with a step goes on to the end of the range.
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

/// Digits and nothing else.
fn plain(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

const fn span(low: u8, high: u8) -> u64 {
    (u64::MAX >> (63 - (high - low))) << low
}

/// The place of the last one of a month in [`Field::nth`].
const LAST: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Field {
    bits: u64,
    /// The last day of the month, and its last day from Monday to Friday.
    last: bool,
    last_weekday: bool,
    /// Days of the week of which one of the month is meant: the first, ..., the fifth, the last.
    nth: [u8; 6],
}

impl Field {
    fn nth(day: u8, place: usize) -> Self {
        let mut nth = [0; 6];
        nth[place] = 1 << day;
        Self { nth, ..Self::default() }
    }
}

/// An expression that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: Box<str>,
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: Field,
    months: u64,
    weekdays: Field,
    /// The day of the month and the day of the week must both fit, not just one of them.
    both: bool,
    /// It names times of the day, which happen once whatever the clocks do.
    fixed: bool,
}

impl Cron {
    /// Reads five fields (minute, hour, day of the month, month, day of the week), six with seconds in front, or one of
    /// `@yearly`, `@monthly`, `@weekly`, `@daily`, `@hourly`. Case does not matter.
    ///
    /// # Errors
    /// [`CronError`], which names the field.
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
        let mut fields = [Field::default(); 6];
        for ((field, kind), part) in fields.iter_mut().zip(Kind::ALL).zip(parts) {
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

    /// The thirtieth of February would be looked for in vain.
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

    /// The expression, with one space between its fields.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first moment after `after_ms` (milliseconds since the epoch) that it names in this zone. `None`: there is none in
    /// the next fifty years.
    #[must_use]
    pub fn next(&self, after_ms: u64, zone: &TimeZone) -> Option<u64> {
        let after = Timestamp::from_second(i64::try_from(after_ms / 1000).ok()?).ok()?;
        let found = if self.fixed { self.next_fixed(after, zone) } else { self.next_running(after, zone) };
        u64::try_from(found?.as_millisecond()).ok()
    }

    /// Times of the day. What clocks show twice counts the first time, what they skip when they go on.
    fn next_fixed(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = zone.to_datetime(after);
        let mut shown = start.checked_add(1.second()).ok()?;
        loop {
            shown = self.next_shown(shown, start.year() + YEARS_MAX)?;
            let moment = match zone.to_ambiguous_timestamp(shown).compatible() {
                Ok(moment) if zone.to_datetime(moment) == shown => moment,
                // The clocks do not show it: it happens when the gap is over.
                Ok(moment) => zone.preceding(moment.checked_add(1.second()).ok()?).next()?.timestamp(),
                Err(_) => return None,
            };
            if moment > after {
                return Some(moment);
            }
            shown = shown.checked_add(1.second()).ok()?;
        }
    }

    /// As clocks run: from one change of the offset to the next they show every second once.
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

    /// The first date and time from `from` on that fits, as a calendar has them.
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

    /// The first time of a day from `from` on.
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

/// The first number from `from` on that is in the set.
fn at_or_after(bits: u64, from: u8) -> Option<u8> {
    let rest = if from < 64 { bits >> from << from } else { 0 };
    (rest != 0).then(|| rest.trailing_zeros() as u8)
}
