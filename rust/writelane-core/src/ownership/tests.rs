use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

type Hook = Box<dyn FnMut(Duration) + Send>;

/// Time that passes only when somebody waits or a test says so.
#[derive(Default)]
struct Fake {
    millis: AtomicU64,
    /// Called with each wait.
    hook: Mutex<Option<Hook>>,
}

impl Clock for Fake {
    fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn pass(&self, time: Duration) {
        self.millis.fetch_add(time.as_millis().max(1) as u64, Ordering::SeqCst);
        if let Some(hook) = &mut *self.hook.lock().unwrap() {
            hook(self.now());
        }
    }
}

/// A folder for one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wl-owner-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn database(&self) -> PathBuf {
        self.0.join("app.db")
    }

    /// Another host's view of the database: its own lock file, as where locks do not travel, but the same claims.
    fn seen_from(&self, host: &str) -> Host {
        Host {
            owner_file: self.0.join("app.db-owner"),
            lock: self.0.join(format!("lock-of-{host}")),
            host: host.into(),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Host {
    owner_file: PathBuf,
    lock: PathBuf,
    host: String,
}

impl Host {
    fn acquire(&self, clock: &Arc<Fake>, patience: &Patience<'_>) -> Result<Ownership, OwnershipError> {
        let identity = Identity { host: self.host.clone(), boot: format!("boot-{}", self.host), pid: 7, started: 1 };
        let Taken::Ours(lock) = OwnerLock::take(&self.lock, 0o600).unwrap() else { panic!("the host's lock is taken") };
        let claims = Claims::beside(&self.owner_file);
        let database = self.owner_file.with_file_name("app.db");
        let hunt = Hunt { database: &database, claims: &claims, lock: &lock, terms: TERMS(), clock: &**clock };
        let (owner, claim, renewed) = hunt.claim(&identity, patience).map_err(|error| match error {
            Failed::Io(error) => panic!("{error}"),
            Failed::Ownership(error) => error,
        })?;
        let shared = Shared {
            database,
            owner_file: self.owner_file.clone(),
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            lease: Some(TERMS()),
            claims,
            state: Mutex::new(State { owner, claim: Some(claim), renewed, lost: None, stopping: false }),
            stop: Condvar::new(),
        };
        Ok(Ownership { shared: Arc::new(shared), lock, beats: None, generation: process::generation() })
    }
}

const TERMS: fn() -> Terms = || Terms::new(Duration::from_secs(40));
const FOREVER: Patience<'static> = Patience { until: None, interrupted: &|| false };

fn beat(ownership: &Ownership) {
    let mut state = ownership.shared.lock();
    ownership.shared.renew(&mut state).unwrap();
}

/// Die without a word: no release, no more beats, the kernel frees the lock.
fn die(ownership: Ownership) {
    ownership.shared.lock().lost = Some(None);
    drop(ownership);
}

#[test]
fn on_one_host_the_second_is_refused_and_told_who_has_it() {
    let folder = Folder::new("second");
    let first = Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).unwrap();
    let refused = Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).err().unwrap();
    let OwnershipError::Held { owner: Some(owner), silent: None, .. } = &refused else { panic!("{refused}") };
    assert_eq!(owner.identity, Identity::own());
    let text = refused.to_string();
    assert!(text.contains(&std::process::id().to_string()) && text.contains(&owner.identity.host), "{text}");
    first.still_mine().unwrap();
    drop(first);
    Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).unwrap();
}

#[test]
fn looking_does_not_drop_the_lock_and_names_the_owner() {
    let folder = Folder::new("look");
    assert_eq!(look(&folder.database()).unwrap(), None);
    let first = Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).unwrap();
    let seen = look(&folder.database()).unwrap().unwrap();
    assert!(seen.certain && seen.owner.unwrap().is(&first.owner()));
    // A child process sees the lock that the look must have left in place.
    assert!(locked_for_a_child(&folder.database()));
    drop(first);
    assert_eq!(look(&folder.database()).unwrap(), None);
    assert!(!locked_for_a_child(&folder.database()));
}

