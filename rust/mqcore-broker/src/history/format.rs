//! The codes and numbers of a block.

pub(super) const VERSION: u8 = 1;

/// Version of blocks with `RESTORED`, which earlier versions of mqcore cannot read. Version 2 is a packed block.
pub(super) const VERSION_RESTORED: u8 = 3;

pub(super) const HISTORY: &str = "block of history";

pub(super) const TIME: u8 = 0x01;

pub(super) const QUEUE: u8 = 0x02;

pub(super) const CLIENT: u8 = 0x03;

pub(super) const STARTED: u8 = 0x04;

pub(super) const GAP: u8 = 0x05;

pub(super) const RESTORED: u8 = 0x06;

pub(super) const STEP: u8 = 0x20;

pub(super) const FINAL: u8 = 1;

pub(super) const PRODUCER: u8 = 1 << 1;

pub(super) const CONSUMER: u8 = 1 << 2;

pub(super) const REASON: u8 = 1 << 3;

pub(super) const TARGET: u8 = 1 << 4;

pub(super) const ID: u8 = 1 << 5;

pub(super) const CONTENT: u8 = 1 << 6;

/// With `CONTENT`: the block does not contain the body.
pub(super) const NO_BODY: u8 = 1 << 7;

pub(super) fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
    push(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// Seven bits a byte, the lowest first; the highest bit means that more bytes follow.
pub(super) fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Maps small differences in either direction to small numbers.
pub(super) fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    ((signed << 1) ^ (signed >> 63)).cast_unsigned()
}

pub(super) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}
