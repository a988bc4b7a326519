//! `simulate`: runs many seeds of the simulator, or replays one and shrinks it.

#![allow(clippy::print_stdout, reason = "a program that prints its findings")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mqcore_simulator::run::run;
use mqcore_simulator::scenario::Scenario;
use mqcore_simulator::shrink::shrink;

const HELP: &str = "\
Usage: simulate [--first SEED] [--seeds COUNT] [--seconds SECONDS]
       simulate --seed SEED

Run the broker in simulated time with random clients and faults, and compare what
clients see with the promises.

  --first SEED       First seed. Every second one gets a scenario in which more areas
                     meet, and every second of these pairs jobs whose results are kept;
                     they have numbers above 2^40. [default: from the clock]
  --seeds COUNT      Number of seeds. [default: 1000]
  --seconds SECONDS  Stop after this time, whatever the number of seeds.
  --seed SEED        Replay one seed; if it breaks a promise, print its smallest scenario and its trace.

Exits with 1 if a promise is broken.";

/// Seeds between two lines of progress.
const PROGRESS: u64 = 10_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut first, mut seeds, mut seconds, mut seed) = (None, 1_000, None, None);
    while let Some(name) = arguments.next() {
        if name == "--help" {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (name.as_str(), value) {
            ("--first", Some(value)) => first = Some(value),
            ("--seeds", Some(value)) => seeds = value,
            ("--seconds", Some(value)) => seconds = Some(value),
            ("--seed", Some(value)) => seed = Some(value),
            _ => {
                eprintln!("invalid option `{name}` or its value is not a number; see simulate --help");
                return ExitCode::from(2);
            }
        }
    }
    // A finding of the rule `panic` has the text; the default hook would print each of thousands of runs that shrink it.
    std::panic::set_hook(Box::new(|_| {}));
    match seed {
        Some(seed) => replay(seed),
        None => search(first.unwrap_or_else(random_seed), seeds, seconds.map(Duration::from_secs)),
    }
}

fn random_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_nanos().into())
}

fn search(first: u64, seeds: u64, limit: Option<Duration>) -> ExitCode {
    let began = Instant::now();
    for (done, number) in (first..first.saturating_add(seeds)).enumerate() {
        let seed = Scenario::variant(number, done);
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            println!("{done} seeds from {first} in {:.0?}: no finding", began.elapsed());
            return ExitCode::SUCCESS;
        }
        if done as u64 % PROGRESS == PROGRESS - 1 {
            println!("{} seeds, {:.0?}", done + 1, began.elapsed());
        }
        if let Some(finding) = run(&Scenario::of_seed(seed), false).finding {
            println!("seed {seed}, number {}: {finding}", done + 1);
            println!("replay and shrink it with: make simulate SEED={seed}");
            return ExitCode::FAILURE;
        }
    }
    println!("{seeds} seeds from {first} in {:.0?}: no finding", began.elapsed());
    ExitCode::SUCCESS
}

fn replay(seed: u64) -> ExitCode {
    let scenario = Scenario::of_seed(seed);
    let report = run(&scenario, false);
    let Some(finding) = report.finding else {
        println!("seed {seed}: no finding, trace {:016x}", report.trace.hash());
        return ExitCode::SUCCESS;
    };
    println!("seed {seed}: {finding}, trace {:016x}", report.trace.hash());
    let smaller = shrink(&scenario);
    let report = run(&smaller, true);
    println!("\n{} of {} steps break the same rule:\n{smaller}", smaller.steps.len(), scenario.steps.len());
    report.trace.lines().iter().for_each(|line| println!("{line}"));
    if let Some(finding) = report.finding {
        println!("\n{finding}");
    }
    ExitCode::FAILURE
}