fn locked_for_a_child(database: &Path) -> bool {
    // SAFETY: the child only opens a file, asks for a lock and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let path = std::ffi::CString::new(owner_file(database).into_os_string().into_encoded_bytes());
        // SAFETY: plain system calls on values of our own; `_exit` runs nothing of the parent's.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as i16;
            lock.l_len = 1;
            let file = path.map_or(-1, |path| libc::open(path.as_ptr(), libc::O_RDWR));
            libc::_exit(libc::fcntl(file, libc::F_SETLK, &mut lock).abs());
        }
    }
    let mut status = 0;
    // SAFETY: `child` is a child of ours and `status` a valid out pointer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WEXITSTATUS(status) != 0
}

#[test]
fn an_owner_file_that_is_removed_or_replaced_is_noticed_before_the_next_commit() {
    let folder = Folder::new("replaced");
    let first = Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).unwrap();
    fs::rename(folder.0.join("app.db-owner"), folder.0.join("aside")).unwrap();
    assert!(matches!(first.still_mine(), Err(OwnershipError::Lost { .. })));
    fs::write(folder.0.join("app.db-owner"), "").unwrap();
    assert!(matches!(first.still_mine(), Err(OwnershipError::Lost { .. })));
}

#[test]
fn a_link_to_the_database_leads_to_the_same_owner() {
    let folder = Folder::new("link");
    fs::write(folder.database(), "").unwrap();
    std::os::unix::fs::symlink("app.db", folder.0.join("other.db")).unwrap();
    let _first = Ownership::acquire(&folder.database(), Scope::Host, &FOREVER).unwrap();
    assert!(Ownership::acquire(&folder.0.join("other.db"), Scope::Host, &FOREVER).is_err());
}

