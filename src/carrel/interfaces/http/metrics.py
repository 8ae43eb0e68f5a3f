"""Figures for Prometheus, written by hand: a few counters and histograms need no library."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.service.operations.admin import Figures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
UNKNOWN = "unknown"
"""The route of what has none: paths that clients make up are no labels."""

Labels = tuple[tuple[str, str], ...]


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Labels = ()) -> Iterable[str]:
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", (*labels, ("le", str(bound))), total)
        yield _line(f"{name}_sum", labels, round(self._sum, 6))
        yield _line(f"{name}_count", labels, total)


class Metrics:
    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, Histogram] = {}
        self.create = Histogram()
        self.exec = Histogram()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        histogram = self._seconds.get(route)
        if histogram is None:
            histogram = self._seconds[route] = Histogram()
        histogram.observe(seconds)

    def text(self, figures: Figures, version: str) -> str:
        lines = [
            *_head("carrel_info", "gauge", "The daemon's version."),
            _line("carrel_info", (("version", version),), 1),
            *_spaces(figures),
            *self._own(),
            *_process(figures.started_at),
        ]
        return "\n".join(lines) + "\n"

    def _own(self) -> Iterable[str]:
        yield from _head("carrel_http_requests_total", "counter", "Requests by their outcome.")
        for (method, route, status), count in sorted(self._requests.items()):
            labels = (("method", method), ("route", route), ("status", str(status)))
            yield _line("carrel_http_requests_total", labels, count)
        yield from _head("carrel_http_request_seconds", "histogram", "From head to last byte.")
        for route, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("carrel_http_request_seconds", (("route", route),))
        yield from _head("carrel_create_seconds", "histogram", "Spaces, made.")
        yield from self.create.lines("carrel_create_seconds")
        yield from _head("carrel_exec_seconds", "histogram", "Commands, started.")
        yield from self.exec.lines("carrel_exec_seconds")


class MetricsLayer:
    """The outermost layer: counts and times what all others did."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN)
            method = "WS" if scope["type"] == "websocket" else _method(scope["method"])
            self._metrics.answered(method, route, status, time.perf_counter() - begun)


def _method(method: str) -> str:
    known = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
    return method if method in known else UNKNOWN


def _spaces(figures: Figures) -> Iterable[str]:
    yield from _head("carrel_spaces", "gauge", "Spaces by state.")
    for state, count in figures.spaces.items():
        yield _line("carrel_spaces", (("state", state),), count)
    yield from _head("carrel_live_runs", "gauge", "Commands that run.")
    yield _line("carrel_live_runs", (), figures.live_runs)
    yield from _head("carrel_event_seq", "counter", "The number of the newest event.")
    yield _line("carrel_event_seq", (), figures.last_event)


def _process(started_at: float) -> Iterable[str]:
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    times = os.times()
    figures: Mapping[str, tuple[str, str, float]] = {
        "process_resident_memory_bytes": ("gauge", "Memory.", resident),
        "process_open_fds": ("gauge", "Open files.", len(os.listdir("/proc/self/fd"))),
        "process_cpu_seconds_total": ("counter", "Time.", times.user + times.system),
        "process_start_time_seconds": ("gauge", "When it began.", started_at),
    }
    for name, (kind, about, value) in figures.items():
        yield from _head(name, kind, about)
        yield _line(name, (), value)


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    if not labels:
        return f"{name} {value}"
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
