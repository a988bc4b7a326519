//! The audit log: a bounded queue to a thread that writes the lines.
//!
//! A check never waits for a disk. If the thread does not keep up, lines are dropped, and the next line that is
//! written counts them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_authority::audit::{AuditEvent, AuditOutcome, AuditRecord};
use mqcore_journal::storage::private::create_private_directory;

/// Maximum lines that wait to be written.
const LINES_MAX: usize = 8192;
/// Size in bytes at which the file is renamed to `FILE.1` and a new one is started.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Latest lines that the admin side shows. They are in memory, so it shows none from before the start.
pub(crate) const RECENT_MAX: usize = 1_000;

/// Destination of audit lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AuditTarget {
    /// Standard error, like the log.
    #[default]
    Stderr,
    /// Appended to a file. It grows to [`FILE_BYTES_MAX`] and has one predecessor.
    File(PathBuf),
    /// Discarded.
    Off,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: Option<SyncSender<AuditRecord>>,
    lost: Arc<AtomicU64>,
    /// Lines dropped since the start, for the metrics.
    lost_ever: AtomicU64,
    /// The latest lines, the oldest first, wherever lines go.
    recent: Mutex<VecDeque<AuditRecord>>,
}

impl Audit {
    /// Starts the thread. The file is only created when the first line is written. If the configuration names it
    /// (`named`), this call checks that it can be created.
    pub(crate) fn start(target: &AuditTarget, named: bool) -> io::Result<Self> {
        if let AuditTarget::File(path) = target
            && named
        {
            open_to_append(path)?;
        }
        let output: Box<dyn Output> = match target {
            AuditTarget::Off => return Ok(Self::to(None, Arc::default())),
            AuditTarget::Stderr => Box::new(io::stderr()),
            AuditTarget::File(path) => Box::new(AuditFile { path: path.clone(), open: None }),
        };
        let (lines, inbox) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("mqcore-audit".into())
            .spawn(move || write_lines(&inbox, output, &counter))?;
        Ok(Self::to(Some(lines), lost))
    }

    fn to(lines: Option<SyncSender<AuditRecord>>, lost: Arc<AtomicU64>) -> Self {
        Self { lines, lost, lost_ever: AtomicU64::new(0), recent: Mutex::default() }
    }

    /// Queues a line. Never waits for the disk.
    pub(crate) fn write(&self, line: AuditRecord) {
        {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(line.clone());
        }
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.lost_ever.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The latest lines, the newest first.
    pub(crate) fn recent(&self, limit: usize) -> Vec<AuditRecord> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().take(limit).cloned().collect()
    }

    /// Lines dropped since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost_ever.load(Ordering::Relaxed)
    }
}

trait Output: Send {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl Output for io::Stderr {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

/// Ends when all senders are dropped.
fn write_lines(inbox: &Receiver<AuditRecord>, mut output: Box<dyn Output>, lost: &AtomicU64) {
    let mut bytes = Vec::new();
    while let Ok(first) = inbox.recv() {
        let mut taken = 0;
        let mut next = Some(first);
        while let Some(line) = next.take() {
            let missing = lost.swap(0, Ordering::Relaxed);
            if missing > 0 {
                let mut gap = AuditRecord::new(line.time_ms, AuditEvent::Lost, AuditOutcome::Denied);
                gap.count = Some(missing);
                push(&gap, &mut bytes);
            }
            push(&line, &mut bytes);
            taken += 1;
            if bytes.len() < 64 * 1024 {
                next = inbox.try_recv().ok();
            }
        }
        if let Err(error) = output.put(&bytes) {
            lost.fetch_add(taken, Ordering::Relaxed);
            tracing::error!(%error, lines = taken, "cannot write audit lines; they are lost");
        }
        bytes.clear();
    }
}

fn push(line: &AuditRecord, bytes: &mut Vec<u8>) {
    // Numbers and text always serialize to JSON.
    if serde_json::to_writer(&mut *bytes, line).is_ok() {
        bytes.push(b'\n');
    }
}

/// Created when the first line is written: most brokers write none.
struct AuditFile {
    path: PathBuf,
    open: Option<(File, u64)>,
}

impl AuditFile {
    fn file(&mut self) -> io::Result<&mut (File, u64)> {
        let open = match self.open.take() {
            Some(open) => open,
            None => open_to_append(&self.path)?,
        };
        Ok(self.open.insert(open))
    }
}

impl Output for AuditFile {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (_, size) = self.file()?;
        if *size > 0 && *size + bytes.len() as u64 > FILE_BYTES_MAX {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
            self.open = None;
        }
        let (file, size) = self.file()?;
        file.write_all(bytes)?;
        *size += bytes.len() as u64;
        Ok(())
    }
}

/// Opens the file and returns its size. Only its owner can read it.
fn open_to_append(path: &Path) -> io::Result<(File, u64)> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_private_directory(directory)?;
    }
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let file = options.open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(time_ms: u64) -> AuditRecord {
        AuditRecord::new(time_ms, AuditEvent::Action, AuditOutcome::Denied)
    }

    #[test]
    fn what_did_not_fit_is_counted_by_the_next_line() {
        let (sender, inbox) = sync_channel(2);
        let lost = Arc::new(AtomicU64::new(0));
        let audit = Audit::to(Some(sender), Arc::clone(&lost));
        for time in 0..5 {
            audit.write(line(time));
        }
        assert_eq!(audit.lost(), 3);
        assert_eq!(audit.recent(2), [line(4), line(3)]);
        drop(audit);
        let written = Arc::new(std::sync::Mutex::new(Vec::new()));
        struct Kept(Arc<std::sync::Mutex<Vec<u8>>>);
        impl Output for Kept {
            fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(())
            }
        }
        write_lines(&inbox, Box::new(Kept(Arc::clone(&written))), &lost);
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["event"], &lines[0]["count"]), (&"lost".into(), &3.into()));
        assert_eq!(lines[2]["time_ms"], 1);
    }

    #[test]
    fn a_file_that_is_full_is_put_aside_once() {
        let path = std::env::temp_dir().join(format!("mqcore-audit-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut file = AuditFile { path: path.clone(), open: None };
        file.put(b"old\n").unwrap();
        file.file().unwrap().1 = FILE_BYTES_MAX;
        file.put(b"new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
        assert_eq!(file.file().unwrap().1, 4);
        let aside = PathBuf::from(format!("{}.1", path.display()));
        assert_eq!(fs::read(&aside).unwrap(), b"old\n");
        fs::remove_file(path).unwrap();
        fs::remove_file(aside).unwrap();
    }
}
