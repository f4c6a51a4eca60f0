//! The queue protocol under a model checker: threads interleave at every lock and atomic in ways no machine would show.
//!
//! No time passes here: what is not notified waits for ever, and the checker says so.
#![cfg(feature = "model")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use shuttle::rand::Rng;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::time::Duration;
use writelane_core::queue::{Bounds, Class, Item, Pushed, Queue, Wake};
use writelane_core::ticket::{Listener, State, Ticket};
use writelane_core::wait::Patience;

const ITERATIONS: usize = 20_000;
const NEVER: fn() -> bool = || false;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done(usize),
    Expired,
    Closed,
    Lost,
    Displaced,
}

/// A job that knows who sent it, and whether anybody ran it. As the real one, it is answered if it is lost.
struct Job {
    ticket: Arc<Ticket<Answer>>,
    thread: usize,
    number: usize,
    class: Class,
    expires: Arc<AtomicBool>,
}

impl Job {
    fn new(thread: usize, number: usize, class: Class) -> Self {
        Self { ticket: Ticket::new(), thread, number, class, expires: Arc::new(AtomicBool::new(false)) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ticket.is_settled() {
            settle(&self.ticket, Answer::Lost);
        }
    }
}

impl Item for Box<Job> {
    type Answer = Answer;
    fn ticket(&self) -> &Arc<Ticket<Answer>> {
        &self.ticket
    }
    fn bytes(&self) -> usize {
        1
    }
    fn class(&self) -> Class {
        self.class
    }
}

fn settle(ticket: &Ticket<Answer>, answer: Answer) {
    for listener in ticket.answer(answer) {
        listener.flush();
    }
}

fn patience() -> Patience<'static> {
    Patience { until: None, interrupted: &NEVER }
}

fn bounds(jobs_max: usize) -> Bounds {
    Bounds { jobs_max, bytes_max: 1_000 }
}

/// Explore by two schedulers: each finds lost wake-ups that the other passes by.
fn check(iterations: usize, test: fn()) {
    shuttle::check_random(test, iterations);
    shuttle::check_pct(test, iterations, 3);
}

/// What ran, in order, as (thread, number).
type Ran = Arc<Mutex<Vec<(usize, usize)>>>;

/// Take what there is and answer it, some in groups, as the writer does; put some back as if a transaction was undone.
fn serve(queue: &Queue<Box<Job>>, ran: &Ran, time: Option<Duration>, jobs_max: usize) {
    loop {
        match queue.wait(time) {
            Wake::Finished => return,
            Wake::TimedOut | Wake::Nudged => {
                for (job, _) in queue.take_expired(|job| job.expires.load(Ordering::SeqCst)) {
                    settle(&job.ticket, Answer::Expired);
                }
            }
            Wake::Work => {
                if shuttle::rand::thread_rng().gen_bool(0.3) {
                    queue.linger(2, Duration::from_millis(1));
                }
                let stats = queue.stats();
                assert!(stats.depth <= 2 * jobs_max, "the bound is kept: {stats:?}");
                let mut group = Vec::new();
                while let Some(job) = queue.take_if(|_, _| true) {
                    if !job.ticket.start() {
                        assert_eq!(job.ticket.state(), State::Cancelled);
                        continue;
                    }
                    group.push(job);
                    if group.len() == 2 {
                        break;
                    }
                }
                if shuttle::rand::thread_rng().gen_bool(0.2) {
                    // The transaction was undone: they wait again, may go, and the rest runs anew.
                    for job in &group {
                        job.ticket.requeue();
                    }
                    thread::yield_now();
                    group.retain(|job| job.ticket.start());
                }
                for job in group {
                    ran.lock().unwrap().push((job.thread, job.number));
                    settle(&job.ticket, Answer::Done(job.number));
                }
            }
        }
    }
}

fn finish(queue: &Queue<Box<Job>>) {
    for job in queue.close_and_drain() {
        settle(&job.ticket, Answer::Closed);
    }
}

