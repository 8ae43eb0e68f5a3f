"""Nobody keeps others out: neither strangers, nor one token, nor one space; and what is too deep
is refused at every door."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from carrel.daemon.main import THREAD_SHARES, SharedThreads
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind, working_for
from carrel.domain.errors import RateLimited
from carrel.domain.tar import pack_header
from carrel.hub.access import Identity
from carrel.hub.client import Sink
from carrel.hub.hub import HubServer
from carrel.hub.rates import Pace
from carrel.interfaces.http import connections
from carrel.interfaces.http.access import LOCAL_STATE, AccessLayer
from carrel.interfaces.http.body_limits import MAX_COMMAND, MAX_ITEMS
from carrel.interfaces.http.connections import UNFINISHED_BYTES
from carrel.interfaces.http.files import WHOLE
from carrel.interfaces.http.services import (
    ARCHIVES,
    BODY_BYTES,
    DIFFS,
    OUTCOMES,
    STREAMS,
    ApiContext,
    ApiOptions,
)
from carrel.interfaces.hub.sockets import LineConnection
from carrel.interfaces.hub.system import SystemRequests
from carrel.service.family import Family
from carrel.service.shared import TURN_S, CallerSlots
from carrel.service.tokens import Tokens
from tests.daemon.hub_rig import PYTHON, Line, line_to, make, speak
from tests.daemon.rig import ANSWER_S, Daemon, bad, good
from tests.daemon.test_inbox import carrel, question
from tests.idle_time import IdleTimeLoop

SETTINGS = """
tcp_connections = 32
hub_clients = 8
hub_clients_in_space = 3
hub_questions = 5
requests_at_once = 1
requests_waiting = 8
request_agent = "scripted"
"""


@pytest.fixture
def small(stopped: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """One with little room."""
    (tmp_path / "config.toml").write_text(SETTINGS)
    monkeypatch.setenv("CARREL_CONFIG", str(tmp_path / "config.toml"))
    stopped.forked = True
    return stopped.start()


def knock(daemon: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.port), ANSWER_S)


@contextlib.contextmanager
def crowd(daemon: Daemon, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(knock(daemon)) for _ in range(count)]


def head(secret: str) -> bytes:
    bearer = f"Authorization: Bearer {secret}\r\n" if secret else ""
    return f"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n".encode()


def status(connection: socket.socket) -> int:
    said = b""
    while b"\r\n" not in said and (piece := connection.recv(4096)):
        said += piece
    return int(said.split()[1])


def test_strangers_keep_neither_the_owner_nor_a_token_out(small: Daemon) -> None:
    """Silent ones, and such as are answered and stay. The oldest of them go."""
    secret = small.token("admin")
    with crowd(small, 60) as strangers, small.tcp(secret) as client:
        for one in strangers[-2:]:
            one.sendall(head(""))
            assert status(one) == 401
        good(client.get("/v1/info"))
        assert carrel(small, "ls")["spaces"] == []
        with crowd(small, 60):
            # The same connection, which has shown its token.
            good(client.get("/v1/info"))
            assert carrel(small, "ls")["spaces"] == []


def test_one_token_has_its_share_of_connections(small: Daemon) -> None:
    greedy, other = small.token("admin"), small.token("admin")
    with crowd(small, 3) as strangers, contextlib.ExitStack() as stack:
        mine = []
        for _ in range(8):
            mine.append(stack.enter_context(knock(small)))
            mine[-1].sendall(head(greedy))
            assert status(mine[-1]) == 200
        strangers[0].sendall(head(greedy))
        assert status(strangers[0]) == 503
        strangers[1].sendall(head(other))
        assert status(strangers[1]) == 200
        mine.pop().close()
        good(small.local().get("/v1/info"))
        for _ in range(100):
            with knock(small) as again:
                again.sendall(head(greedy))
                if status(again) == 200:
                    return
        pytest.fail("the place of one that has gone is not given out again")


def test_tokens_of_one_label_have_one_share_of_connections_and_of_the_hub(small: Daemon) -> None:
    """Who has more of them has no larger one."""
    blue = [small.token("label:team=blue") for _ in range(3)]
    red = small.token("label:team=red")
    with contextlib.ExitStack() as stack:
        for secret in blue[:2]:
            client = stack.enter_context(small.tcp_websocket("/v1/hub", secret))
            client.send(json.dumps(REGISTER))
            assert "code" not in json.loads(client.recv(ANSWER_S))["payload"]
        with small.tcp_websocket("/v1/hub", blue[2]) as third:
            assert json.loads(third.recv(ANSWER_S))["payload"]["code"] == "insufficient_resources"
        with small.tcp_websocket("/v1/hub", red) as other:
            other.send(json.dumps(REGISTER))
            assert "code" not in json.loads(other.recv(ANSWER_S))["payload"]
    with contextlib.ExitStack() as stack:
        answers = []
        for number in range(10):
            mine = stack.enter_context(knock(small))
            mine.sendall(head(blue[number % 3]))
            answers.append(status(mine))
        assert answers.count(200) <= 8 and answers[-1] == 503
        free = stack.enter_context(knock(small))
        free.sendall(head(red))
        assert status(free) == 200


REGISTER = {"type": "client_register", "id": "r", "payload": {"kind": "app"}}
JOIN = """
import json, os, socket
answers, kept = [], []
for number in range(6):
    hub = socket.socket(socket.AF_UNIX)
    hub.connect(os.environ["CARREL_HUB"])
    kept.append(hub)
    lines = hub.makefile("rw")
    try:
        print(json.dumps({"type": "client_register", "id": "r", "payload": {"kind": "agent"}}),
              file=lines, flush=True)
    except BrokenPipeError:
        pass
    answers.append(json.loads(lines.readline())["payload"].get("code", "in"))
