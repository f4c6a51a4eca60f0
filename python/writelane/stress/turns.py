"""What one writing thread of an agent does: its turns, each with a record of how it went."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from writelane.stress.drivers import Driver, is_contention
from writelane.stress.plan import Plan
from writelane.stress.records import Kind, Log, Outcome, Record, first_mark
from writelane.stress.tables import text_of

__all__ = ["Turns"]

#: Messages of one delivery, and characters of one of them: answers of a model and results of tools.
MESSAGES = (2, 6)
MESSAGE_CHARACTERS = (200, 4000)
#: Events and usage facts of one turn, and characters of one of them.
EVENTS = 4
FACTS = 3
LINE_CHARACTERS = (40, 200)


class Turns:
    """The turns of one writing thread."""

    def __init__(self, driver: Driver, plan: Plan, writer: int, log: Log) -> None:
        self._driver = driver
        self._plan = plan
        self._log = log
        self._random = random.Random(f"{plan.seed}/{writer}")
        self._mark = first_mark(writer)
        self._text = text_of(2 * MESSAGE_CHARACTERS[1], plan.seed)
        #: What failed: the message of the error, and how often.
        self.errors: Counter[str] = Counter()

    def run(self, over: Callable[[], None]) -> None:
        """Run all turns; ``over`` is called after each. A turn that dies is counted, and the next one begins."""
        for _ in range(self._plan.turns):
            begun = time.monotonic()
            session = self._random.randrange(self._plan.sessions)
            # Drawn before anything can fail, so that a turn that dies does not change the next one.
            script = random.Random(self._random.random())
            try:
                self._turn(session, script)
                outcome = Outcome.DONE
            except Exception as error:
                outcome = Outcome.CONTENTION if is_contention(error) else Outcome.ERROR
                self.errors[f"{type(error).__name__}: {error}"] += 1
            end = time.monotonic()
            self._log.write(Record(Kind.TURN, outcome, session, 0, 0, end, end - begun))
            over()

    def _turn(self, session: int, script: random.Random) -> None:
        self._driver.read(session)
        self._think(script)
        messages = [self._row(script, MESSAGE_CHARACTERS) for _ in range(script.randint(*MESSAGES))]
        self._write(
            Kind.DELIVER, session, messages[0][0], len(messages), lambda: self._driver.deliver(session, messages)
        )
        for _ in range(EVENTS):
            self._think(script)
            mark, body = self._row(script, LINE_CHARACTERS)
            self._event(session, mark, body)
        for _ in range(FACTS):
            mark, body = self._row(script, LINE_CHARACTERS)
            self._offer(session, mark, body)

    def _event(self, session: int, mark: int, body: str) -> None:
        self._write(Kind.EVENT, session, mark, 1, lambda: self._driver.event(session, mark, body))

    def _write(self, kind: Kind, session: int, mark: int, rows: int, write: Callable[[], None]) -> None:
        begun = time.monotonic()
        outcome = Outcome.ERROR
        try:
            write()
            outcome = Outcome.DONE
        except Exception as error:
            outcome = Outcome.CONTENTION if is_contention(error) else Outcome.ERROR
            raise
        finally:
            end = time.monotonic()
            self._log.write(Record(kind, outcome, session, mark, rows, end, end - begun))

    def _offer(self, session: int, mark: int, body: str) -> None:
        begun = time.monotonic()
        taken = self._driver.offer(session, mark, body)
        end = time.monotonic()
        outcome = Outcome.DONE if taken else Outcome.DROPPED
        self._log.write(Record(Kind.FACT, outcome, session, mark, 1, end, end - begun))

    def _row(self, script: random.Random, characters: tuple[int, int]) -> tuple[int, str]:
        self._mark += 1
        length = script.randint(*characters)
        begin = script.randrange(len(self._text) - length)
        return self._mark, self._text[begin : begin + length]

    def _think(self, script: random.Random) -> None:
        if self._plan.think_ms:
            time.sleep(script.expovariate(1000 / self._plan.think_ms))
