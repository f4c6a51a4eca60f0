//! One owner of a database: one process, on one host.
//!
//! On one host the kernel decides: a lock on `<database>-owner` that it frees when the holder dies. Where other
//! hosts see the same files, a lease decides besides: a claim with a heart-beat (`<database>-owner.N`), the number
//! being the fencing token. Every commit asks [`Ownership::still_mine`] first. docs/files.md says which guarantee
//! holds on which filesystem.

mod claim;
mod lease;
mod lock;
mod record;

pub use lease::{Sign, Terms, Watch};
pub use record::{Identity, Owner};

use crate::filesystem::Judgement;
use crate::process;
use crate::wait::Patience;
use claim::{Claim, Claims, Standing};
use lock::{OwnerLock, Taken};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Who else can see the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only this host: its kernel's lock decides.
    Host,
    /// Other hosts too: a lease decides between hosts.
    Hosts(Terms),
}

impl Scope {
    /// Return the scope for a filesystem.
    pub fn on(filesystem: &Judgement) -> Self {
        if filesystem.refuses() { Self::Hosts(Terms::DEFAULT) } else { Self::Host }
    }
}

/// Why a database is not, or is no longer, ours.
#[derive(Debug)]
pub enum OwnershipError {
    /// Somebody else owns it.
    Held {
        /// The database.
        database: PathBuf,
        /// Who, where the record can be read.
        owner: Option<Box<Owner>>,
        /// Set where the owner is on another host and may be dead: how long yet until that is certain.
        silent: Option<Duration>,
    },
    /// It was ours, and another has it now, or the owner file is gone: nothing may be committed any more.
    Lost {
        /// The database.
        database: PathBuf,
        /// Who, where it is known.
        owner: Option<Box<Owner>>,
    },
    /// The owner files cannot be used.
    Io {
        /// The owner file.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The caller was interrupted while it waited for a lease to run out.
    Interrupted,
}

impl fmt::Display for OwnershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |owner: &Option<Box<Owner>>| {
            owner
                .as_ref()
                .map_or_else(|| "a process that left no readable record".to_owned(), |owner| owner.to_string())
        };
        match self {
            Self::Held { database, owner, silent } => {
                write!(f, "{} is owned by {}", database.display(), named(owner))?;
                match silent {
                    Some(left) => write!(
                        f,
                        "; it has not been heard from yet, and if it is dead it can be taken over in {:.0} s: open with \
                         a longer deadline to wait for that",
                        left.as_secs_f64().ceil()
                    ),
                    None => write!(f, "; close it there, or go through that process"),
                }
            }
            Self::Lost { database, owner: Some(owner) } => write!(
                f,
                "{} was taken over by {owner}, since this process was not heard from for too long; nothing more is \
                 committed here: close it and open it again",
                database.display()
            ),
            Self::Lost { database, owner: None } => write!(
                f,
                "{} is no longer owned by this process: its owner file was removed or replaced; nothing more is \
                 committed here: close it and open it again",
                database.display()
            ),
            Self::Io { path, error } => write!(f, "the owner file {} cannot be used: {error}", path.display()),
            Self::Interrupted => write!(f, "interrupted while waiting for the lease of another owner to run out"),
        }
    }
}

impl std::error::Error for OwnershipError {}

/// Time, as ownership sees it.
trait Clock: Send + Sync {
    /// A time that goes on while the host sleeps, and never back.
    fn now(&self) -> Duration;
    /// Let time pass.
    fn pass(&self, time: Duration);
}

struct Kernel;