#[test]
fn a_live_owner_on_another_host_is_never_torn_down() {
    let (folder, clock) = (Folder::new("live"), Arc::new(Fake::default()));
    let first = Arc::new(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let beating = Arc::clone(&first);
    let mut last = Duration::ZERO;
    // Beats as rarely as an owner may and still be one.
    *clock.hook.lock().unwrap() = Some(Box::new(move |now| {
        if now - last >= Duration::from_secs(29) {
            last = now;
            beat(&beating);
        }
    }));
    for _ in 0..5 {
        let refused = folder.seen_from("b").acquire(&clock, &FOREVER).err().unwrap();
        assert!(matches!(refused, OwnershipError::Held { silent: None, .. }), "{refused}");
        first.still_mine().unwrap();
    }
}

#[test]
fn a_dead_owner_on_another_host_is_taken_over_after_its_lease_and_not_before() {
    let (folder, clock) = (Folder::new("dead"), Arc::new(Fake::default()));
    die(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let second = folder.seen_from("b").acquire(&clock, &FOREVER).unwrap();
    assert!(clock.now() >= TERMS().lease(), "after {:?}", clock.now());
    assert_eq!(second.owner().number, 2);
    second.still_mine().unwrap();
}

#[test]
fn a_short_deadline_says_how_long_the_lease_runs_yet() {
    let (folder, clock) = (Folder::new("short"), Arc::new(Fake::default()));
    let _first = folder.seen_from("a").acquire(&clock, &FOREVER).unwrap();
    let short = Patience { until: Some(Instant::now()), interrupted: &|| false };
    let refused = folder.seen_from("b").acquire(&clock, &short).err().unwrap();
    assert!(matches!(refused, OwnershipError::Held { silent: Some(left), .. } if left >= TERMS().lease()), "{refused}");
    let interrupted = Patience { until: None, interrupted: &|| true };
    assert!(matches!(folder.seen_from("b").acquire(&clock, &interrupted), Err(OwnershipError::Interrupted)));
}

#[test]
fn an_owner_that_slept_through_its_lease_finds_out_before_its_next_commit() {
    let (folder, clock) = (Folder::new("slept"), Arc::new(Fake::default()));
    let first = folder.seen_from("a").acquire(&clock, &FOREVER).unwrap();
    let second = folder.seen_from("b").acquire(&clock, &FOREVER).unwrap();
    let lost = first.still_mine().err().unwrap();
    assert!(matches!(&lost, OwnershipError::Lost { owner: Some(by), .. } if by.identity.host == "b"), "{lost}");
    // For good, whatever happens to the other.
    drop(second);
    assert!(matches!(first.still_mine(), Err(OwnershipError::Lost { .. })));
}

#[test]
fn an_owner_that_slept_and_was_not_followed_goes_on_under_a_new_number() {
    let (folder, clock) = (Folder::new("lapsed"), Arc::new(Fake::default()));
    let first = folder.seen_from("a").acquire(&clock, &FOREVER).unwrap();
    clock.pass(Duration::from_secs(1000));
    first.still_mine().unwrap();
    assert_eq!(first.owner().number, 2);
    assert_eq!(Claims::beside(&folder.0.join("app.db-owner")).numbers().unwrap(), [2]);
}

#[test]
fn two_claimants_of_one_dead_owner_do_not_both_get_it() {
    let (folder, clock) = (Folder::new("race"), Arc::new(Fake::default()));
    die(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let claims = Claims::beside(&folder.0.join("app.db-owner"));
    // Both have decided; the second creates the same number.
    let by = |host: &str| {
        let identity = Identity { host: host.into(), boot: host.into(), pid: 1, started: 1 };
        claims.claim(&Owner::new(identity, 2, TERMS().lease(), (0, 0))).unwrap()
    };
    assert!(by("b").is_some());
    assert!(by("c").is_none());
    assert_eq!(claims.numbers().unwrap(), [1, 2]);
}

#[test]
fn a_claimant_that_was_slow_to_act_finds_a_higher_number_than_its_own() {
    let (folder, clock) = (Folder::new("slow"), Arc::new(Fake::default()));
    die(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let live = folder.seen_from("b").acquire(&clock, &FOREVER).unwrap();
    let claims = Claims::beside(&folder.0.join("app.db-owner"));
    // The number of the dead owner, removed since, claimed anew by one who decided long ago.
    let identity = Identity { host: "c".into(), boot: "c".into(), pid: 1, started: 1 };
    let late = Owner::new(identity, 1, TERMS().lease(), (0, 0));
    let claim = claims.claim(&late).unwrap().unwrap();
    assert!(matches!(claim.standing(&late).unwrap(), Standing::Followed(Some(by)) if by.is(&live.owner())));
    live.still_mine().unwrap();
}

#[test]
fn what_was_given_up_is_free_at_once() {
    let (folder, clock) = (Folder::new("released"), Arc::new(Fake::default()));
    drop(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let second = folder.seen_from("b").acquire(&clock, &FOREVER).unwrap();
    assert_eq!((clock.now(), second.owner().number), (Duration::ZERO, 2));
}

#[test]
fn a_dead_owner_of_this_host_is_followed_at_once() {
    let (folder, clock) = (Folder::new("here"), Arc::new(Fake::default()));
    die(folder.seen_from("a").acquire(&clock, &FOREVER).unwrap());
    let second = folder.seen_from("a").acquire(&clock, &FOREVER).unwrap();
    assert_eq!((clock.now(), second.owner().number), (Duration::ZERO, 2));
}

#[test]
fn a_record_nobody_can_read_is_waited_out_and_not_trusted() {
    let (folder, clock) = (Folder::new("unreadable"), Arc::new(Fake::default()));
    fs::write(folder.0.join("app.db-owner.5"), "garbage").unwrap();
    let second = folder.seen_from("b").acquire(&clock, &FOREVER).unwrap();
    assert!(clock.now() >= Terms::DEFAULT.lease());
    assert_eq!(second.owner().number, 6);
}

#[test]
fn the_heart_beat_thread_ends_with_the_ownership() {
    let folder = Folder::new("thread");
    let scope = Scope::Hosts(Terms::DEFAULT);
    let first = Ownership::acquire(&folder.database(), scope, &FOREVER).unwrap();
    first.still_mine().unwrap();
    let shared = Arc::downgrade(&first.shared);
    assert!(Ownership::acquire(&folder.database(), scope, &FOREVER).is_err());
    drop(first);
    assert!(shared.upgrade().is_none());
    assert_eq!(look(&folder.database()).unwrap(), None);
    Ownership::acquire(&folder.database(), scope, &FOREVER).unwrap();
}