print(json.dumps(answers))
if os.environ.get("STAY"):
    print(flush=True)
    import sys; sys.stdin.read()
"""


def test_one_space_has_its_share_of_the_hub(small: Daemon) -> None:
    greedy, other = make(small), make(small)
    body = {"argv": [PYTHON, "-c", JOIN], "env": {"STAY": "1"}, "stdin": True}
    with small.websocket(f"/v1/spaces/{greedy}/exec") as run:
        run.send(json.dumps(body))
        said = b""
        while not (found := re.search(rb"\[.*\]", said)):
            frame = run.recv(ANSWER_S)
            said += frame if isinstance(frame, bytes) else b""
        assert json.loads(found[0]) == ["in"] * 3 + ["insufficient_resources"] * 3
        speak(small, other, question(other, "q", "Still there?"))
        with contextlib.ExitStack() as stack:
            # The owner's are beside all of them.
            for _ in range(8):
                stack.enter_context(line_to(small))
            with contextlib.closing(Line(small)) as ninth:
                assert ninth.receive()["payload"]["code"] == "insufficient_resources"


def test_one_token_has_its_share_of_memory(daemon: Daemon) -> None:
    """Bodies that do not end are kept for a while, but not any number of them."""
    bearer = f"Authorization: Bearer {daemon.token('admin')}\r\n"
    begin = f"POST /v1/spaces/x/exec HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}Content-Length: "
    unfinished = f"{begin}{MAX_COMMAND}\r\n\r\n".encode() + b" " * (MAX_COMMAND - 1)
    with crowd(daemon, UNFINISHED_BYTES // MAX_COMMAND + 1) as connections:
        for connection in connections:
            connection.sendall(unfinished)
        answered, _, _ = select.select(connections, [], [], ANSWER_S)
        assert answered[0].recv(12) == b"HTTP/1.1 503"
        with daemon.tcp(daemon.token("admin")) as other:
            assert other.get("/v1/spaces").is_success


def test_what_takes_long_to_parse_takes_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies of one caller, one after the other, with time for others in between."""
    loop = IdleTimeLoop()
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=loop.time))
    done: list[float] = []

    async def one(room: connections.ConnectionLimits) -> None:
        await room.turn(asyncio.BaseTransport(), 1.0)
        done.append(loop.time())

    async def scenario() -> None:
        await asyncio.sleep(100)
        room = connections.ConnectionLimits(8)
        await asyncio.gather(*(one(room) for _ in range(4)))

    loop.run_until_complete(scenario())
    loop.close()
    pauses = [later - earlier for earlier, later in itertools.pairwise(done)]
    assert min(pauses) >= 1 and max(pauses) <= 2.1, done


