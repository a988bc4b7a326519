//! Reading blocks.

use crate::history::format::*;
use crate::history::ranges::NumberRanges;
use crate::history::{ClientView, ContentView, LifecycleKind, LifecycleStep};
use crate::model::id::MessageNumber;
use crate::model::record::RecordError;
use crate::model::time::Timestamp;

/// Calls `show` with every step of a block, in order. All steps shown before an error are valid. A
/// block that was read from disk may be packed: [`unpack`](crate::history::packing::unpack) it first.
///
/// # Errors
/// [`RecordError::Version`] for a block of a later version, [`RecordError::Malformed`] for malformed
/// bytes.
pub fn each_step<'a>(block: &'a [u8], show: &mut dyn FnMut(LifecycleStep<'a>)) -> Result<(), RecordError> {
    let mut reader = StepReader { rest: block };
    match reader.byte()? {
        VERSION | VERSION_RESTORED => {}
        version => return Err(RecordError::Version { what: HISTORY, version }),
    }
    let mut now = Timestamp(reader.varint()?);
    let mut number = MessageNumber(0);
    let (mut queues, mut clients) = (Vec::new(), Vec::new());
    while !reader.rest.is_empty() {
        let of_shard = |kind, missing| LifecycleStep { missing, ..LifecycleStep::of(kind, now) };
        match reader.byte()? {
            TIME => now = Timestamp(now.0.saturating_add(reader.varint()?)),
            QUEUE => queues.push(reader.text()?),
            CLIENT => {
                let (id, name) = (reader.text()?, reader.text()?);
                clients.push(ClientView { id, name, kind: reader.text()?, protocol: reader.text()? });
            }
            STARTED => show(of_shard(LifecycleKind::Started, 0)),
            GAP => show(of_shard(LifecycleKind::Gap, reader.varint()?)),
            RESTORED => {
                let queue = look_up(&queues, reader.varint()?)?;
                let numbers = reader.ranges()?;
                let first = MessageNumber(numbers.first());
                let step = LifecycleStep::of(LifecycleKind::Restored, now);
                number = MessageNumber(0);
                show(LifecycleStep { queue, number: first, numbers: Some(numbers), ..step });
            }
            code => {
                let kind = code.checked_sub(STEP).and_then(LifecycleKind::from_code);
                let kind = kind.ok_or(malformed("a step of unknown kind"))?;
                let step = reader.step(
                    LifecycleStep { number, ..LifecycleStep::of(kind, now) },
                    &queues,
                    &clients,
                )?;
                number = step.number;
                show(step);
            }
        }
    }
    Ok(())
}

impl LifecycleStep<'_> {
    fn of(kind: LifecycleKind, time: Timestamp) -> Self {
        Self {
            kind,
            time,
            queue: "",
            number: MessageNumber(0),
            attempt: 0,
            last: false,
            header_bytes: 0,
            body_bytes: 0,
            producer: None,
            consumer: None,
            reason: None,
            target: None,
            id: None,
            content: None,
            missing: 0,
            numbers: None,
        }
    }
}

pub(crate) fn malformed(why: &'static str) -> RecordError {
    RecordError::Malformed { what: HISTORY, why }
}

/// Reads a number that [`push`](crate::history::format::push) wrote, and returns the bytes after it.
pub(crate) fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), RecordError> {
    let mut reader = StepReader { rest: bytes };
    Ok((reader.varint()?, reader.rest))
}

struct StepReader<'a> {
    rest: &'a [u8],
}

impl<'a> StepReader<'a> {
    /// Reads the rest of a step; `before` has the kind, the time, and the number of the previous step.
    fn step(
        &mut self,
        before: LifecycleStep<'a>,
        queues: &[&'a str],
        clients: &[ClientView<'a>],
    ) -> Result<LifecycleStep<'a>, RecordError> {
        let flags = self.byte()?;
        let queue = look_up(queues, self.varint()?)?;
        let number = MessageNumber(before.number.0.wrapping_add(unzigzag(self.varint()?)));
        let attempt = u16::try_from(self.varint()?).map_err(|_| malformed("an attempt beyond 65535"))?;
        let (header_bytes, body_bytes) = (self.varint()?, self.varint()?);
        let mut client = |flag| -> Result<Option<ClientView<'a>>, RecordError> {
            (flags & flag != 0).then(|| look_up(clients, self.varint()?)).transpose()
        };
        let (producer, consumer) = (client(PRODUCER)?, client(CONSUMER)?);
        let reason = (flags & REASON != 0).then(|| self.text()).transpose()?;
        let target = (flags & TARGET != 0).then(|| look_up(queues, self.varint()?)).transpose()?;
        let id = (flags & ID != 0).then(|| self.bytes()).transpose()?;
        let content =
            (flags & CONTENT != 0).then(|| self.content(flags, header_bytes, body_bytes)).transpose()?;
        Ok(LifecycleStep {
            queue,
            number,
            attempt,
            last: flags & FINAL != 0,
            header_bytes,
            body_bytes,
            producer,
            consumer,
            reason,
            target,
            id,
            content,
            ..before
        })
    }

    fn content(
        &mut self,
        flags: u8,
        header_bytes: u64,
        body_bytes: u64,
    ) -> Result<ContentView<'a>, RecordError> {
        let properties = self.byte()?;
        let content_type = u16::from_le_bytes([self.byte()?, self.byte()?]);
        let headers = self.take(header_bytes)?;
        let body = (flags & NO_BODY == 0).then(|| self.take(body_bytes)).transpose()?;
        Ok(ContentView { high_priority: properties & 1 != 0, content_type, headers, body })
    }

    fn ranges(&mut self) -> Result<NumberRanges<'a>, RecordError> {
        let (ranges, rest) = NumberRanges::read(self.rest)?;
        self.rest = rest;
        Ok(ranges)
    }

    fn byte(&mut self) -> Result<u8, RecordError> {
        let (byte, rest) = self.rest.split_first().ok_or(malformed("truncated"))?;
        self.rest = rest;
        Ok(*byte)
    }

    fn varint(&mut self) -> Result<u64, RecordError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number of more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], RecordError> {
        let length = usize::try_from(length).map_err(|_| malformed("truncated"))?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(malformed("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = self.varint()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a name is not UTF-8"))
    }
}

fn look_up<T: Copy>(names: &[T], number: u64) -> Result<T, RecordError> {
    let index = usize::try_from(number).ok();
    index.and_then(|index| names.get(index)).copied().ok_or(malformed("it refers to an undefined name"))
}
