//! The manifest of a data directory: the file `format`, and its copy `format.copy`.
//!
//! It states how many shards there are, which journals exist and with which identities, and which losses the operator has
//! not accepted yet. Each file is replaced as a whole, and its last line is a checksum. `docs/storage-format.md` describes the text.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use mqcore_broker::model::placement::{Placement, PlacementKey};
use mqcore_replication::storage::DataFiles;

use crate::shard::count::SHARDS_MAX;
use crate::storage::loss::{Loss, LossCause};

/// Names of the two copies. Either one is enough.
pub(crate) const COPIES: [&str; 2] = ["format", "format.copy"];
/// The newest version that is read. Manifests with a placement key have it; others have version 2, which is the same without
/// that line.
const VERSION: u32 = 3;
const VERSION_WITHOUT_KEY: u32 = 2;
/// The files are padded with line feeds to a multiple of this many bytes, so that no file system stores both in one sector.
const BLOCK_BYTES: usize = 4096;
/// A longer file is damaged.
const BYTES_MAX: u64 = 64 << 20;

/// The content of the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Increases with every change. Of two copies, the one with the larger number counts.
    pub(crate) generation: u64,
    pub(crate) shards: usize,
    /// Spreads names over the shards. `None`: the directory is older than such keys.
    pub(crate) placement_key: Option<PlacementKey>,
    /// Identities of the journals, by directory. A journal that is not listed was not created yet.
    pub(crate) journals: BTreeMap<String, u64>,
    pub(crate) losses: Vec<Loss>,
}

/// A manifest that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestReading {
    pub(crate) manifest: Manifest,
    /// Copies that are missing or damaged.
    pub(crate) damaged: Vec<&'static str>,
    /// Written by an older version, which stored nothing but the number of shards, without a checksum.
    pub(crate) is_old: bool,
    /// A crash left one copy older than the other.
    pub(crate) is_stale: bool,
}

/// Why the manifest cannot be used.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// There is no manifest.
    Missing,
    /// A newer version wrote it.
    Newer(u32),
    /// No copy is readable. Contains the first line.
    Damaged(String),
    /// The named copy cannot be read or written.
    Io(&'static str, io::Error),
}

/// One copy.
enum CopyReading {
    Good(Manifest),
    Old(usize),
    Newer(u32),
    Bad(String),
    Absent,
}

