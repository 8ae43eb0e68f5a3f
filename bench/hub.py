"""How fast the hub keeps, delivers and replays messages, and what connected clients cost.

    python bench/hub.py [--messages 100000] [--subscribers 50] [--json]

Side by side with Redis Streams of a `redis-server` that was started for it. Both are spoken to
over Unix sockets, by the same number of Python processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.hub_measures import Side
from bench.hub_rivals import Redis, Unavailable, open_redis
from bench.measuring import Board, Spread, quantile, say, settle
from bench.own_hub import OwnHub, open_hub
from bench.places import (
    add_common_options,
    add_rehearsal_option,
    positive,
    run_main,
    workplace,
)
from bench.reporting import Report, Row, machine

STREAMS = 4
"""That the publishers share."""
PUBLISH, PUBLISH_REDIS = "carrel: publish", "redis: XADD"
PUBLISH_ASYNC = "redis.asyncio: XADD"
EACH, EACH_REDIS = f"{PUBLISH}, each awaited", f"{PUBLISH_REDIS}, each awaited"
PUBLISHERS = {
    PUBLISH: "publish",
    PUBLISH_REDIS: "publish",
    PUBLISH_ASYNC: "publish_async",
    EACH: "publish",
    EACH_REDIS: "publish",
}
"""With the role that its processes have."""
DISK, PROCESS = "disk", "process"
"""When an answer comes: the hub's setting. For Redis it is `appendfsync`."""
APPENDFSYNC = {DISK: "always", PROCESS: "everysec"}
HEARD, HEARD_REDIS = "carrel: publish to receive", "redis: XADD to XREAD BLOCK"
REPLAY, REPLAY_REDIS = "carrel: replay into one client", "redis: XREAD from the first"
RECONNECT = "carrel: reconnect, until all that was missed is there"
ALONE, AMONG = "carrel: one message, no idle clients", "carrel: one message, among idle clients"
CPU_ALONE, CPU_AMONG = f"{ALONE}, daemon's CPU", f"{AMONG}, daemon's CPU"
SHOWN = ("messages", "clients", "processes", "window", "bytes", "kept", "missed", "idle", "rounds")


def main() -> None:
    options = parse()
    with workplace(options.folder) as place, ExitStack() as stack:
        report = Report("hub", {name: getattr(options, name) for name in SHOWN}, machine(place))
        redis: Redis | None = None
        try:
            redis = stack.enter_context(open_redis(place / "redis"))
        except Unavailable as error:
            report.skip("redis", str(error))
        comparison = Comparison(options, report, redis)
        with open_hub(place, DISK) as hub:
            comparison.publishing(hub, DISK)
            comparison.run(hub)
        with open_hub(place, PROCESS) as hub:
            comparison.publishing(hub, PROCESS)
        comparison.tell()
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=positive, default=100_000, help="published in a round")
    parser.add_argument("--bytes", type=positive, default=200, help="of a payload")
    parser.add_argument("--clients", type=positive, default=16, help="that publish")
    parser.add_argument("--processes", type=positive, default=2, help="that they share")
    parser.add_argument("--window", type=positive, default=200, help="not yet answered, each")
    parser.add_argument("--rate", type=positive, default=1000, help="a second, when it is paced")
    parser.add_argument("--seconds", type=positive, default=5, help="for which it is paced")
    parser.add_argument("--subscribers", type=positive, default=50)
    parser.add_argument("--kept", type=positive, default=200_000, help="replayed")
    parser.add_argument("--missed", type=positive, default=10_000, help="before a reconnect")
    parser.add_argument("--idle", type=positive, default=1000, help="connected clients")
    add_common_options(parser, rounds=5)
    add_rehearsal_option(parser)
    return parser.parse_args()


