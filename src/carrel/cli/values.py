"""Sizes, times and pairs, as people write and read them."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from carrel.cli.spec import Option

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"": 1.0, "S": 1.0, "M": 60.0, "H": 3600.0, "D": 86400.0, "W": 604800.0, "MS": 0.001}


def convert(option: Option, text: str) -> object:
    """Reads the value of an option. `ValueError` with a sentence."""
    if option.choices and text not in option.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(option.choices)}.")
    return READERS[option.kind](text) if option.kind in READERS else text


def size(text: str) -> int:
    """512M, 4G, 1.5GiB, or bytes."""
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    figure, unit = _split(word)
    if unit not in _UNITS or figure is None:
        raise ValueError(f"{text!r} is no size; write bytes, 512M or 4G.")
    return int(figure * _UNITS[unit])


def seconds(text: str) -> float:
    """90s, 15m, 2h, 7d, or seconds."""
    figure, unit = _split(text.strip().upper())
    if figure is None or unit not in _TIMES:
        raise ValueError(f"{text!r} is no time; write seconds, 90s, 15m, 2h or 7d.")
    return figure * _TIMES[unit]


def _split(word: str) -> tuple[float | None, str]:
    figure = word.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    if not figure.isascii() or not figure.replace(".", "", 1).isdigit():
        return None, ""
    return float(figure), word[len(figure) :]


def number(text: str) -> float:
    figure, unit = _split(text.strip())
    if figure is None or unit:
        raise ValueError(f"{text!r} is no number.")
    return figure


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no whole number.")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE.")
    return key, value


READERS: dict[str, Callable[[str], object]] = {
    "size": size,
    "seconds": seconds,
    "number": number,
    "whole": whole,
    "pairs": pair,
}


def size_text(count: float | None) -> str:
    """For people: three figures are enough."""
    if count is None:
        return "-"
    for unit in ("B", "K", "M", "G"):
        if count < 999.5 or (unit == "B" and count < 1024):
            return f"{count:.0f}{unit}" if count >= 9.95 or unit == "B" else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}T" if count < 9.95 else f"{count:.0f}T"


def count_text(count: float) -> str:
    """For people: 950, 5.2k, 12k, 1.3M; nothing is "-"."""
    count = min(count, 10**15)  # Who says more is not believed, and breaks no sums.
    for unit, factor in (("M", 1_000_000), ("k", 1000)):
        if count >= factor * 0.9995:
            figure = count / factor
            return f"{figure:.1f}{unit}" if figure < 9.95 else f"{figure:.0f}{unit}"
    return f"{count:.0f}" if count else "-"


def time_text(span_s: float | None) -> str:
    """How long, in the largest unit that says something."""
    if span_s is None:
        return "-"
    span_s = max(0.0, span_s)
    if span_s < 9.95:
        return f"{span_s:.1f}s"
    if span_s < 120:
        return f"{span_s:.0f}s"
    for unit, factor, until in (("m", 60, 120), ("h", 3600, 48), ("d", 86400, 1000)):
        if span_s < factor * until:
            return f"{span_s / factor:.0f}{unit}"
    return f"{span_s / 86400 / 365:.1f}y"


def seconds_of(moment: str) -> float:
    """Seconds since 1970 of a time as the API writes it, 2026-01-02T03:04:05.678Z."""
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp()


def age_of(moment: str | None) -> str:
    return "-" if not moment else time_text(time.time() - seconds_of(moment))
