//! The meaning of cron expressions: compared with cronsim over many zones and years, and case by case.

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use mqcore_scheduler::cron::{Cron, CronError};
use serde_json::Value;

fn zone(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).expect("a zone of the database")
}

fn following(cron: &str, name: &str, from: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(cron).expect("an expression");
    let zone = zone(name);
    let from: Timestamp = from.parse().expect("a moment");
    let mut after = from.as_millisecond() as u64;
    let mut found = Vec::new();
    while found.len() < count
        && let Some(next) = cron.next(after, &zone)
    {
        assert!(next > after);
        after = next;
        let moment = Timestamp::from_millisecond(next as i64).expect("a moment");
        found.push(moment.to_zoned(zone.clone()).strftime("%m-%d %H:%M:%S %z").to_string());
    }
    found
}

#[test]
fn expressions_agree_with_cronsim_around_clock_changes() {
    let lines = include_str!("../../../tests/vectors/cron.jsonl");
    let mut wrong = Vec::new();
    let mut compared = 0;
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| case[name].as_str().expect("a text");
        let cron = Cron::parse(text("cron")).expect("an expression");
        let zone = zone(text("zone"));
        let mut after = case["from"].as_u64().expect("a moment") * 1000;
        for expected in case["next"].as_array().expect("moments") {
            let next = cron.next(after, &zone);
            if next != expected.as_u64().map(|seconds| seconds * 1000) {
                wrong.push(format!("{line}: {next:?} instead of {expected}"));
                break;
            }
            after = next.unwrap_or(after);
            compared += 1;
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);
    assert!(compared > 15_000, "{compared} moments are too few to mean anything");
}

#[test]
fn times_of_the_day_happen_once_when_clocks_are_turned() {
    // Skipped from 2:00 to 3:00, and shown twice from 2:00 to 3:00.
    let spring = following("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 3);
    assert_eq!(spring, ["03-29 03:00:00 +0200", "03-30 02:00:00 +0200", "03-30 02:30:00 +0200"]);
    let autumn = following("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
    assert_eq!(autumn, ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"]);
    let second_time = following("30 2 * * *", "Europe/Berlin", "2026-10-25T01:00:00Z", 1);
    assert_eq!(second_time, ["10-26 02:30:00 +0100"], "the first time is over");
}

#[test]
fn runs_happen_once_for_each_time_that_the_clock_shows_them() {
    let autumn = following("30 * * * *", "Europe/Berlin", "2026-10-24T23:40:00Z", 3);
    assert_eq!(autumn, ["10-25 02:30:00 +0200", "10-25 02:30:00 +0100", "10-25 03:30:00 +0100"]);
    let spring = following("0 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 1);
    assert_eq!(spring, ["03-30 02:30:00 +0200"], "six fields follow the clock");
    let half_an_hour = following("*/10 * * * *", "Australia/Lord_Howe", "2026-04-04T14:45:00Z", 3);
    assert_eq!(half_an_hour, ["04-05 01:50:00 +1100", "04-05 01:30:00 +1030", "04-05 01:40:00 +1030"]);
}

#[test]
fn days_that_a_zone_leaves_out_are_left_out() {
    let apia = following("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 2);
    assert_eq!(apia, ["12-29 12:00:00 -1000", "12-31 00:00:00 +1400"], "the 30th happens when it is over");
    let clock = following("0 0 */6 * * *", "Pacific/Apia", "2011-12-30T08:00:00Z", 2);
    assert_eq!(clock, ["12-31 00:00:00 +1400", "12-31 06:00:00 +1400"]);
}

#[test]
fn rare_days_are_found_and_impossible_ones_are_not() {
    let leap = following("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 2);
    assert_eq!(leap, ["02-29 00:00:00 +0000"; 2]);
    let fifth = following("0 0 * 2 MON#5", "UTC", "2026-01-01T00:00:00Z", 1);
    assert_eq!(fifth, ["02-29 00:00:00 +0000"], "in 2044");
    assert_eq!(
        following("0 0 30 2 1#5", "UTC", "2026-01-01T00:00:00Z", 1).len(),
        1,
        "one of both days is enough"
    );
    assert_eq!(Cron::parse("0 0 30 2 *"), Err(CronError::NoSuchDay(30)));
    for month in 1..=12 {
        let is_long = Cron::parse(&format!("0 0 31 {month} *")).is_ok();
        assert_eq!(is_long, [1, 3, 5, 7, 8, 10, 12].contains(&month), "month {month}");
    }
    assert!(Cron::parse("0 0 31 4,5 *").is_ok(), "May has 31 days");
    assert_eq!(following("@daily", "UTC", "2026-01-01T00:00:00Z", 1), ["01-02 00:00:00 +0000"]);
}

#[test]
fn invalid_expressions_are_rejected_with_the_name_of_the_field() {
    for (text, field) in [
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of the week"),
        ("61 * * * * *", "second"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("+1 * * * *", "minute"),
        ("* * * * L", "day of the week"),
        ("* * * * 1#6", "day of the week"),
        ("* * * * 5L/2", "day of the week"),
        ("é * * * *", "minute"),
    ] {
        match Cron::parse(text) {
            Err(CronError::Field { field: found, .. }) => assert_eq!(found, field, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    for (text, fields) in [("", 0), ("* * * *", 4), ("* * * * * * *", 7), ("@reboot", 1)] {
        assert_eq!(Cron::parse(text), Err(CronError::Fields(fields)), "{text}");
    }
    assert_eq!(Cron::parse(&"1,".repeat(300)), Err(CronError::TooLong));
}

proptest::proptest! {
    #[test]
    fn no_text_is_more_than_refused(text in "[-0-9*/,#LWa-z@ ]{0,40}", after in 0_u64..10_000_000_000_000) {
        if let Ok(cron) = Cron::parse(&text) {
            let next = cron.next(after, &TimeZone::UTC);
            proptest::prop_assert!(next.is_none_or(|next| next > after && next % 1000 == 0));
            proptest::prop_assert_eq!(Cron::parse(cron.text()), Ok(cron));
        }
    }
}