def test_who_leaves_and_comes_again_has_the_same_share_of_time() -> None:
    room = connections.ConnectionLimits(8)
    first, second = asyncio.BaseTransport(), asyncio.BaseTransport()
    room.know(first, "tk_greedy")
    room.spend(first, 60.0)
    room.leave(first)
    room.know(second, "tk_greedy")
    pace = room.pace(second)
    assert pace is not None and pace.wait(time.monotonic()) > 60.0


async def test_the_owners_work_waits_for_no_thread_of_others() -> None:
    free = threading.Event()
    loop, threads = asyncio.get_running_loop(), SharedThreads(2)
    loop.set_default_executor(threads)
    theirs = contextvars.copy_context()
    theirs.run(working_for.set, "tk_blue")
    try:
        waiting = [
            loop.create_task(asyncio.to_thread(free.wait, ANSWER_S), context=theirs)
            for _ in range(4)
        ]
        async with asyncio.timeout(ANSWER_S):
            assert await asyncio.to_thread(lambda: not free.is_set())
        assert not any(one.done() for one in waiting)
    finally:
        free.set()
    assert all(await asyncio.gather(*waiting))


def test_a_body_of_countless_values_is_refused(daemon: Daemon) -> None:
    content = b'{"argv":["true"],"x":[' + b"0," * MAX_ITEMS + b"0]}"
    with daemon.local() as client:
        bad(client.post("/v1/spaces/x/exec", content=content), 413, "too_large")


def test_one_token_has_its_share_of_the_line(small: Daemon) -> None:
    greedy, other = small.token("admin"), small.token("admin")
    asked = {"instructions": "sleep 600"}
    with small.tcp(greedy) as client, small.tcp(other) as second, small.local() as owner:
        answers = [client.post("/v1/requests", json=asked) for _ in range(5)]
        codes = [one.json().get("code", "in") for one in answers]
        assert codes.count("in") == 3 and codes[-1] == "capacity", codes
        assert second.post("/v1/requests", json=asked).is_success
        assert owner.post("/v1/requests", json=asked).is_success


def test_a_space_asks_so_much_and_no_more(small: Daemon) -> None:
    space, other = make(small), make(small)
    asked = [question(space, f"q{number}", "Well?") for number in range(7)]
    codes = [one.get("error", one).get("code", "in") for one in speak(small, space, *asked)]
    assert codes == ["in"] * 5 + ["too_many_questions"] * 2
    speak(small, other, question(other, "mine", "And here?"))
    with small.local() as client:
        assert len(good(client.get("/v1/inbox"))["items"]) == 6
        good(client.post("/v1/inbox/q0/answer", json={"answer": "so"}))
    small.stop()
    small.start()
    again = [question(space, f"p{number}", "Well?") for number in range(3)]
    codes = [one.get("code", "in") for one in speak(small, space, *again)]
    assert codes == ["in", "too_many_questions", "too_many_questions"]


def test_spaces_of_one_label_ask_so_much_together(small: Daemon) -> None:
    """Each asks less than it may."""
    with small.tcp(small.token("label:team=asking")) as theirs:
        spaces = [good(theirs.post("/v1/spaces", json={}))["id"] for _ in range(8)]
    codes = []
    for space in spaces:
        asked = [question(space, f"q{number}", "Well?") for number in range(4)]
        codes += [one.get("error", one).get("code", "in") for one in speak(small, space, *asked)]
    assert codes == ["in"] * 25 + ["too_many_questions"] * 7
    mine = make(small)
    assert "code" not in speak(small, mine, question(mine, "mine", "And here?"))[0]