impl Manifest {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards, ..Self::default() }
    }

    /// The shard of each name.
    pub(crate) fn placement(&self) -> Placement {
        match self.placement_key {
            Some(key) => Placement::keyed(self.shards, key),
            None => Placement::unkeyed(self.shards),
        }
    }

    /// Adds the losses that opening a journal found. Forgets those that it no longer finds, if they were accepted, or if the
    /// disk refused to read a file and now reads it.
    pub(crate) fn found(&mut self, journal: &str, found: Vec<Loss>) {
        self.losses.retain(|loss| {
            let may_end = loss.is_accepted || loss.cause == LossCause::Unreadable;
            loss.journal != journal || !may_end || found.iter().any(|found| loss.covers(found))
        });
        for found in found {
            if !self.losses.iter().any(|loss| loss.covers(&found)) {
                self.losses.push(found);
            }
        }
    }

    /// The manifest of a copy with these journals only. Losses stay known.
    pub(crate) fn part(&self, journals: &[String]) -> Self {
        let mut part = self.clone();
        part.journals.retain(|name, _| journals.contains(name));
        part
    }

    /// Marks the losses of the journals that `selects` accepts as accepted, and returns them. From then on, the files that are
    /// left of a journal count as the whole journal; `identities` has those that exist.
    pub(crate) fn accept(
        &mut self,
        selects: &dyn Fn(&str) -> bool,
        identities: &BTreeMap<String, u64>,
    ) -> Vec<Loss> {
        let mut accepted = Vec::new();
        for loss in self.losses.iter_mut().filter(|loss| !loss.is_accepted && selects(&loss.journal)) {
            loss.is_accepted = true;
            accepted.push(loss.clone());
        }
        // A whole journal is either there or not listed, so nothing reports it again.
        for loss in accepted.iter().filter(|loss| loss.segment == 0) {
            match identities.get(&loss.journal) {
                Some(identity) => self.journals.insert(loss.journal.clone(), *identity),
                None => self.journals.remove(&loss.journal),
            };
        }
        self.losses.retain(|loss| !loss.is_accepted || loss.segment != 0);
        accepted
    }

    /// The text of a file.
    pub(crate) fn encode(&self) -> String {
        let version = if self.placement_key.is_some() { VERSION } else { VERSION_WITHOUT_KEY };
        let mut text =
            format!("mqcore data {version}\ngeneration {}\nshards {}\n", self.generation, self.shards);
        if let Some(PlacementKey([first, second])) = self.placement_key {
            text.push_str(&format!("placement {first:016x} {second:016x}\n"));
        }
        for (name, identity) in &self.journals {
            text.push_str(&format!("journal {name} {identity:016x}\n"));
        }
        for loss in &self.losses {
            text.push_str(&loss.encode());
            text.push('\n');
        }
        text.push_str(&format!("crc32 {:08x}\n", crc32fast::hash(text.as_bytes())));
        let padded = text.len().next_multiple_of(BLOCK_BYTES);
        text.extend(std::iter::repeat_n('\n', padded - text.len()));
        text
    }

    /// Reads both copies.
    pub(crate) fn read(directory: &Path) -> Result<ManifestReading, ManifestError> {
        let mut copies = Vec::new();
        for name in COPIES {
            copies.push((
                name,
                read_copy(&directory.join(name)).map_err(|error| ManifestError::Io(name, error))?,
            ));
        }
        let mut best: Option<Self> = None;
        let mut is_stale = false;
        let (mut damaged, mut old, mut first_line) = (Vec::new(), None, None);
        let is_absent = copies.iter().all(|(_, copy)| matches!(copy, CopyReading::Absent));
        for (name, copy) in copies {
            match copy {
                CopyReading::Newer(version) => return Err(ManifestError::Newer(version)),
                CopyReading::Good(manifest) => {
                    is_stale = best.as_ref().is_some_and(|best| best.generation != manifest.generation);
                    best = best.filter(|best| best.generation >= manifest.generation).or(Some(manifest));
                    continue;
                }
                CopyReading::Old(shards) if name == COPIES[0] => old = Some(shards),
                CopyReading::Bad(line) => first_line = first_line.or(Some(line)),
                CopyReading::Old(_) | CopyReading::Absent => {}
            }
            damaged.push(name);
        }
        match (best, old) {
            (Some(manifest), _) => Ok(ManifestReading { manifest, damaged, is_old: false, is_stale }),
            (None, Some(shards)) => {
                let manifest = Self::new(shards);
                Ok(ManifestReading { manifest, damaged: Vec::new(), is_old: true, is_stale: false })
            }
            (None, None) if is_absent => Err(ManifestError::Missing),
            (None, None) => Err(ManifestError::Damaged(first_line.unwrap_or_default())),
        }
    }

    /// Replaces both copies. After a crash, each of them is the old one or the new one.
    pub(crate) fn write(&self, directory: &Path, files: &DataFiles) -> Result<(), ManifestError> {
        let text = self.encode();
        for name in COPIES {
            let replaced = files.replace(&directory.join(name), text.as_bytes());
            replaced.map_err(|error| ManifestError::Io(name, error))?;
        }
        Ok(())
    }

    fn parse(bytes: &[u8]) -> CopyReading {
        let first_line = || {
            let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
            String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned()
        };
        if let Some(shards) = std::str::from_utf8(bytes).ok().and_then(parse_old) {
            return CopyReading::Old(shards);
        }
        match Self::parse_whole(bytes) {
            Some((version, _)) if version > VERSION => CopyReading::Newer(version),
            Some((_, Some(manifest))) => CopyReading::Good(manifest),
            _ => CopyReading::Bad(first_line()),
        }
    }

    /// The version, and the content unless the version is newer. `None` if the checksum or the padding is wrong.
    fn parse_whole(bytes: &[u8]) -> Option<(u32, Option<Self>)> {
        let end = bytes.iter().rposition(|&byte| byte != b'\n')? + 2;
        if !bytes.len().is_multiple_of(BLOCK_BYTES) || end > bytes.len() || bytes.len() - end >= BLOCK_BYTES {
            return None;
        }
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let (content, sum) = text.split_at(text.trim_end().rfind('\n')? + 1);
        if sum != format!("crc32 {:08x}\n", crc32fast::hash(content.as_bytes())) {
            return None;
        }
        let mut lines = content.lines();
        let version = lines.next()?.strip_prefix("mqcore data ")?.parse().ok()?;
        if version > VERSION {
            return Some((version, None));
        }
        Some((version, Some(Self::parse_content(lines)?)))
    }

    fn parse_content<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut manifest = Self::default();
        for line in lines {
            let (word, rest) = line.split_once(' ')?;
            match word {
                "generation" => manifest.generation = rest.parse().ok()?,
                "shards" => manifest.shards = rest.parse().ok()?,
                "placement" => {
                    let (first, second) = rest.split_once(' ')?;
                    let [first, second] = [first, second].map(|half| u64::from_str_radix(half, 16).ok());
                    manifest.placement_key = Some(PlacementKey([first?, second?]));
                }
                "journal" => {
                    let (name, identity) = rest.split_once(' ')?;
                    manifest.journals.insert(name.to_owned(), u64::from_str_radix(identity, 16).ok()?);
                }
                "loss" => manifest.losses.push(Loss::parse(rest)?),
                _ => return None,
            }
        }
        (1..=SHARDS_MAX).contains(&manifest.shards).then_some(manifest)
    }
}

