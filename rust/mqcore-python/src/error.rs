//! Converts Rust errors to the exceptions of `mqcore.errors`: one function per enum, without texts of its own.

use std::path::Path;

use mqcore_broker::model::id::{NameError, QueueAddress};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_limiter::rule::RuleError;
use mqcore_server::authority::store::{AuthorityRecordError, StoreError};
use mqcore_server::config::ConfigError as ServerConfigError;
use mqcore_server::schedules::{EndScheduleError, EntryId, EntryIdError};
use mqcore_server::server::{ReloadError, StartError};
use mqcore_server::storage::backup::BackupError;
use mqcore_server::storage::data_dir::{DataDirError, JournalError};
use mqcore_server::storage::export::FileError;
use mqcore_wire::error::WireError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

pyo3::import_exception!(mqcore.errors, AlreadyExists);
pyo3::import_exception!(mqcore.errors, ArchiveDenied);
pyo3::import_exception!(mqcore.errors, ArchiveUnreachable);
pyo3::import_exception!(mqcore.errors, AuthorityError);
pyo3::import_exception!(mqcore.errors, AuthorityMissing);
pyo3::import_exception!(mqcore.errors, BadFrame);
pyo3::import_exception!(mqcore.errors, BadRequest);
pyo3::import_exception!(mqcore.errors, Busy);
pyo3::import_exception!(mqcore.errors, ConfigError);
pyo3::import_exception!(mqcore.errors, DataDirBusy);
pyo3::import_exception!(mqcore.errors, DataDirDamaged);
pyo3::import_exception!(mqcore.errors, DataDirFull);
pyo3::import_exception!(mqcore.errors, DataDirMissing);
pyo3::import_exception!(mqcore.errors, DataDirUnreadable);
pyo3::import_exception!(mqcore.errors, Forked);
pyo3::import_exception!(mqcore.errors, HistoryLost);
pyo3::import_exception!(mqcore.errors, InvalidArgument);
pyo3::import_exception!(mqcore.errors, LimitExceeded);
pyo3::import_exception!(mqcore.errors, ListenFailed);
pyo3::import_exception!(mqcore.errors, MqcoreError);
pyo3::import_exception!(mqcore.errors, Nacked);
pyo3::import_exception!(mqcore.errors, NotFound);
pyo3::import_exception!(mqcore.errors, NotRunning);
pyo3::import_exception!(mqcore.errors, OperationError);
pyo3::import_exception!(mqcore.errors, TooLarge);
pyo3::import_exception!(mqcore.errors, Unacceptable);

/// Malformed bytes from a peer or a test.
pub(crate) fn wire(error: &WireError) -> PyErr {
    match error {
        WireError::TooLarge { max, .. } => TooLarge::new_err((error.to_string(), *max)),
        _ => BadFrame::new_err(error.to_string()),
    }
}

/// Errors of starting a broker.
pub(crate) fn start(error: &StartError) -> PyErr {
    match error {
        StartError::Config(broken) => config(broken),
        _ if error.is_invalid_setting() => ConfigError::new_err(error.to_string()),
        StartError::Bind { .. } => ListenFailed::new_err(error.to_string()),
        StartError::Data(broken) => data_dir(broken),
        _ => MqcoreError::new_err(error.to_string()),
    }
}

/// Errors of reading or changing users and tokens.
pub(crate) fn authority(error: &StoreError) -> PyErr {
    match error {
        StoreError::Record(AuthorityRecordError::Missing { .. }) => {
            AuthorityMissing::new_err(error.to_string())
        }
        _ => AuthorityError::new_err(error.to_string()),
    }
}

/// Errors of reloading certificates; listeners keep the previous ones.
pub(crate) fn reload(errors: &[ReloadError]) -> PyErr {
    let words: Vec<String> = errors.iter().map(ToString::to_string).collect();
    ConfigError::new_err(words.join("; "))
}

