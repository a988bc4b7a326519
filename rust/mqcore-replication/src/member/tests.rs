//! The end of a process whose member stops leading. Each case runs in a process of its own, which it ends.

use std::env;
use std::process::Command;

use super::*;

/// The data directory of the process that a test starts.
const DIRECTORY: &str = "MQCORE_TEST_MEMBER";
/// The exit code of the program that continues in place of that process.
const RESTARTED: i32 = 77;
const PATIENCE: Duration = Duration::from_secs(30);

fn lone_member(data_dir: PathBuf) -> Member {
    let command = ["sh".into(), "-c".into(), format!("exit {RESTARTED}").into()].into();
    let options = MemberOptions {
        cluster: "tests".to_owned(),
        node: 1,
        secret: vec![7; 32],
        tls: None,
        listen: "127.0.0.1:0".to_owned(),
        peers: BTreeMap::new(),
        is_witness: false,
        data_dir,
        listeners: Vec::new(),
        connections_max: 1,
        tick: Duration::from_millis(10),
        verify_interval: Duration::ZERO,
        restart: RestartCommand { command, environment: BTreeMap::new() },
        before_end: || std::fs::write(note_of_end(&env::var_os(DIRECTORY).unwrap()), "").unwrap(),
    };
    Member::start(options).unwrap()
}

/// The file that the process writes when its member stops leading.
fn note_of_end(directory: &OsString) -> PathBuf {
    Path::new(directory).join("ended")
}

/// Runs a test again in a process whose member leads and then fails, and returns its exit code. Does not return in that
/// process.
fn exit_code(test: &str, stops: impl FnOnce(&Replicator)) -> Option<i32> {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let member = lone_member(directory.into());
        let begun = Instant::now();
        let replicator = loop {
            assert!(begun.elapsed() < PATIENCE, "the only member leads");
            match member.lead() {
                Some(replicator) => break replicator,
                None => drop(member.wait(&member.status(), Duration::from_millis(20))),
            }
        };
        stops(&replicator);
        member.inputs.send(Input::LogDamaged("a test".to_owned())).unwrap();
        std::thread::sleep(PATIENCE);
        panic!("the process continues");
    }
    let scratch = tempfile::TempDir::new().unwrap();
    let mut process = Command::new(env::current_exe().unwrap());
    process.args(["--exact", &format!("member::tests::{test}"), "--nocapture"]);
    let ended = process.env(DIRECTORY, scratch.path()).output().unwrap();
    assert!(note_of_end(&scratch.path().into()).exists(), "{ended:?}");
    ended.status.code()
}

#[test]
fn a_process_whose_broker_runs_restarts_when_it_stops_leading() {
    let code = exit_code("a_process_whose_broker_runs_restarts_when_it_stops_leading", |_| {});
    assert_eq!(code, Some(RESTARTED));
}

#[test]
fn a_process_whose_broker_stops_by_itself_ends_when_it_stops_leading() {
    let code =
        exit_code("a_process_whose_broker_stops_by_itself_ends_when_it_stops_leading", Replicator::stop);
    assert_eq!(code, Some(0));
}
