//! All integration tests of this crate in one program: one link instead of one for each file.

mod crashes;
mod fencing;
mod month;
mod reader;
mod source;
mod stores;
mod unreliable;
