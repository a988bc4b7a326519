//! All integration tests of this crate in one program: one link instead of one for each file.

mod broker;
mod connection;
mod conversation;
mod vectors;
