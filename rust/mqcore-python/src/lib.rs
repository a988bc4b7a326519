//! The extension module `mqcore._core`, which contains only exports.

mod answers;
mod authority;
mod backup;
pub mod broker;
mod call;
mod client;
mod cluster;
mod compaction;
mod config;
mod decision;
mod decision_spans;
mod dispatcher;
mod dispatchers;
mod error;
mod export;
mod extension;
mod fields;
mod frame;
mod handler;
mod history;
mod inspector;
mod journal;
mod leaked_threads;
mod load;
mod log;
mod message;
mod message_batch;
mod node_filter;
mod object_files;
mod pending_answers;
mod ratelimit;
mod routing;
mod schedule;
mod selection;
mod signal;
mod snapshot;
mod stacks;
mod view;
mod zmtp;

/// The module requires the global interpreter lock: nothing relies on it knowingly, but it is untested without the
/// lock.
#[pyo3::pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::authority::{AuthorityReply, AuthorityStore, hash_password};
    #[pymodule_export]
    use crate::backup::{BackupArchive, ZstdReader, ZstdWriter};
    #[pymodule_export]
    use crate::broker::Broker;
    #[pymodule_export]
    use crate::cluster::{ClusterMember, cluster_force_new, cluster_promote, cluster_status};
    #[pymodule_export]
    use crate::compaction::journal_compact;
    #[pymodule_export]
    use crate::decision::{Decision, policies, policy_decision};
    #[pymodule_export]
    use crate::export::JournalHistory;
    #[pymodule_export]
    use crate::extension::ExtensionReply;
    #[pymodule_export]
    use crate::frame::{Frame, tmqp_decode, tmqp_encode};
    #[pymodule_export]
    use crate::history::{
        History, HistoryRows, history_columns, object_archive_bytes, object_archive_manifest,
    };
    #[pymodule_export]
    use crate::journal::{JournalMessages, journal_accept_loss, journal_inspect, lock_descriptors};
    #[pymodule_export]
    use crate::leaked_threads::join_leaked_threads;
    #[pymodule_export]
    use crate::message::{Headers, Message};
    #[pymodule_export]
    use crate::message_batch::{Decisions, MessageBatch, MessageColumn};
    #[pymodule_export]
    use crate::node_filter::NodeFrame;
    #[pymodule_export]
    use crate::object_files::ObjectFiles;
    #[pymodule_export]
    use crate::pending_answers::PendingAnswers;
    #[pymodule_export]
    use crate::ratelimit::{LimitRule, LimitStore, Verdict};
    #[pymodule_export]
    use crate::schedule::{cron_mistake, time_zones};
    #[pymodule_export]
    use crate::selection::JournalSelection;
    #[pymodule_export]
    use crate::view::{Acknowledgement, ChannelView, ClientView, Delivery, NodeView, QueueView};
    #[pymodule_export]
    use crate::zmtp::ZmtpCodec;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::client::register(module)?;
        crate::log::begin(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