async def test_who_sends_byte_by_byte_is_read_less_often(tmp_path: Path) -> None:
    """All connections of a space together, and what they send still arrives."""
    reads: list[int] = []
    heard: list[bytes] = []
    gone: list[bool] = []

    class Counted(LineConnection):
        def data_received(self, data: bytes) -> None:
            reads.append(len(data))
            super().data_received(data)

    class Heard:
        is_behind = False

        def when_settled(self, _go_on: Callable[[], None]) -> None:
            """It never was behind."""

        def connect(self, _identity: Identity, _sink: Sink) -> Heard:
            return self

        def received(self, line: bytes) -> None:
            heard.append(line)

        def closed(self) -> None:
            gone.append(True)

    loop, pace, path = asyncio.get_running_loop(), Pace(0.005, 0.001), str(tmp_path / "hub")
    hub = cast(HubServer, Heard())
    server = await loop.create_unix_server(lambda: Counted(hub, Identity(LOCAL), pace), path)
    begun = time.monotonic()
    async with server, asyncio.timeout(ANSWER_S):
        clients = [(await asyncio.open_unix_connection(path))[1] for _ in range(2)]
        for number in range(200):
            for client in clients:
                client.write(b"x" if number < 199 else b"\n")
            # For the server to be woken by each of them.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        while len(heard) < 2:
            await asyncio.sleep(0.01)
        for client in clients:
            client.close()
            await client.wait_closed()
        while len(gone) < 2:
            await asyncio.sleep(0.01)
    assert heard == [b"x" * 199] * 2 and sum(reads) == 400
    assert len(reads) <= 10 + len(clients) + 50 * (time.monotonic() - begun) + 1


def test_a_message_in_countless_pieces_is_refused(daemon: Daemon) -> None:
    """Empty ones, which the size of a message does not count."""
    with daemon.tcp_websocket("/v1/hub", daemon.token("admin")) as hub:
        with pytest.raises(ConnectionClosed):
            hub.send(itertools.repeat("", 1 << 20))
        assert hub.close_code == 1009


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth - 1):
        found = {"a": found}
    return found


def test_what_is_too_deep_is_refused_at_every_door(daemon: Daemon) -> None:
    space = make(daemon)
    said = {"type": "buffer_custom_x", "id": "1", "space": space}
    with line_to(daemon) as line:
        for depth, code in ((63, None), (64, "message_invalid"), (900, "message_invalid")):
            line.send("buffer_custom_x", nested(depth), id=str(depth), space=space)
            answer = line.receive()
            while answer.get("reply_to") != str(depth) and answer["type"] != "error":
                answer = line.receive()
            assert answer["payload"].get("code") == code
    (answer,) = speak(daemon, space, {**said, "payload": nested(64)})
    assert answer["code"] == "message_invalid"
    with daemon.websocket("/v1/hub") as frames:
        frames.send(json.dumps({"type": "custom_x", "id": "1", "payload": nested(64)}))
        assert json.loads(frames.recv(ANSWER_S))["payload"]["code"] == "message_invalid"
    with daemon.websocket("/v1/requests") as frames:
        frames.send(json.dumps({"type": "generate", "instructions": nested(64)}))
        refused = json.loads(frames.recv(ANSWER_S))
        assert refused["code"] == "message_invalid" and "64 levels" in refused["message"]
    with daemon.local() as client:
        for depth in (65, 900, 100_000):
            body = b'{"a":' * depth + b"1" + b"}" * depth
            headers = {"Content-Type": "application/json"}
            for path in ("/v1/spaces", f"/v1/spaces/{space}/exec", "/v1/instances"):
                response = client.post(path, content=body, headers=headers)
                bad(response, 422, "message_invalid")
                assert "64 levels" in response.text
        told = client.get("/v1/events", headers={"Accept": "application/json"})
        assert [one["type"] for one in good(told)["events"]].count("buffer_custom_x") == 1


