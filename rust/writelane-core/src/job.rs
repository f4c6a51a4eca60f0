//! A job: plain data, so that it can be queued, measured and run again.

use crate::error::Error;
use crate::lane::Holder;
use crate::queue::{Class, Item};
use crate::sqlite::Value;
use crate::sync::Arc;
use crate::telemetry::Held;
use crate::ticket::Ticket;
use crate::writer::lease::Desk;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How far a commit has come when its caller is answered; maps to `PRAGMA synchronous`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Nothing is synced: a crash of the machine may corrupt the file. `synchronous=OFF`.
    Off,
    /// Survives a crash of the process; a crash of the machine may lose the last commits, never corrupt.
    /// `synchronous=NORMAL`.
    Normal,
    /// On the disk before the answer. `synchronous=FULL`.
    Full,
    /// As `Full`, and in rollback-journal mode the folder too. `synchronous=EXTRA`.
    Extra,
}

/// The parameters of one run of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameters {
    /// By position, for `?` and `?N`.
    Positional(Box<[Value]>),
    /// By name, for `:name`, `@name` and `$name`; names without the prefix.
    Named(Box<[(Box<str>, Value)]>),
    /// Some of them come from calls before it in the same batch.
    Linked(Box<Linked>),
}

/// Parameters with places that the results of earlier calls of the batch fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Linked {
    /// The parameters, with NULL in those places; never `Linked` themselves.
    pub known: Parameters,
    /// The places.
    pub links: Box<[Link]>,
}

/// One such place: it gets the first column of the first row of a call before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which of the parameters, from 0.
    pub parameter: usize,
    /// Which call of the batch, from 0.
    pub call: usize,
}

impl Parameters {
    /// No parameters.
    pub fn none() -> Self {
        Parameters::Positional(Box::new([]))
    }

    fn heap_bytes(&self) -> usize {
        let block_of = |value: &Value| block(value.heap_bytes());
        match self {
            Parameters::Positional(values) => {
                block(size_of_val::<[Value]>(values)) + values.iter().map(block_of).sum::<usize>()
            }
            Parameters::Named(values) => {
                let inside = values.iter().map(|(name, value)| block(name.len()) + block_of(value)).sum::<usize>();
                block(size_of_val::<[(Box<str>, Value)]>(values)) + inside
            }
            Parameters::Linked(linked) => {
                block(size_of::<Linked>()) + linked.known.heap_bytes() + block(size_of_val::<[Link]>(&linked.links))
            }
        }
    }
}

/// One statement with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The SQL text.
    pub sql: std::sync::Arc<str>,
    /// Its parameters.
    pub parameters: Parameters,
}

impl Call {
    /// Return the call with its links filled from `effects`, those of the calls before it; `None`: it has no links.
    ///
    /// # Errors
    /// A call that is linked to is not before this one, or gave no row.
    pub fn linked(&self, effects: &[Effect]) -> Result<Option<Call>, Error> {
        let Parameters::Linked(linked) = &self.parameters else { return Ok(None) };
        let mut parameters = linked.known.clone();
        for link in &linked.links {
            let row = effects.get(link.call).and_then(|effect| effect.rows.first()).and_then(|row| row.first());
            let value = row.cloned().ok_or_else(|| {
                Error::Usage(format!("call {} of the batch gave no row to take a value from", link.call).into())
            })?;
            let place = match &mut parameters {
                Parameters::Positional(values) => values.get_mut(link.parameter),
                Parameters::Named(values) => values.get_mut(link.parameter).map(|(_, value)| value),
                Parameters::Linked(_) => None,
            };
            if let Some(place) = place {
                *place = value;
            }
        }
        Ok(Some(Call { sql: std::sync::Arc::clone(&self.sql), parameters }))
    }
}

/// What a job does.
pub enum Work {
    /// One statement.
    One(Call),
    /// One statement for many rows of parameters, all or none.
    Many {
        /// The SQL text.
        sql: std::sync::Arc<str>,
        /// The rows.
        rows: Vec<Parameters>,
    },
    /// Several statements, all or none.
    Batch(Vec<Call>),
    /// One statement that must run outside any transaction: VACUUM, a PRAGMA of the connection.
    Alone(Call),
    /// As `Alone`; every reader is to have the setting too, once it succeeded.
    Setting(Call),
    /// A checkpoint.
    Checkpoint(crate::policy::checkpoint::Mode),
    /// Lend the engine, inside a transaction, to the caller.
    Lend(std::sync::Arc<Desk>),
}

impl Work {
    /// Return the text that telemetry knows this work by.
    pub fn label(&self) -> &std::sync::Arc<str> {
        static EMPTY: std::sync::OnceLock<std::sync::Arc<str>> = std::sync::OnceLock::new();
        static CHECKPOINT: std::sync::OnceLock<std::sync::Arc<str>> = std::sync::OnceLock::new();
        match self {
            Work::One(call) | Work::Alone(call) | Work::Setting(call) => &call.sql,
            Work::Many { sql, .. } => sql,
            Work::Checkpoint(_) => CHECKPOINT.get_or_init(|| "PRAGMA wal_checkpoint".into()),
            Work::Lend(desk) => &desk.label,
            Work::Batch(calls) => calls.first().map_or_else(|| EMPTY.get_or_init(|| "".into()), |call| &call.sql),
        }
    }

