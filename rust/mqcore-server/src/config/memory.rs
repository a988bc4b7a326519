//! Limits of memory for messages that are not saved, and for unfinished frames.

use std::path::Path;

use mqcore_broker::model::unsaved::UnsavedLimits;

use super::Config;

/// The part of the available memory that unsaved messages may use by default: one third.
const SHARE: u64 = 3;
/// The part of the available memory that unfinished frames may use: a quarter.
const UNFINISHED_SHARE: u64 = 4;

impl Config {
    /// The limits of messages that are only in memory.
    pub(crate) fn unsaved_limits(&self) -> UnsavedLimits {
        let limit = |bytes| if bytes == 0 { u64::MAX } else { bytes };
        let default = || available_memory(Path::new("/")).map_or(u64::MAX, |bytes| bytes / SHARE);
        UnsavedLimits {
            bytes_max: self.unsaved_memory_max.map_or_else(default, limit),
            per_user_max: limit(self.unsaved_memory_per_user_max),
        }
    }

    /// The limit of the unfinished frames of all clients, in bytes.
    pub(crate) fn unfinished_limit(&self) -> usize {
        unfinished_limit(self.unfinished_bytes_max, available_memory(Path::new("/")))
    }
}

/// The limit of unfinished frames: `configured`, but no more than a part of the available memory.
fn unfinished_limit(configured: usize, available: Option<u64>) -> usize {
    let share = available.map_or(u64::MAX, |bytes| bytes / UNFINISHED_SHARE);
    configured.min(usize::try_from(share).unwrap_or(usize::MAX))
}

/// The memory that this process may use: the least of the memory of the machine, the limits of its control groups and its
/// limit of address space. `None` where the system does not tell.
fn available_memory(root: &Path) -> Option<u64> {
    group_limits(root).into_iter().chain(machine_memory(root)).chain(address_space(root)).min()
}

fn address_space(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn machine_memory(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The limits of the control groups of this process and of all groups above them, in both versions.
fn group_limits(root: &Path) -> Vec<u64> {
    let Ok(groups) = std::fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut limits = Vec::new();
    for line in groups.lines() {
        // HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        // In a container the path may be that of the host; its own group is the mount itself then.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let text = std::fs::read_to_string(root.join(mount).join(group).join(file));
            limits.extend(text.ok().and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_frames_use_at_most_a_quarter_of_the_available_memory() {
        assert_eq!(unfinished_limit(1 << 30, Some(512 << 20)), 128 << 20);
        assert_eq!(unfinished_limit(1 << 30, Some(16 << 30)), 1 << 30);
        assert_eq!(unfinished_limit(1 << 30, None), 1 << 30);
    }

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::TempDir::new().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it is below the root")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        8000000 kB\nMemFree:  1 kB\n");

    #[test]
    fn machine_without_a_limit_of_the_group_has_all_of_its_memory() {
        let files = [MEMINFO, ("proc/self/cgroup", "0::/user\n"), ("sys/fs/cgroup/user/memory.max", "max\n")];
        assert_eq!(available_memory(root(&files).path()), Some(8_000_000 * 1024));
        assert_eq!(available_memory(root(&[]).path()), None);
    }

    #[test]
    fn least_limit_of_the_group_and_those_above_it_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/pods/one\n"),
            ("sys/fs/cgroup/pods/memory.max", "1000\n"),
            ("sys/fs/cgroup/pods/one/memory.max", "5000\n"),
        ];
        assert_eq!(available_memory(root(&files).path()), Some(1000));
    }

    #[test]
    fn container_sees_its_limit_at_the_mount_in_both_versions() {
        let version_2 = [MEMINFO, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "2000\n")];
        assert_eq!(available_memory(root(&version_2).path()), Some(2000));
        let version_1 = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/docker/x\n4:hugetlb,memory:/docker/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n"),
        ];
        assert_eq!(available_memory(root(&version_1).path()), Some(3000));
    }

    #[test]
    fn limit_of_address_space_counts() {
        let limits = |soft: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax address space  {soft}  unlimited  bytes\n")
        };
        let memory = |soft| available_memory(root(&[MEMINFO, ("proc/self/limits", &limits(soft))]).path());
        assert_eq!(memory("2500000"), Some(2_500_000));
        assert_eq!(memory("unlimited"), Some(8_000_000 * 1024));
    }

    #[test]
    fn configured_limit_replaces_the_default_and_zero_means_none() {
        let limits = |total, unsaved_memory_per_user_max| {
            let unsaved_memory_max = Some(total);
            Config { unsaved_memory_max, unsaved_memory_per_user_max, ..Config::default() }.unsaved_limits()
        };
        assert_eq!(limits(5, 0), UnsavedLimits { bytes_max: 5, per_user_max: u64::MAX });
        assert_eq!(limits(0, 7), UnsavedLimits { bytes_max: u64::MAX, per_user_max: 7 });
    }
}
