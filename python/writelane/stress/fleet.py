"""The processes of a run: started, watched, and never left behind."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from writelane.stress import foreign as foreign_script
from writelane.stress.plan import Plan
from writelane.stress.records import LAYOUT, Kind, Outcome, first_mark

__all__ = ["Child", "Fleet", "FleetError"]

#: Seconds between two looks at the size of the log.
LOOK_SECONDS = 0.02
#: Seconds between the word to begin and the beginning, so that every process has heard it.
HEADSTART_SECONDS = 0.1
#: Seconds without one finished turn, beyond what holds and deadlines explain, after which the fleet is given up.
STANDSTILL_SECONDS = 120.0
#: Seconds for a process to come up, and for a foreign one to end when it is told.
START_SECONDS = 60.0
#: Bytes shown of what a process that died has said.
LAST_WORDS_BYTES = 2000
#: A disk with less room is called full.
FULL_DISK_BYTES = 1 << 20


class FleetError(RuntimeError):
    """A process of the fleet died or stood still, so that the run says nothing."""


class Child:
    """One process: a pipe to it, which is its life line, and one from it."""

    def __init__(self, name: str, command: list[str], order: dict[str, Any], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.ready = False
        self.report: dict[str, Any] | None = None
        self._words = folder / f"{name}.err"
        self._unread = b""
        with self._words.open("wb") as words:
            # A session of its own: Ctrl-C reaches the parent alone, which ends its children itself.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, bufsize=0, start_new_session=True
            )
        assert self.process.stdin is not None, "asked for as a pipe"
        assert self.process.stdout is not None, "asked for as a pipe"
        self._orders: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout
        self.tell(json.dumps({**order, "log": str(self.log)}))

    def tell(self, line: str) -> None:
        """Give the process a line; one that has died is found out elsewhere."""
        try:
            self._orders.write(line.encode() + b"\n")
        except BrokenPipeError:
            pass

    def hear(self) -> tuple[int, bool]:
        """Read what the process says; return the turns it has done since, and whether it will say more."""
        heard = self.output.read(1 << 16)
        if not heard:
            return 0, False
        *lines, self._unread = (self._unread + heard).split(b"\n")
        turns = 0
        for line in lines:
            if line == b".":
                turns += 1
            elif line == b"ready":
                self.ready = True
            elif line:
                self.report = json.loads(line)
        return turns, True

    def died(self) -> str:
        """Describe how the process ended."""
        self.process.wait()
        words = self._words.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        last = f": {words.splitlines()[-1]}" if words else ""
        free = shutil.disk_usage(self._words.parent).free
        if free < FULL_DISK_BYTES:
            # Then its last words have found no room either.
            last += f"; the disk of {self._words.parent} is full ({free} bytes free)"
        return f"{self.name} (process {self.process.pid}) ended with status {self.process.returncode}{last}"

    def end(self) -> None:
        """Kill the process if it runs, and wait for it."""
        self.process.kill()
        self.process.wait()
        self._orders.close()
        self.output.close()


class Fleet:
    """All processes of one run with one driver on one file; a context manager that ends them."""

    def __init__(self, plan: Plan, driver: str, database: Path, folder: Path) -> None:
        self._plan = plan
        self._database = database
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self.agents: list[Child] = []
        self.foreigners: list[Child] = []
        self.holder: Child | None = None
        #: When the fleet began and when its last agent was done, on the clock of the records.
        self.begun = 0.0
        self.ended = 0.0
        #: Bytes of the write-ahead log: the most that was seen, and the last before all had closed.
        self.log_peak = 0
        self.log_end = 0
        self._log = database.with_name(database.name + "-wal")
        try:
            for number in range(plan.processes):
                self.agents.append(self._agent(number, driver))
            for number in range(plan.foreign_writers):
                self.foreigners.append(
                    self._foreigner(f"foreign-{number}", "write", Kind.FOREIGN, plan.think_ms / 1000, number)
                )
            if plan.holds:
                self.holder = self._foreigner("holder", "hold", Kind.HOLD, plan.hold_seconds, plan.foreign_writers)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, name: str, command: list[str], order: dict[str, Any]) -> Child:
        child = Child(name, command, {**order, "database": str(self._database)}, self._folder)
        self._children.append(child)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def _agent(self, number: int, driver: str) -> Child:
        order = {"plan": self._plan.to_json(), "driver": driver, "number": number}
        return self._start(f"agent-{number}", [sys.executable, "-m", "writelane.stress.agent"], order)

    def _foreigner(self, name: str, role: str, kind: Kind, seconds: float, number: int) -> Child:
        order = {
            "role": role,
            "kind": kind,
            "seconds": seconds,
            "mark": first_mark(self._plan.writers + number),
            "table": self._plan.table("foreign"),
            "durability": self._plan.durability,
            "layout": LAYOUT.format,
            "done": Outcome.DONE,
            "contention": Outcome.CONTENTION,
        }
        # Isolated, and by its path, so that nothing of this package is in it.
        return self._start(name, [sys.executable, "-I", os.path.abspath(foreign_script.__file__)], order)

    def run(self, progress: Callable[[int], None]) -> None:
        """Let the fleet do its turns; ``progress`` is called with the turns that are over.

        Raises :class:`FleetError` when a process dies or nothing moves any more.
        """
        self._listen(lambda: all(child.ready for child in self._children), START_SECONDS, lambda turns: None)
        self.begun = time.monotonic() + HEADSTART_SECONDS
        for agent in self.agents:
            agent.tell(repr(self.begun))
        for child in self._children[len(self.agents) :]:
            child.tell(f"begin {self.begun!r}")
        orders = 0

        def over(turns: int) -> None:
            nonlocal orders
            progress(turns)
            # The holds are spread over the load and not over the clock, so that each falls into it on any machine.
            while self.holder and orders < self._plan.holds and turns >= self._due(orders):
                self.holder.tell("hold")
                orders += 1

        over(0)
        patience = STANDSTILL_SECONDS + self._plan.deadline + self._plan.holds * self._plan.hold_seconds
        self._listen(lambda: all(agent.report is not None for agent in self.agents), patience, over)
        self.ended = time.monotonic()
        for child in self._children[len(self.agents) :]:
            child.tell("stop")
        self._listen(lambda: all(child.report is not None for child in self._children), START_SECONDS, lambda _: None)
        self._look()

    def _due(self, order: int) -> float:
        return self._plan.all_turns * (order + 0.5) / (self._plan.holds + 1)

    def _listen(self, over: Callable[[], bool], patience: float, progress: Callable[[int], None]) -> None:
        turns, moved = 0, time.monotonic()
        while not over():
            for key, _ in self._selector.select(LOOK_SECONDS):
                child: Child = key.data
                done, alive = child.hear()
                if done or child.report:
                    turns, moved = turns + done, time.monotonic()
                    progress(turns)
                if not alive:
                    self._selector.unregister(child.output)
                    if child.report is None:
                        raise FleetError(child.died())
            self._look()
            if time.monotonic() - moved > patience:
                silent = [child.name for child in self._children if child.report is None]
                raise FleetError(f"nothing has moved for {patience:.0f} s; not done: {', '.join(silent)}")

    def _look(self) -> None:
        # By its name alone: opening and closing the file would drop the locks of this process on it.
        try:
            size = self._log.stat().st_size
        except FileNotFoundError:
            return
        # The last connection of all empties and removes it, which says nothing of the run.
        self.log_end = size or self.log_end
        self.log_peak = max(self.log_peak, size)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        self._selector.close()
