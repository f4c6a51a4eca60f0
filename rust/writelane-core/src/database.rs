//! The face of one open file: what Python's `Database` is a thin cover of.

#[cfg(test)]
mod account_tests;
mod claim;
#[cfg(test)]
mod fault_tests;
mod obstacle;
mod open;

pub use open::{Access, Journal, Options, close_all};

use crate::error::{Error, Phase};
use crate::job::{Account, Answer, Call, Durability, Effect, Failure, Job, Outcome, Parameters, Waited, Work};
use crate::kind::{Judge, Kind};
use crate::lane::Lane;
use crate::ownership::Ownership;
use crate::policy::{checkpoint, deadline, retry};
use crate::process;
use crate::queue::Pushed;
pub use crate::readers::ReaderStats;
use crate::readers::Readers;
use crate::sqlite::{Handle, OpenFlags, SqliteError};
use crate::sync::Arc as TicketArc;
use crate::telemetry::{Telemetry, error_name};
use crate::ticket::Ticket;
use crate::wait::{GaveUp, Patience};
use crate::writer::lease::{Desk, Lease};
use crate::writer::{Driven, Shared, Writer, answer_one};
use claim::Claim;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The answer to a job that is still to come.
pub type Pending = TicketArc<Ticket<crate::job::Answer>>;

/// What a file has in this process, shared by everybody who opened it.
struct File {
    path: PathBuf,
    judge: Judge,
    readers: Option<Readers>,
    writer: Option<Writer>,
    ownership: Option<Arc<Ownership>>,
    /// The connection of [`Database::checkpoint_aside`], once it was needed.
    aside: Mutex<Option<Arc<Handle>>>,
    telemetry: Arc<Telemetry>,
    generation: u64,
    /// Databases that have it open. Once it is 0 nobody joins any more.
    users: AtomicUsize,
    /// Where the next open of the file finds it; `None` for a file opened to read.
    slot: Option<open::Slot>,
}

/// One `open` of a file. Clones of the file's writer are shared; the options are its own.
pub struct Database {
    file: Arc<File>,
    options: Options,
    closed: AtomicBool,
}

/// What one call may say.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// How long it may wait; `None` as the database was opened.
    pub deadline: Option<Option<Duration>>,
    /// Whether it must be synced to disk before it is answered.
    pub durable: bool,
}

