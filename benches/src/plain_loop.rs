//! What the disk itself gives: batches appended to a file, each made durable before the next. Everything that saves is
//! compared with this, in the same run and on the same disk.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::BODY_BYTES;

/// Records of [`BODY_BYTES`] a second, `batch` of them to one write and one fdatasync. Uses up `directory`, which need
/// not exist and is gone afterwards.
///
/// # Errors
/// Whatever the disk says.
pub fn rate(directory: &Path, batch: usize, duration: Duration) -> io::Result<f64> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)?;
    let mut file = OpenOptions::new().create_new(true).append(true).open(directory.join("log"))?;
    let bytes = vec![b'x'; batch * BODY_BYTES];
    let (start, mut records) = (Instant::now(), 0);
    while start.elapsed() < duration {
        file.write_all(&bytes)?;
        file.sync_data()?;
        records += batch;
    }
    let rate = records as f64 / start.elapsed().as_secs_f64();
    drop(file);
    fs::remove_dir_all(directory)?;
    Ok(rate)
}
