//! Continuous backups: the files of a data directory at many moments, on object storage.
//!
//! Journals only append to their segments, so two moments that are close have almost all bytes in common. A **restore
//! point** is a small object that lists, for each file, the **pieces** it consists of. Pieces are in data objects, and a
//! restore point shares them with the one before it. Only bytes that are new are uploaded.
//!
//! | object | content |
//! |---|---|
//! | `points/0000000012.json.zst` | restore point 12, created with a condition, so that two writers never make the same one |
//! | `data/0000000012-UUID` | pieces that restore point 12 added, each compressed by itself; never changed |
//!
//! A restore point uses a piece only if it is new or the point before it uses it. So every data object belongs to a
//! contiguous range of points, and [`BackupWriter::expire`] finds what is obsolete from one restore point.
//!
//! | module | content |
//! |---|---|
//! | [`point`] | the content of a restore point, and the pieces that the next one keeps |
//! | [`points`] | restore points in the store: listed, read and found by time |
//! | [`writer`] | adds restore points, and removes old ones |
//! | `upload` | new pieces, collected in data objects |
//! | [`receive`] | the files of a restore point |

pub mod point;
pub mod points;
pub mod receive;
mod upload;
pub mod writer;

#[cfg(doc)]
use crate::backup::writer::BackupWriter;
