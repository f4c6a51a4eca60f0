"""The bundled SQLite is sound, built with the options that distributions use, the same in every build, and once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import writelane

ROOT = Path(__file__).resolve().parent.parent

#: What `PRAGMA compile_options` must say. JSON and extensions that can be loaded are there unless it is said otherwise.
EXPECTED = {
    "ENABLE_BYTECODE_VTAB",
    "ENABLE_COLUMN_METADATA",
    "ENABLE_DBPAGE_VTAB",
    "ENABLE_DBSTAT_VTAB",
    "ENABLE_FTS3",
    "ENABLE_FTS3_PARENTHESIS",
    "ENABLE_FTS4",
    "ENABLE_FTS5",
    "ENABLE_LOAD_EXTENSION",
    "ENABLE_MATH_FUNCTIONS",
    "ENABLE_PREUPDATE_HOOK",
    "ENABLE_RTREE",
    "ENABLE_SESSION",
    "ENABLE_STAT4",
    "ENABLE_UNLOCK_NOTIFY",
    "SOUNDEX",
    "THREADSAFE=1",
    "USE_URI",
}
FORBIDDEN = {"OMIT_JSON", "OMIT_LOAD_EXTENSION", "OMIT_WAL", "OMIT_DEPRECATED", "OMIT_SHARED_CACHE"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[writelane.Database]:
    with writelane.open(tmp_path / "app.db") as database:
        yield database


def test_sqlite_is_free_of_the_log_reset_fault() -> None:
    # Versions 3.7.0 to 3.51.2 corrupt a database when its log is begun anew during a checkpoint.
    # Source: https://www.sqlite.org/wal.html#walresetbug
    version = tuple(int(part) for part in writelane.sqlite_version.split("."))
    assert version >= (3, 51, 3)


def test_compile_options_are_those_of_distributions(database: writelane.Database) -> None:
    options = {row[0] for row in database.execute("PRAGMA compile_options").rows}
    assert EXPECTED - options == set()
    assert FORBIDDEN & options == set()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIRTUAL TABLE f USING fts3(x)",
        "CREATE VIRTUAL TABLE f USING fts4(x)",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
        "SELECT json_extract('{\"a\": 1}', '$.a')",
        "SELECT sqrt(2), pi()",
        "SELECT soundex('lane')",
        "SELECT count(*) FROM dbstat",
        "SELECT count(*) FROM sqlite_dbpage",
    ],
)
def test_what_the_options_promise_works(database: writelane.Database, sql: str) -> None:
    database.execute("CREATE TABLE t(x)")
    database.execute(sql)


def test_defaults_are_those_of_the_standard_module(database: writelane.Database) -> None:
    database.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY)")
    database.execute("CREATE TABLE child(parent REFERENCES parent(id))")
    assert database.execute("PRAGMA foreign_keys").rows == [(0,)]
    assert database.execute("PRAGMA mmap_size").rows == [(0,)]
    # Not by the pragma alone, which a reader answers: the writer has the same default.
    assert database.execute("INSERT INTO child VALUES (7)").rowcount == 1


def flags_of_cargo() -> str:
    text = (ROOT / ".cargo/config.toml").read_text(encoding="utf-8")
    (flags,) = re.findall(r'^LIBSQLITE3_FLAGS = \{ value = "([^"]*)", force = true \}$', text, re.MULTILINE)
    return str(flags)


def config_of_maturin() -> list[str]:
    # By pattern, since Python 3.10 reads no TOML.
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r"^    '(env\.LIBSQLITE3_FLAGS[^']*)',$", text, re.MULTILINE)


def test_every_way_to_build_has_the_same_options() -> None:
    value, force = config_of_maturin()
    assert value == f'env.LIBSQLITE3_FLAGS.value="{flags_of_cargo()}"'
    assert force == "env.LIBSQLITE3_FLAGS.force=true"


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_the_sdist_has_what_a_build_needs(tmp_path: Path) -> None:
    subprocess.run([tool("maturin"), "sdist", "-o", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
        options = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/.cargo/config.toml")
        assert options is not None
        assert options.read() == (ROOT / ".cargo/config.toml").read_bytes()
    wanted = {"Cargo.lock", "pyproject.toml", "LICENSE-MIT", "LICENSE-APACHE", "python/writelane/py.typed"}
    wanted |= {"rust/writelane-core/src/lib.rs", "rust/writelane-py/src/lib.rs"}
    assert wanted - names == set()
    # The databases, logs and environments of a working folder are nobody's business.
    assert [name for name in names if name.endswith((".db", ".so")) or name.startswith((".venv", "target"))] == []


@pytest.mark.parametrize("how", ["cargo", "maturin"])
def test_the_demonstration_and_the_tests_share_one_build_of_sqlite(how: str) -> None:
    # `make build` builds it through maturin and `make test` goes on with cargo: neither may find it stale.
    if not (ROOT / "target/release/.fingerprint").is_dir():
        pytest.skip("the module was not built in this folder")
    config = config_of_maturin() if how == "maturin" else []
    command = [tool("cargo"), "build", "--release", "--offline", "--verbose", "--package", "writelane-core"]
    command += [word for each in config for word in ("--config", each)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert built.returncode == 0, built.stderr
    assert re.search(r"^ *Fresh libsqlite3-sys ", built.stderr, re.MULTILINE), built.stderr