/// An invalid setting.
pub(crate) fn config(error: &ServerConfigError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

/// Errors of inspecting or compacting a stopped broker's data directory.
pub(crate) fn data_dir(error: &DataDirError) -> PyErr {
    let words = error.to_string();
    match error {
        DataDirError::Missing { .. } => DataDirMissing::new_err(words),
        DataDirError::Running { .. } | DataDirError::Locked { .. } => DataDirBusy::new_err(words),
        DataDirError::Record { .. } => DataDirDamaged::new_err(words),
        DataDirError::Journal { source: JournalError::Full { .. }, .. } => DataDirFull::new_err(words),
        DataDirError::Journal { source, .. } if source.is_damage() => DataDirDamaged::new_err(words),
        _ => DataDirUnreadable::new_err(words),
    }
}

/// Errors of writing rows to a file. A system error becomes the `OSError` with its number.
pub(crate) fn table_file(error: &FileError) -> PyErr {
    match error {
        FileError::Io { path, source } => match source.raw_os_error() {
            Some(number) => {
                let words = std::io::Error::from_raw_os_error(number).to_string();
                let words = words.split(" (os error").next().unwrap_or_default().to_owned();
                PyOSError::new_err((number, words, path.clone()))
            }
            None => PyOSError::new_err(error.to_string()),
        },
        FileError::Directory(error) => data_dir(error),
        FileError::History { .. } => DataDirUnreadable::new_err(error.to_string()),
        _ => MqcoreError::new_err(error.to_string()),
    }
}

/// Errors of a backup.
pub(crate) fn backup(refused: &BackupError) -> PyErr {
    let words = refused.to_string();
    match refused {
        BackupError::Directory(error) => data_dir(error),
        BackupError::NothingKept => Unacceptable::new_err((words, 406)),
        BackupError::Busy | BackupError::TooSlow => Busy::new_err((words, 503)),
        BackupError::Stopping => NotRunning::new_err(words),
        _ => DataDirUnreadable::new_err(words),
    }
}

/// A request of the program that its own broker rejects.
pub(crate) fn rejection(rejection: &Rejection, target: &str) -> PyErr {
    let arguments = (rejection.reason.to_string(), rejection.kind.code(), target.to_owned());
    match rejection.kind {
        RejectionKind::AlreadyExists => AlreadyExists::new_err(arguments),
        RejectionKind::BadRequest => BadRequest::new_err(arguments),
        RejectionKind::Busy => Busy::new_err(arguments),
        RejectionKind::LimitExceeded => LimitExceeded::new_err(arguments),
        RejectionKind::NotFound => NotFound::new_err(arguments),
        RejectionKind::Unacceptable => Unacceptable::new_err(arguments),
        _ => OperationError::new_err(arguments),
    }
}

/// An invalid schedule id.
pub(crate) fn schedule_id(given: &str, refused: &EntryIdError) -> PyErr {
    InvalidArgument::new_err(format!("{given:?}: {refused}"))
}

/// Errors of ending a schedule.
pub(crate) fn end_schedule(refused: &EndScheduleError, id: &EntryId) -> PyErr {
    let (words, id) = (refused.to_string(), id.to_string());
    match refused {
        EndScheduleError::Missing(_) => NotFound::new_err((words, 404, id)),
        EndScheduleError::Failing => Busy::new_err((words, 503, id)),
        EndScheduleError::Stopping => NotRunning::new_err(words),
        _ => Nacked::new_err((words, "not-saved", id)),
    }
}

/// Errors of applying a limit.
pub(crate) fn rule(refused: RuleError) -> PyErr {
    let words = refused.to_string();
    match refused {
        RuleError::OtherKind => Unacceptable::new_err((words, 406)),
        _ => InvalidArgument::new_err(words),
    }
}

/// A queue without a declaration and without saved messages.
pub(crate) fn no_saved_queue(queue: &str) -> PyErr {
    DataDirMissing::new_err(format!("queue {queue} does not exist in the data directory"))
}

/// A shard that a data directory does not have.
pub(crate) fn no_shard(path: &Path, shard: usize, shards: usize) -> PyErr {
    let (path, last) = (path.display(), shards - 1);
    DataDirMissing::new_err(format!("{path} has no shard {shard}; its shards are 0 to {last}"))
}

/// A queue that a handler asks about and that was removed meanwhile.
pub(crate) fn queue_removed(queue: &QueueAddress) -> PyErr {
    let words = format!("queue {queue} does not exist any more, so its state is unknown");
    NotFound::new_err((words, 404, queue.to_string()))
}

/// An invalid queue name.
pub(crate) fn name(given: &str, error: NameError) -> PyErr {
    ConfigError::new_err(format!("invalid queue name {given:?}: {error}"))
}

/// A call that needs a running broker.
pub(crate) fn not_running(what: &str) -> PyErr {
    NotRunning::new_err(format!("the broker is not running, so it cannot {what}; start it first"))
}

/// A broker used in a forked child, which lacks its threads.
pub(crate) fn forked() -> PyErr {
    Forked::new_err(
        "this broker was started before fork(), and its threads stayed in the parent process; start a broker in \
         the child, or use the 'spawn' method of multiprocessing",
    )
}
