//! Another process, for tests of what its locks tell.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A process that does nothing but hold locks, gone when it is dropped.
pub struct OtherProcess {
    pid: libc::pid_t,
}

impl OtherProcess {
    /// Start one that has a shared lock on each of these ranges of bytes, first to last, of the file at `path`.
    pub fn locking(path: &Path, ranges: &[(i64, i64)]) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: plain system calls; between `fork` and `_exit` the child makes only such as are safe there.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            if pid == 0 {
                let file = libc::open(name.as_ptr(), libc::O_RDWR);
                let mut locked = true;
                for (first, last) in ranges {
                    let mut lock: libc::flock = std::mem::zeroed();
                    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as _, *first, last - first + 1);
                    locked &= libc::fcntl(file, libc::F_SETLK, &raw const lock) == 0;
                }
                libc::write(pipe[1], (&raw const locked).cast(), 1);
                loop {
                    libc::pause();
                }
            }
            assert!(pid > 0);
            let mut locked = 0_u8;
            assert_eq!(libc::read(pipe[0], (&raw mut locked).cast(), 1), 1);
            assert_eq!(locked, 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            Self { pid }
        }
    }

    /// Stop it.
    pub fn stop(&self) {
        let mut status = 0;
        // SAFETY: plain system calls on a child that was not waited for.
        unsafe {
            assert_eq!(libc::kill(self.pid, libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(self.pid, &raw mut status, libc::WUNTRACED), self.pid);
        }
        assert!(libc::WIFSTOPPED(status));
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // SAFETY: plain system calls on a child that was not waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
