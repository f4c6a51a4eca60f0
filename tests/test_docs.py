"""What the documents say is so: their code runs, their commands are understood, their links lead somewhere."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from writelane.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^(?P<before>[^\n]*)\n\n?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
#: What stands before a block that is not run, with its reason.
NOT_RUN = "<!-- not run:"
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
INLINE = re.compile(r"`(?P<code>[^`\n]+)`")


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(document: Path, *languages: str) -> list[str]:
    return [
        found["code"]
        for found in FENCE.finditer("\n\n" + document.read_text(encoding="utf-8"))
        if found["language"] in languages and NOT_RUN not in found["before"]
    ]


def commands(document: Path) -> list[list[str]]:
    """The commands of shell blocks and of inline code."""
    lines = [line for block in blocks(document, "sh", "console") for line in block.splitlines()]
    lines += [found["code"] for found in INLINE.finditer(document.read_text(encoding="utf-8"))]
    found = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if re.match(r"(\$ )?[\w-]+ ", line)]
    return [words for words in found if words]


def test_there_are_documents_with_code() -> None:
    assert [name(document) for document in DOCUMENTS if blocks(document, "python")].count("README.md") == 1


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "python")], ids=name)
def test_python_runs(document: Path, tmp_path: Path) -> None:
    # One after the other in one process, as a reader would type them.
    code = "\n".join(blocks(document, "python"))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = [found["target"] for found in LINK.finditer(document.read_text(encoding="utf-8"))]
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_make_targets_exist(document: Path) -> None:
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for words in commands(document) if words[0] == "make" for word in words[1:] if "=" not in word}
    assert named <= rules


def test_ci_runs_make_targets_that_exist() -> None:
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = re.findall(r"run: (.*)", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert jobs
    assert [job for job in jobs if job.split()[0] != "make" or not set(job.split()[1:]) <= rules] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_are_understood(document: Path) -> None:
    for words in commands(document):
        if words[0] != "writelane" or len(words) < 2 or not words[1].isalpha():
            continue
        assert words[1] in VERBS, words
        parser = argparse.ArgumentParser()
        importlib.import_module(f"writelane.cli.{words[1]}").configure(parser)
        # A verb that is only named has no arguments; what it is given must be known.
        given = [word.split("=")[0] for word in words[2:] if word.startswith("--")]
        assert set(given) <= {*parser._option_string_actions, "--json"}, words
