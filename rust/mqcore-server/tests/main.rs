//! All integration tests of this crate in one program: one link instead of one for each file.

mod authority;
mod nodes;
mod peer;
mod restart;
mod sockets;
mod tls;
mod unix_sockets;
