"""The report of waits as one page with plots.

It opens without network: no script, no font and no image from elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from html import escape

from writelane.plain_text import one_line, printable
from writelane.report import Blocker, Pinned, Report, Statement

__all__ = ["page"]

#: The plots' size, in the units of their view box.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 260, 64, 28, 10

#: Statements that have a colour of their own; the rest share the last one.
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
REST = "#9498a0"

#: Statements and holders that are shown.
SHOWN = 50

#: The characters of what a single wait says of itself.
TITLE = 2_000

STYLE = """
:root { color-scheme: light dark; font: 14px/1.45 system-ui, sans-serif; }
body { max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .25rem .5rem; text-align: right; vertical-align: top; }
td.text, th.text { text-align: left; } tr { border-bottom: 1px solid #8884; }
code { font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: #8884; stroke-width: 1; } .key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
"""


def page(report: Report) -> str:
    """Return the page."""
    statements = report.by_loss()
    colours = {one.sql: colour for one, colour in zip(statements, COLOURS, strict=False)}
    parts = [
        f"<h1>Waits: <code>{escape(printable(report.source))}</code></h1>",
        f"<p>{escape(_span(report))}</p>",
        "<h2>Waits over time</h2>",
        _waits(report, colours),
        _key(colours),
        "<h2>Statements by time lost</h2>",
        _statements(statements, colours),
        "<h2>Who blocked whom</h2>",
        _blockers(report.by_blame(), colours),
        "<h2>Size of the log</h2>",
        *[_log(database, points) for database, points in sorted(report.log.items())],
    ]
    if not report.log:
        parts.append("<p>No log was seen.</p>")
    if report.pinned:
        parts += ["<h2>The log could not shrink, because of a reader</h2>", _pinned(report.pinned)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Waits</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _span(report: Report) -> str:
    if report.began is None or report.ended is None:
        return "Nothing was recorded."
    began, ended = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (report.began, report.ended))
    seen = "watched from outside" if report.how == "outside" else f"{len(report.processes)} processes"
    return printable(f"{began} to {ended}, {seen}, databases: {', '.join(sorted(report.databases))}")


class _Scale:
    """From a value to a place on an axis."""

    def __init__(self, least: float, most: float, begin: float, end: float, log: bool = False) -> None:
        self._log = log
        self.least, self.most = least, most if most > least else least + 1
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        low, high, at = self.least, self.most, value
        if self._log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.least))
        return self._begin + (at - low) / (high - low) * (self._end - self._begin)


def _plot(marks: Iterable[str], times: _Scale, lines: Sequence[tuple[float, str]]) -> str:
    grid = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for y, label in lines
    ]
    span = times.most - times.least
    form = "%H:%M:%S" if span < 86_400 else "%m-%d %H:%M"
    for step in range(6):
        at = times.least + span * step / 5
        label = time.strftime(form, time.localtime(at))
        anchor = "start" if step == 0 else "end" if step == 5 else "middle"
        grid.append(f'<text x="{times(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(grid)}{"".join(marks)}</svg>'


def _waits(report: Report, colours: dict[str, str]) -> str:
    events = [event for event in report.events if event["seconds"] > 0]
    if not events:
        return "<p>No single wait was long enough to have a line of its own.</p>"
    began = min(event["at"] - event["seconds"] for event in events)
    times = _Scale(began, max(event["at"] for event in events), LEFT, WIDTH - 6)
    least, most = min(event["seconds"] for event in events), max(event["seconds"] for event in events)
    least, most = 10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(most) + 1e-9)
    heights = _Scale(least, most, HEIGHT - BOTTOM, TOP, log=True)
    marks = []
    for event in events:
        colour = colours.get(event["sql"], REST)
        x, y, start = times(event["at"]), heights(event["seconds"]), times(event["at"] - event["seconds"])
        hold = event["kind"] == "hold"
        holder = event.get("holder") or {}
        by = f", held by {holder.get('pid')} {holder.get('command') or ''}" if holder else ""
        words = f"{event['kind']} {event['seconds']:.3f} s ({event.get('phase')}), process {event['pid']}{by}: "
        words = one_line(words + event["sql"], TITLE)
        shape = (
            f'<rect x="{start:.1f}" y="{y - 2:.1f}" width="{max(x - start, 1):.1f}" height="4" fill="{colour}" '
            'fill-opacity=".35">'
            if hold
            else f'<line x1="{start:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="1.5"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">'
        )
        marks.append(f"{shape}<title>{escape(words)}</title></{'rect' if hold else 'circle'}>")
    decades = [10.0**power for power in range(round(math.log10(least)), round(math.log10(most)) + 1)]
    return _plot(marks, times, [(heights(value), f"{value:g} s") for value in decades])


def _key(colours: dict[str, str]) -> str:
    items = [
        f'<div><span class="key" style="background:{colour}"></span><code>{escape(_short(sql))}</code></div>'
        for sql, colour in colours.items()
    ]
    return "".join(items)


def _short(sql: str, most: int = 160) -> str:
    return one_line(sql, most)


def _bar(share: float, colour: str) -> str:
    return '<svg viewBox="0 0 100 4" preserveAspectRatio="none" style="height:4px;display:block">' + (
        f'<rect width="{100 * share:.1f}" height="4" fill="{colour}"/></svg>'
    )


def _statements(statements: list[Statement], colours: dict[str, str]) -> str:
    worst = max((one.lost for one in statements), default=0.0) or 1.0
    rows = [
        f"<tr><td>{one.lost:.3f}</td><td>{one.count}</td><td>{one.seconds['queue']:.3f}</td>"
        f"<td>{one.seconds['lock']:.3f}</td><td>{one.seconds['run']:.3f}</td><td>{one.seconds['commit']:.3f}</td>"
        f"<td>{one.longest:.3f}</td><td>{one.retries}</td>"
        f'<td class="text"><code>{escape(_short(one.sql, 500))}</code>'
        f"{_bar(one.lost / worst, colours.get(one.sql, REST))}"
        f"{escape(', '.join(f'{count} {name}' for name, count in sorted(one.errors.items())))}</td></tr>"
        for one in statements[:SHOWN]
    ]
    return (
        "<table><tr><th>lost s</th><th>count</th><th>queue s</th><th>lock s</th><th>run s</th><th>commit s</th>"
        f'<th>longest s</th><th>retries</th><th class="text">statement</th></tr>{"".join(rows)}</table>'
    )


def _blockers(blockers: list[Blocker], colours: dict[str, str]) -> str:
    if not blockers:
        return "<p>Nobody was seen to hold the lock while another waited.</p>"
    worst = blockers[0].seconds or 1.0
    rows = []
    for one in blockers[:SHOWN]:
        who = f"process {one.pid}" if one.pid is not None else "unknown"
        what = f"<br><code>{escape(_short(one.statement))}</code>" if one.statement else ""
        victims = sorted(one.victims.items(), key=lambda victim: -victim[1])
        bars = "".join(
            f"<code>{escape(_short(sql, 100))}</code> {seconds:.3f} s"
            f"{_bar(min(seconds / worst, 1), colours.get(sql, REST))}"
            for sql, seconds in victims[:10]
        )
        rows.append(
            f'<tr><td>{one.seconds:.3f}</td><td class="text">{who} '
            f'<code>{escape(_short(one.command or ""))}</code>{what}</td><td class="text">{bars}</td></tr>'
        )
    return (
        '<table><tr><th>s</th><th class="text">held the lock</th><th class="text">while these waited</th></tr>'
        f"{''.join(rows)}</table>"
    )


def _pinned(times: list[Pinned]) -> str:
    rows = []
    for one in times[-SHOWN:]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.since))
        who = "".join(
            f"process {pid} <code>{escape(_short(command or ''))}</code><br>"
            for pid, command in sorted(one.readers.items())
        )
        rows.append(
            f"<tr><td>{one.seconds:.3f}</td><td>{since}</td><td>{'no' if one.watchers else 'yes'}</td>"
            f'<td>{one.pages}</td><td class="text">{who or "somebody unknown"}</td>'
            f'<td class="text"><code>{escape(printable(one.database))}</code></td></tr>'
        )
    return (
        "<table><tr><th>s</th><th>since</th><th>seen to end</th><th>pages</th>"
        f'<th class="text">read by</th><th class="text">database</th></tr>{"".join(rows)}</table>'
    )


def _log(database: str, points: list[tuple[float, int]]) -> str:
    points = sorted(points)
    times = _Scale(points[0][0], points[-1][0], LEFT, WIDTH - 6)
    most = max(size for _, size in points) or 1
    heights = _Scale(0, most, HEIGHT - BOTTOM, TOP)
    line = " ".join(f"{times(at):.1f},{heights(size):.1f}" for at, size in points)
    marks = [f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.5"/>']
    ticks = [(heights(most * share / 4), f"{most * share / 4 / 1e6:.1f} MB") for share in range(5)]
    return f"<p><code>{escape(printable(database))}</code></p>" + _plot(marks, times, ticks)