impl Clock for Kernel {
    fn now(&self) -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid out pointer. CLOCK_BOOTTIME exists since Linux 2.6.39 and then cannot fail.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }

    fn pass(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// The ownership of a database, for as long as this lives.
pub struct Ownership {
    shared: Arc<Shared>,
    lock: OwnerLock,
    beats: Option<thread::JoinHandle<()>>,
    generation: u64,
}

struct Shared {
    database: PathBuf,
    owner_file: PathBuf,
    clock: Arc<dyn Clock>,
    lease: Option<Terms>,
    claims: Claims,
    state: Mutex<State>,
    stop: Condvar,
}

struct State {
    owner: Owner,
    claim: Option<Claim>,
    /// When the last renewal that succeeded was begun.
    renewed: Duration,
    lost: Option<Option<Owner>>,
    stopping: bool,
}

impl Ownership {
    /// Become the owner of `database`, which need not exist yet; its folder must.
    ///
    /// With [`Scope::Host`] blocks on nothing. With [`Scope::Hosts`] and a record of another host's owner, watches
    /// that record until it changes (then it is alive), until its lease is over, or until `patience` ends.
    ///
    /// # Errors
    /// [`OwnershipError::Held`] if somebody else, in this process too, owns it; [`OwnershipError::Io`].
    pub fn acquire(database: &Path, scope: Scope, patience: &Patience<'_>) -> Result<Self, OwnershipError> {
        let mut ownership = Self::acquire_as(database, scope, Identity::own(), Arc::new(Kernel), patience)?;
        if let Some(terms) = ownership.shared.lease {
            let shared = Arc::clone(&ownership.shared);
            let named = thread::Builder::new().name("wl-owner".to_owned());
            let started = named.spawn(move || shared.beat_until_stopped(terms));
            ownership.beats = Some(started.map_err(|error| ownership.shared.failed(error))?);
        }
        Ok(ownership)
    }

    fn acquire_as(
        database: &Path,
        scope: Scope,
        identity: Identity,
        clock: Arc<dyn Clock>,
        patience: &Patience<'_>,
    ) -> Result<Self, OwnershipError> {
        let owner_file = owner_file(database);
        let io = |error| OwnershipError::Io { path: owner_file.clone(), error };
        let mode = fs::metadata(database).map_or(0o600, |found| found.permissions().mode());
        let lock = match OwnerLock::take(&owner_file, mode).map_err(io)? {
            Taken::Ours(lock) => lock,
            Taken::Theirs(owner) => {
                return Err(OwnershipError::Held {
                    database: database.to_owned(),
                    owner: owner.map(Box::new),
                    silent: None,
                });
            }
        };
        let claims = Claims::beside(&owner_file);
        let (owner, claim, renewed, lease) = match scope {
            Scope::Host => (Owner::new(identity, 0, Duration::ZERO, lock.id()), None, Duration::ZERO, None),
            Scope::Hosts(terms) => {
                let hunt = Hunt { database, claims: &claims, lock: &lock, terms, clock: &*clock };
                let (owner, claim, renewed) = hunt.claim(&identity, patience).map_err(|error| match error {
                    Failed::Io(error) => io(error),
                    Failed::Ownership(error) => error,
                })?;
                (owner, Some(claim), renewed, Some(terms))
            }
        };
        lock.write(&owner).map_err(io)?;
        let state = Mutex::new(State { owner, claim, renewed, lost: None, stopping: false });
        let database = database.to_owned();
        let shared = Shared { database, owner_file, clock, lease, claims, state, stop: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), lock, beats: None, generation: process::generation() })
    }

    /// Ask whether the database is still ours. The writer asks before each commit.
    ///
    /// On one host this is one `lstat`. Between hosts it reads the claim from the filesystem's server, and renews
    /// it first when the last renewal is a while ago.
    ///
    /// # Errors
    /// [`OwnershipError::Lost`], for good; [`OwnershipError::Io`] when it cannot be told now: then nothing may be
    /// committed now.
    pub fn still_mine(&self) -> Result<(), OwnershipError> {
        match self.shared.lease {
            Some(terms) => self.shared.still_claimed(terms, &self.lock),
            None if self.lock.is_in_place() => Ok(()),
            None => Err(OwnershipError::Lost { database: self.shared.database.clone(), owner: None }),
        }
    }

    /// Return what is written down about this owner.
    pub fn owner(&self) -> Owner {
        self.shared.lock().owner.clone()
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        if self.generation != process::generation() {
            // The parent is the owner; its thread is not here to be joined.
            std::mem::forget(self.beats.take());
            return;
        }
        let mut state = self.shared.lock();
        state.stopping = true;
        if state.lost.is_none() {
            state.owner.released = true;
            // Best effort: a claim that could not be given up runs out, a lock is freed by closing.
            let _ = state.claim.as_ref().map(|claim| claim.write(&state.owner));
            let _ = self.lock.write(&state.owner);
        }
        drop(state);
        self.shared.stop.notify_all();
        if let Some(beats) = self.beats.take() {
            // A panic there has been printed; there is nothing to add to it here.
            let _ = beats.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: io::Error) -> OwnershipError {
        OwnershipError::Io { path: self.owner_file.clone(), error }
    }

    fn lost(&self, state: &State) -> Option<OwnershipError> {
        let owner = state.lost.clone()?.map(Box::new);
        Some(OwnershipError::Lost { database: self.database.clone(), owner })
    }

    fn still_claimed(&self, terms: Terms, lock: &OwnerLock) -> Result<(), OwnershipError> {
        let mut state = self.lock();
        // A renewal and a look can take long on a network; a second round finds them done or the lease lapsed.
        for _ in 0..3 {
            if let Some(lost) = self.lost(&state) {
                return Err(lost);
            }
            let now = self.clock.now();
            if !terms.may_commit(state.renewed, now) {
                self.claim_again(&mut state, terms, lock)?;
            } else if terms.should_renew(state.renewed, now) {
                self.renew(&mut state).map_err(|error| self.failed(error))?;
            }
            self.look(&mut state).map_err(|error| self.failed(error))?;
            if state.lost.is_none() && terms.may_commit(state.renewed, self.clock.now()) {
                return Ok(());
            }
        }
        Err(self.lost(&state).unwrap_or_else(|| {
            self.failed(io::Error::new(
                io::ErrorKind::TimedOut,
                "the filesystem answers too slowly to hold a lease on it",
            ))
        }))
    }

    /// Follow ourselves after a lapse: by then another may have found this claim dead, and only the exclusive
    /// creation of the next number tells which of the two was first.
    fn claim_again(&self, state: &mut State, terms: Terms, lock: &OwnerLock) -> Result<(), OwnershipError> {
        let renewed = self.clock.now();
        let next = Owner::new(state.owner.identity.clone(), state.owner.number + 1, terms.lease(), lock.id());
        let claimed = self.claims.claim(&next).map_err(|error| self.failed(error))?;
        match claimed {
            Some(claim) => {
                let since = state.owner.since;
                *state = State { owner: Owner { since, ..next }, claim: Some(claim), renewed, lost: None, ..*state };
                // The lapsed claim is only in the way; the next owner removes it as well.
                let _ = self.claims.remove_below(state.owner.number);
                lock.write(&state.owner).map_err(|error| self.failed(error))
            }
            None => {
                let by = self.claims.read(next.number).ok().flatten();
                state.lost = Some(by.as_deref().and_then(Owner::decode));
                Ok(())
            }
        }
    }

    fn renew(&self, state: &mut State) -> io::Result<()> {
        let begun = self.clock.now();
        state.owner.beat += 1;
        if let Some(claim) = &state.claim {
            claim.write(&state.owner)?;
            state.renewed = begun;
        }
        Ok(())
    }

    fn look(&self, state: &mut State) -> io::Result<()> {
        if state.lost.is_none()
            && let Some(claim) = &state.claim
            && let Standing::Followed(by) = claim.standing(&state.owner)?
        {
            state.lost = Some(by);
        }
        Ok(())
    }

    fn beat_until_stopped(&self, terms: Terms) {
        let mut state = self.lock();
        while !state.stopping && state.lost.is_none() {
            let waited = self.stop.wait_timeout(state, terms.beat_every());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // After a lapse a beat must not revive the claim: `still_mine` claims anew.
            if !state.stopping && state.lost.is_none() && terms.may_commit(state.renewed, self.clock.now()) {
                // A beat that fails is made up for by the next; if all fail, the lease lapses and commits are refused.
                let _ = self.renew(&mut state).and_then(|()| self.look(&mut state));
            }
        }
    }
}

