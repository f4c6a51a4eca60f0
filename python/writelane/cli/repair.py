"""``writelane repair``: a sound database of what can be read of a damaged one."""

from __future__ import annotations

import argparse

from writelane.cli.outcome import Outcome, ProgressLine
from writelane.repair import Repair, repair

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the damaged database, which nobody may have open")
    parser.add_argument("--output", metavar="FILE", help="the file to make (default: a name beside the database)")
    parser.add_argument(
        "--swap", action="store_true", help="put the new file in place of the damaged one, which is kept"
    )
    parser.add_argument("--deleted", action="store_true", help="also recover rows that were deleted")
    parser.add_argument("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Repair the database. 0: it is sound, or a sound file was made; what was lost is told. 2: nothing was made."""
    line = ProgressLine(arguments.progress)
    try:
        done = repair(
            arguments.database,
            output=arguments.output,
            swap=arguments.swap,
            deleted=arguments.deleted,
            progress=line,
        )
    finally:
        line.close()
    return Outcome("repair", 1 if done.state in ("whole", "unchecked") else 0, done.to_dict(), _text(done))


def _text(done: Repair) -> str:
    lines = [f"{done.path}: {done.summary}"]
    for table in done.tables:
        told = f"  {table['name']}: {table['rows']} rows"
        if not table["whole"]:
            told += f"; lost: {table['lost_pages']} pages, {table.get('lost_cells', 0)} rows on others"
            told += f", {table['refused']} refused" if table["refused"] else ""
            ranges = [f"{'...' if a is None else a} to {'...' if b is None else b}" for a, b in table["lost_rowids"]]
            told += f" (rowids {', '.join(ranges[:5])}{', ...' if len(ranges) > 5 else ''})" if ranges else ""
            told += f" ({table['error']})" if table.get("error") else ""
        lines.append(told)
    lines += [f"  not made again: {kind} {name}: {error}" for kind, name, error in done.not_made]
    lines += [f"  note: {note}" for note in done.notes]
    if done.repaired is not None:
        lines.append(f"repaired: {done.repaired}")
    if done.next_step:
        lines.append(f"next: {done.next_step}")
    return "\n".join(lines)
