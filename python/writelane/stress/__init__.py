"""A fleet of agents against one database file, in real processes: the demonstration behind ``writelane stress``.

The way of a run: ``plan`` says what is asked for, ``tables`` makes and fills the file, ``fleet`` starts and watches
the processes, ``agent`` is such a process and ``foreign`` one that knows nothing of writelane, ``turns`` is what an
agent does and ``drivers`` what it does it with, ``records`` is what every process writes down, ``verification``
compares that with the file, ``measures`` and ``report`` tell.
"""

from __future__ import annotations

from writelane.stress.fleet import Fleet, FleetError
from writelane.stress.measures import Run
from writelane.stress.plan import Plan
from writelane.stress.rehearsal import rehearse

__all__ = ["Fleet", "FleetError", "Plan", "Run", "rehearse"]
