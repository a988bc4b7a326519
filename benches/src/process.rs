//! The process under test: started, observed through `/proc`, and stopped with its owner.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::eventmq::Sockets;
use crate::serve::Serve;

/// Time in which a process must answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Address for clients.
    pub address: SocketAddr,
    /// Address for MQKS, if it has such a listener.
    pub mqks: Option<SocketAddr>,
    /// Address for MicroMessage2, if it has such a listener.
    pub mm2: Option<SocketAddr>,
    /// Addresses for jobs, if it has such listeners.
    pub eventmq: Option<Sockets>,
    /// Address for rate limit requests, if it has such a listener.
    pub throttr: Option<SocketAddr>,
    /// Address of its admin side, if it has one.
    pub admin: Option<SocketAddr>,
}

impl Process {
    /// Starts mqcore: this program with the arguments to serve, or another one with the same arguments and output.
    ///
    /// # Errors
    /// If it does not start, or does not print its addresses.
    pub fn mqcore(options: &Serve, server: Option<&str>) -> io::Result<Self> {
        let mut command = match server.map(|server| server.split_whitespace().collect::<Vec<_>>()) {
            Some(words) if !words.is_empty() => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                command
            }
            _ => Command::new(std::env::current_exe()?),
        };
        let mut child = command
            .arg("serve")
            .args(options.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line)?;
        let address = |name: &str| ready[name].as_str().and_then(|text| text.parse().ok());
        let tmqp = address("tmqp").ok_or_else(|| io::Error::other("it does not say where it listens"))?;
        let sockets = |frontend, backend| Sockets { frontend, backend, tells_all: true };
        Ok(Self {
            child,
            address: tmqp,
            eventmq: address("emqp-frontend").zip(address("emqp")).map(|(front, back)| sockets(front, back)),
            throttr: address("throttr"),
            mqks: address("mqks"),
            mm2: address("mm2"),
            admin: address("admin"),
        })
    }

    /// Starts another broker that takes its port as an argument, and waits until it listens. `None` if it is not
    /// installed.
    ///
    /// # Errors
    /// If it is installed and does not listen.
    pub fn other(program: &str, arguments: impl Fn(u16) -> Vec<String>) -> io::Result<Option<Self>> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(program);
        command.args(arguments(address.port()));
        Self::listening(command, address)
    }

    /// Starts another broker, and waits until it listens. `None` if it is not installed.
    ///
    /// # Errors
    /// If it is installed and does not listen.
    pub fn listening(mut command: Command, address: SocketAddr) -> io::Result<Option<Self>> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let process =
            Self { child, address, throttr: None, mqks: None, mm2: None, eventmq: None, admin: None };
        let start = Instant::now();
        while let Err(error) = TcpStream::connect(address) {
            if start.elapsed() > PATIENCE {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(process))
    }

    /// Its memory in bytes.
    ///
    /// # Errors
    /// If it has ended.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmRSS"))
    }

    /// Its processor time in seconds.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu_seconds(&self) -> io::Result<f64> {
        cpu_seconds_of(&self.child.id().to_string())
    }

    /// The totals of mqcore's overview.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn totals(&self) -> io::Result<Value> {
        Ok(serde_json::from_str::<Value>(&self.get("/overview?limit=0")?)?["totals"].take())
    }

    /// A metric of mqcore that has no labels.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn metric(&self, name: &str) -> io::Result<f64> {
        let page = self.get("/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.and_then(|text| text.trim().parse().ok());
        value.ok_or_else(|| io::Error::other(format!("the server does not show {name}")))
    }

    fn get(&self, path: &str) -> io::Result<String> {
        let admin = self.admin.ok_or_else(|| io::Error::other("no admin side"))?;
        let mut stream = TcpStream::connect(admin)?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.into()))
    }

    /// Kills it with SIGKILL, as in a crash.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn crash(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the totals satisfy the condition, and returns them.
    ///
    /// # Errors
    /// If that takes more than a minute.
    pub fn totals_when(&self, wanted: impl Fn(&Value) -> bool) -> io::Result<Value> {
        let start = Instant::now();
        loop {
            let totals = self.totals()?;
            if wanted(&totals) {
                return Ok(totals);
            }
            if start.elapsed() > Duration::from_secs(60) {
                return Err(io::Error::other(format!("the server never got there: {totals}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Linux reports processor time to programs in hundredths of a second on every platform.
const TICKS_PER_SECOND: f64 = 100.0;

fn cpu_seconds_of(process: &str) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name may contain spaces; the fields behind it are counted from its closing parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    Ok((ticks(11) + ticks(12)) as f64 / TICKS_PER_SECOND)
}

/// Processor seconds that everything else on the machine has used: neither this program nor any of `processes`.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn cpu_seconds_of_others(processes: &[&Process]) -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // User, nice and system time; interrupts; and what the host took away.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| fields.get(*index)).sum::<f64>();
    let mut ours = cpu_seconds_of("self")?;
    for process in processes {
        ours += process.cpu_seconds()?;
    }
    Ok(busy / TICKS_PER_SECOND - ours)
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing its input asks the process to stop. If it does not stop in time, it is killed.
        drop(self.child.stdin.take());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) && self.admin.is_some() {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
