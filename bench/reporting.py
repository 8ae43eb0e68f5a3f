"""What a benchmark tells: a table for people, one JSON object for programs."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.measuring import Board, Spread


@dataclass(frozen=True)
class Row:
    """One subject. `unit` is what its values are in."""

    name: str
    unit: str
    spread: Spread


@dataclass(frozen=True)
class Target:
    """A figure that is promised: at least `limit`, or at most."""

    name: str
    at_least: bool
    limit: float
    unit: str
    spread: Spread

    @property
    def met(self) -> bool:
        value = self.spread.median
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Skipped:
    name: str
    why: str


@dataclass
class Report:
    benchmark: str
    options: dict[str, Any]
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    ratios: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add_times(self, board: Board, names: Sequence[str] | None = None) -> None:
        for name in board.names if names is None else names:
            self.rows.append(Row(name, "ms", in_ms(board.spread(name))))

    def add_ratio(self, board: Board, upper: str, lower: str) -> None:
        """Left out when one of the two was not measured."""
        if upper in board and lower in board:
            self.ratios.append(Row(f"{upper} / {lower}", "x", board.ratio(upper, lower)))

    def at_least(self, name: str, limit: float, unit: str, spread: Spread) -> None:
        self.targets.append(Target(name, True, limit, unit, spread))

    def at_most(self, name: str, limit: float, unit: str, spread: Spread) -> None:
        self.targets.append(Target(name, False, limit, unit, spread))

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(Skipped(name, why))

    def show(self, *, as_json: bool) -> None:
        """The JSON object is the last line."""
        self.machine["load_after"] = os.getloadavg()[0]
        print(self._text())
        if as_json:
            print(json.dumps(self._object()))

    def _text(self) -> str:
        lines = [f"{self.benchmark}: " + ", ".join(f"{k} {v}" for k, v in self.options.items())]
        lines.append(", ".join(f"{k} {v}" for k, v in self.machine.items()))
        heading = ("", "median", "p10", "p90", "n")
        lines += ["", *_table(heading, [_cells(row) for row in self.rows])]
        if self.ratios:
            cells = [_cells(row) for row in self.ratios]
            lines += ["", *_table(("ratio, over the rounds", *heading[1:]), cells)]
        if self.targets:
            lines += ["", *_table(("target", "wanted", "median", "p10", "p90", ""), self._wanted())]
        lines += ["", *(f"not measured: {one.name}: {one.why}" for one in self.skipped)]
        return "\n".join(lines).rstrip()

    def _wanted(self) -> list[tuple[str, ...]]:
        return [
            (
                one.name,
                f"{'>=' if one.at_least else '<='} {one.limit:g} {one.unit}",
                *(_number(value) for value in _three(one.spread)),
                "met" if one.met else "MISSED",
            )
            for one in self.targets
        ]

    def _object(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "options": self.options,
            "machine": self.machine,
            "rows": [_flat(asdict(row)) for row in self.rows],
            "ratios": [_flat(asdict(row)) for row in self.ratios],
            "targets": [_flat(asdict(one)) | {"met": one.met} for one in self.targets],
            "skipped": [asdict(one) for one in self.skipped],
        }


def in_ms(spread: Spread) -> Spread:
    return Spread(spread.median * 1e3, spread.p10 * 1e3, spread.p90 * 1e3, spread.count)


def machine(folder: Path) -> dict[str, Any]:
    """What figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "file_system": file_system(folder),
        "free_gib": round(shutil.disk_usage(folder).free / (1 << 30), 1),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load_before": os.getloadavg()[0],
    }


def file_system(folder: Path) -> str:
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, **record.pop("spread")}


def _three(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.p10, spread.p90


def _cells(row: Row) -> tuple[str, ...]:
    numbers = [f"{_number(value)} {row.unit}" for value in _three(row.spread)]
    return (row.name, *numbers, str(row.spread.count))


def _number(value: float) -> str:
    """Three digits that say something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    lines = [heading, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
