//! How long a process keeps a turn, and how long SQLite's lock stays free after it for writers outside the lane.
//!
//! An outsider is a writer with SQLite's own back-off. Once it has waited 328 ms it asks every 100 ms, and with the
//! usual time-out of five seconds it asks 59 times in all before it fails. It gets in when it asks in a moment in
//! which the lock is free, so with a share `f` of free time it fails with probability `(1 - f)^59`: 1 in 20 for 5 %,
//! 7 in 100,000 for 15 %, 2 in 100 million for 26 %. What counts is the share of free time, not the length of a
//! window, unless the window is as long as the outsider's longest pause.

use std::time::Duration;

/// How long a process may go on committing while others wait. Long enough that a hand-over (some 30 us, and as much again
/// until what SQLite knows of the file is read anew) costs one or two in a hundred; short enough that the worst wait among
/// eight processes stays near 32 ms, and that outsiders with their long pauses find SQLite's lock free in time: with 15 ms
/// the simulation below has them near their time-out. Commits that wait for the disk have turns of one commit.
pub const QUANTUM: Duration = Duration::from_millis(4);

/// How long where all who wait write without end too, each of which has just used up a turn of its own. With a write each 15
/// us one in 1,200 waits then for the others' turns, and not one in 270, so that a write in a thousand is not such a one.
pub const LONG_QUANTUM: Duration = Duration::from_millis(18);

/// How long a process has had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It goes on, whoever waits.
    Young,
    /// It goes on where only such wait who write without end.
    Extended,
    /// It ends for anybody who waits.
    Over,
}

/// Say how far a turn of this age is.
pub fn stage(age: Duration) -> Stage {
    if age < QUANTUM {
        Stage::Young
    } else if age < LONG_QUANTUM {
        Stage::Extended
    } else {
        Stage::Over
    }
}

/// How long a process that saw nobody at the lane goes on without another look: one that comes meanwhile is let in that
/// much later, which is part of the quantum it would wait for anyway. A look is a system call in each turn.
pub const LOOK_EVERY: Duration = Duration::from_micros(250);

/// How long the turn is kept for a process that comes back at once as a rule, so that one in a loop uses its quantum.
pub const LINGER: Duration = Duration::from_micros(250);

/// How late it may be seen that a process does not come back to a turn that it came back to until then. To look for
/// each return anew would wake a thread every [`LINGER`].
pub const LATE_LOOK: Duration = Duration::from_micros(500);

/// How long outsiders count as writing after the lane last met one.
pub const MEMORY: Duration = Duration::from_secs(1);

/// The longest pause between two attempts of SQLite's own back-off: a window this long is hit by every outsider.
/// Source: `delays` in `sqliteDefaultBusyCallback`, <https://www.sqlite.org/src/file/src/main.c>.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What is known of writers outside the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// None has the database open.
    Nobody,
    /// Some process outside the lane has it open, and none was met writing.
    Present,
    /// An outsider was met holding the write lock a moment ago.
    Writing,
}

/// Return how long SQLite's lock stays free after our writers held it for `hold`, so that outsiders get their share.
///
/// `dice` in 0..1 spreads the window around its mean, so that it does not beat against an outsider's regular pauses.
pub fn window(hold: Duration, company: Company, dice: f64) -> Duration {
    let share = match company {
        Company::Nobody => return Duration::ZERO,
        Company::Present => 0.15,
        Company::Writing => 0.35,
    };
    hold.mul_f64(share * (0.5 + dice.clamp(0.0, 1.0))).min(LONGEST_PAUSE)
}

/// Whether a process comes back at once for its next turn, as a rule.
///
/// One in a loop is late now and then, when another got its processor, and one that comes at its leisure is early now and
/// then: neither says anything of the next time. Whoever has given the front up says nothing by coming late, since those
/// who got it get the processor too.
#[derive(Clone, Copy, Debug)]
pub struct Returns {
    /// The share of returns within [`LINGER`], later ones counted more.
    soon: f32,
}

/// How much the last return counts.
const LAST_RETURN: f32 = 0.25;

impl Default for Returns {
    fn default() -> Self {
        // Who is not known yet gets the chance to show it.
        Self { soon: 1.0 }
    }
}

impl Returns {
    /// Take note of a return this long after the last turn, whose place was `kept` or not.
    pub fn came(&mut self, after: Duration, kept: bool) {
        if after < LINGER {
            self.note(1.0);
        } else if kept {
            self.note(0.0);
        }
    }

    /// Take note that it did not come back to the place that was kept for it.
    pub fn lapsed(&mut self) {
        self.note(0.0);
    }

