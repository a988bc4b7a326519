//! All integration tests of this crate in one program: one link instead of one for each file.

mod backups;
mod crashes;
mod days;
mod fencing;
mod reader;
mod source;
mod stores;
mod unreliable;
