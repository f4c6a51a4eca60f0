"""One process of the fleet: ``python -m writelane.stress.agent``.

It is given one line of JSON, says ``ready``, is given the time to begin, writes a dot for every turn, and ends with one
line of JSON. The pipe that it is given all this through is its life line: when the other end is gone, so is it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from writelane.stress.drivers import DRIVERS
from writelane.stress.plan import Plan
from writelane.stress.records import Log
from writelane.stress.turns import Turns

__all__ = ["main"]


def _die_with_parent() -> None:
    # Not through sys.stdin, whose lock this thread would hold at the interpreter's exit.
    while os.read(0, 1024):
        pass
    os._exit(1)


def _say_turn() -> None:
    # One call for the whole line, since several threads say it.
    os.write(1, b".\n")


def main() -> None:
    """Be an agent."""
    order = json.loads(sys.stdin.readline())
    plan = Plan.from_json(order["plan"])
    number: int = order["number"]
    log = Log(Path(order["log"]))
    drivers = [DRIVERS[order["driver"]](order["database"], plan) for _ in range(plan.threads)]
    workers = [Turns(driver, plan, number * plan.threads + thread, log) for thread, driver in enumerate(drivers)]
    # What a program has done once by the time its user speaks to it.
    for driver in drivers:
        driver.read(0)
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, name="life-line", daemon=True).start()
    time.sleep(max(0.0, begin - time.monotonic()))

    failures: list[BaseException] = []

    def run(worker: Turns) -> None:
        try:
            worker.run(_say_turn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,), name=f"turns-{i}") for i, worker in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    telemetry = drivers[0].telemetry()
    for driver in drivers:
        driver.close()
    log.close()
    errors: Counter[str] = sum((worker.errors for worker in workers), Counter())
    print(json.dumps({"errors": errors, "telemetry": telemetry}, default=os.fspath), flush=True)


if __name__ == "__main__":
    main()
