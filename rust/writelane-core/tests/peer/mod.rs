//! Another process for the tests: the test binary itself, run again, which does what lines on its input say.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use writelane_core::lane::{Lane, Turn};
use writelane_core::sqlite::{Handle, OpenFlags, ffi};
use writelane_core::wait::{GaveUp, Patience};

/// How long a test waits for something that must come. It never comes near it, unless something hangs.
pub const AT_MOST: Duration = Duration::from_secs(30);

const DATABASE: &str = "LANE_TEST_DATABASE";
const USER: &str = "LANE_TEST_USER";

pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Peer {
    pub fn start(database: &Path) -> Self {
        Self::start_as(database, None)
    }

    /// Start as another user, for whom permissions count.
    pub fn start_as(database: &Path, user: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "another_process", "--ignored", "--nocapture"]).env(DATABASE, database);
        if let Some(user) = user {
            command.env(USER, user.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, replies) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut peer = Self { input: child.stdin.take(), child, replies };
        assert_eq!(peer.ask("hello"), "hello");
        peer
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        self.replies.recv_timeout(AT_MOST).expect("the other process said nothing")
    }

    pub fn hears_nothing_yet(&mut self) -> bool {
        self.replies.try_recv().is_err()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call on a child that is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
        if signal == libc::SIGSTOP {
            wait_until("the process is stopped", || {
                std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).is_ok_and(|stat| stat.contains(") T "))
            });
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + AT_MOST;
    while !is_so() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn for_ever() -> Patience<'static> {
    Patience { until: Some(Instant::now() + AT_MOST), interrupted: &|| false }
}

/// Begin a transaction in a turn of its own.
pub fn begin(lane: &Arc<Lane>, db: &Handle, statement: &str) -> Result<Turn, String> {
    let mut turn = lane.enter(statement, &for_ever()).map_err(|gave_up| format!("{gave_up:?}"))?;
    loop {
        match db.execute_batch("BEGIN IMMEDIATE") {
            Ok(()) => break,
            Err(error) if error.primary() == ffi::SQLITE_BUSY => {
                turn.wait_for_write_lock(&for_ever()).map_err(|gave_up| format!("{gave_up:?}"))?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    turn.holding(statement);
    Ok(turn)
}

/// Insert one row in a turn of its own.
pub fn insert(lane: &Arc<Lane>, db: &Handle, statement: &str) -> Result<(), String> {
    let _turn = begin(lane, db, statement)?;
    db.execute_batch("INSERT INTO t(x) VALUES (1); COMMIT").map_err(|error| error.to_string())
}

pub fn connect(database: &Path) -> Arc<Handle> {
    let db = Handle::open(database, OpenFlags::EXISTING).unwrap();
    // The last of others to close may have the whole file for a moment.
    db.busy_timeout_ms(AT_MOST.as_millis() as i32);
    db.execute_batch("PRAGMA synchronous=OFF; SELECT count(*) FROM t").unwrap();
    db.busy_timeout_ms(0);
    db
}

fn next_line() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| line.trim_end_matches('\n').to_owned())
}

/// The other process. Every line of input is answered with one line on standard error.
pub fn run() {
    if let Ok(user) = std::env::var(USER) {
        // SAFETY: plain system calls, before any other thread of ours runs.
        assert_eq!(unsafe { libc::setgid(user.parse().unwrap()) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(user.parse().unwrap()) }, 0);
    }
    let path = std::env::var_os(DATABASE).expect("started by another test");
    let database = Path::new(&path);
    let lane = Lane::of(database);
    let mut turn: Option<Turn> = None;
    let mut db: Option<Arc<Handle>> = None;
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let looping = Mutex::new(None);
    while let Some(line) = next_line() {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let reply = match verb {
            "hello" => "hello".into(),
            "enter" => {
                let patience = match rest.parse() {
                    Ok(ms) => {
                        Patience { until: Some(Instant::now() + Duration::from_millis(ms)), interrupted: &|| false }
                    }
                    Err(_) => for_ever(),
                };
                match lane.enter("ENTER", &patience) {
                    Ok(new) => {
                        turn = Some(new);
                        "in".into()
                    }
                    Err(GaveUp::TimedOut) => "timed out".into(),
                    Err(GaveUp::Interrupted) => "interrupted".into(),
                }
            }
            "leave" => {
                turn = None;
                "out".into()
            }
            "holding" => {
                turn.as_mut().unwrap().holding(rest);
                "said".into()
            }
            "await_lock" => match turn.as_mut().unwrap().wait_for_write_lock(&for_ever()) {
                Ok(()) => "free".into(),
                Err(gave_up) => format!("{gave_up:?}"),
            },
            "sql" => {
                let db = db.get_or_insert_with(|| connect(database));
                match db.execute_batch(rest) {
                    Ok(()) => "done".into(),
                    Err(error) => error.name().into(),
                }
            }
            "insert" => {
                let db = connect(database);
                (0..rest.parse().unwrap())
                    .find_map(|_| insert(&lane, &db, "INSERT").err())
                    .unwrap_or_else(|| "done".into())
            }
            "threads" => {
                let (threads, rows): (u32, u32) =
                    rest.split_once(' ').map(|(t, n)| (t.parse().unwrap(), n.parse().unwrap())).unwrap();
                let workers: Vec<_> = (0..threads)
                    .map(|_| {
                        let (lane, db) = (Arc::clone(&lane), connect(database));
                        std::thread::spawn(move || (0..rows).find_map(|_| insert(&lane, &db, "INSERT").err()))
                    })
                    .collect();
                workers.into_iter().find_map(|worker| worker.join().unwrap()).unwrap_or_else(|| "done".into())
            }
            "loop" => {
                let (lane, db, stop, turns) =
                    (Arc::clone(&lane), connect(database), Arc::clone(&stop), Arc::clone(&turns));
                let held = Duration::from_millis(rest.parse().unwrap());
                *looping.lock().unwrap() = Some(std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let turn = begin(&lane, &db, "LOOP").unwrap();
                        std::thread::sleep(held);
                        db.execute_batch("COMMIT").unwrap();
                        drop(turn);
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                }));
                "looping".into()
            }
            "turns" => turns.load(Ordering::Relaxed).to_string(),
            "stop" => {
                stop.store(true, Ordering::Relaxed);
                looping.lock().unwrap().take().unwrap().join().unwrap();
                "stopped".into()
            }
            "bypasses" => lane.stats().bypasses.to_string(),
            "windows" => lane.stats().windows.to_string(),
            "alone" => lane.stats().alone.to_string(),
            other => panic!("no such verb: {other}"),
        };
        eprintln!("{reply}");
    }
}
