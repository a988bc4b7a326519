//! Arguments of `consume` and `rebind`: names and flags.

use super::{EscapedBytes, RequestLineError, named, words};

/// Event names, as sent.
pub type Events<'a> = Vec<&'a [u8]>;

const ADD: &[u8] = b"--add";
const REMOVE: &[u8] = b"--remove";
const REMOVE_MASK: &[u8] = b"--remove-mask";
const REPLACE: &[u8] = b"--replace";
const MANUAL_ACK: &[u8] = b"--manual-ack";
const DELETE_WHEN_UNUSED: &[u8] = b"--delete-queue-when-unused";

/// Maximum delay in seconds before a queue without consumers is deleted: one year.
pub const UNUSED_SECONDS_MAX: f64 = 31_536_000.0;

/// When a queue without consumers is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum WhenUnused {
    /// Never.
    #[default]
    Keep,
    /// Together with its last consumer.
    Delete,
    /// This many seconds after its last consumer left, unless another one arrives.
    DeleteAfter(f64),
}

impl WhenUnused {
    /// Appends the flag with a leading space. Appends nothing for `Keep`.
    pub fn encode(self, output: &mut Vec<u8>) {
        if self != Self::Keep {
            output.push(b' ');
            output.extend_from_slice(DELETE_WHEN_UNUSED);
        }
        if let Self::DeleteAfter(seconds) = self {
            // Clients of the original expect a fraction even for whole numbers.
            output.extend_from_slice(format!("={seconds:?}").as_bytes());
        }
    }
}

/// Arguments of `consume`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Consume<'a> {
    /// Queue name.
    pub queue: &'a [u8],
    /// Events that replace the current bindings; empty: the bindings are unchanged.
    pub replace: Events<'a>,
    /// Events to bind in addition.
    pub add: Events<'a>,
    /// Whether `--add` was sent: the consumer wants to receive the bindings of the queue.
    pub adds: bool,
    /// When the queue is deleted.
    pub when_unused: WhenUnused,
    /// Whether the consumer acknowledges each message.
    pub manual_ack: bool,
}

impl<'a> Consume<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, RequestLineError> {
        let mut consume = Self::default();
        let mut names = Vec::new();
        for word in words(data) {
            match word {
                ADD => consume.adds = true,
                MANUAL_ACK => consume.manual_ack = true,
                DELETE_WHEN_UNUSED => consume.when_unused = WhenUnused::Delete,
                flag if flag.starts_with(b"--") => consume.when_unused = delete_after(flag)?,
                name => names.push((name, consume.adds)),
            }
        }
        // Flags may appear anywhere, so the queue is the first word that is not a flag.
        let mut names = names.into_iter();
        consume.queue = queue("consume", names.next().map(|(name, _)| name))?;
        for (event, adds) in names {
            let events = if adds { &mut consume.add } else { &mut consume.replace };
            events.push(named("the event's name", event)?);
        }
        Ok(consume)
    }

    /// Appends the arguments that follow `consume`, without a leading space.
    pub fn encode(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(self.queue);
        append(None, &self.replace, output);
        if self.adds {
            append(Some(ADD), &self.add, output);
        }
        self.when_unused.encode(output);
        encode_manual_ack(self.manual_ack, output);
    }
}

/// Appends `--manual-ack` with a leading space if `manual_ack` is set.
pub(super) fn encode_manual_ack(manual_ack: bool, output: &mut Vec<u8>) {
    if manual_ack {
        output.push(b' ');
        output.extend_from_slice(MANUAL_ACK);
    }
}

fn delete_after(flag: &[u8]) -> Result<WhenUnused, RequestLineError> {
    let unknown = || RequestLineError::UnknownFlag { action: "consume", flag: EscapedBytes::new(flag) };
    let number = flag.strip_prefix(DELETE_WHEN_UNUSED).and_then(|rest| rest.strip_prefix(b"="));
    let number = number.ok_or_else(unknown)?;
    let seconds = std::str::from_utf8(number).ok().and_then(|number| number.parse::<f64>().ok());
    seconds
        .filter(|seconds| (0.0..=UNUSED_SECONDS_MAX).contains(seconds))
        .map(WhenUnused::DeleteAfter)
        .ok_or_else(|| RequestLineError::BadNumber {
            flag: "--delete-queue-when-unused",
            wanted: "seconds from 0 to 31536000",
            found: EscapedBytes::new(number),
        })
}

/// Arguments of `rebind`. They apply in the order of the fields, in whatever order they were sent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rebind<'a> {
    /// Queue name.
    pub queue: &'a [u8],
    /// Events that replace the current bindings; `None`: the bindings are unchanged.
    pub replace: Option<Events<'a>>,
    /// Events to unbind.
    pub remove: Events<'a>,
    /// Masks of the events to unbind.
    pub remove_masks: Events<'a>,
    /// Events to bind in addition.
    pub add: Events<'a>,
}

impl<'a> Rebind<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, RequestLineError> {
        let mut words = words(data).peekable();
        let mut rebind = Self { queue: queue("rebind", words.next())?, ..Self::default() };
        if words.peek().is_none() {
            return Err(RequestLineError::Missing {
                action: "rebind",
                what: "events, --remove, --remove-mask or --add",
            });
        }
        let mut list = REPLACE;
        for word in words {
            match word {
                ADD | REMOVE | REMOVE_MASK => list = word,
                REPLACE => {
                    list = word;
                    rebind.replace.get_or_insert_default();
                }
                flag if flag.starts_with(b"--") => {
                    return Err(RequestLineError::UnknownFlag {
                        action: "rebind",
                        flag: EscapedBytes::new(flag),
                    });
                }
                event => rebind.list(list).push(named("the event's name", event)?),
            }
        }
        Ok(rebind)
    }

    fn list(&mut self, flag: &[u8]) -> &mut Events<'a> {
        match flag {
            ADD => &mut self.add,
            REMOVE => &mut self.remove,
            REMOVE_MASK => &mut self.remove_masks,
            _ => self.replace.get_or_insert_default(),
        }
    }

    /// Appends the arguments that follow `rebind`, without a leading space.
    pub fn encode(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(self.queue);
        if let Some(replace) = &self.replace {
            let flag = replace.is_empty().then_some(REPLACE);
            append(flag, replace, output);
        }
        for (flag, events) in [(REMOVE, &self.remove), (REMOVE_MASK, &self.remove_masks), (ADD, &self.add)] {
            if !events.is_empty() {
                append(Some(flag), events, output);
            }
        }
    }
}

fn queue<'a>(action: &'static str, word: Option<&'a [u8]>) -> Result<&'a [u8], RequestLineError> {
    match word {
        Some(name) if !name.starts_with(b"--") => named("the queue's name", name),
        _ => Err(RequestLineError::Missing { action, what: "a queue name" }),
    }
}

fn append(flag: Option<&[u8]>, events: &[&[u8]], output: &mut Vec<u8>) {
    for word in flag.into_iter().chain(events.iter().copied()) {
        output.push(b' ');
        output.extend_from_slice(word);
    }
}