    /// Say whether a caller may run it on its own thread: a short transaction.
    pub fn is_driven(&self) -> bool {
        matches!(self, Work::One(_) | Work::Many { .. } | Work::Batch(_))
    }

    fn heap_bytes(&self) -> usize {
        // The text is shared by the calls that repeat it and is not counted.
        match self {
            Work::One(call) | Work::Alone(call) | Work::Setting(call) => call.parameters.heap_bytes(),
            Work::Checkpoint(_) | Work::Lend(_) => 0,
            Work::Many { rows, .. } => {
                block(size_of::<Parameters>() * rows.capacity())
                    + rows.iter().map(Parameters::heap_bytes).sum::<usize>()
            }
            Work::Batch(calls) => {
                let inside = calls.iter().map(|call| call.parameters.heap_bytes()).sum::<usize>();
                block(size_of::<Call>() * calls.capacity()) + inside
            }
        }
    }
}

/// Where the time of a job went, summing to its latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// In the queue, behind other jobs and beside the neighbours of its group.
    pub queue: Duration,
    /// For the turn between processes and for SQLite's write lock.
    pub lock: Duration,
    /// Its own statements.
    pub run: Duration,
    /// From its last statement until its transaction was committed.
    pub commit: Duration,
}

impl Waited {
    /// Return the sum.
    pub fn total(&self) -> Duration {
        self.queue + self.lock + self.run + self.commit
    }
}

/// What one statement gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect {
    /// Names of the result columns, empty for a statement that returns none.
    pub columns: Vec<Box<[u8]>>,
    /// The rows, read to the end.
    pub rows: Vec<Box<[Value]>>,
    /// Rows inserted, updated or deleted; -1 where the statement is none of these.
    pub rowcount: i64,
    /// The rowid of the last insert of this statement, if it inserted.
    pub lastrowid: Option<i64>,
}

/// How a job fared beside its result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Where its time went.
    pub waited: Waited,
    /// How often SQLite said BUSY, or the transaction was run again.
    pub retries: u32,
    /// Jobs in its transaction; 0 where it had none.
    pub group: u32,
    /// Who held the lock that it waited for, where it waited noticeably and it can be told.
    pub holder: Option<Holder>,
    /// Everybody who held it meanwhile.
    pub held: Held,
}

impl Account {
    /// Split the wait for the lock by who held it. The shares add up to it.
    pub fn held_by(&self) -> impl Iterator<Item = (&Holder, Duration)> {
        // Who was only looked for when the time was up is named all the same.
        self.held.split(self.waited.lock, self.holder.as_ref())
    }
}

/// What a successful job gave: the effect of each of its statements (one for [`Work::Many`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The effects, in order.
    pub effects: Vec<Effect>,
    /// How it fared.
    pub account: Account,
}

/// Why a job failed, and how it fared.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// The statement it is about.
    pub statement: Option<std::sync::Arc<str>>,
    /// Which call of a batch (from 0) or row of many failed, where there is more than one.
    pub position: Option<usize>,
    /// How it fared.
    pub account: Account,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, statement: None, position: None, account: Account::default() }
    }
}

/// The answer to a job.
pub type Answer = Result<Outcome, Box<Failure>>;

/// What a ticket takes, with the two counts that every shared value has.
const TICKET: usize = size_of::<Ticket<Answer>>() + 2 * size_of::<usize>();

/// What a place in the queue takes at most: the queue doubles when it grows.
const PLACE: usize = 2 * size_of::<Box<Job>>();

/// Return what an allocation of `bytes` takes of the memory, as the usual allocators give it out.
const fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + size_of::<usize>()).next_multiple_of(16) }
}

/// An attempt of a caller to run a job itself, which came to nothing.
#[derive(Clone, Debug)]
pub struct Tried {
    /// When it was given up.
    pub until: Instant,
    /// Where its time went; nothing of it counts as queue.
    pub account: Account,
}

/// A job in the queue.
pub struct Job {
    /// What it does.
    pub work: Work,
    /// Its class.
    pub class: Class,
    /// What replaces it, among offered work.
    pub coalesce: Option<Box<str>>,
    /// When it is too late to start.
    pub until: Option<Instant>,
    /// How durable its commit is.
    pub durability: Durability,
    /// It is tried once though `until` has passed: it runs if nothing is in its way.
    pub at_once: bool,
    /// It only marks a place in the queue.
    pub marker: bool,
    /// When the call was made.
    pub called: Instant,
    /// How its caller's own attempt to run it went.
    pub tried: Option<Box<Tried>>,
    /// The claim on its answer.
    pub ticket: Arc<Ticket<Answer>>,
    /// Room for what it gives, allocated by the thread that will free it.
    pub effects: Vec<Effect>,
    bytes: usize,
}

