//! Whether anybody outside the lane is on the database, and writes.

use super::file::{LOOKOUT, LaneFile, OUTSIDERS};
use super::{Lane, lock};
use crate::holder::locks::{self, Owner};
use crate::holder::{self, process};
use crate::policy::courtesy::{Company, MEMORY};
use crate::vfs::{self, LockKind};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often to look who has the database open. A look costs some 50 us.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A look costs more the more locks there are, and every process on the database looks: the next is made that many times
/// later than what the last one took of this thread's time, and never later than [`AT_LATEST`].
const SPARING: u32 = 4_000;
const AT_LATEST: Duration = Duration::from_secs(2);

/// What a process knows of writers outside the lane.
#[derive(Default)]
pub struct Watch {
    /// A thread looks from time to time.
    kept: bool,
    /// Somebody had a turn since the last look.
    used: bool,
    /// `None`: it cannot be told, or nobody has looked yet.
    present: Option<bool>,
    met: Option<Instant>,
}

impl Watch {
    /// Take note that SQLite was busy although the lane was ours. It may have been one of ours on the fast path.
    pub fn met(&mut self, now: Instant) {
        self.met = Some(now);
    }

    /// Take note of a turn. True: nobody looks, and the caller is to start a thread that [keeps watch](keep).
    pub fn begin(&mut self) -> bool {
        self.used = true;
        !std::mem::replace(&mut self.kept, true)
    }

    /// Take note of what was found. True: go on looking.
    fn looked(&mut self, present: Option<bool>) -> bool {
        self.present = present;
        self.kept = std::mem::take(&mut self.used);
        self.kept
    }

    /// Take note that there is no thread.
    pub fn end(&mut self) {
        self.kept = false;
    }

    /// Say what is known.
    pub fn company(&self, now: Instant) -> Company {
        let met = self.met.is_some_and(|met| now.saturating_duration_since(met) < MEMORY);
        match (self.present, met) {
            (Some(false), _) | (None, false) => Company::Nobody,
            (Some(true), false) => Company::Present,
            (_, true) => Company::Writing,
        }
    }
}

/// Look from time to time who has the database open, for as long as the lane is used.
///
/// In a thread of its own: the kernel lists locks only after every processor has passed a quiet moment, which takes up
/// to some 10 ms, and a turn would last that much longer.
pub fn keep(lane: &Weak<Lane>) {
    let mut post = Post::default();
    while let Some(lane) = lane.upgrade().filter(|lane| !lane.is_inherited()) {
        let before = process::thread_time();
        let file = lock(&lane.state).file();
        let present = post.look(&lane.path, file);
        let spent = process::thread_time().saturating_sub(before);
        let pause = LOOK_AGAIN.max(spent * SPARING).min(AT_LATEST);
        let goes_on = lock(&lane.state).watch.looked(present);
        drop(lane);
        if !goes_on {
            return;
        }
        std::thread::sleep(pause);
    }
}

/// The lookout's post: one process looks for all who use the lane file.
///
/// A look holds up whoever locks any file on the machine, for as long as the kernel lists all locks there are, and with
/// dozens of processes they would be at it all the time.
#[derive(Default)]
struct Post {
    /// Where it is this process's. The file is not kept open for it.
    file: Option<Weak<LaneFile>>,
}

impl Post {
    /// Say whether a process outside the lane has the database open: have a look, or ask the one who looks.
    fn look(&mut self, database: &Path, file: Option<Arc<LaneFile>>) -> Option<bool> {
        let can_be_told = can_be_told(database);
        let file = file.filter(|_| can_be_told);
        let is_same = |own: &Weak<LaneFile>| file.as_ref().is_some_and(|file| own.as_ptr() == Arc::as_ptr(file));
        if !self.file.as_ref().is_some_and(is_same) {
            self.leave();
        }
        let Some(file) = file else { return can_be_told.then(|| present(database))? };
        if !file.try_lock(LOOKOUT).ok()? {
            let asleep = file.blocker(LOOKOUT, 1).and_then(|lookout| lookout.pid).is_some_and(process::is_stopped);
            return if asleep { present(database) } else { Some(file.blocker(OUTSIDERS, 1).is_some()) };
        }
        let present = present(database);
        if present == Some(true) {
            file.try_lock(OUTSIDERS).ok();
        } else {
            file.unlock(OUTSIDERS);
        }
        self.file = Some(Arc::downgrade(&file));
        present
    }

