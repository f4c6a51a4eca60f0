//! Which descriptors of database files this process has, and which of them may be closed.
//!
//! # When a descriptor may really be closed
//! A close drops every POSIX lock of this process on the file, so it may happen only while there is none. Locks that
//! exist can be asked for, but between the answer and the close another thread (the other copy of SQLite) may take
//! one. So a file is let go of like this: without waiting, take an open file description lock, exclusive and on all
//! bytes, through one of our descriptors. It is refused while anybody holds any lock, in this process or another;
//! once it is granted, nobody can take one. Then close the others, and last the one that holds the lock: the kernel
//! drops POSIX locks at the start of a close and description locks at its end (`filp_close` in Linux' fs/open.c).
//! Others can see the exclusive lock for some microseconds and find the file busy, as they do when a last connection
//! is closed. That is why it is not done at every close, but
//!
//! - at once where the file has no name any more, as a `-shm` file of which we were the last user;
//! - for the files that wait longest, when more than `IDLE_FILES_MAX` wait that no connection of ours uses.
//!
//! A file that somebody else keeps locked, as every connection in WAL mode does, cannot be let go of like that. When
//! more than `HELD_FILES_MAX` files wait, those go which no other descriptor of this process refers to, according to
//! `/proc/self/fd`: who holds a POSIX lock has a descriptor. There the other copy could open and lock a file in the
//! microseconds between the look and the close, a file that is among the hundreds that wait and was not used for
//! longest. Where locks belong to the process, this look is all there is. Descriptors of one file are not more than
//! were in use at one time.

use super::{FileIdentity, LockKind, kernel, lock_kind};
use libc::{c_int, flock};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Files that no connection of ours uses and whose descriptors are kept for the next one. Enough for a program that
/// opens and closes connections to a handful of databases (two files each in WAL mode) in turn.
const IDLE_FILES_MAX: usize = 16;

/// Files kept that cannot be let go of under a lock, since others hold locks on them. Far below the usual limit of
/// 1,024 descriptors.
const HELD_FILES_MAX: usize = 128;

/// How many of the files that wait are tried at one close, so that a close stays cheap when all are held.
const TRIES_MAX: usize = 4;

/// How long to wait between two tries where a blocking lock must be tried for (see `lock_slowly`).
const SLOW_RETRY: Duration = Duration::from_millis(1);