#[test]
fn every_waiter_is_answered_in_the_order_of_its_thread() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, None, 1);
                finish(&queue);
            })
        };
        let callers: Vec<_> = (0..2)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let tickets: Vec<_> = (0..2)
                        .map(|number| {
                            let job = Box::new(Job::new(thread, number, Class::Required));
                            let ticket = Arc::clone(&job.ticket);
                            match queue.push(job) {
                                Pushed::Queued => {}
                                // The queue takes one: back-pressure.
                                Pushed::Parked => ticket.wait_admitted(&patience()).unwrap(),
                                other => panic!("{other:?}", other = matches!(other, Pushed::Closed(_))),
                            }
                            ticket
                        })
                        .collect();
                    for (number, ticket) in tickets.iter().enumerate() {
                        ticket.wait(&patience()).unwrap();
                        assert_eq!(ticket.take(), Some(Answer::Done(number)));
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        queue.close();
        writer.join().unwrap();
        let ran = ran.lock().unwrap();
        for thread in 0..2 {
            let own: Vec<_> = ran.iter().filter(|(by, _)| *by == thread).map(|(_, number)| *number).collect();
            assert_eq!(own, [0, 1], "the order of thread {thread}, each once");
        }
    });
}

#[test]
fn a_cancelled_job_never_runs_and_every_other_one_does() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, None, 1);
                finish(&queue);
            })
        };
        let cancelled = Arc::new(Mutex::new(Vec::new()));
        let callers: Vec<_> = (0..3)
            .map(|thread| {
                let (queue, cancelled) = (Arc::clone(&queue), Arc::clone(&cancelled));
                thread::spawn(move || {
                    let job = Box::new(Job::new(thread, 0, Class::Required));
                    let ticket = Arc::clone(&job.ticket);
                    drop(queue.push(job));
                    // Two of them give up, at any moment; both ways of asking are asked at once by one.
                    if thread < 2 && queue.cancel(&ticket).is_some() {
                        cancelled.lock().unwrap().push(thread);
                        assert_eq!(ticket.state(), State::Cancelled);
                        assert!(queue.cancel(&ticket).is_none(), "cancelled once");
                    }
                    ticket.wait(&patience()).unwrap();
                    ticket.take()
                })
            })
            .collect();
        let answers: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        queue.close();
        writer.join().unwrap();
        let (ran, cancelled) = (ran.lock().unwrap(), cancelled.lock().unwrap());
        for (thread, answer) in answers.iter().enumerate() {
            let runs = ran.iter().filter(|(by, _)| *by == thread).count();
            if cancelled.contains(&thread) {
                assert_eq!((runs, *answer), (0, None), "thread {thread} cancelled");
            } else {
                assert_eq!((runs, *answer), (1, Some(Answer::Done(0))), "thread {thread} did not");
            }
        }
    });
}

#[test]
fn closing_answers_or_refuses_everybody() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, Some(Duration::from_millis(1)), 1);
                finish(&queue);
            })
        };
        let callers: Vec<_> = (0..2)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut done = 0;
                    for number in 0..2 {
                        let job = Box::new(Job::new(thread, number, Class::Required));
                        let ticket = Arc::clone(&job.ticket);
                        if let Pushed::Closed(job) = queue.push(job) {
                            drop(job);
                            assert_eq!(ticket.take(), Some(Answer::Lost));
                            continue;
                        }
                        ticket.wait(&patience()).unwrap();
                        // What was taken in is done: closing drains.
                        assert_eq!(ticket.take(), Some(Answer::Done(number)));
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let closer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.close())
        };
        closer.join().unwrap();
        let done: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        writer.join().unwrap();
        assert_eq!(ran.lock().unwrap().len(), done);
        assert!(queue.is_empty());
    });
}

#[test]
fn the_death_of_the_writer_leaves_nobody_waiting() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let writer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                // It dies with one job in its hands; they are dropped as its stack is unwound.
                if queue.wait(None) == Wake::Work {
                    let job: Box<Job> = queue.take_if(|_, _| true).expect("there was work, and nobody else takes any");
                    if shuttle::rand::thread_rng().gen_bool(0.5) {
                        job.ticket.start();
                    }
                    drop(job);
                }
                finish(&queue);
            })
        };
        let callers: Vec<_> = (0..3)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let job = Box::new(Job::new(thread, 0, Class::Required));
                    let ticket = Arc::clone(&job.ticket);
                    let closed = matches!(queue.push(job), Pushed::Closed(_));
                    ticket.wait_admitted(&patience()).unwrap();
                    ticket.wait(&patience()).unwrap();
                    let answer = ticket.take().unwrap();
                    assert!(matches!(answer, Answer::Lost | Answer::Closed), "{answer:?}");
                    assert!(!closed || answer == Answer::Lost);
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_expires_is_answered_once_by_whoever_is_first() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, Some(Duration::from_millis(1)), 1);
                finish(&queue);
            })
        };
        // Another thread that keeps house meanwhile, as the writer does while it waits for a lock.
        let keeper = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                for (job, _) in queue.take_expired(|job| job.expires.load(Ordering::SeqCst)) {
                    settle(&job.ticket, Answer::Expired);
                }
            })
        };
        let callers: Vec<_> = (0..2)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let job = Box::new(Job::new(thread, 0, Class::Required));
                    let (ticket, expires) = (Arc::clone(&job.ticket), Arc::clone(&job.expires));
                    drop(queue.push(job));
                    expires.store(true, Ordering::SeqCst);
                    queue.nudge();
                    if queue.cancel(&ticket).is_some() {
                        return 0;
                    }
                    ticket.wait(&patience()).unwrap();
                    match ticket.take() {
                        Some(Answer::Done(0)) => 1,
                        Some(Answer::Expired) => 0,
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        let done: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        keeper.join().unwrap();
        queue.close();
        writer.join().unwrap();
        assert_eq!(ran.lock().unwrap().len(), done);
    });
}

