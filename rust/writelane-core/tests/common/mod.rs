//! What the tests with real processes share: another copy of SQLite, and this binary run again in a role.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "each test binary uses a part of it")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use writelane_core::sqlite::{Handle, OpenFlags, Statement, Step, ValueRef, ffi};

/// A directory that is removed in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("writelane-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A connection through our SQLite or through the system's, in the same words.
pub enum Connection {
    Ours(Arc<Handle>),
    Foreign(Foreign),
}

/// What a statement gave: the result code where it failed.
pub type Outcome<T> = Result<T, i32>;

impl Connection {
    pub fn ours(path: &Path) -> Self {
        let handle = Handle::open(path, OpenFlags::WRITER).expect("our copy opens the database");
        Self::Ours(handle)
    }

    pub fn ours_readonly(path: &Path) -> Self {
        Self::Ours(Handle::open(path, OpenFlags::READER).expect("our copy opens the database for reading"))
    }

    pub fn foreign(path: &Path) -> Self {
        Self::Foreign(Foreign::open(path).expect("the system's copy opens the database"))
    }

    pub fn of(kind: &str, path: &Path) -> Self {
        match kind {
            "ours" => Self::ours(path),
            "foreign" => Self::foreign(path),
            other => panic!("no such kind: {other}"),
        }
    }

    pub fn patient(self) -> Self {
        match &self {
            Self::Ours(handle) => handle.busy_timeout_ms(60_000),
            // SAFETY: the connection is open.
            Self::Foreign(foreign) => unsafe {
                (library().busy_timeout)(foreign.db, 60_000);
            },
        }
        self
    }

    pub fn run(&self, sql: &str) -> Outcome<()> {
        match self {
            Self::Ours(handle) => handle.execute_batch(sql).map_err(|error| error.primary()),
            Self::Foreign(foreign) => foreign.run(sql),
        }
    }

    pub fn int(&self, sql: &str) -> Outcome<i64> {
        match self {
            Self::Ours(handle) => {
                let (statement, _) = Statement::prepare(handle, sql.as_bytes(), 0).map_err(|error| error.primary())?;
                let statement = statement.expect("a statement");
                match statement.step() {
                    Ok(Step::Row) => match statement.column(0) {
                        ValueRef::Integer(value) => Ok(value),
                        _ => panic!("not an integer: {sql}"),
                    },
                    Ok(Step::Done) => panic!("no row: {sql}"),
                    Err(error) => Err(error.primary()),
                }
            }
            Self::Foreign(foreign) => foreign.int(sql),
        }
    }

    pub fn begin(&self) -> Outcome<()> {
        self.run("BEGIN IMMEDIATE")
    }

    pub fn insert(&self, value: i64) -> Outcome<()> {
        self.run(&format!("INSERT INTO t VALUES({value})"))
    }

    pub fn count(&self) -> Outcome<i64> {
        self.int("SELECT count(*) FROM t")
    }
}

/// Make a database with the table `t(x)` in a journal mode.
pub fn create(path: &Path, journal: &str) {
    let connection = Connection::ours(path);
    connection.run(&format!("PRAGMA journal_mode={journal}; CREATE TABLE t(x)")).unwrap();
}

/// The system's SQLite, loaded beside ours: what Python's `sqlite3` does to a process.
pub struct Foreign {
    db: *mut ffi::sqlite3,
}

// SAFETY: the library is built to be used from any thread, one at a time.
unsafe impl Send for Foreign {}

type Exec = unsafe extern "C" fn(
    *mut ffi::sqlite3,
    *const c_char,
    Option<unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int>,
    *mut c_void,
    *mut *mut c_char,
) -> c_int;

struct Library {
    open: unsafe extern "C" fn(*const c_char, *mut *mut ffi::sqlite3, c_int, *const c_char) -> c_int,
    close: unsafe extern "C" fn(*mut ffi::sqlite3) -> c_int,
    exec: Exec,
    busy_timeout: unsafe extern "C" fn(*mut ffi::sqlite3, c_int) -> c_int,
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: loads a library whose initialisers are harmless; the names are NUL-terminated, and each symbol has the
        // type that its documentation says.
        unsafe {
            let library = libc::dlopen(c"libsqlite3.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "these tests need the system's libsqlite3.so.0 (package libsqlite3-0)");
            let symbol = |name: &CStr| {
                let found = libc::dlsym(library, name.as_ptr());
                assert!(!found.is_null(), "libsqlite3.so.0 has no {name:?}");
                found
            };
            let libversion: unsafe extern "C" fn() -> c_int = std::mem::transmute(symbol(c"sqlite3_libversion_number"));
            assert_ne!(libversion(), ffi::sqlite3_libversion_number(), "it must be another copy");
            Library {
                open: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_, _, _, _) -> _>(symbol(
                    c"sqlite3_open_v2",
                )),
                close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_) -> _>(symbol(c"sqlite3_close")),
                exec: std::mem::transmute::<*mut c_void, Exec>(symbol(c"sqlite3_exec")),
                busy_timeout: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_, _) -> _>(symbol(
                    c"sqlite3_busy_timeout",
                )),
            }
        }
    })
}

