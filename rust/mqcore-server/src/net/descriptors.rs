//! File descriptors: how many connections the process can hold without taking those that the journal needs.

/// Descriptors kept free for everything but connections of clients: segments, archives, backups, the admin side, links
/// between brokers. A quarter of the limit if that is less.
const RESERVE: u64 = 512;

/// With room for fewer connections than this, the broker warns when it starts.
const FEW: usize = 4096;

/// Descriptors of a connection that a node of a cluster passes on: those of its client and of the leader.
const RELAYED: u64 = 2;

/// Raises the soft limit of descriptors to the hard limit, and returns how many connections to accept: at most
/// `configured`, and fewer if the reserve would be touched. Logs it if they are few.
pub(crate) fn connections_allowed(configured: usize) -> usize {
    allowed(configured, 1)
}

/// The same for connections that a node of a cluster passes on to another one.
#[must_use]
pub fn relayed_connections_allowed(configured: usize) -> usize {
    allowed(configured, RELAYED)
}

fn allowed(configured: usize, each: u64) -> usize {
    let Some(limit) = raised_limit() else { return configured };
    let allowed = usize::try_from(allowed_by(limit, used(), each)).unwrap_or(usize::MAX);
    if allowed >= configured {
        return configured;
    }
    if allowed >= FEW {
        return allowed;
    }
    tracing::warn!(
        connections_max = configured,
        allowed,
        open_files_max = limit,
        "accepting fewer connections than connections_max, because the process may open too few files; raise its limit (ulimit -n)"
    );
    allowed
}

/// Connections with `each` so many descriptors for which a process that may open `limit`, and has `used` open, has room.
fn allowed_by(limit: u64, used: u64, each: u64) -> u64 {
    (limit.saturating_sub(RESERVE.min(limit / 4) + used) / each).max(1)
}

/// The limit after raising it; `None`: there is none.
#[cfg(unix)]
fn raised_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let before = getrlimit(Resource::Nofile);
    if before.current == before.maximum {
        return before.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum }) {
        Ok(()) => before.maximum,
        // macOS rejects a soft limit above kern.maxfilesperproc.
        Err(error) => {
            tracing::debug!(%error, "cannot raise the limit of open files");
            before.current
        }
    }
}

#[cfg(not(unix))]
fn raised_limit() -> Option<u64> {
    None
}

/// Descriptors that are open already, those of a program that embeds the broker included; 0 where the system does not tell.
fn used() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_kept_at_every_limit() {
        assert_eq!(allowed_by(1_048_576, 40, 1), 1_048_576 - 512 - 40);
        assert_eq!(allowed_by(1024, 20, 1), 1024 - 256 - 20);
        assert_eq!(allowed_by(1024, 20, RELAYED), (1024 - 256 - 20) / 2);
        assert_eq!(allowed_by(64, 20, 1), 64 - 16 - 20);
        for each in [1, RELAYED] {
            assert_eq!(allowed_by(16, 20, each), 1, "one client can always connect");
        }
    }
}
