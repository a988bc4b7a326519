//! One peer's conversation, in one protocol: bytes in, commands out; events in, bytes out.
//!
//! No IO and no clock: time is an argument. A protocol's terms do not go beyond its folder.
//!
//! | module | contents |
//! |---|---|
//! | [`session`] | the interface of every conversation |
//! | [`protocol`] | what a protocol provides beside its session: listener options, shared state, encoding |
//! | `registry` | the list of protocols |
//! | [`any`] | the protocols of the registry as one closed set |
//! | [`listener`] | the options in a listener's URL |
//! | [`tmqp`], [`throttr`], [`mqks`], [`micromessage`], [`eventmq`] | a folder for each protocol |
//! | [`request_error`] | failed requests, for the log |
//! | [`permission`] | permission for requests that sessions answer themselves |
//! | [`extension`] | frames of vendor extensions, for the program |
//! | [`node`], [`forwards`] | this broker as a node, and frames for other brokers |
//! | [`schedules`] | requests to keep schedules |
//! | [`jobs`] | results, cancellations and flows of jobs |
//! | [`job_figures`] | job queues and workers, for people |

pub mod any;
pub mod eventmq;
pub mod extension;
pub mod forwards;
pub mod job_figures;
pub mod jobs;
pub mod listener;
mod message_id;
pub mod micromessage;
pub mod mqks;
pub mod node;
pub mod permission;
pub mod protocol;
mod registry;
pub mod request_error;
pub mod schedules;
pub mod session;
pub mod throttr;
pub mod tmqp;
pub mod uplink;