impl Foreign {
    pub fn open(path: &Path) -> Outcome<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut db = ptr::null_mut();
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE;
        // SAFETY: a NUL-terminated name and a valid out pointer.
        let code = unsafe { (library().open)(name.as_ptr(), &mut db, flags, ptr::null()) };
        let opened = Self { db };
        if code == ffi::SQLITE_OK { Ok(opened) } else { Err(code) }
    }

    fn run(&self, sql: &str) -> Outcome<()> {
        let sql = CString::new(sql).unwrap();
        // SAFETY: the connection is open, the text NUL-terminated.
        let code = unsafe { (library().exec)(self.db, sql.as_ptr(), None, ptr::null_mut(), ptr::null_mut()) };
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(code & 0xff) }
    }

    fn int(&self, sql: &str) -> Outcome<i64> {
        unsafe extern "C" fn first(
            out: *mut c_void,
            _columns: c_int,
            values: *mut *mut c_char,
            _names: *mut *mut c_char,
        ) -> c_int {
            // SAFETY: `out` is the integer below; the first value is a NUL-terminated text.
            unsafe {
                let text = CStr::from_ptr(*values).to_str().unwrap();
                *out.cast::<i64>() = text.parse().unwrap();
            }
            0
        }
        let mut value = i64::MIN;
        let sql = CString::new(sql).unwrap();
        // SAFETY: the connection is open, the text NUL-terminated, the callback writes to `value`.
        let code = unsafe {
            (library().exec)(self.db, sql.as_ptr(), Some(first), ptr::from_mut(&mut value).cast(), ptr::null_mut())
        };
        if code == ffi::SQLITE_OK { Ok(value) } else { Err(code & 0xff) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: open, or the handle of a failed open; nothing else knows it.
        unsafe { (library().close)(self.db) };
    }
}

const ROLE: &str = "WRITELANE_TEST_ROLE";
const SEPARATOR: char = '\u{1f}';

/// Seconds after which a process of these tests is killed: it hangs. They need a fraction of that.
const HANGS_AFTER: u32 = 150;

fn do_not_hang() {
    // SAFETY: sets a timer of this process, whose signal ends it.
    unsafe { libc::alarm(HANGS_AFTER) };
}

/// Return this process's role and its arguments: it was started by [`start`].
pub fn role() -> Option<Vec<String>> {
    do_not_hang();
    Some(std::env::var(ROLE).ok()?.split(SEPARATOR).map(str::to_owned).collect())
}

fn command(role: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role.join(&SEPARATOR.to_string()));
    command
}

