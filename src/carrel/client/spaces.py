"""Live handles: a space, its files, its commands. What they say of themselves is `info`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, TypeVar, Unpack

from carrel.client import calls, models, transfer
from carrel.client.calls import Call, CommandOptions, TurnOptions
from carrel.client.exchange import Exchange, Output
from carrel.client.link import Link
from carrel.client.results import MAX_OUTPUT, Collector, RunResult
from carrel.client.streaming import RunStream
from carrel.domain.runs import Stream
from carrel.domain.spaces import Retention

T = TypeVar("T")
Input = bytes | str | BinaryIO | None
PIECE = 64 * 1024
GRACE_S = 2.0
"""From the request to end to the kill."""


class _Handle:
    def __init__(self, link: Link) -> None:
        self._link = link

    def _send(self, call: Call[T]) -> T:
        return call.decode(self._link.json(call.request))


class Space(_Handle):
    """`info` is what was last told of it; `refresh` asks again."""

    def __init__(self, link: Link, info: models.SpaceInfo) -> None:
        super().__init__(link)
        self.info = info
        self.files = Files(link, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    def __repr__(self) -> str:
        return f"<Space {self.name} {self.id} {self.info.state}>"

    # Commands

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = False,
        stdin: Input = None,
        max_output_bytes: int = MAX_OUTPUT,
        **options: Unpack[CommandOptions],
    ) -> RunResult:
        """To its end. A command that fails is no error, unless `check` is asked for
        (`CommandFailed`); one that cannot be started is (`CommandError`s)."""
        content = calls.command_content(argv, options)
        content["stdin"] = stdin is not None
        collector = Collector(max_output_bytes)
        with RunStream(self._link, Exchange.starting(self.id, content)).open() as stream:
            feeder = Feeder(stdin)
            while True:
                # All of it may have come with the connection.
                for output in stream.exchange.take():
                    collector.add(output)
                if stream.exchange.ended:
                    break
                feeder.feed(stream)
                stream.wait()
        result = collector.result(stream.exchange.run)
        return result.check() if check else result

    def start_run(
        self, argv: Sequence[str], *, stdin: str = "", **options: Unpack[CommandOptions]
    ) -> RunHandle:
        """Starts a command and does not wait. It goes on when this program ends."""
        content = calls.command_content(argv, options)
        if stdin:
            content["stdin"] = stdin
        return RunHandle(self._link, self._send(calls.start_run(self.id, content)))

    def runs(self) -> list[RunHandle]:
        """Its commands, newest first."""
        return [RunHandle(self._link, info) for info in self._send(calls.runs(self.id))]

    # Agents

    def send(
        self, prompt: str, *, wait: bool = True, **options: Unpack[TurnOptions]
    ) -> models.Turn:
        """Gives the agent of the space something to do. With `wait` to its end, which is a
        success or an error in `result`; else it is told when the agent works. A conversation
        goes on only when a `continuation` is passed. Raises `AgentError`s when it cannot begin,
        and `StateConflict` when another turn runs."""
        content = calls.turn_content(prompt, options)
        turn = self._send(calls.start_turn(self.id, content))
        return self.wait_for(turn) if wait else turn

    def wait_for(self, turn: models.Turn, timeout_s: float | None = None) -> models.Turn:
        """The turn when it has ended, or as it is when the time is over."""
        for wait_s in calls.waits(timeout_s):
            turn = self._send(calls.turn(turn.id, wait_s))
            if turn.ended:
                break
        return turn

    def turns(self) -> list[models.Turn]:
        """Newest first."""
        return self._send(calls.turns(self.id))

    def open_terminal(self, prompt: str = "", **options: Unpack[TurnOptions]) -> models.Turn:
        """The agent in a terminal of the space; it may be told something first. It raises what
        `send` does, and `UnsupportedFrontend` when the agent has no terminal."""
        content = {**calls.turn_content(prompt, options), "terminal": True}
        return self._send(calls.start_turn(self.id, content))

    def terminal(self, *, read_only: bool = False) -> models.Attaching:
        """The command in the space that attaches to the terminal of its agent, when that is
        up. `StateConflict` when there is none."""
        return self._send(calls.terminal(self.id, read_only))

    def stop_agent(self, turn: models.Turn) -> models.Turn:
        """Ends the agent, in a terminal too; `wait_for` tells its end."""
        return self._send(calls.stop_turn(turn.id))

    def interrupt(self, turn: models.Turn) -> models.Turn:
        """As Ctrl-C; `wait_for` tells its end."""
        return self._send(calls.interrupt(turn.id))

    def queue_input(self, turn: models.Turn, text: str) -> models.Turn:
        """Said to an agent that works. `UnsupportedFrontend` when it does not listen."""
        return self._send(calls.queue_input(turn.id, text))

    def decide(self, turn: models.Turn, permission: str, allow: bool) -> models.Turn:
        """Answers one of the turn's `permissions`. `StateConflict` when it does not wait for
        that one."""
        return self._send(calls.decide(turn.id, permission, allow))

    def context(self) -> list[models.ContextFile]:
        """What its agent is given to read, beside the project."""
        return self._send(calls.context(self.id))

    def put_context(self, name: str, data: bytes) -> None:
        """Instead of what had that name; the agent sees it at once."""
        self._send(calls.put_context(self.id, name, data))

    def remove_context(self, name: str) -> None:
        self._send(calls.remove_context(self.id, name))

    # Its life

    def refresh(self) -> models.SpaceInfo:
        return self._now(calls.space(self.id))

    def stop(self, *, grace_s: float = GRACE_S) -> models.SpaceInfo:
        """Nothing of it runs when this returns."""
        return self._now(calls.stop(self.id, grace_s))

    def start(self) -> models.SpaceInfo:
        """After a stop, or a failure."""
        return self._now(calls.start(self.id))

    def update(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
    ) -> models.SpaceInfo:
        """Labels and retention are replaced as a whole."""
        return self._now(calls.update(self.id, name, labels, retention))

    def remove(self, *, force: bool = False) -> models.Removal:
        """Raises `UnexportedChanges` unless `force`; nothing of it is left but what
        `undelete` needs."""
        return self._send(calls.remove(self.id, force))

    # Looking

    def changes(self) -> list[models.Change]:
        """What differs from its base."""
        return self._send(calls.changes(self.id))

    def usage(self) -> models.Usage:
        return self._send(calls.usage(self.id))

    def verify(self) -> models.Proof:
        """Tries to break out, now."""
        return self._send(calls.verify(self.id))

    def _now(self, call: Call[models.SpaceInfo]) -> models.SpaceInfo:
        self.info = self._send(call)
        return self.info


class Files(_Handle):
    """Of a space. Paths are relative to its tree; none leads out. `PathError`s."""

    def __init__(self, link: Link, space: str) -> None:
        super().__init__(link)
        self._space = space

    def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """All of it, or the bytes from `start` up to (not with) `end`."""
        return self._link.ask(calls.read(self._space, path, start, end)).check().body

    def write(
        self, path: str, data: bytes | str | Iterable[bytes], *, mode: int | None = None
    ) -> None:
        """Replaces it as a whole, or makes it."""
        content = data.encode() if isinstance(data, str) else data
        self._send(calls.write(self._space, path, content, mode))

    def list(self, path: str = ".") -> list[models.File]:
        return self._send(calls.list_files(self._space, path))

    def stat(self, path: str) -> models.File:
        return self._send(calls.stat(self._space, path))

    def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        self._send(calls.mkdir(self._space, path, mode, parents))

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        self._send(calls.move(self._space, source, target, replace))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._send(calls.delete(self._space, path, recursive))

    def download(self, path: str, dest: str | os.PathLike[str] = ".") -> transfer.Moved:
        """A file or folder to this machine: into a folder that is there, else under the new
        name. Symlinks that lead out are left out, and told."""
        return transfer.download(self._link, self._space, path, os.fspath(dest))

    def upload(self, source: str | os.PathLike[str], path: str = ".") -> transfer.Moved:
        """A file or folder of this machine, likewise."""
        return transfer.upload(self._link, self._space, os.fspath(source), path)


class RunHandle(_Handle):
    """A command. Losing the handle, or the daemon, does not end it."""

    def __init__(self, link: Link, info: models.RunInfo) -> None:
        super().__init__(link)
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def __repr__(self) -> str:
        return f"<RunHandle {self.id} {self.info.state}>"

    def refresh(self) -> models.RunInfo:
        self.info = self._send(calls.run(self.id))
        return self.info

    def wait(self, timeout_s: float | None = None) -> models.RunInfo:
        """When it has ended, or as it is when the time is over."""
        for pause in calls.waits(timeout_s):
            self.info = self._send(calls.wait(self.id, pause))
            if self.info.ended:
                break
        return self.info

    def signal(self, name: str) -> None:
        """To the command's process group: TERM, INT, KILL, …"""
        self._send(calls.signal(self.id, name))

    def output(self, *, stdout: int = 0, stderr: int = 0) -> Iterator[Output]:
        """All its output from these offsets on, as it comes, to its end."""
        with self.attach(stdout=stdout, stderr=stderr) as stream:
            yield from stream
        self.info = models.decode(stream.exchange.run, models.RunInfo)

    def read(self, stream: Stream | str = Stream.STDOUT, *, offset: int = 0) -> bytes:
        """What there is of one stream now."""
        pieces: list[bytes] = []
        while True:
            answer = self._link.ask(calls.output(self.id, str(stream), offset)).check()
            if not answer.body:
                return b"".join(pieces)
            pieces.append(answer.body)
            offset = int(answer.head.headers["carrel-offset"]) + len(answer.body)

    def attach(self, *, stdout: int = 0, stderr: int = 0) -> RunStream:
        """Its streams, to be read, written to, resized."""
        return RunStream(self._link, Exchange.attaching(self.id, stdout, stderr)).open()


class Feeder:
    """Standard input on its way to a command."""

    def __init__(self, stdin: Input) -> None:
        self.done = stdin is None
        self._pieces = input_pieces(stdin)

    def feed(self, stream: RunStream) -> None:
        """As much as the connection takes, and then the end."""
        while not self.done and not stream.full:
            piece = next(self._pieces, None)
            if piece is None:
                self.done = True
                stream.exchange.close_input()
            else:
                stream.exchange.input(piece)


def input_pieces(stdin: Input) -> Iterator[bytes]:
    if stdin is None:
        return iter(())
    if isinstance(stdin, str):
        stdin = stdin.encode()
    if isinstance(stdin, bytes):
        data = stdin
        starts = range(0, len(data), PIECE)
        return (data[start : start + PIECE] for start in starts)
    file = stdin
    return iter(lambda: file.read(PIECE), b"")
