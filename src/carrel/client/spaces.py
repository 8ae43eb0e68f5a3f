# Made from aio_spaces.py by tools/unasync.py: change that one.
"""Live handles: a space, its files, its commands. What they say of themselves is `info`."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Unpack

from carrel.api.types.agents import TurnOptions
from carrel.api.types.landings import LandOptions
from carrel.api.types.runs import CommandOptions
from carrel.client import models, transfer
from carrel.client.exchange import ExchangeOutput, RunExchange, input_pieces, waits
from carrel.client.http import LONG_S, HttpAnswer, operation
from carrel.client.link import Link
from carrel.client.models import MAX_OUTPUT, OutputCollector, OutputLost, RunResult
from carrel.client.options import Input, command_content, diff_content, turn_content
from carrel.client.streams import RunStream, run_through
from carrel.domain.landing import CHECK_S, MOST_CHECKS
from carrel.domain.runs import Stream
from carrel.domain.spaces import Retention

GRACE_S = 2.0
"""From the request to end to the kill."""


class Space:
    """`info` is what was last told of it; `refresh` asks again."""

    def __init__(self, link: Link, info: models.SpaceInfo) -> None:
        self._link = link
        self.info = info
        self.files = Files(link, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.id} {self.info.state}>"

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
        content = command_content(argv, options)
        content["stdin"] = stdin is not None
        collector = OutputCollector(max_output_bytes)
        exchange = RunExchange.starting(self.id, content)
        pieces = None if stdin is None else input_pieces(stdin)
        run_through(self._link, exchange, pieces, collector.add)
        result = collector.result(exchange.run)
        return result.check() if check else result

    def start_run(
        self, argv: Sequence[str], *, stdin: str = "", **options: Unpack[CommandOptions]
    ) -> RunHandle:
        """Starts a command and does not wait. It goes on when this program ends."""
        content = command_content(argv, options)
        if stdin:
            content["stdin"] = stdin
        info = self._link.call(models.RunInfo, "runs.start", self.id, content=content)
        return RunHandle(self._link, info)

    def runs(self) -> list[RunHandle]:
        """Its commands, newest first."""
        found = self._link.call(list[models.RunInfo], "runs.list", self.id, member="runs")
        return [RunHandle(self._link, info) for info in found]

    # Agents

    def send(
        self, prompt: str, *, wait: bool = True, **options: Unpack[TurnOptions]
    ) -> models.Turn:
        """Gives the agent of the space something to do. With `wait` to its end, which is a
        success or an error in `result`; else it is told when the agent works. A conversation
        goes on only when a `continuation` is passed. Raises `AgentError`s when it cannot begin,
        and `StateConflict` when another turn runs."""
        content = turn_content(prompt, options)
        turn = self._link.call(models.Turn, "turns.start", self.id, content=content)
        return self.wait_for(turn) if wait else turn

    def wait_for(self, turn: models.Turn, timeout_s: float | None = None) -> models.Turn:
        """The turn when it has ended, or as it is when the time is over."""
        for wait_s in waits(timeout_s):
            query = [("wait_s", wait_s)]
            turn = self._link.call(models.Turn, "turns.show", turn.id, query=query)
            if turn.ended:
                break
        return turn

    def turns(self) -> list[models.Turn]:
        """Newest first."""
        return self._link.call(list[models.Turn], "turns.list", self.id, member="turns")

    def open_terminal(self, prompt: str = "", **options: Unpack[TurnOptions]) -> models.Turn:
        """The agent in a terminal of the space; it may be told something first. It raises what
        `send` does, and `UnsupportedFrontend` when the agent has no terminal."""
        content = {**turn_content(prompt, options), "terminal": True}
        return self._link.call(models.Turn, "turns.start", self.id, content=content)

    def terminal(self, *, read_only: bool = False) -> models.Attaching:
        """The command in the space that attaches to the terminal of its agent, when that is
        up. `StateConflict` when there is none."""
        query = [("read_only", read_only)]
        return self._link.call(models.Attaching, "turns.terminal", self.id, query=query)

    def stop_agent(self, turn: models.Turn) -> models.Turn:
        """Ends the agent, in a terminal too; `wait_for` tells its end."""
        return self._link.call(models.Turn, "turns.stop", turn.id)

    def interrupt(self, turn: models.Turn) -> models.Turn:
        """As Ctrl-C; `wait_for` tells its end."""
        return self._link.call(models.Turn, "turns.interrupt", turn.id)

    def queue_input(self, turn: models.Turn, text: str) -> models.Turn:
        """Said to an agent that works. `UnsupportedFrontend` when it does not listen."""
        content = {"text": text}
        return self._link.call(models.Turn, "turns.input", turn.id, content=content)

    def decide(self, turn: models.Turn, permission: str, allow: bool) -> models.Turn:
        """Answers one of the turn's `permissions`. `StateConflict` when it does not wait for
        that one."""
        content = {"allow": allow}
        return self._link.call(models.Turn, "turns.decide", turn.id, permission, content=content)

    def context(self) -> list[models.ContextFile]:
        """What its agent is given to read, beside the project."""
        return self._link.call(list[models.ContextFile], "context.list", self.id, member="files")

    def put_context(self, name: str, data: bytes) -> None:
        """Instead of what had that name; the agent sees it at once."""
        self._link.json(operation("context.put", self.id, name, body=data))

    def remove_context(self, name: str) -> None:
        self._link.json(operation("context.remove", self.id, name))

    # Its life

    def refresh(self) -> models.SpaceInfo:
        return self._now("spaces.show")

    def stop(self, *, grace_s: float = GRACE_S) -> models.SpaceInfo:
        """Nothing of it runs when this returns."""
        return self._now("spaces.stop", {"grace_s": grace_s})

    def start(self) -> models.SpaceInfo:
        """After a stop, or a failure."""
        return self._now("spaces.start")

    def restart(self, *, grace_s: float = 2.0) -> models.SpaceInfo:
        """Ends everything in it and starts it again."""
        return self._now("spaces.restart", {"grace_s": grace_s})

    def update(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        ssh_agent: bool | None = None,
    ) -> models.SpaceInfo:
        """Labels and retention are replaced as a whole. `ssh_agent`: what runs in it may use the
        SSH agent of who comes with `ssh -A`."""
        content: dict[str, object] = {}
        if name is not None:
            content["name"] = name
        if labels is not None:
            content["labels"] = dict(labels)
        if retention is not None:
            content["retention"] = asdict(retention)
        if ssh_agent is not None:
            content["ssh_agent"] = ssh_agent
        return self._now("spaces.update", content)

    def remove(self, *, force: bool = False) -> models.Removal:
        """Raises `UnexportedChanges` unless `force`; nothing of it is left but what
        `undelete` needs."""
        query = [("force", force)]
        return self._link.call(models.Removal, "spaces.remove", self.id, query=query)

    def land(self, **options: Unpack[LandOptions]) -> models.Landing:
        """Brings its work into its project, on a branch. Raises `LandingError`s; the project is
        then as it was. With `check`, a command for the shell, only if that ends well on the result:
        else `CheckFailed`, whose details have the end of its output."""
        timeout_s = LONG_S
        if options.get("check"):
            timeout_s += MOST_CHECKS * options.get("check_s", CHECK_S)
        return self._link.call(
            *(models.Landing, "landings.land", self.id), content=options, timeout_s=timeout_s
        )

    def take(self, *paths: str, into: str, force: bool = False) -> models.Take:
        """Brings files and folders that it has changed into another space. Raises `TakeRefused`
        when that one has changed them in its own way, unless `force`; then nothing was taken."""
        content = {"paths": paths, "into": into, "force": force}
        return self._link.call(models.Take, "landings.take", self.id, content=content)

    def export(self, format: str, dest: str | os.PathLike[str], *, message: str = "") -> int:
        """Writes its work to a file of this machine, as `patch`, `bundle` or `tar`; gives the
        size. Raises `LandingError`s."""
        content = {"format": format, "message": message}
        return self._link.blocking(transfer.save_export, self.id, content, os.fspath(dest))

    # Comments

    def comment(self, path: str, line: int, text: str) -> models.Comment:
        """Says something about a line of a file; kept until `send_comments`. Raises
        `CommentRefused` for what is no text and for a line that is not there, `PathError`s."""
        content = {"path": path, "line": line, "text": text}
        return self._link.call(models.Comment, "comments.add", self.id, content=content)

    def comments(self) -> list[models.Comment]:
        """Oldest first, each where its line is now."""
        return self._link.call(list[models.Comment], "comments.list", self.id, member="comments")

    def remove_comment(self, comment: str) -> None:
        self._link.json(operation("comments.remove", self.id, comment))

    def send_comments(self, *, frontend: str = "", queue: bool = False) -> models.Turn:
        """Gives all that are open to the agent as one turn. With `queue` they wait while it
        works."""
        content = {"frontend": frontend or None, "queue": queue}
        return self._link.call(
            models.Turn, "comments.send", self.id, content=content, member="turn"
        )

    def checkpoint(self, message: str = "") -> models.Checkpoint:
        """Keeps its state: files, the agent's own and the conversation. One is taken by itself
        after each turn."""
        content = {"message": message}
        return self._link.call(models.Checkpoint, "checkpoints.take", self.id, content=content)

    def checkpoints(self) -> list[models.Checkpoint]:
        """The newest first."""
        return self._link.call(
            list[models.Checkpoint], "checkpoints.list", self.id, member="checkpoints"
        )

    def rewind(self, checkpoint: str = "") -> models.Checkpoint:
        """Puts files and conversation back: to the newest checkpoint, to this one, or to `start`.
        Gives the checkpoint of what there was before."""
        content = {"checkpoint": checkpoint}
        return self._link.call(models.Checkpoint, "checkpoints.rewind", self.id, content=content)

    def fork(self, *, count: int = 1, checkpoint: str = "", name: str = "") -> models.Forks:
        """New spaces that begin with its state of now, or with a checkpoint."""
        content = {"count": count, "checkpoint": checkpoint, "name": name}
        return self._link.call(models.Forks, "checkpoints.fork", self.id, content=content)

    # Looking

    def changes(self, *, system: bool = False) -> list[models.Change]:
        """What differs from its base; with `system`, from its image, in the system."""
        query = [("system", system)]
        return self._link.call(
            list[models.Change], "spaces.changes", self.id, query=query, member="changes"
        )

    def diff(
        self, *paths: str, ignored: bool = False, to: str = "", since: str = ""
    ) -> Generator[bytes, None, None]:
        """What `git diff` would print of all that differs from its base, in pieces as they come;
        the commits that were made in it are named first. Only these files and folders, if any are
        named; with `to`, how the files of another space differ from its own; with `since`, what
        has changed since that checkpoint.
        Who stops early closes it."""
        request = operation("review.diff", self.id, content=diff_content(paths, ignored, to, since))
        with self._link.open(request) as stream:
            if stream.head.status >= 400:
                HttpAnswer(stream.head, stream.read()).check()
            yield from stream

    def diff_files(
        self,
        *paths: str,
        ignored: bool = False,
        to: str = "",
        since: str = "",
        limit: int | None = None,
    ) -> models.DiffSummary:
        """Which files differ, and by how many lines; the first `limit` of them."""
        content = diff_content(paths, ignored, to, since)
        if limit is not None:
            content["limit"] = limit
        return self._link.call(models.DiffSummary, "review.files", self.id, content=content)

    def ps(self) -> models.Ps:
        """What is at work in it: commands, ports, and what they use."""
        return self._link.call(models.Ps, "ps.show", self.id)

    # Services and ports

    def services(self) -> models.ServiceList:
        """What runs beside its commands, by a compose file of its project."""
        return self._link.call(models.ServiceList, "services.list", self.id)

    def restart_service(self, name: str) -> models.Service:
        """Ends it and starts it again. Raises `ServiceFailed`."""
        return self._link.call(models.Service, "services.restart", self.id, name)

    def ports(self) -> models.PortList:
        """What listens in it, and what is forwarded. For half a minute its events tell what
        changes of that."""
        return self._link.call(models.PortList, "ports.list", self.id)

    def forward(self, port: int, local: int = 0) -> models.Forward:
        """Brings a port of it to the loopback of the daemon's machine, as `local` or as a free one,
        until it is stopped, or the space stops. Raises `PortUnavailable`."""
        content = {"port": port, "local": local}
        return self._link.call(models.Forward, "ports.forward", self.id, content=content)

    def stop_forward(self, port: int) -> models.Forward:
        """Its connections end. Raises `PortNotForwarded`."""
        return self._link.call(models.Forward, "ports.stop", self.id, str(port))

    def usage(self) -> models.Usage:
        return self._link.call(models.Usage, "spaces.usage", self.id)

    def verify(self) -> models.Proof:
        """Tries to break out, now."""
        return self._link.call(models.Proof, "spaces.verify", self.id)

    def _now(self, name: str, content: object = None) -> models.SpaceInfo:
        self.info = self._link.call(models.SpaceInfo, name, self.id, content=content)
        return self.info


class Files:
    """Of a space. Paths are relative to its tree; none leads out. `PathError`s."""

    def __init__(self, link: Link, space: str) -> None:
        self._link = link
        self._space = space

    def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """All of it, or the bytes from `start` up to (not with) `end`."""
        headers: list[tuple[str, str]] = []
        if start or end is not None:
            headers = [("Range", f"bytes={start}-{'' if end is None else end - 1}")]
        query = [("path", path)]
        answer = self._link.ask(operation("files.read", self._space, query=query, headers=headers))
        return answer.check().body

    def write(
        self, path: str, data: bytes | str | Iterable[bytes], *, mode: int | None = None
    ) -> None:
        """Replaces it as a whole, or makes it."""
        content = data.encode() if isinstance(data, str) else data
        query = [("path", path), ("mode", None if mode is None else f"{mode:03o}")]
        self._link.json(operation("files.write", self._space, query=query, body=content))

    def list(self, path: str = ".") -> list[models.File]:
        query = [("path", path)]
        return self._link.call(
            list[models.File], "files.list", self._space, query=query, member="entries"
        )

    def stat(self, path: str) -> models.File:
        query = [("path", path)]
        return self._link.call(models.File, "files.stat", self._space, query=query)

    def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        content = {"path": path, "mode": f"{mode:03o}", "parents": parents}
        self._link.json(operation("files.mkdir", self._space, content=content))

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        content = {"source": source, "target": target, "replace": replace}
        self._link.json(operation("files.move", self._space, content=content))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        query: list[tuple[str, object]] = [("path", path), ("recursive", recursive)]
        self._link.json(operation("files.delete", self._space, query=query))

    def download(self, path: str, dest: str | os.PathLike[str] = ".") -> transfer.CopyResult:
        """A file or folder to this machine: into a folder that is there, else under the new
        name. Symlinks that lead out are left out, and told."""
        return self._link.blocking(transfer.download, self._space, path, os.fspath(dest))

    def upload(self, source: str | os.PathLike[str], path: str = ".") -> transfer.CopyResult:
        """A file or folder of this machine, likewise."""
        return self._link.blocking(transfer.upload, self._space, os.fspath(source), path)


class RunHandle:
    """A command. Losing the handle, or the daemon, does not end it."""

    def __init__(self, link: Link, info: models.RunInfo) -> None:
        self._link = link
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.state}>"

    def refresh(self) -> models.RunInfo:
        self.info = self._link.call(models.RunInfo, "runs.show", self.id)
        return self.info

    def wait(self, timeout_s: float | None = None) -> models.RunInfo:
        """When it has ended, or as it is when the time is over."""
        for pause in waits(timeout_s):
            query = [("timeout_s", pause)]
            self.info = self._link.call(models.RunInfo, "runs.wait", self.id, query=query)
            if self.info.ended:
                break
        return self.info

    def signal(self, name: str) -> None:
        """To the command's process group: TERM, INT, KILL, …"""
        content = {"signal": name.upper().removeprefix("SIG")}
        self._link.json(operation("runs.signal", self.id, content=content))

    def output(self, *, stdout: int = 0, stderr: int = 0) -> Iterator[ExchangeOutput]:
        """All its output from these offsets on, as it comes, to its end. The command waits for
        who reads slowly. What was not kept before is counted as `Output.dropped`."""
        with self.attach(stdout=stdout, stderr=stderr) as stream:
            yield from stream
        self.info = models.decode(stream.exchange.run, models.RunInfo)

    def read(self, stream: Stream | str = Stream.STDOUT, *, offset: int = 0) -> bytes:
        """What there is of one stream now. `OutputLost` when some of it is not there any
        more; that has the rest."""
        pieces: list[bytes] = []
        missing = 0
        while True:
            query: list[tuple[str, object]] = [("stream", str(stream)), ("offset", offset)]
            answer = self._link.ask(operation("runs.output", self.id, query=query))
            answer.check()
            begin = int(answer.head.headers["carrel-offset"])
            missing += begin - offset
            offset = begin + len(answer.body)
            if not answer.body:
                break
            pieces.append(answer.body)
        if missing:
            raise OutputLost(self.id, missing, b"".join(pieces))
        return b"".join(pieces)

    def attach(self, *, stdout: int = 0, stderr: int = 0) -> RunStream:
        """Its streams, to be read, written to, resized."""
        exchange = RunExchange.attaching(self.id, stdout, stderr)
        return RunStream(self._link, exchange).open()