def test_one_caller_has_a_share_of_the_threads() -> None:
    """Also when all that it looks at waits in the kernel. What it gave up is not begun."""
    pool = SharedThreads(2 * THREAD_SHARES)
    unlocked, begun, left = threading.Event(), threading.Semaphore(0), []

    def look(number: int) -> int:
        begun.release()
        assert unlocked.wait(ANSWER_S)
        left.append(number)
        return number

    hostile = working_for.set("tk_hostile")
    asked = [pool.submit(look, number) for number in range(5 * THREAD_SHARES)]
    working_for.reset(hostile)
    assert begun.acquire(timeout=ANSWER_S) and begun.acquire(timeout=ANSWER_S)
    for name in ("tk_other", LOCAL.name):
        other = working_for.set(name)
        assert pool.submit(divmod, 7, 2).result(ANSWER_S) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result(ANSWER_S)
        working_for.reset(other)
    assert not begun.acquire(blocking=False) and asked.pop().cancel()
    unlocked.set()
    assert [one.result(ANSWER_S) for one in asked] == sorted(left) == list(range(len(asked)))
    pool.shutdown()


@pytest.mark.parametrize("scope", ["", "label:team=blue"])
async def test_whose_share_it_is_is_known_at_the_door(scope: str, tmp_path: Path) -> None:
    seen: list[str] = []

    class OneToken:
        async def caller(self, _secret: str) -> Caller:
            return Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))

    async def app(*_asgi: object) -> None:
        seen.append(working_for.get())

    layer = AccessLayer(app, cast(Tokens, OneToken()), ApiOptions(tmp_path, "1"))
    asked = {
        "type": "http",
        "method": "GET",
        "path": "/v1/spaces",
        "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer x")],
        "state": {} if scope else {LOCAL_STATE: True},
    }
    await layer(asked, cast(Any, None), cast(Any, None))
    assert seen == ["team=blue" if scope else LOCAL.name]


async def test_spaces_of_one_label_have_one_share() -> None:
    """However many it has made, each with a name of its own on the hub."""
    blue = SimpleNamespace(counts_for="team=blue")
    family = cast(Family, SimpleNamespace(member=lambda _own, _word: blue))
    nobody = cast(Any, None)
    requests = SystemRequests(nobody, nobody, family, nobody, nobody, nobody, nobody)
    seen: list[str] = []

    async def note(_client: object, _payload: object) -> None:
        seen.append(working_for.get())

    requests._handlers = {"system_list_spaces": note}
    for space_id in ("sp_1", "sp_2"):
        identity = Identity(Caller(space_id, Scope(ScopeKind.SPACE, space_id)), inside=True)
        client = cast(Any, SimpleNamespace(identity=identity))
        await asyncio.create_task(requests.answer(client, "", "system_list_spaces", None))
    assert seen == ["team=blue"] * 2


