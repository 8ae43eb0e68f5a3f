"""Commands through the sync client: streams, input, signals, and a daemon that goes away."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from carrel import Client, CommandFailed, errors
from carrel.client import OutputLost, RunHandle, Space
from carrel.client.exchange import STDERR, STDOUT, RunExchange
from carrel.client.streams import RunStream
from carrel.daemon import control
from carrel.domain.runs import RunState, Stream
from carrel.domain.runtimes import ExitReason
from tests.agents.recording.running import wait_until
from tests.client.killing import COUNT, COUNTING, GONE_S, kill
from tests.daemon.rig import Daemon, good, post

MUCH = 40_000_000
"""More than is kept of a stream."""
AWAY_S = 0.7
"""In which those that watch would start a daemon, if they did."""


class TestResults:
    def test_streams_are_apart_and_bytes_are_bytes(self, space: Space) -> None:
        result = space.run(["sh", "-c", r"printf 'a\377\000b'; printf err >&2; exit 3"])
        assert (result.stdout_bytes, result.stderr_bytes) == (b"a\xff\0b", b"err")
        assert result.stdout == "a\ufffd\0b" and result.stderr == "err"
        assert result.code == 3 and not result.ok
        assert result.run.space == space.id and result.run.exit is not None

    def test_arguments_are_arguments(self, space: Space) -> None:
        words = ["", "a b", "*", "$HOME", "ü", os.fsdecode(b"\xff"), "--"]
        result = space.run(["printf", r"%s\n", *words])
        assert result.stdout_bytes == b"".join(os.fsencode(word) + b"\n" for word in words)

    @pytest.mark.parametrize(
        "words",
        [["x" * 122_880] * 15, ["ab"] * 120_000, ["ж" * 60_000] * 8, [os.fsdecode(b"\xff")] * 9],
        ids=["long", "many", "not ASCII", "no text"],
    )
    def test_all_that_the_kernel_takes(
        self, space: Space, daemon: Daemon, words: list[str]
    ) -> None:
        size = sum(len(os.fsencode(word)) for word in words)
        argv = ["sh", "-c", 'echo $#; printf %s "$@" | wc -c', "zero", *words]
        assert space.run(argv).stdout.split() == [str(len(words)), str(size)]
        with daemon.local() as http:
            done = good(post(http, f"/v1/spaces/{space.id}/exec", {"argv": argv}))
        assert done["stdout"].split() == [str(len(words)), str(size)]

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (["x" * 122_880] * 20, "command_invalid"),
            (["a"] * 250_000, "command_invalid"),
            (["x" * 131_072], "command_invalid"),
            (["x" * 131_073], "message_invalid"),
            (["x" * (1 << 20)], "message_invalid"),
            (["a"] * 300_000, "message_invalid"),
            (["x" * 122_880] * 40, "too_large"),
            (["x" * 122_880] * 300, "too_large"),
        ],
    )
    def test_more_than_that_is_refused(
        self, space: Space, daemon: Daemon, words: list[str], code: str
    ) -> None:
        argv = ["true", *words]
        with pytest.raises(errors.CarrelError) as caught:
            space.run(argv)
        assert caught.value.code == code and caught.value.hint
        with pytest.raises(errors.CarrelError) as caught:
            space.start_run(argv)
        assert caught.value.code == code
        with daemon.local() as http:
            answer = post(http, f"/v1/spaces/{space.id}/exec", {"argv": argv})
        assert answer.json()["code"] == code
        assert space.run(["echo", "still"]).stdout == "still\n"

    def test_environment_and_folder(self, space: Space) -> None:
        result = space.run(["sh", "-c", "echo $X; pwd"], env={"X": "y"}, cwd="sub")
        assert result.stdout.startswith("y\n") and result.stdout.strip().endswith("/sub")

    def test_how_it_ended(self, space: Space) -> None:
        killed = space.run(["sh", "-c", "kill -TERM $$"])
        assert killed.code == 143 and killed.run.exit is not None
        assert killed.run.exit.reason is ExitReason.SIGNALED
        late = space.run(["sleep", "60"], timeout_s=0.2)
        assert late.code == 124 and late.run.exit is not None
        assert late.run.exit.reason is ExitReason.TIMEOUT

    def test_what_cannot_be_started(self, space: Space) -> None:
        with pytest.raises(errors.CommandNotFound):
            space.run(["no-such-command"])
        with pytest.raises(errors.CommandNotExecutable):
            space.run(["./README.md"])
        with pytest.raises(errors.CarrelError):
            space.run([])
        with pytest.raises(CommandFailed, match="false ended with 1"):
            space.run(["false"], check=True)

    def test_much_output(self, space: Space) -> None:
        size = 20_000_000
        result = space.run(["sh", "-c", f"yes 0123456789 | head -c {size}"])
        assert len(result.stdout_bytes) + (result.truncated and size) >= size
        assert result.stdout_bytes.endswith(b"0123456789\n"[: size % 11])
        short = space.run(["sh", "-c", "seq 100000"], max_output_bytes=12)
        assert short.stdout == "99999\n100000\n"[-12:] and short.truncated


class TestInput:
    @pytest.mark.parametrize("size", [0, 1, 65536, 3_000_000])
    def test_it_arrives_and_ends(self, space: Space, size: int) -> None:
        data = os.urandom(size)
        assert space.run(["cat"], stdin=data).stdout_bytes == data

    def test_text_and_files(self, space: Space) -> None:
        assert space.run(["cat"], stdin="text").stdout == "text"
        assert space.run(["cat"], stdin=io.BytesIO(b"x" * 100_000)).stdout == "x" * 100_000

    def test_without_there_is_none(self, space: Space) -> None:
        assert space.run(["cat"]).stdout == ""

    def test_a_command_need_not_read_it(self, space: Space) -> None:
        result = space.run(["head", "-c", "5"], stdin=b"hello" * 1_000_000)
        assert result.stdout == "hello" and result.code == 0
        assert space.run(["true"], stdin=b"x" * 5_000_000).code == 0


class TestHandles:
    def test_it_goes_on_by_itself(self, client: Client, space: Space) -> None:
        run = space.start_run(["sh", "-c", "cat; echo err >&2; sleep 0.1; exit 5"], stdin="in\n")
        found = client.run(run.id)
        assert found.wait().exit is not None and found.info.state is RunState.ENDED
        assert found.info.exit is not None and found.info.exit.code == 5
        assert run.read() == b"in\n" and run.read(Stream.STDERR) == b"err\n"
        assert run.read(offset=1) == b"n\n"
        assert run.id in [one.id for one in space.runs()]

    def test_waiting_has_an_end(self, space: Space) -> None:
        run = space.start_run(["sleep", "60"])
        begun = time.monotonic()
        assert run.wait(timeout_s=0.2).state is RunState.RUNNING
        assert run.wait(timeout_s=0).state is RunState.RUNNING
        assert time.monotonic() - begun < GONE_S
        run.signal("SIGKILL")
        ended = run.wait()
        assert ended.exit is not None and ended.exit.signal == 9
        with pytest.raises(errors.MessageInvalid):
            run.signal("NOPE")

    def test_output_comes_as_it_is_written(self, space: Space) -> None:
        space.run(["mkfifo", "fifo"])
        run = space.start_run(["sh", "-c", "echo 1; read x < fifo; echo 2; echo e >&2"])
        output = run.output()
        first = next(output)
        assert (first.stream, first.data) == (STDOUT, b"1\n")
        space.run(["sh", "-c", "echo go > fifo"])
        rest = [(one.stream, one.data) for one in output]
        assert sorted(rest) == [(STDOUT, b"2\n"), (STDERR, b"e\n")]
        assert run.info.state is RunState.ENDED
        assert [one.data for one in run.output(stdout=2, stderr=2)] == [b"2\n"]

    def test_what_nobody_was_attached_for_is_told(self, space: Space) -> None:
        """The newest part is there."""
        run = space.start_run(["head", "-c", str(MUCH), "/dev/zero"])
        run.wait()
        outputs = list(run.output())
        missing = sum(one.dropped for one in outputs)
        kept = sum(len(one.data) for one in outputs)
        assert missing > 0 and missing + kept == MUCH
        with pytest.raises(OutputLost) as told:
            run.read()
        assert (told.value.missing, len(told.value.data)) == (missing, kept)
        assert len(run.read(offset=missing)) == kept

    def test_a_slow_reader_slows_the_command(self, space: Space) -> None:
        """It is not done before most of it was read."""
        command = {"argv": ["head", "-c", str(MUCH), "/dev/zero"]}
        exchange = RunExchange.starting(space.id, command)
        with RunStream(space._link, exchange).open() as stream:
            outputs = iter(stream)
            seen = len(next(outputs).data)
            run = space.runs()[0]
            assert run.wait(timeout_s=0.5).state is RunState.RUNNING
            seen += sum(len(one.data) for one in outputs)
        assert (seen, exchange.missing, exchange.run["exit"]["code"]) == (MUCH, 0, 0)

    def test_a_terminal_is_one(self, space: Space) -> None:
        command = {"argv": ["sh"], "terminal": True, "rows": 11, "cols": 22}
        link = space._link
        with RunStream(link, RunExchange.starting(space.id, command)).open() as stream:
            stream.exchange.input(b"stty size; tty; exit 4\n")
            text = b"".join(output.data for output in stream)
        assert b"11 22" in text and b"/dev/pts/" in text
        assert stream.exchange.run["exit"]["code"] == 4

    def test_attaching_twice_shows_the_same(self, space: Space) -> None:
        run = space.start_run(["seq", "1000"])
        wanted = b"".join(b"%d\n" % number for number in range(1, 1001))
        for _ in range(2):
            assert b"".join(one.data for one in run.output()) == wanted


BEGIN = "dd bs=1 count=1 of=begun 2>&-"
"""Takes the first byte of what a command is given: then its client has been told that it runs, or
it could not go on without the daemon."""


@contextlib.contextmanager
def killed_when_begun(daemon: Daemon, space: Space) -> Iterator[None]:
    """The daemon of a command that has begun; afterwards the command may go on."""

    def act() -> None:
        with Client(data=daemon.data) as client:
            files = client.get(space.id).files
            wait_until(lambda: any(one.name == "begun" and one.size for one in files.list(".")))
            kill(daemon)
            files.write("go", b"")

    with ThreadPoolExecutor(1) as threads:
        acting = threads.submit(act)
        yield
        acting.result()


class TestRestarts:
    """A counting command: every number comes once, in order, whatever happens meanwhile."""

    @pytest.fixture
    def space(self, own_daemon: Daemon, project: Path) -> Iterator[Space]:
        with Client(data=own_daemon.data) as client, client.space(project) as found:
            yield found

    def watch(self, run: RunHandle, meanwhile: dict[int, Callable[[], None]]) -> None:
        """Reads the command's output, doing things at some numbers."""
        got = {STDOUT: b"", STDERR: b""}
        for output in run.output():
            assert not output.dropped
            got[output.stream] += output.data
            for number in [one for one in meanwhile if f"{one}\n".encode() in output.data]:
                meanwhile.pop(number)()
        numbers = range(COUNT)
        assert got[STDOUT] == b"".join(b"%d\n" % number for number in numbers)
        assert got[STDERR] == b"".join(b"e%d\n" % number for number in numbers)
        assert run.info.exit is not None and run.info.exit.code == 0
        assert not meanwhile

    def test_killed_daemons_are_started_again(self, own_daemon: Daemon, space: Space) -> None:
        run = space.start_run(["sh", "-c", COUNTING])
        self.watch(run, {5: lambda: kill(own_daemon), 30: lambda: kill(own_daemon)})

    def test_a_daemon_that_was_ended_is_waited_for(self, own_daemon: Daemon, space: Space) -> None:
        """Somebody wanted it to end, so it is not started by those who watch."""
        run = space.start_run(["sh", "-c", COUNTING])
        states: list[bool] = []

        def restart() -> None:
            own_daemon.stop()
            threading.Event().wait(AWAY_S)
            states.append(control.status(own_daemon.data).running)
            own_daemon.start()

        # A daemon that ends waits for those that listen, so this goes on listening.
        restarting = threading.Thread(target=restart)
        self.watch(run, {5: restarting.start})
        restarting.join()
        assert states == [False]

    def test_a_result_is_complete(self, own_daemon: Daemon, space: Space) -> None:
        with killed_when_begun(own_daemon, space):
            result = space.run(["sh", "-c", f"{BEGIN}; {COUNTING}"], stdin=b"x")
        assert result.stdout.split() == [str(number) for number in range(COUNT)]
        assert result.code == 0

    def test_input_on_its_way_is_not_lost(self, own_daemon: Daemon, space: Space) -> None:
        """The command reads late, so that most of it waits somewhere on the way."""
        content = os.urandom(3_000_000)
        late = f"{BEGIN}; until [ -e go ]; do sleep 0.05; done; exec cat begun -"
        with killed_when_begun(own_daemon, space):
            result = space.run(["sh", "-c", late], stdin=content)
        assert result.code == 0
        whole = result.stdout_bytes == content
        assert whole, len(result.stdout_bytes)

    def test_one_who_does_not_come_back_is_given_up(
        self, own_daemon: Daemon, space: Space, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("carrel.client.exchange.RetryDelay.TOTAL_S", 0.5)
        run = space.start_run(["sleep", "30"])
        with run.attach() as stream:
            # A daemon that ends waits for those that listen, so this goes on listening.
            ending = threading.Thread(target=own_daemon.stop)
            ending.start()
            with pytest.raises(errors.DaemonUnavailable, match="did not come back") as caught:
                list(stream)
            ending.join()
        assert run.id in caught.value.hint
        own_daemon.start()

    def test_a_space_is_made_once(self, own_daemon: Daemon, space: Space, project: Path) -> None:
        """Killed while it is made: the daemon is asked again, and there is one in the end."""
        (project / "many").mkdir()
        for number in range(3000):
            (project / "many" / str(number)).write_text(str(number))
        with Client(data=own_daemon.data) as client:
            killed: list[object] = []

            def once(step: object) -> None:
                if not killed:
                    killed.append(step)
                    kill(own_daemon)

            made = client.create(project, on_progress=once, labels={"once": "yes"})
            assert killed
            found = [one.id for one in client.spaces(labels={"once": "yes"})]
            assert found == [made.id]
            assert made.run(["sh", "-c", "ls many | wc -l"]).stdout.strip() == "3000"
            made.remove(force=True)
