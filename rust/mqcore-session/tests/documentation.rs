//! The page about TMQP names tests; those in Rust must exist.

use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../../../docs/protocols/tmqp.md");

/// `session handshake::name` and `wire vectors::name`, as the page writes them.
fn named_tests() -> Vec<(&'static str, &'static str, &'static str)> {
    let quoted = PAGE.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| {
            let (krate, path) = text.split_once(' ')?;
            let (file, test) = path.split_once("::")?;
            matches!(krate, "session" | "wire").then_some((krate, file, test))
        })
        .collect()
}

#[test]
fn every_rust_test_that_the_page_names_exists() {
    let named = named_tests();
    assert!(named.len() >= 50, "the table names {} tests", named.len());
    for (krate, file, test) in named {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../mqcore-{krate}/tests"));
        let places = [tests.join(format!("{file}.rs")), tests.join(format!("conversations/{file}.rs"))];
        let source: String = places.iter().filter_map(|place| fs::read_to_string(place).ok()).collect();
        assert!(source.contains(&format!("fn {test}(")), "{krate} has no test {file}::{test}");
    }
}

#[test]
fn every_case_has_its_row() {
    let table = PAGE.split_once("| case |").expect("the table of cases").1;
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let numbers: Vec<u32> =
        rows.filter_map(|line| line.strip_prefix("| ")?.split_once(" |")?.0.parse().ok()).collect();
    assert_eq!(numbers, (1..=120).collect::<Vec<_>>());
}