/// Run a role in a process of its own, and fail where it fails.
pub fn run_role(role: &[&str], environment: &[(&str, &str)]) {
    let output = command(role).envs(environment.iter().copied()).output().unwrap();
    assert!(
        output.status.success(),
        "{role:?} ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A process in a role, to be talked to in lines.
pub struct Actor {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Start this binary again, in a role.
pub fn start(role: &[&str]) -> Actor {
    let mut child =
        command(role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let input = child.stdin.take();
    let output = BufReader::new(child.stdout.take().unwrap());
    Actor { child, input, output }
}

impl Actor {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Wait for the next thing the process says with [`say`].
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process ended without a word");
            // The test harness prints lines of its own.
            if let Some(at) = line.find("@@ ") {
                return line[at + 3..].trim_end().to_owned();
            }
        }
    }

    pub fn tell(&mut self, word: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{word}").unwrap();
        input.flush().unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Let the process end by itself, and expect that it does so well.
    pub fn end(mut self) {
        assert!(self.finish().success());
    }

    fn finish(&mut self) -> std::process::ExitStatus {
        drop(self.input.take());
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

/// Say a line to who started this process.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@@ {text}").unwrap();
    out.flush().unwrap();
}

/// Wait for a line from who started this process; `None` when there will be none.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().lock().read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}

/// The role of an outsider: runs what it is told on its own connection, and says what came of it.
pub fn outsider_role(kind: &str, path: &str) {
    let path = Path::new(path);
    let mut connection = Some(Connection::of(kind, path));
    say("ready");
    while let Some(line) = listen() {
        let answer = match line.split_once(' ') {
            Some(("int", sql)) => connection.as_ref().unwrap().int(sql).map(|value| value.to_string()),
            Some(("run", sql)) => connection.as_ref().unwrap().run(sql).map(|()| "ok".to_owned()),
            Some(("open", other)) => {
                connection = Some(Connection::of(other, path));
                Ok("ok".to_owned())
            }
            _ if line == "close" => {
                drop(connection.take());
                Ok("ok".to_owned())
            }
            _ => panic!("not understood: {line}"),
        };
        say(&answer.unwrap_or_else(|code| format!("error {code}")));
    }
}

/// Another process with a connection of its own.
pub struct Outsider(Actor);

impl Outsider {
    pub fn start(kind: &str, path: &Path) -> Self {
        let mut actor = start(&["outsider", kind, path.to_str().unwrap()]);
        assert_eq!(actor.hear(), "ready");
        Self(actor)
    }

    pub fn pid(&self) -> i32 {
        self.0.pid()
    }

    fn ask(&mut self, line: &str) -> Outcome<String> {
        self.0.tell(line);
        let answer = self.0.hear();
        match answer.strip_prefix("error ") {
            Some(code) => Err(code.parse().unwrap()),
            None => Ok(answer),
        }
    }

    pub fn run(&mut self, sql: &str) -> Outcome<()> {
        self.ask(&format!("run {sql}")).map(|_| ())
    }

    pub fn int(&mut self, sql: &str) -> Outcome<i64> {
        self.ask(&format!("int {sql}")).map(|answer| answer.parse().unwrap())
    }

    pub fn close(&mut self) {
        self.ask("close").unwrap();
    }

    pub fn kill(&mut self) {
        self.0.kill();
    }
}

/// Say whether an outsider, with the other copy of SQLite and with ours, is kept out of writing right now.
pub fn outsiders_are_refused(path: &Path) -> bool {
    ["foreign", "ours"].iter().all(|kind| {
        let answer = Outsider::start(kind, path).run("INSERT INTO t VALUES(-1)");
        assert!(answer.is_ok() || answer == Err(ffi::SQLITE_BUSY), "{answer:?}");
        answer.is_err()
    })
}

/// Check the database and its rows from an outsider's point of view.
pub fn outsider_sees(path: &Path, rows: i64) {
    let mut outsider = Outsider::start("foreign", path);
    assert_eq!(outsider.int("SELECT count(*) FROM t WHERE x >= 0"), Ok(rows), "rows");
    assert_eq!(outsider.int("SELECT count(*) FROM t WHERE x < 0"), Ok(0), "rows of who should have been refused");
    assert_eq!(outsider.int("SELECT integrity_check = 'ok' FROM pragma_integrity_check"), Ok(1));
}

/// A forked child. It must not touch the test harness: it runs a closure and exits.
pub struct Forked(libc::pid_t);

/// Fork, and run `action` in the child; its panic or `false` is a failure.
pub fn fork(action: impl FnOnce() -> bool) -> Forked {
    // SAFETY: the tests are made to fork with threads around; the child runs what writelane promises to work there, and
    // the allocator, which the C library keeps usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid > 0 {
        return Forked(pid);
    }
    // Timers are not inherited.
    do_not_hang();
    let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action)).unwrap_or(false);
    // SAFETY: ends the process without any destructor or exit handler.
    unsafe { libc::_exit(i32::from(!ok)) }
}

impl Forked {
    pub fn pid(&self) -> i32 {
        self.0
    }

    pub fn succeeded(self) -> bool {
        let mut status = 0;
        // SAFETY: a child of this process, a valid out pointer.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert!(waited > 0);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// A pipe to wait on across a fork.
pub struct Gate {
    read: c_int,
    write: c_int,
}

impl Gate {
    pub fn new() -> Self {
        let mut ends = [0; 2];
        // SAFETY: a valid array of two.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        Self { read: ends[0], write: ends[1] }
    }

    pub fn open(&self) {
        // SAFETY: one byte of a valid buffer.
        assert_eq!(unsafe { libc::write(self.write, b"x".as_ptr().cast(), 1) }, 1);
    }

    pub fn pass(&self) {
        let mut byte = 0u8;
        // SAFETY: one byte of a valid buffer.
        assert_eq!(unsafe { libc::read(self.read, ptr::from_mut(&mut byte).cast(), 1) }, 1);
    }
}

/// Return the files this process has open below a directory.
pub fn open_files(below: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|path| path.starts_with(below)).collect()
}