/// What all descriptors of one file share, to be read without a lock. Never freed, only used again for another file.
pub(super) struct Inode {
    /// The descriptor through which its locks are taken, open for reading and writing; -1 where there is none yet.
    canonical: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Inode {
    const fn new() -> Self {
        Self { canonical: AtomicI32::new(-1), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn canonical(&self) -> Option<c_int> {
        let fd = self.canonical.load(Ordering::Acquire);
        (fd >= 0).then_some(fd)
    }

    fn file(&self) -> FileIdentity {
        FileIdentity { device: self.device.load(Ordering::Relaxed), inode: self.inode.load(Ordering::Relaxed) }
    }
}

/// Stands for the file of every descriptor that SQLite had open in the process this one was forked from. Nobody may
/// lock through them, and they stay open: their numbers are in the memory of connections that must not be used.
pub(super) static INHERITED: Inode = Inode::new();

const CHUNK: usize = 1024;
/// Four million descriptors; Linux allows a process one million unless `fs.nr_open` is raised.
const CHUNKS: usize = 4096;

type Slot = AtomicPtr<Inode>;

/// The file of every descriptor that SQLite has open and that may be locked.
static TABLE: [AtomicPtr<[Slot; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

fn chunk(fd: c_int) -> Option<(&'static AtomicPtr<[Slot; CHUNK]>, usize)> {
    let fd = usize::try_from(fd).ok()?;
    Some((TABLE.get(fd / CHUNK)?, fd % CHUNK))
}

/// Return the file of a descriptor, where it is one that SQLite has open and that may be locked.
#[inline]
pub(super) fn inode_of(fd: c_int) -> Option<&'static Inode> {
    let (chunk, index) = chunk(fd)?;
    // SAFETY: null or a chunk, which are never freed.
    let chunk = unsafe { chunk.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: null or an `Inode`, which are never freed.
    unsafe { chunk[index].load(Ordering::Acquire).as_ref() }
}

/// Return where the file of a descriptor is noted, making room for it. The caller holds the lock of the state.
fn slot(fd: c_int) -> Option<&'static Slot> {
    let (place, index) = chunk(fd)?;
    let mut chunk = place.load(Ordering::Acquire);
    if chunk.is_null() {
        chunk = Box::into_raw(Box::new([const { AtomicPtr::new(ptr::null_mut()) }; CHUNK]));
        place.store(chunk, Ordering::Release);
    }
    // SAFETY: a chunk, which are never freed.
    Some(unsafe { &(&*chunk)[index] })
}

struct Parked {
    fd: c_int,
    access: c_int,
}

/// The canonical descriptor of a file that we may only read, and the shared locks held through it.
struct ReadOnly {
    fd: c_int,
    locked: Vec<(i64, i64)>,
}

struct File {
    inode: &'static Inode,
    path: Option<CString>,
    in_use: usize,
    parked: Vec<Parked>,
    read_only: Option<ReadOnly>,
}

/// All files that SQLite has open or had open, and may lock.
pub(super) struct State {
    files: BTreeMap<FileIdentity, File>,
    /// The files that no connection uses, the one unused for longest first.
    idle: VecDeque<FileIdentity>,
    /// Descriptors through which locks are taken and that are not SQLite's.
    probes: Vec<c_int>,
    spare: Vec<&'static Inode>,
}

static STATE: Mutex<State> =
    Mutex::new(State { files: BTreeMap::new(), idle: VecDeque::new(), probes: Vec::new(), spare: Vec::new() });

/// How many descriptors are parked, so that a process that never closes a connection pays nothing at an open.
static PARKED: AtomicUsize = AtomicUsize::new(0);

/// Lock the state. Nothing that may take long happens under this lock, and nothing waits for another lock under it.
pub(super) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hand out a parked descriptor of the file that `path` names, if one was opened with the access mode of `flags`.
pub(super) fn reuse(path: &CStr, flags: c_int) -> Option<c_int> {
    // A temporary file's O_TMPFILE has the bit of O_DIRECTORY in it.
    if PARKED.load(Ordering::Relaxed) == 0 || flags & (libc::O_EXCL | libc::O_TRUNC | libc::O_DIRECTORY) != 0 {
        return None;
    }
    let found = kernel::inspect_path(path)?;
    let access = flags & libc::O_ACCMODE;
    let mut state = lock();
    let file = state.files.get_mut(&found.file)?;
    let at = file.parked.iter().position(|parked| parked.access == access)?;
    // An open would be refused now: let the kernel say so.
    if !kernel::may_open(path, access) {
        return None;
    }
    let fd = file.parked.swap_remove(at).fd;
    PARKED.fetch_sub(1, Ordering::Relaxed);
    slot(fd)?.store(ptr::from_ref(file.inode).cast_mut(), Ordering::Release);
    file.in_use += 1;
    if file.in_use == 1 {
        state.idle.retain(|idle| *idle != found.file);
    }
    Some(fd)
}

/// Note which file a descriptor that SQLite has just opened belongs to, where somebody may lock that file.
pub(super) fn adopt(fd: c_int, path: Option<&CStr>) -> io::Result<()> {
    let found = kernel::inspect(fd).filter(|found| found.is_regular && found.links > 0 && !path.is_some_and(is_log));
    let mut state = lock();
    let Some(slot) = slot(fd) else {
        kernel::close(fd);
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    };
    let inode = found.map_or(ptr::null_mut(), |found| ptr::from_ref(state.use_file(found.file, path)).cast_mut());
    slot.store(inode, Ordering::Release);
    Ok(())
}

/// Note which file a descriptor belongs to that SQLite wants to lock and that did not look as if it would.
#[cold]
pub(super) fn adopt_any(fd: c_int) -> io::Result<&'static Inode> {
    let found = kernel::inspect(fd).ok_or_else(io::Error::last_os_error)?;
    let mut state = lock();
    let slot = slot(fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
    let inode = state.use_file(found.file, None);
    slot.store(ptr::from_ref(inode).cast_mut(), Ordering::Release);
    Ok(inode)
}

/// Take back a descriptor that SQLite wants to close.
pub(super) fn give_back(fd: c_int) -> c_int {
    let Some(inode) = inode_of(fd) else { return kernel::close(fd) };
    if ptr::eq(inode, &INHERITED) {
        return 0;
    }
    let mut state = lock();
    if let Some(slot) = slot(fd) {
        slot.store(ptr::null_mut(), Ordering::Release);
    }
    let file = inode.file();
    state.park(file, fd);
    state.sweep();
    0
}

/// Say whether a path is that of a journal, a log or a super-journal of a database that exists. SQLite locks none of
/// them, and deletes most of them right after their close, so these are really closed. Where somebody calls a
/// *database* like that, its descriptors are noticed at their first lock.
pub(super) fn is_log(path: &CStr) -> bool {
    let path = path.to_bytes();
    let base = [&b"-journal"[..], b"-wal"].iter().find_map(|suffix| path.strip_suffix(*suffix)).or_else(|| {
        // sqlite3.c, vdbeCommit: "%s-mj%06X9%02X".
        let (base, digits) = path.split_at_checked(path.len().checked_sub(9)?)?;
        digits.iter().all(u8::is_ascii_hexdigit).then(|| base.strip_suffix(b"-mj")).flatten()
    });
    base.and_then(|base| CString::new(base).ok()).is_some_and(|base| kernel::inspect_path(&base).is_some())
}

/// Take a lock on a file that has no canonical descriptor for reading and writing, and make one if that can be.
///
/// All locks on files that we may only read come through here and are taken under the state's lock, so that they can
/// be carried over when the file becomes writable. SQLite never waits for a lock in the kernel in the way it is built
/// here; where it did, on such a file, this would poll.
#[cold]
pub(super) fn lock_slowly(fd: c_int, inode: &'static Inode, command: c_int, lock: &mut flock) -> io::Result<()> {
    loop {
        let answer = lock_slowly_once(fd, inode, command, lock);
        match &answer {
            Err(error)
                if command == libc::F_OFD_SETLKW
                    && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) =>
            {
                std::thread::sleep(SLOW_RETRY);
            }
            _ => return answer,
        }
    }
}

fn lock_slowly_once(fd: c_int, inode: &'static Inode, command: c_int, lock: &mut flock) -> io::Result<()> {
    let mut state = self::lock();
    let writes = c_int::from(lock.l_type) == libc::F_WRLCK && command != libc::F_OFD_GETLK;
    let known = |state: &State| state.files.get(&inode.file()).is_some_and(|file| file.read_only.is_some());
    if inode.canonical().is_none() && (writes || !known(&state)) {
        match state.open_canonical(fd, inode, libc::O_RDWR) {
            Ok(canonical) => state.install_canonical(inode, canonical)?,
            Err(_) if known(&state) => {}
            Err(_) => {
                let canonical = state.open_canonical(fd, inode, libc::O_RDONLY)?;
                if let Some(file) = state.files.get_mut(&inode.file()) {
                    file.read_only = Some(ReadOnly { fd: canonical, locked: Vec::new() });
                }
            }
        }
    }
    if let Some(canonical) = inode.canonical() {
        drop(state);
        return kernel::lock_description(canonical, command, lock);
    }
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    let read_only = state.files.get_mut(&inode.file()).and_then(|file| file.read_only.as_mut()).ok_or_else(bad)?;
    if writes {
        // What the kernel says of a write lock on a descriptor that is open for reading.
        return Err(bad());
    }
    let now = if command == libc::F_OFD_SETLKW { libc::F_OFD_SETLK } else { command };
    kernel::lock_description(read_only.fd, now, lock)?;
    if command != libc::F_OFD_GETLK {
        read_only.note(lock);
    }
    Ok(())
}

impl ReadOnly {
    #[allow(clippy::unnecessary_cast, reason = "off_t is narrower on some systems")]
    fn note(&mut self, lock: &flock) {
        let (start, length) = (lock.l_start as i64, lock.l_len as i64);
        let end = |start: i64, length: i64| if length == 0 { i64::MAX } else { start.saturating_add(length) };
        self.locked.retain(|(s, l)| *s < start || end(*s, *l) > end(start, length));
        if c_int::from(lock.l_type) == libc::F_RDLCK {
            self.locked.push((start, length));
        }
    }
}

impl State {
    fn use_file(&mut self, identity: FileIdentity, path: Option<&CStr>) -> &'static Inode {
        let spare = &mut self.spare;
        let file = self.files.entry(identity).or_insert_with(|| {
            let inode = spare.pop().unwrap_or_else(|| Box::leak(Box::new(Inode::new())));
            inode.device.store(identity.device, Ordering::Relaxed);
            inode.inode.store(identity.inode, Ordering::Relaxed);
            File { inode, path: path.map(CStr::to_owned), in_use: 0, parked: Vec::new(), read_only: None }
        });
        file.in_use += 1;
        let inode = file.inode;
        if file.in_use == 1 {
            self.idle.retain(|idle| *idle != identity);
        }
        inode
    }

    fn park(&mut self, identity: FileIdentity, fd: c_int) {
        let Some(file) = self.files.get_mut(&identity) else { return };
        file.parked.push(Parked { fd, access: kernel::access_mode(fd) });
        PARKED.fetch_add(1, Ordering::Relaxed);
        file.in_use -= 1;
        if file.in_use == 0 {
            self.idle.push_back(identity);
        }
    }

    /// Note a descriptor of ours through which locks are taken.
    pub(super) fn add_probe(&mut self, fd: c_int) {
        self.probes.push(fd);
    }

    /// Forget what [`State::add_probe`] noted.
    pub(super) fn remove_probe(&mut self, fd: c_int) {
        self.probes.retain(|probe| *probe != fd);
    }

    fn open_canonical(&mut self, fd: c_int, inode: &Inode, access: c_int) -> io::Result<c_int> {
        let identity = inode.file();
        let path = self.files.get(&identity).and_then(|file| file.path.clone());
        let opened = match kernel::reopen(fd, path.as_deref(), access) {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) && self.release_all_idle() =>
            {
                kernel::reopen(fd, path.as_deref(), access)?
            }
            answer => answer?,
        };
        match kernel::inspect(opened) {
            Some(found) if found.file == identity => Ok(opened),
            Some(found) if found.is_regular => {
                // The path names another file by now, which somebody may hold locks on.
                self.use_file(found.file, None);
                self.park(found.file, opened);
                Err(io::Error::from_raw_os_error(libc::ESTALE))
            }
            _ => {
                kernel::close(opened);
                Err(io::Error::from_raw_os_error(libc::ESTALE))
            }
        }
    }

    /// Make a descriptor the canonical one, carrying over the locks held through one that could only read.
    fn install_canonical(&mut self, inode: &Inode, canonical: c_int) -> io::Result<()> {
        let Some(file) = self.files.get_mut(&inode.file()) else {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        };
        if let Some(old) = file.read_only.take() {
            // Both may hold a shared lock, and nobody else can hold one against it: there is no gap.
            for (start, length) in &old.locked {
                let mut again = kernel::range(libc::F_RDLCK, *start, *length);
                if let Err(error) = kernel::lock_description(canonical, libc::F_OFD_SETLK, &mut again) {
                    drop(kernel::lock_description(
                        canonical,
                        libc::F_OFD_SETLK,
                        &mut kernel::whole_file(libc::F_UNLCK),
                    ));
                    file.parked.push(Parked { fd: canonical, access: libc::O_RDWR });
                    PARKED.fetch_add(1, Ordering::Relaxed);
                    file.read_only = Some(old);
                    return Err(error);
                }
            }
            kernel::lock_description(old.fd, libc::F_OFD_SETLK, &mut kernel::whole_file(libc::F_UNLCK))?;
            file.parked.push(Parked { fd: old.fd, access: libc::O_RDONLY });
            PARKED.fetch_add(1, Ordering::Relaxed);
        }
        inode.canonical.store(canonical, Ordering::Release);
        Ok(())
    }

    /// Let go of files that need not be kept, as the module's comment says.
    fn sweep(&mut self) {
        let mut at = 0;
        while let Some(identity) = self.idle.get(at).copied() {
            if !(self.is_deleted(identity) && self.release(identity)) {
                at += 1;
            }
        }
        for _ in 0..TRIES_MAX.min(self.idle.len().saturating_sub(IDLE_FILES_MAX)) {
            let Some(identity) = self.idle.front().copied() else { break };
            if !self.release(identity) {
                self.idle.rotate_left(1);
            }
        }
        if self.idle.len() > HELD_FILES_MAX {
            self.release_unseen(HELD_FILES_MAX / 2);
        }
    }

    fn is_deleted(&self, identity: FileIdentity) -> bool {
        let fd = self.files.get(&identity).and_then(|file| file.parked.first()).map(|parked| parked.fd);
        fd.and_then(kernel::inspect).is_some_and(|found| found.links == 0)
    }

    /// Let go of every file that no connection uses and nobody has locked or, failing that, has open in this process.
    /// Say whether any descriptor was closed.
    pub(super) fn release_all_idle(&mut self) -> bool {
        let before = self.idle.len();
        for identity in self.idle.clone() {
            self.release(identity);
        }
        if !self.idle.is_empty() {
            self.release_unseen(0);
        }
        self.idle.len() < before
    }

    /// Close all descriptors of a file that no connection uses, if nobody holds a lock on it.
    fn release(&mut self, identity: FileIdentity) -> bool {
        let Some(file) = self.files.get(&identity) else { return false };
        if lock_kind() == LockKind::Process {
            let unseen = self.foreign_files().is_ok_and(|files| !files.contains(&identity));
            if unseen {
                self.close_all(identity, None);
            }
            return unseen;
        }
        let writable = |parked: &&Parked| parked.access == libc::O_RDWR;
        let locker = file.inode.canonical().or_else(|| file.parked.iter().find(writable).map(|parked| parked.fd));
        let Some(locker) = locker else { return false };
        let mut all = kernel::whole_file(libc::F_WRLCK);
        if kernel::lock_description(locker, libc::F_OFD_SETLK, &mut all).is_err() {
            return false;
        }
        self.close_all(identity, Some(locker));
        true
    }

    /// Close the files that wait longest and that no other descriptor of this process refers to, until `keep` are left.
    fn release_unseen(&mut self, keep: usize) {
        // Where /proc cannot be read, they stay.
        let Ok(foreign) = self.foreign_files() else { return };
        let unseen: Vec<_> = self.idle.iter().filter(|identity| !foreign.contains(identity)).copied().collect();
        let surplus = self.idle.len().saturating_sub(keep);
        for identity in unseen.into_iter().take(surplus) {
            self.close_all(identity, None);
        }
    }

    fn close_all(&mut self, identity: FileIdentity, last: Option<c_int>) {
        let Some(file) = self.files.remove(&identity) else { return };
        self.idle.retain(|idle| *idle != identity);
        PARKED.fetch_sub(file.parked.len(), Ordering::Relaxed);
        for fd in file.descriptors().filter(|fd| Some(*fd) != last).chain(last) {
            kernel::close(fd);
        }
        file.inode.canonical.store(-1, Ordering::Release);
        self.spare.push(file.inode);
    }

    /// Return the regular files that this process has open through anything but these descriptors.
    pub(super) fn foreign_files(&self) -> io::Result<HashSet<FileIdentity>> {
        let ours: HashSet<c_int> = self.files.values().flat_map(File::descriptors).collect();
        let mut found = HashSet::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if !ours.contains(&fd) && inode_of(fd).is_none() && !kernel::only_names(fd) {
                // A descriptor closed since it was listed is nobody's.
                found.extend(kernel::inspect(fd).filter(|found| found.is_regular).map(|found| found.file));
            }
        }
        Ok(found)
    }

