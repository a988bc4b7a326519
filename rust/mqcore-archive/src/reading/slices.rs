//! Division of large parts of an archive: by queue, because files are sorted by queue, and by note within a queue.
//!
//! A slice is defined by values and not by files. The broker may therefore merge files between the division and the read:
//! each row still belongs to exactly one slice.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::manifest::FileEntry;

/// An interval of queues, in the order of the bytes of their names. Events of a whole shard have no queue, and come first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueSlice {
    /// First queue; `None`: from the beginning, including events of a whole shard.
    pub from: Option<String>,
    /// Queue after the last one; `None`: to the end.
    pub until: Option<String>,
}

impl QueueSlice {
    /// Whether a row of this queue is part of it.
    pub(super) fn contains(&self, queue: Option<&str>) -> bool {
        match queue {
            Some(queue) => self.overlaps(queue, queue),
            None => self.from.is_none(),
        }
    }

    /// Whether it may have queues from `first` to `last`.
    pub(super) fn overlaps(&self, first: &str, last: &str) -> bool {
        self.from.as_deref().is_none_or(|from| from <= last)
            && self.until.as_deref().is_none_or(|until| first < until)
    }

    /// Whether a file may have rows of it. The partitions of a table separate rows without a queue from all others.
    pub(super) fn may_have(&self, file: &FileEntry) -> bool {
        match bounds(file) {
            Some((first, last)) => self.overlaps(&first, &last),
            None => true,
        }
    }

    /// Whether all rows of a file are part of it.
    pub(super) fn has_all(&self, file: &FileEntry) -> bool {
        match bounds(file) {
            Some((first, last)) => self.contains(Some(&first)) && self.contains(Some(&last)),
            None => self.from.is_none() && self.until.is_none(),
        }
    }
}

/// Returns the first and the last queue of a file; `None`: it has none, or they are unknown.
fn bounds(file: &FileEntry) -> Option<(String, String)> {
    let single = || {
        let queue = format!("{}/{}", file.channel.as_ref()?, file.queue_id?);
        Some((queue.clone(), queue))
    };
    file.queues.clone().or_else(single)
}

/// A part of some files: notes, queues (`None`: all), and the approximate size in bytes.
pub(super) type Slice = (Range<u64>, Option<QueueSlice>, u64);

/// Divides the rows with these notes into slices of about `target_bytes`. The files overlap each other.
///
/// A slice has at least the files that begin in it. So the number of slices is at most that of the files.
pub(super) fn divide(files: &[&FileEntry], notes: &Range<u64>, target_bytes: u64) -> Vec<Slice> {
    let mut sorted: Vec<_> =
        files.iter().map(|file| (bounds(file).map(|(first, _)| first).unwrap_or_default(), *file)).collect();
    sorted.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut groups: Vec<(Option<String>, u64, Vec<&FileEntry>)> = Vec::new();
    // Files that begin with the same queue stay together.
    for run in sorted.chunk_by(|(left, _), (right, _)| left == right) {
        let files = run.iter().map(|(_, file)| *file);
        let size: u64 = run.iter().map(|(_, file)| file.bytes).sum();
        match groups.last_mut() {
            Some((_, bytes, group)) if *bytes + size <= target_bytes => {
                *bytes += size;
                group.extend(files);
            }
            last => {
                let from = last.and(run.first()).map(|(first, _)| first.clone());
                groups.push((from, size, files.collect()));
            }
        }
    }
    let starts: Vec<_> = groups.iter().skip(1).map(|(from, ..)| from.clone()).collect();
    let ends = starts.into_iter().chain([None]);
    let whole = groups.len() == 1;
    let mut slices = Vec::new();
    for ((from, _, files), until) in groups.into_iter().zip(ends) {
        let queues = (!whole).then_some(QueueSlice { from, until });
        slices
            .extend(by_note(files, notes, target_bytes).map(|(notes, bytes)| (notes, queues.clone(), bytes)));
    }
    slices
}

/// Divides notes where files begin.
fn by_note(
    mut files: Vec<&FileEntry>,
    notes: &Range<u64>,
    target_bytes: u64,
) -> impl Iterator<Item = (Range<u64>, u64)> {
    files.sort_unstable_by_key(|file| file.min_note);
    let mut parts: Vec<(u64, u64)> = vec![(notes.start, 0)];
    for file in files {
        if let Some((start, bytes)) = parts.last_mut() {
            let cut = *bytes > 0 && *bytes + file.bytes > target_bytes;
            if cut && *start < file.min_note && file.min_note < notes.end {
                parts.push((file.min_note, file.bytes));
            } else {
                *bytes += file.bytes;
            }
        }
    }
    let ends: Vec<_> = parts.iter().skip(1).map(|(start, _)| *start).chain([notes.end]).collect();
    parts.into_iter().zip(ends).map(|((start, bytes), end)| (start..end, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(queues: Option<(&str, &str)>, notes: (u64, u64), bytes: u64) -> FileEntry {
        FileEntry {
            table: "messages".to_owned(),
            path: String::new(),
            shard: 0,
            channel: None,
            queue_id: None,
            queues: queues.map(|(first, last)| (first.to_owned(), last.to_owned())),
            date: String::new(),
            bytes,
            rows: 1,
            min_time_ms: 0,
            max_time_ms: 0,
            min_number: 0,
            max_number: 0,
            min_note: notes.0,
            max_note: notes.1,
        }
    }

    /// Each queue and note is in exactly one slice.
    fn check(slices: &[Slice], notes: &Range<u64>) {
        for queue in [None, Some(""), Some("a/0"), Some("b/1"), Some("c/2"), Some("zz/9")] {
            for note in notes.clone() {
                let within = |(range, queues, _): &&Slice| {
                    range.contains(&note) && queues.as_ref().is_none_or(|queues| queues.contains(queue))
                };
                assert_eq!(slices.iter().filter(within).count(), 1, "{queue:?} {note} {slices:?}");
            }
        }
    }

    #[test]
    fn files_of_different_queues_are_divided_by_queue() {
        let files = [
            file(Some(("a/0", "b/1")), (0, 99), 100),
            file(Some(("b/1", "c/2")), (0, 99), 100),
            file(Some(("c/2", "zz/9")), (5, 99), 100),
            file(None, (0, 99), 1),
        ];
        let files: Vec<_> = files.iter().collect();
        for (target, count) in [(0, 4), (100, 4), (101, 3), (202, 2), (500, 1)] {
            let slices = divide(&files, &(0..100), target);
            assert_eq!(slices.len(), count, "{target} {slices:?}");
            assert_eq!(slices.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), 301);
            check(&slices, &(0..100));
        }
        assert_eq!(divide(&files, &(0..100), 500)[0].1, None);
    }

    #[test]
    fn files_of_one_queue_are_divided_by_note() {
        let mut files: Vec<_> =
            (0..10).map(|at| file(Some(("b/1", "b/1")), (at * 10, at * 10 + 9), 100)).collect();
        files.push(file(Some(("a/0", "c/2")), (0, 99), 50));
        let files: Vec<_> = files.iter().collect();
        let slices = divide(&files, &(0..100), 200);
        assert_eq!(slices.iter().map(|(notes, ..)| notes.start).collect::<Vec<_>>(), [0, 0, 20, 40, 60, 80]);
        assert_eq!(slices.last().map(|(notes, ..)| notes.end), Some(100));
        check(&slices, &(0..100));
    }
}
