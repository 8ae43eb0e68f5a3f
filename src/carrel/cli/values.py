"""Sizes, times and pairs, as people write them."""

from __future__ import annotations

from carrel.cli import spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.cli.spec import Option

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"": 1.0, "S": 1.0, "M": 60.0, "H": 3600.0, "D": 86400.0, "W": 604800.0}
_MILLI = 0.001


def convert(option: Option, text: str) -> object:
    """Raises `ValueError` with a sentence."""
    kind = option.kind
    if kind == spec.SIZE:
        return size(text)
    if kind == spec.SECONDS:
        return seconds(text)
    if kind == spec.NUMBER:
        return number(text)
    if kind == spec.WHOLE:
        return whole(text)
    if kind == spec.PAIRS:
        return pair(text)
    if kind in (spec.CHOICE, spec.CHOICES) and text not in option.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(option.choices)}.")
    return text


def size(text: str) -> int:
    """512M, 4G, 1.5GiB, or bytes."""
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    figure, unit = _split(word)
    if unit not in _UNITS or figure is None:
        raise ValueError(f"{text!r} is no size; write bytes, 512M or 4G.")
    return int(figure * _UNITS[unit])


def seconds(text: str) -> float:
    """90s, 15m, 2h, 7d, or seconds."""
    word = text.strip().upper()
    if word.endswith("MS"):
        figure, unit, factor = *_split(word.removesuffix("MS")), _MILLI
    else:
        figure, unit = _split(word)
        factor = _TIMES.get(unit, 0.0)
    if figure is None or not factor or (word.endswith("MS") and unit):
        raise ValueError(f"{text!r} is no time; write seconds, 90s, 15m, 2h or 7d.")
    return figure * factor


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


def size_text(count: float | None) -> str:
    """For people: three figures are enough."""
    if count is None:
        return "-"
    for unit in ("B", "K", "M", "G"):
        if count < 999.5 or (unit == "B" and count < 1024):
            return f"{count:.0f}{unit}" if count >= 9.95 or unit == "B" else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.1f}T" if count < 9.95 else f"{count:.0f}T"


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
    year, month, day = (int(part) for part in moment[:10].split("-"))
    clock = moment[11:].rstrip("Z").split(":")
    # Days since 1970 by Hinnant's rule, with years that begin in March.
    year -= month <= 2
    days = (153 * ((month + 9) % 12) + 2) // 5 + day - 1 + 365 * year
    days += year // 4 - year // 100 + year // 400 - 719468
    return days * 86400.0 + int(clock[0]) * 3600 + int(clock[1]) * 60 + float(clock[2])