    /// In a forked child: really close everything that is ours and not SQLite's, and mark what is SQLite's.
    ///
    /// The child holds no POSIX locks that a close could drop, and what it would inherit of open file description
    /// locks, it must not keep. Makes system calls only: what is forgotten here is leaked, not freed.
    pub(super) fn abandon(&mut self) {
        for file in self.files.values() {
            for fd in file.descriptors() {
                kernel::close(fd);
            }
        }
        for place in &TABLE {
            // SAFETY: null or a chunk, which are never freed.
            let Some(chunk) = (unsafe { place.load(Ordering::Relaxed).as_ref() }) else { continue };
            for slot in chunk {
                if !slot.load(Ordering::Relaxed).is_null() {
                    slot.store(ptr::from_ref(&INHERITED).cast_mut(), Ordering::Relaxed);
                }
            }
        }
        for fd in &self.probes {
            kernel::close(*fd);
            if let Some((place, index)) = chunk(*fd) {
                // SAFETY: null or a chunk, which are never freed.
                if let Some(chunk) = unsafe { place.load(Ordering::Relaxed).as_ref() } {
                    chunk[index].store(ptr::null_mut(), Ordering::Relaxed);
                }
            }
        }
        mem::forget(mem::take(&mut self.files));
        mem::forget(mem::take(&mut self.idle));
        mem::forget(mem::take(&mut self.probes));
        PARKED.store(0, Ordering::Relaxed);
    }
}

impl File {
    /// The descriptors that are ours and not SQLite's.
    fn descriptors(&self) -> impl Iterator<Item = c_int> {
        self.inode
            .canonical()
            .into_iter()
            .chain(self.read_only.as_ref().map(|read_only| read_only.fd))
            .chain(self.parked.iter().map(|parked| parked.fd))
    }
}