enum Failed {
    Io(io::Error),
    Ownership(OwnershipError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The search for a number that is free to claim.
struct Hunt<'a> {
    database: &'a Path,
    claims: &'a Claims,
    lock: &'a OwnerLock,
    terms: Terms,
    clock: &'a dyn Clock,
}

impl Hunt<'_> {
    fn claim(&self, identity: &Identity, patience: &Patience<'_>) -> Result<(Owner, Claim, Duration), Failed> {
        let mut watch = Watch::default();
        let mut watched = None;
        loop {
            let highest = self.claims.numbers()?.pop();
            if highest != watched {
                (watch, watched) = (Watch::default(), highest);
            }
            if let Some(number) = highest {
                let Some(bytes) = self.claims.read(number)? else { continue };
                let owner = Owner::decode(&bytes);
                if !self.is_free(owner.as_ref(), identity) {
                    let terms = owner.as_ref().map_or(Terms::DEFAULT, |owner| Terms::new(owner.lease));
                    match watch.look(&bytes, terms, self.clock.now()) {
                        Sign::Alive => return Err(self.held(owner, None)),
                        Sign::Silent(left) => {
                            self.wait(left, patience).map_err(|gave_up| match gave_up {
                                crate::wait::GaveUp::TimedOut => self.held(owner, Some(left)),
                                crate::wait::GaveUp::Interrupted => Failed::Ownership(OwnershipError::Interrupted),
                            })?;
                            continue;
                        }
                        Sign::Dead => {}
                    }
                }
            }
            let number = highest.unwrap_or(0) + 1;
            let begun = self.clock.now();
            let owner = Owner::new(identity.clone(), number, self.terms.lease(), self.lock.id());
            let Some(claim) = self.claims.claim(&owner)? else { continue };
            match claim.standing(&owner)? {
                Standing::Mine if self.claims.numbers()?.pop() == Some(number) => {}
                Standing::Mine => continue,
                Standing::Followed(by) => return Err(self.held(by, None)),
            }
            self.claims.remove_below(number)?;
            return Ok((owner, claim, begun));
        }
    }

