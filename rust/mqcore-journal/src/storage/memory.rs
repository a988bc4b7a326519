//! In-memory storage with simulated crashes and faults. A seed determines which unsynced writes survive, are lost or are torn.
//!
//! A machine that loses power preserves an arbitrary part of what was written since the last sync, by sector and file, and
//! of the names changed since the last sync of the directory. A failed sync loses pages that reads still show, as common
//! kernels do. This storage simulates both.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use super::Storage;

/// Smallest unit of a write that a disk preserves or loses as a whole, in bytes.
const SECTOR_BYTES: usize = 512;
/// Sectors per page of the system's cache.
const PAGE_SECTORS: usize = 8;

/// The calls that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageCall {
    /// All calls that change something.
    Change,
    /// `read_at`.
    Read,
    /// `write_at`.
    Write,
    /// `sync_data` and `sync_directory`.
    Sync,
    /// `create`.
    Create,
    /// `open`.
    Open,
    /// `rename` and `remove`.
    Remove,
}

/// A simulated fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk reports an error. An arbitrary prefix of a write may have happened.
    Error,
    /// The disk is full.
    Full,
    /// A write takes one byte only. Does not apply to other calls.
    Short,
    /// The process has no file descriptor left. Apply it to [`StorageCall::Create`] and [`StorageCall::Open`] only.
    Descriptors,
}

/// An open file of a [`MemoryStorage`].
#[derive(Debug, Clone, Copy)]
pub struct MemoryFile(u64);

/// A disk in memory. Clones share it, so that a test can access what it gave to a journal.
#[derive(Debug, Clone)]
pub struct MemoryStorage {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug)]
struct Disk {
    random: Rng,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    capacity: Option<u64>,
    faults: Vec<PlannedFault>,
    struck: u64,
}

#[derive(Debug, Default)]
struct Inode {
    /// Content as reads see it.
    view: Vec<u8>,
    /// Content that a crash is guaranteed to leave.
    durable: Vec<u8>,
    /// Sectors that may or may not have reached the disk.
    dirty: BTreeSet<usize>,
    length_dirty: bool,
    /// A sync has followed the latest write.
    is_synced: bool,
    /// Offset of the first write after the latest sync that a write followed. `None`: unknown, because a crash may have
    /// undone it.
    first_after_sync: Option<u64>,
}

#[derive(Debug)]
enum NameChange {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug)]
struct PlannedFault {
    call: StorageCall,
    /// Number of calls before the fault applies; 0: the next call.
    after: u64,
    lasting: bool,
    fault: Fault,
}

impl MemoryStorage {
    /// Creates an empty disk. The seed determines all random choices.
    pub fn new(seed: u64) -> Self {
        Self::with_files(seed, BTreeMap::new())
    }

    /// Creates a disk with durable files.
    pub fn with_files(seed: u64, files: BTreeMap<String, Vec<u8>>) -> Self {
        let mut disk = Disk {
            random: Rng::with_seed(seed),
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            capacity: None,
            faults: Vec::new(),
            struck: 0,
        };
        for (name, bytes) in files {
            let inode = Inode { view: bytes.clone(), durable: bytes, ..Inode::default() };
            disk.names.insert(name, disk.next_inode);
            disk.inodes.insert(disk.next_inode, inode);
            disk.next_inode += 1;
        }
        disk.durable_names.clone_from(&disk.names);
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// All files, as reads see them.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.disk();
        disk.names.iter().map(|(name, inode)| (name.clone(), disk.inodes[inode].view.clone())).collect()
    }

    /// The offset in a file before which everything was synced when the first of its latest writes was made: the most that
    /// this write can record. `None`: no write has followed a sync, or it is unknown after a crash.
    pub fn recorded_sync(&self, name: &str) -> Option<u64> {
        let disk = self.disk();
        disk.names.get(name).and_then(|inode| disk.inodes[inode].first_after_sync)
    }

    /// Simulates a power loss: an arbitrary part of the unsynced changes survives. Also clears all faults.
    pub fn crash(&self) {
        self.disk().crash();
    }

