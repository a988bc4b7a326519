//! The load generator: `load all`, or the names of scenarios; `load help` lists them.

#![expect(clippy::print_stdout, reason = "figures are what this program is for")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use mqcore_bench::drive::{self, Drive};
use mqcore_bench::report;
use mqcore_bench::scenario::{Plan, Scenario};
use mqcore_bench::serve::{Serve, serve};

const HELP: &str = "\
load [OPTIONS] all | SCENARIO...

Measures mqcore, in a process of its own, and prints a table.

  --seconds N   how long each run is measured (3)
  --runs N      runs of each measurement, of which the median counts (5)
  --no-peers    mqcore only; otherwise also redis-server and nats-server where they are installed
  --shards N    shards of the server (0: one for each core)
  --server CMD  what to measure instead of this program's own server: started as CMD serve STATUS ACK SHARDS WORKERS,
                it prints the line of JSON that `load serve` prints, and serves until its standard input is closed;
                scenarios that save measure this program's own server all the same
  --messages N  messages of the scenario backlog (1000000)
  --workers N   threads of the server's runtime (0: one for each core)
  --emq-router PROGRAM
                the original's router, which eventmq-router measures in turn with mqcore;
                `python benches/environments.py eventmq` installs and names one
  --json        JSON instead of the table
";

struct Wanted {
    plan: Plan,
    scenarios: Vec<Scenario>,
    json: bool,
}

fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        plan: Plan {
            duration: Duration::from_secs(3),
            runs: 5,
            peers: true,
            shards: 0,
            workers: 0,
            messages: 1_000_000,
            server: None,
            emq_router: None,
        },
        scenarios: Vec::new(),
        json: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || {
            let value = rest.next().and_then(|value| value.parse::<usize>().ok());
            value.ok_or_else(|| format!("{argument} wants a number"))
        };
        match argument.as_str() {
            "--seconds" => wanted.plan.duration = Duration::from_secs(number()?.max(1) as u64),
            "--runs" => wanted.plan.runs = number()?.max(1),
            "--shards" => wanted.plan.shards = number()?,
            "--messages" => wanted.plan.messages = number()?.max(2) as u64,
            "--workers" => wanted.plan.workers = number()?,
            "--server" => {
                let command = rest.next().ok_or("--server wants a command")?;
                wanted.plan.server = Some(command.clone().leak());
            }
            "--emq-router" => {
                let program = rest.next().ok_or("--emq-router wants a program")?;
                wanted.plan.emq_router = Some(program.clone().leak());
            }
            "--no-peers" => wanted.plan.peers = false,
            "--json" => wanted.json = true,
            "all" => wanted.scenarios.extend(Scenario::ALL),
            name => {
                let unknown = || format!("there is no scenario and no option {name:?}");
                wanted.scenarios.push(Scenario::from_name(name).ok_or_else(unknown)?);
            }
        }
    }
    if wanted.scenarios.is_empty() { Err("which scenario?".into()) } else { Ok(wanted) }
}

fn measure(wanted: &Wanted) -> Result<bool, Box<dyn Error>> {
    let mut figures = Vec::new();
    for scenario in &wanted.scenarios {
        eprintln!("measuring {} ...", scenario.name());
        figures.extend(scenario.run(wanted.plan)?);
    }
    if wanted.json {
        println!("{:#}", report::json(&figures));
    } else {
        print!("{}", report::table(&figures));
    }
    Ok(figures.iter().all(|figure| figure.is_met()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(options) =
        arguments.split_first().and_then(|(first, rest)| (first == "serve").then_some(rest))
    {
        // Not for people: how this program starts the process under test.
        let Some(options) = Serve::from_arguments(options) else { return ExitCode::from(2) };
        return match serve(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        };
    }
    if let Some(options) =
        arguments.split_first().and_then(|(first, rest)| (first == "drive").then_some(rest))
    {
        return match Drive::from_arguments(options) {
            Ok(drive) => match drive.run() {
                Ok(values) => {
                    println!("{values}");
                    ExitCode::SUCCESS
                }
                Err(error) => fail(&error.to_string()),
            },
            Err(problem) => {
                eprintln!("{}\n\n{problem}", drive::HELP);
                ExitCode::from(2)
            }
        };
    }
    match parse(&arguments) {
        // A missed goal is a finding, not a failure of the measurement: it is in the table.
        Ok(wanted) => match measure(&wanted) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        },
        Err(problem) => {
            let names: Vec<&str> = Scenario::ALL.into_iter().map(Scenario::name).collect();
            eprintln!("{HELP}\nscenarios: {}\n\n{problem}", names.join(" "));
            ExitCode::from(2)
        }
    }
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("load: {problem}");
    ExitCode::FAILURE
}