/// The number of shards in a manifest of version 1.
fn parse_old(text: &str) -> Option<usize> {
    let shards = text.trim().strip_prefix("mqcore data 1, shards ")?.parse().ok()?;
    (1..=SHARDS_MAX).contains(&shards).then_some(shards)
}

fn read_copy(path: &Path) -> io::Result<CopyReading> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CopyReading::Absent),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > BYTES_MAX => {
            return Ok(CopyReading::Bad(format!("{} bytes", metadata.len())));
        }
        Ok(_) => {}
    }
    match fs::read(path) {
        Ok(bytes) => Ok(Manifest::parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CopyReading::Absent),
        // A bad sector: the other copy may be readable.
        Err(error) if error.raw_os_error() == Some(EIO) => Ok(CopyReading::Bad(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The number of the error of a bad sector, on all systems.
const EIO: i32 = 5;

#[cfg(test)]
mod tests {
    use mqcore_journal::recovery::RecordLoss;

    use super::*;

    fn sample() -> Manifest {
        let journals = [("shard-0".to_owned(), 77), ("limits".to_owned(), u64::MAX)].into();
        let loss = Loss {
            journal: "shard-0".to_owned(),
            segment: 3,
            cause: LossCause::Damaged,
            records: RecordLoss::AtLeast(12),
            messages: Some((100, 120)),
            parts: vec![(8192, 512)],
            is_accepted: false,
            text: "segment 3: checksum mismatch".to_owned(),
        };
        let missing = Loss::missing("schedules", "its directory is missing");
        let placement_key = Some(PlacementKey([3, u64::MAX]));
        Manifest { generation: 4, shards: 1, placement_key, journals, losses: vec![loss, missing] }
    }

    #[test]
    fn every_flipped_bit_of_a_manifest_is_detected() {
        let manifest = sample();
        let whole = manifest.encode().into_bytes();
        assert_eq!(whole.len(), BLOCK_BYTES);
        assert!(matches!(Manifest::parse(&whole), CopyReading::Good(found) if found == manifest));
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Manifest::parse(&flipped), CopyReading::Bad(_)), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(matches!(Manifest::parse(&whole[..length]), CopyReading::Bad(_)), "{length} bytes");
        }
    }

    #[test]
    fn a_manifest_without_a_placement_key_has_the_version_before_such_keys() {
        let keyed = sample();
        assert!(keyed.encode().starts_with("mqcore data 3\n"));
        let unkeyed = Manifest { placement_key: None, ..keyed };
        let text = unkeyed.encode();
        assert!(text.starts_with("mqcore data 2\n") && !text.contains("placement"));
        assert!(matches!(Manifest::parse(text.as_bytes()), CopyReading::Good(found) if found == unkeyed));
    }

    #[test]
    fn an_unreadable_file_is_a_loss_until_the_disk_reads_it_or_an_operator_accepts_it() {
        let loss = |cause| Loss {
            segment: 3,
            cause,
            ..Loss::missing("shard-0", "segment 3: the file cannot be read")
        };
        let (unreadable, damaged) = (loss(LossCause::Unreadable), loss(LossCause::Damaged));
        let mut manifest = Manifest::new(1);
        manifest.found("shard-0", vec![unreadable.clone(), damaged.clone()]);
        manifest.found("shard-0", vec![unreadable.clone()]);
        assert_eq!(manifest.losses, [unreadable.clone(), damaged.clone()]);
        let encoded = manifest.encode();
        assert!(matches!(Manifest::parse(encoded.as_bytes()), CopyReading::Good(found) if found == manifest));
        manifest.found("shard-1", Vec::new());
        manifest.found("shard-0", Vec::new());
        assert_eq!(manifest.losses, [damaged], "a file that was damaged does not heal");
        manifest.found("shard-0", vec![unreadable.clone()]);
        assert_eq!(manifest.accept(&|_| true, &BTreeMap::new()).len(), 2);
        manifest.found("shard-0", vec![unreadable]);
        assert!(manifest.losses.iter().all(|loss| loss.is_accepted));
    }

    #[test]
    fn one_intact_copy_is_enough_and_the_newer_one_counts() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path();
        assert!(matches!(Manifest::read(path), Err(ManifestError::Missing)));
        sample().write(path, &DataFiles::Local).unwrap();
        let read = |manifest, damaged| ManifestReading { manifest, damaged, is_old: false, is_stale: false };
        assert_eq!(Manifest::read(path).unwrap(), read(sample(), vec![]));
        let newer = Manifest { generation: 5, shards: 2, ..Manifest::default() };
        DataFiles::Local.replace(&path.join(COPIES[1]), newer.encode().as_bytes()).unwrap();
        let stale = ManifestReading { is_stale: true, ..read(newer.clone(), vec![]) };
        assert_eq!(Manifest::read(path).unwrap(), stale, "a crash between the copies");
        fs::write(path.join(COPIES[0]), vec![0; BLOCK_BYTES]).unwrap();
        assert_eq!(Manifest::read(path).unwrap(), read(newer.clone(), vec![COPIES[0]]));
        fs::remove_file(path.join(COPIES[0])).unwrap();
        assert_eq!(Manifest::read(path).unwrap(), read(newer, vec![COPIES[0]]));
        fs::write(path.join(COPIES[1]), "nothing").unwrap();
        assert!(matches!(Manifest::read(path), Err(ManifestError::Damaged(line)) if line == "nothing"));
    }

    #[test]
    fn manifests_of_older_versions_are_read_and_those_of_newer_versions_refused() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path().join(COPIES[0]);
        fs::write(&path, "mqcore data 1, shards 4\n").unwrap();
        let reading = Manifest::read(scratch.path()).unwrap();
        assert_eq!((reading.manifest, reading.is_old), (Manifest::new(4), true));
        let mut text = "mqcore data 99\nwhatever this means\n".to_owned();
        text.push_str(&format!("crc32 {:08x}\n", crc32fast::hash(text.as_bytes())));
        text.extend(std::iter::repeat_n('\n', BLOCK_BYTES - text.len()));
        fs::write(&path, text).unwrap();
        assert!(matches!(Manifest::read(scratch.path()), Err(ManifestError::Newer(99))));
    }
}
