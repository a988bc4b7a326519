//! The regular verification of a member's files: damage of a disk is found before the file is needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use mqcore_journal::checking::{SegmentDamage, check_segment};

use crate::identity::MemberIdentity;
use crate::input::{FoundDamage, Input};
use crate::shared_files::names;

/// Longest time until the first verification.
const FIRST_MAX: Duration = Duration::from_secs(600);
/// Bytes read in a second at most, so that the disk has time for the broker.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// A file that changes while it is read can look damaged, so that it is read again after this time.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Verifies all segments of journals below `root`, and of the log, once in each interval, until the process ends.
pub(crate) fn verify_regularly(root: &Path, interval: Duration, member: &Sender<Input>) {
    std::thread::sleep(interval.min(FIRST_MAX));
    loop {
        // A directory that cannot be listed is noticed by those who need its files.
        for name in names(root).unwrap_or_default() {
            if let Some(what) = find_damage(&root.join(&name)) {
                let damage = FoundDamage { name, what, answer: None };
                let _ = member.send(Input::Damaged(damage));
            }
        }
        for path in log_files(root).unwrap_or_default() {
            if let Some(what) = find_damage(&path) {
                let _ = member.send(Input::LogDamaged(format!("{}: {what}", path.display())));
            }
        }
        std::thread::sleep(interval);
    }
}

fn log_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(MemberIdentity::directory(root).join("log"))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// The damage of a segment; `None`: it has none, or is not a segment.
fn find_damage(path: &Path) -> Option<String> {
    path.extension().filter(|extension| *extension == "segment")?;
    check_file(path)?;
    std::thread::sleep(AGAIN_AFTER);
    check_file(path)
}

fn check_file(path: &Path) -> Option<String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(error.to_string()),
    };
    std::thread::sleep(Duration::from_millis(bytes.len() as u64 * 1000 / BYTES_PER_SECOND));
    Some(match check_segment(&bytes)? {
        SegmentDamage::Header => "the header is unreadable".to_owned(),
        SegmentDamage::Records { offset, bytes } => {
            format!("{bytes} bytes from byte {offset} on are not a record")
        }
    })
}