    fn note(&mut self, soon: f32) {
        self.soon += (soon - self.soon) * LAST_RETURN;
    }

    /// Say for how long a turn is kept for the process, if nobody of it waits for one.
    pub fn linger(&self) -> Option<Duration> {
        (self.soon > 0.5).then_some(LINGER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_outsiders_nothing_is_given_away() {
        assert_eq!(window(Duration::from_secs(1), Company::Nobody, 1.0), Duration::ZERO);
    }

    #[test]
    fn a_window_is_a_share_of_the_hold_and_never_longer_than_the_longest_pause() {
        let hold = Duration::from_millis(2);
        assert_eq!(window(hold, Company::Writing, 0.5), Duration::from_micros(700));
        assert!(window(hold, Company::Present, 0.5) < window(hold, Company::Writing, 0.0) * 2);
        assert_eq!(window(Duration::from_secs(10), Company::Present, 0.0), LONGEST_PAUSE);
    }

    const SOON: Duration = Duration::from_micros(5);

    #[test]
    fn a_turn_lingers_for_who_comes_back_at_once_as_a_rule() {
        let mut returns = Returns::default();
        for _ in 0..20 {
            for after in [LINGER, SOON, SOON, SOON] {
                assert_eq!(returns.linger(), Some(LINGER), "late once");
                returns.came(after, true);
            }
        }
        for _ in 0..4 {
            returns.lapsed();
        }
        for _ in 0..20 {
            for after in [SOON, LINGER, LINGER, LINGER] {
                assert_eq!(returns.linger(), None, "early once");
                returns.came(after, true);
            }
        }
    }

    #[test]
    fn who_has_given_the_front_up_is_not_judged_by_coming_late_but_by_coming_soon() {
        let mut returns = Returns::default();
        for _ in 0..20 {
            returns.came(LINGER, false);
        }
        assert_eq!(returns.linger(), Some(LINGER));
        for _ in 0..20 {
            returns.lapsed();
        }
        for _ in 0..3 {
            assert_eq!(returns.linger(), None);
            returns.came(SOON, false);
        }
        assert_eq!(returns.linger(), Some(LINGER));
    }

    /// What a plain SQLite writer does between two attempts, in milliseconds.
    fn pause_ms(attempt: usize) -> f64 {
        [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 25.0, 25.0, 50.0, 50.0, 100.0][attempt.min(11)]
    }

    /// Four outsiders in a tight loop against a lane that is never idle: the longest wait of any, and commits of both.
    fn simulate(company: Company, seconds: f64, seed: u64) -> (f64, u64, u64) {
        let mut state = seed;
        let mut dice = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let commit = 0.25;
        // (when it began to wait, when it asks next, attempts so far)
        let mut outsiders: Vec<(f64, f64, usize)> = (0..4).map(|n| (0.0, f64::from(n) * 0.01, 0)).collect();
        let (mut now, mut worst, mut ours, mut theirs) = (0.0, 0.0_f64, 0, 0);
        while now < seconds * 1000.0 {
            let hold = QUANTUM.as_secs_f64() * 1000.0;
            ours += (hold / commit) as u64;
            let (mut busy_until, mut taken) = (now + hold, false);
            let free_until = busy_until + window(QUANTUM, company, dice()).as_secs_f64() * 1000.0;
            // The first who asks in the window gets one commit; then the front of the lane, waiting in the kernel, is next.
            while let Some(next) = outsiders.iter_mut().filter(|o| o.1 < free_until).min_by(|a, b| a.1.total_cmp(&b.1))
            {
                if !taken && next.1 >= busy_until {
                    worst = worst.max(next.1 - next.0);
                    theirs += 1;
                    taken = true;
                    busy_until = next.1 + commit;
                    let again = busy_until + 0.02;
                    *next = (again, again, 0);
                } else {
                    next.1 += pause_ms(next.2) + 0.1 * dice();
                    next.2 += 1;
                }
            }
            now = if taken { busy_until } else { free_until };
        }
        (worst / 1000.0, ours, theirs)
    }

    #[test]
    fn no_outsider_in_a_tight_loop_comes_near_its_five_seconds() {
        for seed in 1..=5 {
            let (worst, ours, theirs) = simulate(Company::Writing, 60.0, seed);
            assert!(worst < 4.0, "worst wait {worst} s, ours {ours}, theirs {theirs}");
            assert!(theirs > 1000 && ours > theirs, "ours {ours}, theirs {theirs}");
        }
    }

    #[test]
    fn without_windows_the_simulated_outsiders_do_starve() {
        let (_, _, theirs) = simulate(Company::Nobody, 10.0, 1);
        assert_eq!(theirs, 0);
    }
}