    /// Limits the total size of all files in bytes; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().capacity = bytes;
    }

    /// Injects a fault into the `after`-th matching call from now (0: the next), and into all later ones if `lasting`.
    pub fn inject(&self, call: StorageCall, after: u64, fault: Fault, lasting: bool) {
        self.disk().faults.push(PlannedFault { call, after, lasting, fault });
    }

    /// Clears all faults.
    pub fn clear_faults(&self) {
        self.disk().faults.clear();
    }

    /// Number of calls affected by faults so far.
    pub fn fault_count(&self) -> u64 {
        self.disk().struck
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    fn chance(&mut self, one_in: u64) -> bool {
        self.random.u64(..one_in) == 0
    }

    fn fault(&mut self, calls: &[StorageCall]) -> Option<Fault> {
        let mut struck = None;
        self.faults.retain_mut(|planned| {
            if !calls.contains(&planned.call) {
                return true;
            }
            if planned.after > 0 {
                planned.after -= 1;
                return true;
            }
            struck = struck.or(Some(planned.fault));
            planned.lasting
        });
        self.struck += u64::from(struck.is_some());
        struck
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[inode].view.len() as u64).sum()
    }

    fn inode(&mut self, file: MemoryFile) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&file.0).ok_or_else(|| io::Error::other("the file was lost in a crash"))
    }

    fn crash(&mut self) {
        self.faults.clear();
        // Most crashes are mixed; some lose everything unsynced, and some lose nothing, like a killed process.
        let style = self.random.u64(..8);
        let by_page = self.chance(2);
        let mut ids: Vec<u64> = self.inodes.keys().copied().collect();
        for id in ids.drain(..) {
            let mut inode = self.inodes.remove(&id).unwrap_or_default();
            self.settle_inode(&mut inode, style, by_page);
            self.inodes.insert(id, inode);
        }
        for change in std::mem::take(&mut self.name_changes) {
            if self.keeps(style) {
                apply_names(&mut self.durable_names, change);
            }
        }
        self.names.clone_from(&self.durable_names);
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|id, _| named.contains(id));
    }

    fn keeps(&mut self, style: u64) -> bool {
        match style {
            0 => false,
            1 => true,
            _ => self.chance(2),
        }
    }

    fn settle_inode(&mut self, inode: &mut Inode, style: u64, by_page: bool) {
        if inode.length_dirty && self.keeps(style) {
            inode.durable.resize(inode.view.len(), 0);
        }
        let mut page = (usize::MAX, false);
        for sector in std::mem::take(&mut inode.dirty) {
            if !by_page || page.0 != sector / PAGE_SECTORS {
                page = (sector / PAGE_SECTORS, self.keeps(style));
            }
            if page.1 {
                inode.flush(sector);
            }
        }
        inode.length_dirty = false;
        inode.first_after_sync = None;
        inode.view.clone_from(&inode.durable);
    }
}

impl Inode {
    /// Writes one sector to the disk, within the durable length.
    fn flush(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.view.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&self.view[start..end]);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.view.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.flush(sector);
        }
        self.length_dirty = false;
        self.is_synced = true;
    }
}