/// Counts what it is told.
#[derive(Default)]
struct Counting {
    completed: AtomicUsize,
    flushed: AtomicUsize,
}

impl Listener for Counting {
    fn completed(&self, _token: u64) {
        self.completed.fetch_add(1, Ordering::SeqCst);
    }
    fn flush(&self) {
        assert!(self.completed.load(Ordering::SeqCst) > 0, "told before it is woken");
        self.flushed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn every_listener_is_told_once_whenever_it_comes() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let job = Box::new(Job::new(0, 0, Class::Required));
        let ticket = Arc::clone(&job.ticket);
        drop(queue.push(job));
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, None, 1);
                finish(&queue);
            })
        };
        let listeners: Vec<std::sync::Arc<Counting>> = (0..2).map(|_| std::sync::Arc::default()).collect();
        let listening: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let (ticket, listener) = (Arc::clone(&ticket), std::sync::Arc::clone(listener));
                thread::spawn(move || ticket.listen(listener, 7))
            })
            .collect();
        let _ = queue.cancel(&ticket);
        for thread in listening {
            thread.join().unwrap();
        }
        ticket.wait(&patience()).unwrap();
        queue.close();
        writer.join().unwrap();
        for listener in listeners {
            assert_eq!(listener.completed.load(Ordering::SeqCst), 1);
            assert!(listener.flushed.load(Ordering::SeqCst) > 0);
        }
    });
}

#[test]
fn offered_work_is_dropped_and_told_so_and_never_waits_for_room() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        let ran: Ran = Arc::default();
        let writer = {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            thread::spawn(move || {
                serve(&queue, &ran, None, 1);
                finish(&queue);
            })
        };
        let callers: Vec<_> = (0..3)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let class = if thread == 0 { Class::Required } else { Class::Offered };
                    let job = Box::new(Job::new(thread, 0, class));
                    let ticket = Arc::clone(&job.ticket);
                    match queue.push(job) {
                        Pushed::Queued => {}
                        Pushed::Displaced(old) => {
                            for job in old {
                                assert_eq!(job.class, Class::Offered);
                                settle(&job.ticket, Answer::Displaced);
                            }
                        }
                        _ => panic!("neither full nor closed"),
                    }
                    ticket.wait(&patience()).unwrap();
                    ticket.take().unwrap()
                })
            })
            .collect();
        let answers: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        queue.close();
        writer.join().unwrap();
        assert_eq!(answers[0], Answer::Done(0));
        let done = answers.iter().filter(|answer| **answer == Answer::Done(0)).count();
        let dropped = answers.iter().filter(|answer| **answer == Answer::Displaced).count();
        assert_eq!(done + dropped, 3);
        assert_eq!(ran.lock().unwrap().len(), done);
        assert_eq!(queue.stats().displaced as usize, dropped);
    });
}

#[test]
fn who_waits_for_room_is_told_when_there_is_some() {
    check(ITERATIONS, || {
        let queue = Arc::new(Queue::new(bounds(1)));
        drop(queue.push(Box::new(Job::new(0, 0, Class::Required))));
        let caller = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let job = Box::new(Job::new(1, 0, Class::Required));
                let ticket = Arc::clone(&job.ticket);
                drop(queue.push(job));
                ticket.wait_admitted(&patience()).unwrap();
                assert_eq!(ticket.state(), State::Queued);
            })
        };
        // Nothing else is answered, so nothing else wakes it.
        let first: Box<Job> = queue.take_if(|_, _| true).expect("it was pushed before");
        caller.join().unwrap();
        drop(first);
        finish(&queue);
    });
}