class Comparison:
    def __init__(self, options: argparse.Namespace, report: Report, redis: Redis | None) -> None:
        self._options = options
        self._report = report
        self._redis = redis
        self._board = Board()
        self._memory = (0.0, 0.0)

    def publishing(self, hub: OwnHub, sync: str) -> None:
        """Messages a second."""
        own, options = self._own(hub), self._options
        spaces = [hub.new_space() for _ in range(STREAMS)]
        if self._redis is not None:
            self._redis.set_sync(APPENDFSYNC[sync])
        if options.rehearse:
            own.publish(spaces, max(1, options.messages // 10), window=options.window)
        for number in self._rounds(_kept(PUBLISH, sync)):
            for name in PUBLISHERS:
                self._publish(name, own, spaces, (number, sync))

    def _publish(self, name: str, own: Side, spaces: list[str], when: tuple[int, str]) -> None:
        options, (number, sync) = self._options, when
        messages, window = options.messages, options.window
        if name in (EACH, EACH_REDIS):
            messages, window = max(1, messages // 10), 1
        side, streams = own, spaces
        if name not in (PUBLISH, EACH):
            if self._redis is None:
                return
            side, streams = self._rival(self._redis), self._redis.new_streams(STREAMS)
        settle()
        took_s = side.publish(streams, messages, window=window, role=PUBLISHERS[name])
        self._board.add(_kept(name, sync), number, messages / took_s)

    def run(self, hub: OwnHub) -> None:
        own = self._own(hub)
        self._hearing(own, hub.new_space())
        self._replaying(own, hub.new_space())
        self._reconnecting(own, hub.new_space())
        self._idle(own, hub)

    def _hearing(self, own: Side, space: str) -> None:
        for number in self._rounds(HEARD):
            self._add_delays(HEARD, number, own.delays(space))
            if self._redis is not None:
                settle()
                (stream,) = self._redis.new_streams(1)
                found = self._rival(self._redis).delays(stream)
                self._add_delays(HEARD_REDIS, number, found)

    def _add_delays(self, name: str, number: int, delays: list[float]) -> None:
        for share in (0.5, 0.99):
            self._board.add(_share(name, share), number, quantile(delays, share))

    def _replaying(self, own: Side, space: str) -> None:
        """Messages a second."""
        kept = self._options.kept
        say(f"{kept:,} messages to replay")
        own.fill(space, kept)
        stream = ""
        if self._redis is not None:
            (stream,) = self._redis.new_streams(1)
            self._rival(self._redis).fill(stream, kept)
        for number in self._rounds(REPLAY):
            self._board.add(REPLAY, number, kept / own.replay(space, kept))
            if self._redis is not None:
                found = self._rival(self._redis).replay(stream, kept)
                self._board.add(REPLAY_REDIS, number, kept / found)

    def _reconnecting(self, own: Side, space: str) -> None:
        missed = self._options.missed
        for number in self._rounds(RECONNECT):
            own.fill(space, missed)
            self._board.add(RECONNECT, number, own.reconnect(space, missed))

    def _idle(self, own: Side, hub: OwnHub) -> None:
        """Microseconds for a message. Memory is looked at in a daemon that has just started:
        what others have left would be used again."""
        spaces = [hub.new_space() for _ in range(STREAMS)]
        hub.restart()
        before = hub.memory_mb()
        with own.idle(self._options.idle):
            if (found := hub.clients()) != self._options.idle:
                raise RuntimeError(f"{found} clients are connected, not {self._options.idle}")
            self._memory = (before, hub.memory_mb())
        for number in self._rounds(AMONG):
            self._cost(own, hub, spaces, number, (ALONE, CPU_ALONE))
            with own.idle(self._options.idle):
                self._cost(own, hub, spaces, number, (AMONG, CPU_AMONG))

    def _cost(
        self, own: Side, hub: OwnHub, spaces: list[str], number: int, names: tuple[str, str]
    ) -> None:
        messages, before = self._options.messages, hub.cpu_s()
        wall_s = own.publish(spaces, messages, window=self._options.window)
        for name, value in zip(names, (wall_s, hub.cpu_s() - before), strict=True):
            self._board.add(name, number, value / messages * 1e6)

    def _rounds(self, what: str) -> Iterator[int]:
        for number in range(self._options.rounds):
            say(f"{what}, round {number + 1} of {self._options.rounds}")
            settle()
            yield number

    def _own(self, hub: OwnHub) -> Side:
        return Side("carrel", hub.socket, self._options)

    def _rival(self, redis: Redis) -> Side:
        return Side("redis", redis.socket, self._options)

    # Telling

    def tell(self) -> None:
        board, report, options = self._board, self._report, self._options
        for name in board.names:
            report.rows.append(Row(name, UNITS.get(name, "/s"), board.spread(name)))
        for when, value in zip(("before", "with"), self._memory, strict=True):
            name = f"daemon's memory, {when} {options.idle} idle clients"
            report.rows.append(Row(name, "MB", _one(value)))
        for sync in (DISK, PROCESS):
            for pair in ((PUBLISH, PUBLISH_REDIS), (PUBLISH, PUBLISH_ASYNC), (EACH, EACH_REDIS)):
                report.add_ratio(board, *(_kept(name, sync) for name in pair))
        for upper, lower in (
            (_share(HEARD, 0.5), _share(HEARD_REDIS, 0.5)),
            (_share(HEARD, 0.99), _share(HEARD_REDIS, 0.99)),
            (REPLAY, REPLAY_REDIS),
            (CPU_AMONG, CPU_ALONE),
        ):
            report.add_ratio(board, upper, lower)
        self._judge()

    def _judge(self) -> None:
        board, report, options = self._board, self._report, self._options
        durable, rival = _kept(PUBLISH, DISK), _kept(PUBLISH_REDIS, DISK)
        report.at_least("durable publish", 20_000, "/s", board.spread(durable))
        if rival in board:
            ratio = board.ratio(durable, rival)
            report.at_least("durable publish: as fast as redis", 1, "x", ratio)
        heard = board.spread(_share(HEARD, 0.99))
        report.at_most(
            f"publish to receive, {options.subscribers} subscribers, p99", 10, "ms", heard
        )
        report.at_least("replay into one client", 100_000, "/s", board.spread(REPLAY))
        reconnect = board.spread(RECONNECT)
        report.at_most(f"reconnect, {options.missed} messages missed", 0.5, "s", reconnect)
        before, after = self._memory
        report.at_most(f"memory for {options.idle} idle clients", 100, "MB", _one(after - before))
        cost = board.ratio(AMONG, ALONE)
        report.at_most(f"a message: {options.idle} idle clients / none", 1.2, "x", cost)


def _kept(name: str, sync: str) -> str:
    return f"{name} ({sync})"


def _share(name: str, share: float) -> str:
    return f"{name}, p{share * 100:.0f}"


def _one(value: float) -> Spread:
    return Spread(value, value, value, 1)


UNITS = {
    **{_share(name, share): "ms" for name in (HEARD, HEARD_REDIS) for share in (0.5, 0.99)},
    **dict.fromkeys((ALONE, AMONG, CPU_ALONE, CPU_AMONG), "µs"),
    RECONNECT: "s",
}
"""Of what is not in messages a second."""


if __name__ == "__main__":
    run_main(main)