    /// Say whether a claim needs no watching: given up, or of this very kernel, whose lock we have, so it is dead.
    fn is_free(&self, owner: Option<&Owner>, identity: &Identity) -> bool {
        owner.is_some_and(|owner| {
            let here = owner.identity.boot == identity.boot && !identity.boot.is_empty();
            owner.released || (here && owner.lock == self.lock.id())
        })
    }

    fn held(&self, owner: Option<Owner>, silent: Option<Duration>) -> Failed {
        let database = self.database.to_owned();
        Failed::Ownership(OwnershipError::Held { database, owner: owner.map(Box::new), silent })
    }

    /// Wait before the next look: several looks to a heart-beat, so that a live owner is soon known to be one.
    fn wait(&self, left: Duration, patience: &Patience<'_>) -> Result<(), crate::wait::GaveUp> {
        let slice = patience.next_slice()?;
        self.clock.pass(slice.min(left));
        Ok(())
    }
}

/// Someone who owns a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Who, where the record can be read.
    pub owner: Option<Owner>,
    /// Whether this host's kernel vouches for the owner being alive. A lease of another host is not vouched for: it
    /// may have run out.
    pub certain: bool,
}

/// Say who owns a database, without waiting. For those who do not want to own it.
///
/// # Errors
/// What the kernel says.
pub fn look(database: &Path) -> io::Result<Option<Sighting>> {
    let owner_file = owner_file(database);
    if let Some(owner) = lock::holder(&owner_file)? {
        return Ok(Some(Sighting { owner, certain: true }));
    }
    let claims = Claims::beside(&owner_file);
    let highest = match claims.numbers() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        numbers => numbers?.pop(),
    };
    let Some(bytes) = highest.map(|number| claims.read(number)).transpose()?.flatten() else { return Ok(None) };
    let owner = Owner::decode(&bytes);
    // The kernel said above that nobody of this host holds the lock.
    let dead = owner.as_ref().is_some_and(|owner| owner.released || owner.identity.boot == Identity::own().boot);
    Ok((!dead).then_some(Sighting { owner, certain: false }))
}

/// Return the path of a database's lock file, beside the file that links lead to.
fn owner_file(database: &Path) -> PathBuf {
    let real = fs::canonicalize(database).or_else(|error| {
        let (Some(folder), Some(name)) = (database.parent(), database.file_name()) else { return Err(error) };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        fs::canonicalize(folder).map(|folder| folder.join(name))
    });
    let mut path = real.unwrap_or_else(|_| database.to_owned()).into_os_string();
    path.push("-owner");
    PathBuf::from(path)
}

#[cfg(test)]
mod tests;