/// How a call is given up: asked at least every 50 ms with no lock held.
pub type Interrupted<'a> = &'a (dyn Fn() -> bool + 'a);

/// Said to a thread that would wait for the end of its own transaction.
const OWN_TRANSACTION: &str = "this thread is inside db.transaction() of the same file, whose end this call would wait \
                               for: use the transaction's own execute(), or end its block first";

impl Database {
    /// Return the file's path as it was opened.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Return the options it was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Say whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<(), Error> {
        if self.file.generation != process::generation() {
            return Err(Error::Forked);
        }
        if self.is_closed() {
            return Err(Error::Closed);
        }
        match &self.file.writer {
            Some(writer) => writer.shared().check(),
            None => Ok(()),
        }
    }

    /// Say whether this object belongs to a parent of this process.
    pub fn is_inherited(&self) -> bool {
        self.file.generation != process::generation()
    }

    /// Refuse to wait for what cannot come before this thread, or the given task of it, ends its own transaction.
    ///
    /// # Errors
    /// It would wait for itself.
    pub fn refuse_own_transaction(&self, task: Option<u64>) -> Result<(), Error> {
        let borrower = self.writer().and_then(|shared| shared.borrower());
        let own = borrower.is_some_and(|borrower| {
            borrower.thread == std::thread::current().id() && task.is_none_or(|task| task == borrower.task)
        });
        if own { Err(Error::Usage(OWN_TRANSACTION.into())) } else { Ok(()) }
    }

    pub(crate) fn shared(&self) -> Result<&Arc<Shared>, Error> {
        self.check()?;
        match &self.file.writer {
            Some(writer) => Ok(writer.shared()),
            None => Err(Error::Sqlite(crate::sqlite::SqliteError {
                code: crate::sqlite::ffi::SQLITE_READONLY,
                message: "attempt to write a readonly database: it was opened with readonly=True".into(),
                offset: None,
            })),
        }
    }

    /// Return what the writer shares, for telemetry. `None` for a database opened to read.
    pub fn writer(&self) -> Option<&Arc<Shared>> {
        self.file.writer.as_ref().map(Writer::shared)
    }

    /// Return the lane of the file.
    pub fn lane(&self) -> Option<&Arc<Lane>> {
        self.writer().and_then(|shared| shared.lane())
    }

    /// Return what was counted of the file in this process.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.file.telemetry
    }

    /// Return what the readers do.
    pub fn reader_stats(&self) -> ReaderStats {
        self.file.readers.as_ref().map_or_else(ReaderStats::default, Readers::stats)
    }

    fn wait(&self, options: &CallOptions) -> Option<Duration> {
        options.deadline.unwrap_or(self.options.deadline)
    }

    fn durability(&self, options: &CallOptions) -> Durability {
        if options.durable { self.options.durability.max(Durability::Full) } else { self.options.durability }
    }

    /// Run one statement: a read on a reader, a write on the writer. A write is committed when this returns.
    ///
    /// # Errors
    /// With the waits so far.
    pub fn execute(
        &self,
        sql: &str,
        parameters: Parameters,
        options: &CallOptions,
        interrupted: Interrupted<'_>,
    ) -> Result<Outcome, Box<Failure>> {
        let called = Instant::now();
        self.check().map_err(|error| self.refused(error, &sql.into(), called))?;
        let (kind, sql, sure) = self.file.judge.judge_surely(sql);
        let call = Call { sql, parameters };
        // Where there is no writer to say what is wrong with a text, a reader says it.
        let unclear = !sure && self.file.writer.is_none();
        if (kind == Kind::Read || unclear)
            && let Some(readers) = &self.file.readers
        {
            let patience = Patience { until: deadline::until(called, self.wait(options)), interrupted };
            let read = readers.read(&call, &patience);
            match &read {
                Ok((_, account)) => self.file.telemetry.record_one(&call.sql, account, None),
                Err(failure) => self.file.telemetry.record_one(&call.sql, &failure.account, Some(&failure.error)),
            }
            let (effect, account) = read?;
            return Ok(Outcome { effects: vec![effect], account });
        }
        match self.work(kind, call)? {
            Some(work) => self.run(work, options, called, interrupted),
            None => {
                Ok(Outcome { effects: vec![Effect { rowcount: -1, ..Effect::default() }], account: Account::default() })
            }
        }
    }

    /// Make the work of one call. `None`: the text is empty.
    fn work(&self, kind: Kind, call: Call) -> Result<Option<Work>, Box<Failure>> {
        let refuse = |text: Arc<str>, call: &Call| {
            let statement = Some(Arc::clone(&call.sql));
            Box::new(Failure { statement, ..Failure::from(Error::Usage(text)) })
        };
        match kind {
            Kind::Read | Kind::Write => Ok(Some(Work::One(call))),
            Kind::Alone => Ok(Some(Work::Alone(call))),
            Kind::Setting => Ok(Some(Work::Setting(call))),
            Kind::Empty => Ok(None),
            Kind::Several => Err(refuse("You can only execute one statement at a time.".into(), &call)),
            Kind::Forbidden(text) => Err(refuse(text, &call)),
        }
    }

    /// Return the shared text of a statement that may be a step of a batch or a row of many.
    ///
    /// # Errors
    /// The statement cannot run inside a transaction with others.
    fn step(&self, sql: &str) -> Result<Arc<str>, Box<Failure>> {
        let (kind, sql) = self.file.judge.judge(sql);
        let text: Arc<str> = match kind {
            Kind::Read | Kind::Write => return Ok(sql),
            Kind::Alone | Kind::Setting => {
                "this statement must run outside any transaction: give it to db.execute() by itself".into()
            }
            Kind::Empty => "the statement is empty".into(),
            Kind::Several => "You can only execute one statement at a time.".into(),
            Kind::Forbidden(text) => text,
        };
        Err(Box::new(Failure { statement: Some(sql), ..Failure::from(Error::Usage(text)) }))
    }

    /// Make the work of one statement for many rows.
    ///
    /// # Errors
    /// The statement cannot be a job.
    pub fn many(&self, sql: &str, rows: Vec<Parameters>) -> Result<Work, Box<Failure>> {
        Ok(Work::Many { sql: self.step(sql)?, rows })
    }

    /// Make the work of several statements, all or none.
    ///
    /// # Errors
    /// A statement cannot be a step; which one is said.
    pub fn batch(&self, calls: Vec<(String, Parameters)>) -> Result<Work, Box<Failure>> {
        let mut steps = Vec::with_capacity(calls.len());
        for (position, (sql, parameters)) in calls.into_iter().enumerate() {
            let sql = self.step(&sql).map_err(|mut failure| {
                failure.position = Some(position);
                failure
            })?;
            steps.push(Call { sql, parameters });
        }
        Ok(Work::Batch(steps))
    }

    /// Make the work of one statement, to be submitted. A statement that only reads is run by the writer, in turn.
    ///
    /// # Errors
    /// The statement cannot be a job.
    pub fn one(&self, sql: &str, parameters: Parameters) -> Result<Work, Box<Failure>> {
        match self.check() {
            Ok(()) => {}
            // Told when it is submitted; an offer is dropped then.
            Err(Error::Poisoned(_) | Error::Moved) => {}
            Err(error) => return Err(self.refused(error, &sql.into(), Instant::now())),
        }
        let (kind, sql) = self.file.judge.judge(sql);
        Ok(self.work(kind, Call { sql, parameters })?.unwrap_or_else(|| Work::Batch(Vec::new())))
    }

    /// Run work and wait for its answer.
    ///
    /// # Errors
    /// With the waits so far.
    pub fn run(
        &self,
        work: Work,
        options: &CallOptions,
        called: Instant,
        interrupted: Interrupted<'_>,
    ) -> Result<Outcome, Box<Failure>> {
        let shared = self.shared().map_err(|error| self.refused(error, work.label(), called))?;
        self.refuse_own_transaction(None).map_err(|error| Box::new(error.into()))?;
        let until = deadline::until(called, self.wait(options));
        let job = Box::new(Job::new(work, self.durability(options), until, called));
        let at_once = job.at_once;
        let job = match shared.drive(job, interrupted) {
            Driven::Answered(answer) => return answer,
            Driven::NotNow(job) => job,
        };
        let claim = Claim::of(&job);
        if at_once && shared.is_in_use() {
            job.ticket.answer(Err(Box::new(Error::Cancelled.into())));
            return Err(claim.timeout(shared, Phase::Lock));
        }
        shared.submit(job).map_err(|error| self.refused(error, &claim.label, called))?;
        // A job that is tried once is answered by the writer, whatever is in its way.
        let until = if at_once { None } else { until };
        claim.answer(shared, until, interrupted)
    }

    /// Count a call that is refused for the state that the database is in, and make the answer of it.
    fn refused(&self, error: Error, label: &Arc<str>, called: Instant) -> Box<Failure> {
        let waited = Waited { queue: called.elapsed(), ..Waited::default() };
        let account = Account { waited, ..Account::default() };
        if error != Error::Forked {
            self.file.telemetry.record_one(label, &account, Some(&error));
        }
        Box::new(Failure { error, statement: Some(Arc::clone(label)), position: None, account })
    }

    /// Queue work and return the claim on its answer. Waits for room in a full queue, up to the deadline.
    ///
    /// # Errors
    /// The queue stayed full, or the wait was interrupted; the work is not queued then.
    pub fn submit(
        &self,
        work: Work,
        options: &CallOptions,
        interrupted: Interrupted<'_>,
    ) -> Result<Pending, Box<Failure>> {
        let (shared, claim, parked) = self.enqueue(work, options)?;
        let ticket = TicketArc::clone(&claim.ticket);
        if !parked {
            return Ok(ticket);
        }
        if let Err(error) = self.refuse_own_transaction(None)
            && shared.queue().cancel(&ticket).is_some()
        {
            return Err(Box::new(error.into()));
        }
        let patience = Patience { until: claim.until, interrupted };
        let waited = ticket.wait_admitted(&patience);
        if let Err(gave_up) = waited {
            if shared.queue().cancel(&ticket).is_some() {
                return Err(match gave_up {
                    GaveUp::Interrupted => claim.interrupted(shared),
                    GaveUp::TimedOut => claim.queue_full(shared),
                });
            }
            // It got its place, or the writer thread has just found that it is late: the answer of that is waited for.
            let _ = ticket.wait_admitted(&patience);
        }
        let is_refused =
            |answer: &Answer| matches!(answer, Err(failure) if matches!(failure.error, Error::QueueFull { .. }));
        match ticket.take_if(is_refused) {
            Some(Err(_)) if waited == Err(GaveUp::Interrupted) => Err(claim.interrupted(shared)),
            Some(Err(failure)) => Err(failure),
            _ => Ok(ticket),
        }
    }

    /// Queue work without waiting for room: a job that finds the queue full stands in line for it, and is answered
    /// with the error of a full queue if it gets none before its deadline.
    ///
    /// # Errors
    /// The database is closed.
    pub fn enqueue_at_once(&self, work: Work, options: &CallOptions) -> Result<Pending, Box<Failure>> {
        self.enqueue(work, options).map(|(_, claim, _)| claim.ticket)
    }

    /// Queue work, and say whether it is in line for a place in the queue.
    fn enqueue(&self, work: Work, options: &CallOptions) -> Result<(&Arc<Shared>, Claim, bool), Box<Failure>> {
        let called = Instant::now();
        let shared = self.shared().map_err(|error| self.refused(error, work.label(), called))?;
        let until = deadline::until(called, self.wait(options));
        let job = Box::new(Job::new(work, self.durability(options), until, called));
        let claim = Claim::of(&job);
        if job.at_once && shared.is_in_use() {
            claim.ticket.answer(Err(claim.timeout(shared, Phase::Queue)));
            return Ok((shared, claim, false));
        }
        let pushed = shared.submit(job).map_err(|error| self.refused(error, &claim.label, called))?;
        Ok((shared, claim, matches!(pushed, Pushed::Parked)))
    }

    /// Cancel a job that has not started. True: it will never run.
    pub fn cancel(&self, ticket: &Pending) -> bool {
        self.writer().is_some_and(|shared| shared.queue().cancel(ticket).is_some())
    }

    /// Queue best-effort work and return the claim on its answer, or `None` if it is dropped at once.
    ///
    /// It may be pushed out by newer offers later. Every drop is counted, by statement and reason.
    ///
    /// # Errors
    /// The call is wrong, whatever the state of the file: the database is closed, opened to read or the parent's. All
    /// else is a drop.
    pub fn offer(&self, work: Work, coalesce: Option<&str>) -> Result<Option<Pending>, Box<Failure>> {
        let shared = match self.shared() {
            Ok(shared) => shared,
            Err(error) => return self.dropped_at_once(&work, error),
        };
        let job = Job::new(work, self.options.durability, None, Instant::now()).offered(coalesce.map(Into::into));
        let (ticket, label) = (TicketArc::clone(&job.ticket), Arc::clone(job.work.label()));
        match shared.submit(Box::new(job)) {
            Ok(Pushed::Queued | Pushed::Parked) => Ok(Some(ticket)),
            Ok(Pushed::Full(_) | Pushed::Closed(_)) => {
                shared.telemetry().dropped(&label, "full");
                Ok(None)
            }
            Ok(Pushed::Displaced(old)) => {
                answer_displaced(shared, old, coalesce);
                Ok(Some(ticket))
            }
            Err(error) => self.dropped_at_once(&Work::One(Call { sql: label, parameters: Parameters::none() }), error),
        }
    }

    /// Count work that cannot be queued, unless that is the caller's own fault.
    fn dropped_at_once(&self, work: &Work, error: Error) -> Result<Option<Pending>, Box<Failure>> {
        match (&self.file.writer, &error) {
            (Some(writer), Error::Poisoned(_) | Error::Moved) => {
                writer.shared().telemetry().dropped(work.label(), error_name(&error));
                Ok(None)
            }
            _ => Err(Box::new(error.into())),
        }
    }

    /// Say whether a statement only reads, so that [`Database::execute`] would run it on a reader.
    ///
    /// # Errors
    /// The database is closed or the parent's.
    pub fn reads(&self, sql: &str) -> Result<bool, Box<Failure>> {
        if self.file.generation != process::generation() {
            return Err(Box::new(Error::Forked.into()));
        }
        if self.is_closed() {
            return Err(Box::new(Error::Closed.into()));
        }
        Ok(self.file.judge.judge(sql).0 == Kind::Read)
    }

    /// Begin an interactive transaction, in turn: the lane and the lock are held until the lease ends.
    ///
    /// # Errors
    /// With the waits so far.
    pub fn transaction(
        &self,
        label: &str,
        options: &CallOptions,
        interrupted: Interrupted<'_>,
    ) -> Result<Box<Lease>, Box<Failure>> {
        let desk = Desk::new(label.into());
        let result = self.run(Work::Lend(Arc::clone(&desk)), options, Instant::now(), interrupted);
        match (result, desk.take()) {
            (Ok(_), Some(lease)) => {
                lease.belongs_to(0);
                Ok(lease)
            }
            (Ok(_), None) => Err(Box::new(Error::Closed.into())),
            (Err(failure), lease) => {
                drop(lease);
                desk.abandon();
                Err(failure)
            }
        }
    }

    /// Wait until everything queued before, offered work too, is answered.
    ///
    /// # Errors
    /// The deadline passed or the wait was interrupted.
    pub fn flush(&self, options: &CallOptions, interrupted: Interrupted<'_>) -> Result<(), Box<Failure>> {
        let shared = self.shared().map_err(|error| Box::new(error.into()))?;
        if shared.is_idle() {
            return Ok(());
        }
        self.refuse_own_transaction(None).map_err(|error| Box::new(error.into()))?;
        let called = Instant::now();
        let until = deadline::until(called, self.wait(options));
        // Behind the offered work, which comes after all required work.
        let mut marker = Job::new(Work::Batch(Vec::new()), Durability::Off, until, called).offered(None);
        (marker.marker, marker.at_once) = (true, false);
        let claim = Claim::of(&marker);
        shared.submit(Box::new(marker)).map_err(|error| Box::new(error.into()))?;
        claim.answer(shared, until, interrupted).map(drop)
    }

    /// Run a checkpoint in turn and return (busy, pages in the log, pages copied).
    ///
    /// # Errors
    /// I/O errors, the deadline. A reader in the way is no error but the first number.
    pub fn checkpoint(
        &self,
        mode: checkpoint::Mode,
        options: &CallOptions,
        interrupted: Interrupted<'_>,
    ) -> Result<(i64, i64, i64), Box<Failure>> {
        let outcome = self.run(Work::Checkpoint(mode), options, Instant::now(), interrupted)?;
        let number =
            |index: usize| match outcome.effects.first().and_then(|e| e.rows.first()).and_then(|r| r.get(index)) {
                Some(crate::sqlite::Value::Integer(number)) => *number,
                _ => -1,
            };
        Ok((number(0), number(1), number(2)))
    }

    /// Copy the log into the database on the caller's own thread, while others go on writing, if at least `pages` of it
    /// are not copied. Returns (busy, pages in the log, pages copied); `None`: there was nothing to do.
    ///
    /// For work that writes much and must not have the writer thread copy it while callers wait. It does not let the log
    /// begin again while others write; a checkpoint in turn does.
    ///
    /// # Errors
    /// I/O errors. Another checkpoint that runs is no error but the first value.
    pub fn checkpoint_aside(&self, pages: u32) -> Result<Option<(bool, i32, i32)>, Box<Failure>> {
        let shared = self.shared().map_err(|error| Box::new(error.into()))?;
        if shared.checkpointer().uncopied() < i64::from(pages) {
            return Ok(None);
        }
        let failed = |error: SqliteError| Box::new(Failure::from(Error::Sqlite(error)));
        let mut aside = self.file.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match &*aside {
            Some(handle) => handle,
            None => {
                let handle = Handle::open(&self.file.path, OpenFlags::EXISTING).map_err(failed)?;
                // A connection that has read nothing does not know of the log.
                if let Err(error) = handle.execute_batch("PRAGMA schema_version") {
                    let busy = retry::remedy(error.code, retry::Point::Read) != retry::Remedy::Report;
                    return if busy { Ok(None) } else { Err(failed(error)) };
                }
                aside.insert(handle)
            }
        };
        let report = shared.checkpointer().run(handle, checkpoint::Mode::Passive);
        match report.error {
            Some(error) => Err(failed(error)),
            None => Ok(Some((report.busy, report.log, report.copied))),
        }
    }

    /// Do what is queued and let the file go; the writer stops with its last database.
    ///
    /// Work that is not done `within` that time is refused. Closing twice is no error.
    ///
    /// # Errors
    /// The wait was interrupted: it is closed, and what is queued is still done. Or this thread holds the transaction
    /// that it would wait for: it is not closed.
    pub fn close(&self, within: Option<Duration>, interrupted: Interrupted<'_>) -> Result<(), Error> {
        if self.is_closed() || self.is_inherited() {
            return Ok(());
        }
        self.refuse_own_transaction(None)?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        open::release(&self.file, within, interrupted).map_err(|_| Error::Interrupted)
    }
}

impl Drop for Database {
    /// Let the file go without waiting: what is queued is still done.
    fn drop(&mut self) {
        if !self.closed.swap(true, Ordering::AcqRel) && self.file.generation == process::generation() {
            open::release_soon(&self.file);
        }
    }
}

/// Count offered work that was pushed out by newer work, of the key `coalesce` or for want of room, and tell those who
/// wait for it.
fn answer_displaced(shared: &Shared, old: impl IntoIterator<Item = Box<Job>>, coalesce: Option<&str>) {
    for job in old {
        // A mark of `flush` is nobody's work.
        if job.work.label().is_empty() {
            answer_one(&job, Err(Box::new(Error::Cancelled.into())));
            continue;
        }
        let replaced = coalesce.is_some() && job.coalesce.as_deref() == coalesce;
        shared.telemetry().dropped(job.work.label(), if replaced { "coalesced" } else { "displaced" });
        answer_one(&job, Err(Box::new(Error::Cancelled.into())));
    }
}
