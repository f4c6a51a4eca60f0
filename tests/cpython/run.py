"""Run the interpreter's own tests of ``sqlite3`` against `writelane.dbapi`, and print what came of each as JSON.

Run in a process of its own, since it substitutes the module for good.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import unittest
import warnings


class Recorder(unittest.TestResult):
    """Keeps the outcome of every test, and the message of every failure."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def _record(self, test: unittest.TestCase, outcome: str, message: str = "") -> None:
        known = self.outcomes.get(test.id())
        if known is None or known[0] in ("passed", "skipped"):
            self.outcomes[test.id()] = (outcome, message)

    def addSuccess(self, test):
        self._record(test, "passed")

    def addSkip(self, test, reason):
        self._record(test, "skipped", reason)

    def addFailure(self, test, err):
        self._record(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self._record(test, "failed", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._record(test, "failed", f"{subtest}\n{self._exc_info_to_string(err, test)}")

    def addExpectedFailure(self, test, err):
        self._record(test, "passed")

    def addUnexpectedSuccess(self, test):
        self._record(test, "failed", "unexpected success")


def load() -> unittest.TestSuite:
    import writelane

    writelane.install()
    if sys.version_info < (3, 11):
        # There the tests live inside the package itself.
        sys.modules["sqlite3"].__path__.append(os.path.join(sysconfig.get_path("stdlib"), "sqlite3"))
        package = "sqlite3.test"
    else:
        package = "test.test_sqlite3"
    names = [
        entry[:-3]
        for entry in sorted(os.listdir(os.path.join(sysconfig.get_path("stdlib"), *package.split("."))))
        if entry.endswith(".py") and not entry.startswith("__")
    ]
    loader = unittest.defaultTestLoader
    return unittest.TestSuite(loader.loadTestsFromName(f"{package}.{name}") for name in names)


def main() -> None:
    warnings.simplefilter("default")
    # The document has standard output for itself; what the tests print goes elsewhere.
    document, sys.stdout = sys.stdout, sys.stderr
    suite = load()
    only = sys.argv[1:]
    if only:
        suite = unittest.TestSuite(test for test in flatten(suite) if any(pattern in test.id() for pattern in only))
    recorder = Recorder()
    suite.run(recorder)
    json.dump(recorder.outcomes, document, indent=1, sort_keys=True)


def flatten(suite: unittest.TestSuite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


if __name__ == "__main__":
    main()