fn apply_names(names: &mut BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Create(name, inode) => {
            names.insert(name, inode);
        }
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(&from) {
                names.insert(to, inode);
            }
        }
        NameChange::Remove(name) => {
            names.remove(&name);
        }
    }
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full => io::Error::new(io::ErrorKind::StorageFull, "no space left (injected)"),
        #[cfg(unix)]
        Fault::Descriptors => rustix::io::Errno::MFILE.into(),
        #[cfg(not(unix))]
        Fault::Descriptors => io::Error::other("too many open files (injected)"),
        Fault::Error | Fault::Short => io::Error::other("input/output error (injected)"),
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl Storage for MemoryStorage {
    type File = MemoryFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, length: u64) -> io::Result<MemoryFile> {
        let mut disk = self.disk();
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let fault =
            disk.fault(&[StorageCall::Change, StorageCall::Create]).filter(|fault| *fault != Fault::Short);
        if fault == Some(Fault::Descriptors) {
            return Err(error(Fault::Descriptors));
        }
        let full = disk.capacity.is_some_and(|capacity| disk.used() + length > capacity);
        // As with real files, the name exists although there was no space for the bytes.
        let view =
            if fault.is_some() || full { Vec::new() } else { vec![0; usize::try_from(length).unwrap_or(0)] };
        let id = disk.next_inode;
        disk.next_inode += 1;
        disk.inodes.insert(id, Inode { view, length_dirty: true, ..Inode::default() });
        disk.names.insert(name.to_owned(), id);
        disk.name_changes.push(NameChange::Create(name.to_owned(), id));
        match fault.or(full.then_some(Fault::Full)) {
            Some(fault) => Err(error(fault)),
            None => Ok(MemoryFile(id)),
        }
    }

    fn open(&self, name: &str) -> io::Result<MemoryFile> {
        let mut disk = self.disk();
        if let Some(fault @ (Fault::Error | Fault::Descriptors)) = disk.fault(&[StorageCall::Open]) {
            return Err(error(fault));
        }
        disk.names.get(name).copied().map(MemoryFile).ok_or_else(|| missing(name))
    }

    fn length(&self, file: &MemoryFile) -> io::Result<u64> {
        Ok(self.disk().inode(*file)?.view.len() as u64)
    }

    fn read_at(&self, file: &MemoryFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut disk = self.disk();
        if let Some(fault @ (Fault::Error | Fault::Full)) = disk.fault(&[StorageCall::Read]) {
            return Err(error(fault));
        }
        let view = &disk.inode(*file)?.view;
        let rest = view.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, file: &MemoryFile, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.disk();
        let fault = disk.fault(&[StorageCall::Change, StorageCall::Write]);
        let taken = match fault {
            None => bytes.len(),
            Some(Fault::Short) => bytes.len().min(1),
            Some(_) => disk.random.usize(..=bytes.len()),
        };
        let early = disk.chance(4).then(|| disk.random.u64(..));
        let inode = disk.inode(*file)?;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + taken;
        if end > inode.view.len() {
            inode.view.resize(end, 0);
            inode.length_dirty = true;
        }
        inode.view[start..end].copy_from_slice(&bytes[..taken]);
        if fault.is_none() && std::mem::take(&mut inode.is_synced) {
            inode.first_after_sync = Some(offset);
        }
        inode.dirty.extend((start..end).map(|byte| byte / SECTOR_BYTES).step_by(SECTOR_BYTES));
        inode.dirty.extend(end.checked_sub(1).filter(|_| taken > 0).map(|last| last / SECTOR_BYTES));
        // The system may write a page back at any time, and again later: a crash may leave either state.
        if let Some(pick) = early {
            let sector =
                start / SECTOR_BYTES + usize::try_from(pick).unwrap_or(0) % (taken / SECTOR_BYTES + 1);
            inode.flush(sector);
        }
        match fault {
            Some(fault @ (Fault::Error | Fault::Full)) => Err(error(fault)),
            _ => Ok(taken),
        }
    }

    fn set_length(&self, file: &MemoryFile, length: u64) -> io::Result<()> {
        let mut disk = self.disk();
        if let Some(fault @ Fault::Error) = disk.fault(&[StorageCall::Change]) {
            return Err(error(fault));
        }
        let inode = disk.inode(*file)?;
        inode.view.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        inode.length_dirty = true;
        Ok(())
    }

    fn sync_data(&self, file: &MemoryFile) -> io::Result<()> {
        let mut disk = self.disk();
        let fault =
            disk.fault(&[StorageCall::Change, StorageCall::Sync]).filter(|fault| *fault != Fault::Short);
        let Some(fault) = fault else {
            disk.inode(*file)?.sync();
            return Ok(());
        };
        // Reads still show what a crash would lose, and the next sync has nothing to do.
        let lost = std::mem::take(&mut disk.inode(*file)?.dirty);
        for sector in lost {
            if disk.chance(2) {
                disk.inode(*file)?.flush(sector);
            }
        }
        Err(error(fault))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        if let Some(fault @ Fault::Error) = disk.fault(&[StorageCall::Change, StorageCall::Remove]) {
            return Err(error(fault));
        }
        if !disk.names.contains_key(from) {
            return Err(missing(from));
        }
        apply_names(&mut disk.names, NameChange::Rename(from.to_owned(), to.to_owned()));
        disk.name_changes.push(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        if let Some(fault @ Fault::Error) = disk.fault(&[StorageCall::Change, StorageCall::Remove]) {
            return Err(error(fault));
        }
        if disk.names.remove(name).is_none() {
            return Err(missing(name));
        }
        disk.name_changes.push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut disk = self.disk();
        match disk.fault(&[StorageCall::Change, StorageCall::Sync]).filter(|fault| *fault != Fault::Short) {
            Some(fault) => Err(error(fault)),
            None => {
                disk.name_changes.clear();
                let names = disk.names.clone();
                disk.durable_names = names;
                Ok(())
            }
        }
    }
}
