//! Who of a crowd stands in line for the front, so that a few write by turns for a while, then others.

use super::file::{ADMISSION, LaneFile};
use crate::policy::admission::{AWAY, CROWD, LOOK_EVERY, PATIENCE, TURNS, TURNS_ALONE, is_brief};
use std::time::{Duration, Instant};

/// What a process knows of the crowd, and of its being let in.
#[derive(Default)]
pub struct Admission {
    /// The turns it has left since it was let in.
    turns: u32,
    /// Since when it has the lock, so that nobody else is let in, and when it looks next whether somebody is to be.
    held: Option<(Instant, Instant)>,
    /// Since when it is expected back, if its last turn was a brief one and ended for the disk: since then, or since it was
    /// let in.
    left: Option<Instant>,
    /// It waited long for its last turn.
    crowded: bool,
}

impl Admission {
    /// Take note of the end of a turn that took this long.
    pub fn left(&mut self, file: Option<&LaneFile>, took: Duration, now: Instant, for_disk: bool) {
        self.left = (for_disk && is_brief(took)).then_some(now);
        self.turns = self.turns.saturating_sub(1);
        if let Some(file) = file.filter(|_| self.turns <= TURNS - TURNS_ALONE) {
            self.let_next_in(file);
        }
    }

    /// Take note of how long it was waited for the front.
    pub fn waited(&mut self, wait: Duration) {
        self.crowded = wait >= CROWD;
    }

    /// Say whether this process must be let in before it stands in line for the front. Who stayed away is not in any more.
    pub fn is_wanted(&mut self, file: &LaneFile, now: Instant) -> bool {
        let comes_back = self.left.is_some_and(|left| now.saturating_duration_since(left) < AWAY);
        if !comes_back {
            self.turns = 0;
        }
        !self.is_in() && comes_back && (self.crowded || file.is_crowded())
    }

    /// Say whether it was let in, and has turns left.
    pub fn is_in(&self) -> bool {
        self.turns > 0
    }

    /// Take note that this process was let in.
    pub fn begin(&mut self, now: Instant) {
        self.turns = TURNS;
        self.left = Some(now);
        self.held = Some((now, now + LOOK_EVERY));
    }

    /// Return when to [look](Admission::look) next whether somebody is to be let in, if that is this process's to do.
    pub fn due(&self) -> Option<Instant> {
        self.held.map(|(_, look)| look)
    }

    /// Let the next one in, if it is time.
    pub fn look(&mut self, file: &LaneFile, now: Instant) {
        let Some((since, _)) = self.held.filter(|(_, look)| *look <= now) else { return };
        if now.saturating_duration_since(since) >= PATIENCE || !file.is_front_in_use() {
            self.let_next_in(file);
        } else {
            self.held = Some((since, now + LOOK_EVERY));
        }
    }

    /// Let the next one in.
    pub fn let_next_in(&mut self, file: &LaneFile) {
        if self.held.take().is_some() {
            file.unlock(ADMISSION);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::{self, FRONT};
    use super::super::other_process::OtherProcess;
    use super::super::scratch::Scratch;
    use super::*;
    use crate::holder::locks;

    const BRIEF: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_millis(1);

    struct Scene {
        scratch: Scratch,
        file: LaneFile,
        admission: Admission,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let scratch = Scratch::with_database();
            let file = LaneFile::open(&scratch.database()).unwrap();
            Self { scratch, file, admission: Admission::default(), now: Instant::now() }
        }

        /// One process that has waited long for its last turn.
        fn crowded() -> Self {
            let mut scene = Self::new();
            scene.turn(CROWD, BRIEF, true);
            assert!(scene.is_wanted());
            scene
        }

        fn turn(&mut self, waited: Duration, took: Duration, for_disk: bool) {
            self.admission.waited(waited);
            self.now += waited + took;
            self.admission.left(Some(&self.file), took, self.now, for_disk);
        }

        fn is_wanted(&mut self) -> bool {
            self.admission.is_wanted(&self.file, self.now)
        }

        fn let_in(&mut self) {
            assert!(self.file.try_lock(ADMISSION).unwrap());
            self.admission.begin(self.now);
        }

        fn look_after(&mut self, time: Duration) {
            self.admission.look(&self.file, self.now + time);
        }

        fn keeps_others_out(&self) -> bool {
            let locks = locks::on_file(&file::path_of(&self.scratch.database())).unwrap();
            let keeps = locks.iter().any(|lock| lock.holds(ADMISSION.cast_unsigned()));
            assert_eq!(keeps, self.admission.due().is_some(), "what is held is given up some time");
            keeps
        }

        fn other(&self, bytes: i64) -> OtherProcess {
            OtherProcess::locking(&file::path_of(&self.scratch.database()), &[(bytes, bytes)])
        }
    }

    #[test]
    fn in_a_crowd_is_who_waited_long_or_comes_where_others_are_let_in() {
        let mut scene = Scene::new();
        assert!(!scene.is_wanted(), "it is new");
        scene.turn(CROWD / 2, BRIEF, true);
        assert!(!scene.is_wanted());
        scene.turn(CROWD, BRIEF, true);
        assert!(scene.is_wanted());
        scene.turn(Duration::ZERO, BRIEF, true);
        assert!(!scene.is_wanted(), "it is over");
        for byte in [ADMISSION, file::OUTSIDE] {
            let _other = scene.other(byte);
            assert!(scene.is_wanted());
        }
        assert!(!scene.is_wanted());
    }

    #[test]
    fn only_who_comes_back_at_once_from_brief_turns_for_the_disk_must_be_let_in() {
        let mut scene = Scene::crowded();
        scene.turn(CROWD, LONG, true);
        assert!(!scene.is_wanted());
        scene.turn(CROWD, BRIEF, false);
        assert!(!scene.is_wanted());
        scene.turn(CROWD, BRIEF, true);
        scene.now += AWAY - BRIEF;
        assert!(scene.is_wanted());
        scene.now += BRIEF;
        assert!(!scene.is_wanted());
        let mut scene = Scene::crowded();
        scene.let_in();
        scene.turn(CROWD, BRIEF, true);
        assert!(!scene.is_wanted() && scene.admission.is_in());
        scene.now += AWAY;
        assert!(!scene.is_wanted() && !scene.admission.is_in(), "its turns are not kept for it");
    }

    #[test]
    fn who_is_let_in_stays_for_its_turns_and_keeps_others_out_for_the_first_of_them() {
        let mut scene = Scene::crowded();
        scene.let_in();
        for turn in 1..=TURNS {
            assert!(!scene.is_wanted());
            assert_eq!(scene.keeps_others_out(), turn <= TURNS_ALONE, "turn {turn}");
            scene.turn(CROWD, BRIEF, true);
        }
        assert!(scene.is_wanted());
    }

    #[test]
    fn others_are_let_in_as_soon_as_nobody_is_at_the_front_and_at_the_latest_when_patience_ends() {
        let mut scene = Scene::crowded();
        scene.let_in();
        scene.look_after(LOOK_EVERY - BRIEF);
        assert!(scene.keeps_others_out());
        {
            let _other = scene.other(FRONT);
            scene.look_after(LOOK_EVERY);
            assert!(scene.keeps_others_out());
        }
        scene.look_after(LOOK_EVERY * 2 - BRIEF);
        assert!(scene.keeps_others_out(), "it looks now and then");
        scene.look_after(LOOK_EVERY * 2);
        assert!(!scene.keeps_others_out());

        let mut scene = Scene::crowded();
        let _other = scene.other(FRONT);
        scene.let_in();
        scene.look_after(PATIENCE);
        assert!(!scene.keeps_others_out());
    }
}