def test_two_callers_who_trickle_keep_no_third_waiting() -> None:
    """They lose their turns after a while, and have no more than their shares all the same."""

    async def scenario(slots: CallerSlots, most: int) -> None:
        async with contextlib.AsyncExitStack() as held:
            for name in ("blue", "red"):
                for _ in range(most // 2):
                    await held.enter_async_context(slots.of(name))
            async with asyncio.timeout(2 * TURN_S), slots.of("green"):
                pass
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(100 * TURN_S), slots.of("blue"):
                    pass

    nobody = cast(Any, None)
    context = ApiContext(nobody, nobody, nobody)
    kinds = ((context.streams, STREAMS), (context.diffs, DIFFS), (context.outcomes, OUTCOMES))
    for slots, most in (*kinds, (context.archives, ARCHIVES)):
        with contextlib.closing(IdleTimeLoop()) as loop:
            loop.run_until_complete(scenario(slots, most))


def test_files_that_wait_for_a_thread_have_a_bound() -> None:
    """Each is in memory, though its client has gone. What others send is not counted with it."""
    nobody = cast(Any, None)
    context = ApiContext(nobody, nobody, nobody)
    blue = [Caller(f"tk_{n}", Scope(ScopeKind.LABEL, "team=blue")) for n in range(2)]
    red = Caller("tk_3", Scope(ScopeKind.LABEL, "team=red"))
    with contextlib.ExitStack() as held:
        for _ in range(BODY_BYTES // WHOLE):
            held.enter_context(context.body(blue[0], WHOLE))
        with pytest.raises(RateLimited), context.body(blue[1], 1):
            pass
        for other in (red, LOCAL):
            held.enter_context(context.body(other, WHOLE))
        for _ in range(2 * BODY_BYTES // WHOLE):
            held.enter_context(context.body(LOCAL, WHOLE))
    assert not context.bodies


@contextlib.contextmanager
def uploading(daemon: Daemon, space: str, *, archive: bool) -> Iterator[list[httpx.Response]]:
    """By a token of the space, without an end until this ends; then it has its answer."""
    over, sent, answers = threading.Event(), threading.Event(), list[httpx.Response]()

    def body() -> Iterator[bytes]:
        """More than is taken before it is being written."""
        yield pack_header("big", b"0", 0o644, 0, size=1 << 30)
        yield from (bytes(1 << 20) for _ in range(64))
        sent.set()
        while not over.wait(0.1):
            yield bytes(8192)

    def upload() -> None:
        with daemon.tcp(daemon.token(f"space:{space}")) as client:
            path = {"path": "." if archive else "big"}
            where = f"/v1/spaces/{space}/{'archive' if archive else 'files'}"
            answers.append(client.put(where, params=path, content=body()))

    thread = threading.Thread(target=upload)
    thread.start()
    try:
        assert sent.wait(ANSWER_S)
        yield answers
    finally:
        over.set()
        thread.join(ANSWER_S)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("verb", ["stop", "remove"])
def test_an_upload_keeps_nobody_from_stopping_its_space(
    daemon: Daemon, verb: str, archive: bool
) -> None:
    space = make(daemon)
    with uploading(daemon, space, archive=archive) as answers, daemon.local() as client:
        if verb == "stop":
            good(client.post(f"/v1/spaces/{space}/stop"))
        else:
            good(client.delete(f"/v1/spaces/{space}", params={"force": True}))
    bad(answers[0], 409, "state_conflict")


def test_one_label_has_its_share_of_archives(daemon: Daemon) -> None:
    """Who does not read them has no more, by whichever of its tokens, and keeps nobody else out."""
    spaces = {team: make(daemon, labels={"team": team}) for team in ("blue", "red")}
    for space in spaces.values():
        body = {"argv": ["sh", "-c", "head -c 50000000 /dev/zero > big"]}
        with daemon.local() as owner:
            good(owner.post(f"/v1/spaces/{space}/exec", json=body))

    def archive(team: str, secret: str) -> socket.socket:
        connection = stack.enter_context(knock(daemon))
        where = f"GET /v1/spaces/{spaces[team]}/archive?path=.&plain=true HTTP/1.1\r\n"
        words = f"{where}Host: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
        connection.sendall(words.encode())
        return connection

    blue = itertools.cycle([daemon.token("label:team=blue") for _ in range(2)])
    with contextlib.ExitStack() as stack:
        mine = [archive("blue", next(blue)) for _ in range(ARCHIVES // 2)]
        assert {status(one) for one in mine} == {200}
        waiting = archive("blue", next(blue))
        for secret in (daemon.token("label:team=red"), daemon.token("admin")):
            assert status(archive("red", secret)) == 200
        assert not select.select([waiting], [], [], 0)[0]
        mine[0].close()
        assert status(waiting) == 200


def test_an_upload_and_a_start_keep_nobody_waiting(daemon: Daemon) -> None:
    """The space is ready, so the start has nothing to wait for, and nobody waits behind it."""
    space = make(daemon)
    token = daemon.token(f"space:{space}")
    with uploading(daemon, space, archive=False) as answers:
        with daemon.tcp(token) as client, daemon.local() as owner:
            good(client.post(f"/v1/spaces/{space}/start"))
            good(owner.post(f"/v1/spaces/{space}/exec", json={"argv": ["true"]}))
        assert not answers, "nor does the upload end"
    good(answers[0])


def test_who_is_not_the_owner_stops_with_a_short_grace(daemon: Daemon) -> None:
    """The owner's removal waits for it."""
    space = make(daemon)
    with daemon.tcp(daemon.token(f"space:{space}")) as client, daemon.local() as owner:
        for verb in ("stop", "restart"):
            where = f"/v1/spaces/{space}/{verb}"
            bad(client.post(where, json={"grace_s": 31}), 422, "message_invalid")
            good(client.post(where, json={"grace_s": 30}))
            good(owner.post(where, json={"grace_s": 600}))