    fn leave(&mut self) {
        if let Some(file) = self.file.take().and_then(|file| file.upgrade()) {
            file.unlock(OUTSIDERS);
            file.unlock(LOOKOUT);
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Say whether the kernel's list of locks tells who is outside the lane. All of ours lock by open file descriptions, so a
/// lock of a process is another program's, or of another copy of SQLite in one of ours.
///
/// With a rollback journal nobody locks anything between transactions; and where our own locks are the process's, or a
/// container hides the locks of those outside it, the list tells too little.
fn can_be_told(database: &Path) -> bool {
    vfs::lock_kind() == LockKind::Description && process::sees_all_pids() && holder::beside(database, "-shm").exists()
}

fn present(database: &Path) -> Option<bool> {
    let locks = locks::on_file(&holder::beside(database, "-shm")).ok()?;
    Some(locks.iter().any(|lock| matches!(lock.owner, Owner::Process(_)) && lock.holds(locks::WAL_OPEN)))
}

#[cfg(test)]
mod tests {
    use super::super::other_process::OtherProcess;
    use super::super::scratch::Scratch;
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn one_thread_keeps_watch_for_as_long_as_there_are_turns() {
        let mut watch = Watch::default();
        assert!(watch.begin());
        assert!(!watch.begin(), "one is enough");
        assert!(watch.looked(None));
        assert!(!watch.looked(None), "nobody had a turn since");
        assert!(watch.begin());
    }

    #[test]
    fn who_is_not_there_does_not_write() {
        let now = Instant::now();
        let watch = |present, met| Watch { present, met, ..Watch::default() };
        assert_eq!(watch(Some(false), Some(now)).company(now), Company::Nobody);
        assert_eq!(watch(Some(true), None).company(now), Company::Present);
        assert_eq!(watch(Some(true), Some(now)).company(now), Company::Writing);
        assert_eq!(watch(Some(true), Some(now)).company(now + MEMORY), Company::Present);
    }

    #[test]
    fn where_it_cannot_be_told_who_is_there_being_busy_counts() {
        let now = Instant::now();
        let watch = |met| Watch { met, ..Watch::default() };
        assert_eq!(watch(None).company(now), Company::Nobody);
        assert_eq!(watch(Some(now)).company(now), Company::Writing);
        assert_eq!(watch(Some(now)).company(now + MEMORY), Company::Nobody);
    }

    /// A database that an outsider has open, or nobody has, and its lane file.
    struct Scene {
        database: PathBuf,
        file: Arc<LaneFile>,
        _scratch: Scratch,
    }

    impl Scene {
        fn new() -> Self {
            vfs::install().unwrap();
            let scratch = Scratch::with_database();
            let database = scratch.database();
            fs::write(holder::beside(&database, "-shm"), "").unwrap();
            let file = Arc::new(LaneFile::open(&database).unwrap());
            Self { database, file, _scratch: scratch }
        }

        fn look(&self, post: &mut Post) -> Option<bool> {
            post.look(&self.database, Some(Arc::clone(&self.file)))
        }

        /// An outsider, as the kernel shows it.
        fn outsider(&self) -> OtherProcess {
            let byte = locks::WAL_OPEN.cast_signed();
            OtherProcess::locking(&holder::beside(&self.database, "-shm"), &[(byte, byte)])
        }

        /// The lookout, another process, and what it says.
        fn lookout(&self, says: bool) -> OtherProcess {
            let last = if says { OUTSIDERS } else { LOOKOUT };
            OtherProcess::locking(&super::super::file::path_of(&self.database), &[(LOOKOUT, last)])
        }
    }

    #[test]
    fn one_process_looks_for_all() {
        let scene = Scene::new();
        let mut post = Post::default();
        for says in [true, false, true] {
            let _lookout = scene.lookout(says);
            assert_eq!(scene.look(&mut post), Some(says), "whatever the kernel shows");
        }
        let _outsider = scene.outsider();
        let _lookout = scene.lookout(false);
        assert_eq!(scene.look(&mut post), Some(false));
    }

    #[test]
    fn a_stopped_lookout_is_not_asked() {
        let scene = Scene::new();
        let (_outsider, lookout) = (scene.outsider(), scene.lookout(false));
        lookout.stop();
        assert_eq!(scene.look(&mut Post::default()), Some(true));
    }

    #[test]
    fn where_nobody_looks_this_process_does_and_tells_the_others_until_it_leaves() {
        let scene = Scene::new();
        let mut post = Post::default();
        assert_eq!(scene.look(&mut post), Some(false));
        let told = |byte: i64| {
            locks::on_file(&super::super::file::path_of(&scene.database))
                .unwrap()
                .iter()
                .any(|lock| lock.holds(byte.cast_unsigned()))
        };
        assert!(told(LOOKOUT) && !told(OUTSIDERS));
        {
            let _outsider = scene.outsider();
            assert_eq!(scene.look(&mut post), Some(true));
            assert!(told(LOOKOUT) && told(OUTSIDERS));
        }
        assert_eq!(scene.look(&mut post), Some(false));
        assert!(told(LOOKOUT) && !told(OUTSIDERS));
        drop(post);
        assert!(!told(LOOKOUT));
        let mut post = Post::default();
        assert_eq!(scene.look(&mut post), Some(false));
        // Another file in the lane file's place, or none: the post was in the old one.
        assert_eq!(post.look(&scene.database, None), Some(false));
        assert!(!told(LOOKOUT));
    }

    #[test]
    fn without_a_log_nothing_can_be_told() {
        let scene = Scene::new();
        fs::remove_file(holder::beside(&scene.database, "-shm")).unwrap();
        let _lookout = scene.lookout(true);
        assert_eq!(scene.look(&mut Post::default()), None);
    }
}
