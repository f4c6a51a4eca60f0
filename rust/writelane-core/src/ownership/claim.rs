//! Claims: which host. Numbered files beside the database; the highest number owns it.
//!
//! A claim is made by creating the next number's file exclusively, which only one host can do. So two hosts that
//! both find the last owner dead cannot both follow it, and a host that was slow to act finds a higher number than
//! its own. A claim that was given up stays, marked as such, so that numbers never run backwards.

use super::record::{Owner, RECORD_BYTES};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The claims on one database.
#[derive(Clone, Debug)]
pub struct Claims {
    folder: PathBuf,
    prefix: OsString,
}

impl Claims {
    /// Name the claims beside the lock file at `lock`.
    pub fn beside(lock: &Path) -> Self {
        let mut prefix = lock.file_name().unwrap_or(OsStr::new("owner")).to_owned();
        prefix.push(".");
        Self { folder: lock.parent().unwrap_or(Path::new(".")).to_owned(), prefix }
    }

    fn path(&self, number: u64) -> PathBuf {
        let mut name = self.prefix.clone();
        name.push(number.to_string());
        self.folder.join(name)
    }

    /// Return all numbers that are claimed, in order.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name.as_bytes().strip_prefix(self.prefix.as_bytes());
            numbers
                .extend(number.and_then(|number| std::str::from_utf8(number).ok()?.parse::<u32>().ok()).map(u64::from));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Return the bytes of a claim's record as they are; `None` if there is no such claim (any more).
    ///
    /// Opens the file anew, which is what makes a network filesystem ask its server.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(self.path(number));
        match opened.and_then(|file| file.take(RECORD_BYTES as u64).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Claim a number: `None` if somebody else has claimed it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn claim(&self, owner: &Owner) -> io::Result<Option<Claim>> {
        let path = self.path(owner.number);
        // A full file under a name of its own first, so that nobody ever reads a claim that is half written.
        let mut name = self.prefix.clone();
        name.push(format!("new-{:016x}", owner.nonce));
        let draft = self.folder.join(name);
        let mut file = create_new(&draft)?;
        let made = (|| {
            file.write_all(&owner.encode())?;
            file.sync_all()?;
            match fs::hard_link(&draft, &path) {
                Ok(()) => Ok(Some(())),
                // The answer of a server may be lost and the request sent again: the count of links tells.
                Err(_) if fs::metadata(&draft).is_ok_and(|found| found.nlink() == 2) => Ok(Some(())),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
                Err(error) if has_no_links(&error) => {
                    // Exclusive creation then; a claim read before its record is there is waited out like any other.
                    match create_new(&path) {
                        Ok(mut direct) => {
                            direct.write_all(&owner.encode())?;
                            direct.sync_all()?;
                            Ok(Some(()))
                        }
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            }
        })();
        let removed = fs::remove_file(&draft);
        if made?.is_none() {
            return Ok(None);
        }
        removed?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path)?;
        Ok(Some(Claim { claims: self.clone(), file }))
    }

    /// Remove the claims below a number, best effort: the next owner does it too.
    pub fn remove_below(&self, number: u64) -> io::Result<()> {
        for old in self.numbers()?.into_iter().filter(|old| *old < number) {
            match fs::remove_file(self.path(old)) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A claim of ours.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    file: File,
}

impl Claim {
    /// Write the record anew and see it on its way to the server.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(&self, owner: &Owner) -> io::Result<()> {
        self.file.write_all_at(&owner.encode(), 0)?;
        self.file.sync_data()
    }

    /// Ask the filesystem whether this is still the claim that counts; otherwise return the one that does.
    ///
    /// # Errors
    /// What the kernel says: then nothing is known.
    pub fn standing(&self, owner: &Owner) -> io::Result<Standing> {
        // The file of the next number first: one who follows us makes it before it removes ours.
        if let Some(bytes) = self.claims.read(owner.number + 1)? {
            return Ok(Standing::Followed(Owner::decode(&bytes)));
        }
        match self.claims.read(owner.number)?.as_deref().map(Owner::decode) {
            Some(Some(found)) if found.is(owner) => Ok(Standing::Mine),
            Some(other) => Ok(Standing::Followed(other)),
            None => {
                let highest = self.claims.numbers()?.pop().map(|number| self.claims.read(number));
                Ok(Standing::Followed(highest.transpose()?.flatten().as_deref().and_then(Owner::decode)))
            }
        }
    }
}

/// Whether a claim counts.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Mine,
    /// Another's does, or this one was removed; by whom, where it is known.
    Followed(Option<Owner>),
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o666).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

fn has_no_links(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EOPNOTSUPP | libc::EMLINK | libc::EXDEV))
}
