//! Baseline of the disk: appends batches to a file and syncs each before the next. Benchmarks of durable messages are
//! compared with it, in the same run and on the same disk.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::BODY_BYTES;

/// The file that the loop writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The file grows: every sync makes its new length durable too. The simplest log.
    Growing,
    /// The file was written and synced before, and is overwritten, so a sync only writes the records. No log could be
    /// faster.
    Overwritten,
}

/// Bytes that are written before they are overwritten; at their end the loop starts again.
const OVERWRITTEN_BYTES: usize = 64 * 1024 * 1024;

/// Records of [`BODY_BYTES`] per second, with `batch` of them per write and fdatasync. Creates `directory` and
/// removes it at the end.
///
/// # Errors
/// Any error of the disk.
pub fn rate(directory: &Path, target: Target, batch: usize, duration: Duration) -> io::Result<f64> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)?;
    let mut file = OpenOptions::new().create_new(true).write(true).open(directory.join("log"))?;
    let bytes = vec![b'x'; batch * BODY_BYTES];
    if target == Target::Overwritten {
        file.write_all(&vec![0; OVERWRITTEN_BYTES])?;
        file.sync_all()?;
        file.rewind()?;
    }
    let (start, mut records) = (Instant::now(), 0);
    while start.elapsed() < duration {
        if target == Target::Overwritten && file.stream_position()? as usize + bytes.len() > OVERWRITTEN_BYTES
        {
            file.rewind()?;
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        records += batch;
    }
    let rate = records as f64 / start.elapsed().as_secs_f64();
    drop(file);
    fs::remove_dir_all(directory)?;
    Ok(rate)
}
