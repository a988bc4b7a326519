//! One measurement of a broker that another program has started: `load drive PROTOCOL ADDRESS WORK`.
//!
//! `benches/peers` starts brokers with equal settings on processors of their own, and calls this for each run.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::confirmed::{Confirming, Run};
use crate::latency::Latency;
use crate::peers::amqp::Amqp;
use crate::peers::mqtt::Mqtt;
use crate::peers::nats::Nats;
use crate::peers::redis::Redis;
use crate::tmqp::Tmqp;
use crate::wire::Wire;
use crate::{BODY_BYTES, confirmation_age, fanout, latency, limits};

/// Help of the command.
pub const HELP: &str = "\
load drive PROTOCOL ADDRESS WORK [NAME=NUMBER...]

  PROTOCOL   tmqp, redis, nats, amqp, mqtt, throttr
  WORK       broadcast  one producer, consumers=1 that receive everything
             latency    rate=20000 messages a second, open loop
             confirmed  producers=1 with window=512 unconfirmed messages each
             alone      one message after the other, each confirmed before the next
             paced      rate=20000 confirmed messages a second, open loop
             counter    connections=50 with pipeline=1 requests in flight each
  NUMBERS    also: body=128 bytes, milliseconds=3000, warm-up=500 milliseconds";

/// One measurement.
#[derive(Debug, Clone)]
pub struct Drive {
    protocol: String,
    address: SocketAddr,
    work: String,
    numbers: Vec<(String, usize)>,
}

impl Drive {
    /// Parses the arguments behind `drive`.
    ///
    /// # Errors
    /// With a reason for people.
    pub fn from_arguments(arguments: &[String]) -> Result<Self, String> {
        let [protocol, address, work, numbers @ ..] = arguments else {
            return Err("expected PROTOCOL, ADDRESS and WORK".into());
        };
        let number = |argument: &String| {
            let (name, value) = argument.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let numbers = numbers
            .iter()
            .map(|argument| number(argument).ok_or_else(|| format!("{argument}: expected NAME=NUMBER")));
        Ok(Self {
            protocol: protocol.clone(),
            address: address.parse().map_err(|error| format!("{address}: {error}"))?,
            work: work.clone(),
            numbers: numbers.collect::<Result<_, _>>()?,
        })
    }

    fn number(&self, name: &str, default: usize) -> usize {
        self.numbers.iter().find(|(given, _)| given == name).map_or(default, |(_, number)| *number)
    }

    fn milliseconds(&self, name: &str, default: usize) -> Duration {
        Duration::from_millis(self.number(name, default) as u64)
    }

    /// Measures, and returns the values by name with the number of messages that the broker processed.
    ///
    /// # Errors
    /// If the protocol cannot do the work, or a connection breaks.
    pub fn run(&self) -> io::Result<Value> {
        let (warm_up, duration) =
            (self.milliseconds("warm-up", 500), self.milliseconds("milliseconds", 3000));
        match self.work.as_str() {
            "broadcast" => {
                let consumers = self.number("consumers", 1);
                let start = Instant::now();
                let run = fanout::measure(&*self.wire()?, consumers, warm_up, duration)?;
                let whole = start.elapsed().as_secs_f64();
                Ok(json!({"rate": run.rate(), "messages": run.rate() * whole}))
            }
            "latency" => {
                let rate = self.number("rate", 20_000) as u32;
                let run = latency::measure(&*self.wire()?, rate, warm_up, duration)?;
                Ok(ages(&run, (warm_up + duration).as_secs_f64() * f64::from(rate)))
            }
            "confirmed" => {
                let (producers, window) = (self.number("producers", 1), self.number("window", 512));
                let mut run = Run::connect(&*self.confirming()?, producers, window, u64::MAX)?;
                run.until(|_, elapsed| elapsed >= warm_up)?;
                let (before, start) = (run.confirmed, Instant::now());
                // A broker that syncs each message alone confirms nothing for the first while.
                run.until(|confirmed, elapsed| elapsed >= duration && confirmed > before)?;
                let rate = (run.confirmed - before) as f64 / start.elapsed().as_secs_f64();
                run.finish()?;
                Ok(json!({"rate": rate, "messages": run.confirmed}))
            }
            "alone" => {
                let run = confirmation_age::alone(&*self.confirming()?, warm_up, duration)?;
                Ok(ages(&run, run.messages as f64))
            }
            "paced" => {
                let rate = self.number("rate", 20_000) as f64;
                let run = confirmation_age::paced(&*self.confirming()?, rate, warm_up, duration)?;
                Ok(ages(&run, (warm_up + duration).as_secs_f64() * rate))
            }
            "counter" => {
                let (connections, pipeline) = (self.number("connections", 50), self.number("pipeline", 1));
                let requests = match self.protocol.as_str() {
                    "throttr" => {
                        limits::create(self.address)?;
                        limits::decrease()
                    }
                    "redis" => limits::incr(),
                    _ => return Err(self.impossible()),
                };
                let asked = limits::ask(self.address, &requests, connections, pipeline, warm_up, duration)?;
                Ok(json!({"rate": asked.rate, "messages": asked.count}))
            }
            _ => Err(self.impossible()),
        }
    }

    fn wire(&self) -> io::Result<Box<dyn Wire>> {
        let (address, body_bytes) = (self.address, self.number("body", BODY_BYTES));
        Ok(match self.protocol.as_str() {
            "tmqp" => Box::new(Tmqp { address, body_bytes }),
            "redis" => Box::new(Redis { address, body_bytes }),
            "nats" => Box::new(Nats { address, body_bytes }),
            "amqp" => Box::new(Amqp { address, body_bytes }),
            "mqtt" => Box::new(Mqtt { address, body_bytes }),
            _ => return Err(self.impossible()),
        })
    }

    fn confirming(&self) -> io::Result<Box<dyn Confirming>> {
        let (address, body_bytes) = (self.address, self.number("body", BODY_BYTES));
        Ok(match self.protocol.as_str() {
            "tmqp" => Box::new(Tmqp { address, body_bytes }),
            "redis" => Box::new(Redis { address, body_bytes }),
            "nats" => Box::new(Nats { address, body_bytes }),
            "amqp" => Box::new(Amqp { address, body_bytes }),
            _ => return Err(self.impossible()),
        })
    }

    fn impossible(&self) -> io::Error {
        io::Error::other(format!("{} cannot do the work {}", self.protocol, self.work))
    }
}

/// The values of a measurement of times, in microseconds.
fn ages(run: &Latency, messages: f64) -> Value {
    let [p50, p99, p999, max] = [run.p50, run.p99, run.p999, run.max].map(|age| age.as_secs_f64() * 1e6);
    json!({"p50": p50, "p99": p99, "p999": p999, "max": max, "messages": messages})
}
