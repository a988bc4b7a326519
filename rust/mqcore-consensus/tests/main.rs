//! All integration tests of this crate in one program: one link instead of one for each file.

mod encoding;
mod group;
mod journal_log;
mod message_check;
mod replica;
mod simulation;