impl Job {
    /// Make a required job.
    pub fn new(work: Work, durability: Durability, until: Option<Instant>, called: Instant) -> Self {
        let effects = Vec::with_capacity(match &work {
            Work::Batch(calls) => calls.len(),
            _ => 1,
        });
        let room = block(size_of::<Effect>() * effects.capacity());
        let bytes = block(size_of::<Job>()) + block(TICKET) + PLACE + room + work.heap_bytes();
        Self {
            work,
            class: Class::Required,
            coalesce: None,
            until,
            durability,
            at_once: until.is_some_and(|until| until <= called),
            marker: false,
            called,
            tried: None,
            ticket: Ticket::new(),
            effects,
            bytes,
        }
    }

    /// Say whether its turn is over before the disk is waited for.
    pub fn waits_for_disk(&self) -> bool {
        self.durability >= Durability::Full && self.work.is_driven()
    }

    /// Return since when it is in the writer's hands.
    pub fn came(&self) -> Instant {
        self.tried.as_ref().map_or(self.called, |tried| tried.until)
    }

    /// Make it offered work, which a later job of the same key replaces.
    pub fn offered(mut self, coalesce: Option<Box<str>>) -> Self {
        self.class = Class::Offered;
        self.bytes += coalesce.as_deref().map_or(0, |key| block(key.len()));
        self.coalesce = coalesce;
        self
    }

    /// Say whether it is too late to start.
    pub fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

thread_local! {
    /// The jobs that a panic of this thread lost, where somebody catches it.
    static LOST: RefCell<Option<Vec<Job>>> = const { RefCell::new(None) };
}

/// What a panic left behind: what it said, and the jobs that it lost, which are to be counted and answered.
pub(crate) struct Caught {
    pub panic: Box<dyn Any + Send>,
    pub lost: Vec<Job>,
}

/// Run, and catch a panic together with the jobs that it loses.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Caught> {
    let outer = LOST.replace(Some(Vec::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let lost = LOST.replace(outer).unwrap_or_default();
    result.map_err(|panic| Caught { panic, lost })
}

impl Job {
    /// Leave this job, which a panic loses, to whoever catches that. False: nobody does.
    fn is_caught(&mut self) -> bool {
        let keep = |lost: &RefCell<Option<Vec<Job>>>| {
            let mut lost = lost.borrow_mut();
            let Some(lost) = lost.as_mut() else { return false };
            lost.push(Job {
                work: std::mem::replace(&mut self.work, Work::Batch(Vec::new())),
                coalesce: self.coalesce.take(),
                tried: self.tried.take(),
                ticket: Arc::clone(&self.ticket),
                effects: Vec::new(),
                ..*self
            });
            true
        };
        std::thread::panicking() && LOST.try_with(keep).unwrap_or(false)
    }
}

impl Drop for Job {
    /// Nobody waits for ever: a job that is lost, because the thread that had it panicked, is answered all the same.
    fn drop(&mut self) {
        if self.ticket.is_settled() || self.is_caught() {
            return;
        }
        for listener in self.ticket.answer(Err(Box::new(Error::Poisoned("it lost this job".into()).into()))) {
            listener.flush();
        }
    }
}

impl Item for Box<Job> {
    type Answer = Answer;

    fn ticket(&self) -> &Arc<Ticket<Answer>> {
        &self.ticket
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn class(&self) -> Class {
        self.class
    }

    fn coalesce_key(&self) -> Option<&str> {
        self.coalesce.as_deref()
    }

    fn is_marker(&self) -> bool {
        self.marker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(links: &[Link]) -> Call {
        let known = Parameters::Positional(Box::new([Value::Integer(1), Value::Null]));
        Call { sql: "INSERT".into(), parameters: Parameters::Linked(Box::new(Linked { known, links: links.into() })) }
    }

    #[test]
    fn a_link_takes_the_value_of_an_earlier_call() {
        let effects = [Effect { rows: vec![Box::new([Value::Integer(7)])], ..Effect::default() }];
        let linked = call(&[Link { parameter: 1, call: 0 }]).linked(&effects).unwrap().unwrap();
        assert_eq!(linked.parameters, Parameters::Positional(Box::new([Value::Integer(1), Value::Integer(7)])));
        let plain = Call { sql: "INSERT".into(), parameters: Parameters::none() };
        assert_eq!(plain.linked(&effects).unwrap(), None);
    }

    #[test]
    fn a_link_to_a_call_without_a_row_is_refused() {
        let link = [Link { parameter: 1, call: 0 }];
        assert!(matches!(call(&link).linked(&[Effect::default()]), Err(Error::Usage(_))));
        assert!(matches!(call(&link).linked(&[]), Err(Error::Usage(_))));
    }
}
