"""Notifications: tells a person what waits for an answer, on the desktop or by a webhook, in
order and from where it was before a restart; and sends the outcome of a request to the address
that its caller gave.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import html
import json
import logging
import os
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from pathlib import Path
from typing import Any, Protocol, cast

from carrel.domain.hub import ANSWER, QUESTION, SIGNAL, HubLog, LogEnd, Placed, PlaceQuery
from carrel.domain.requests import Webhook
from carrel.service.requests.book import NotSent
from carrel.service.shared import CallerSlots

TYPES = frozenset({QUESTION, ANSWER, SIGNAL})
BATCH = 100
TRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries: a service that is restarted is back soon, one that is gone is not asked
more often than that."""
AT_ONCE_BY_WAY = 2
"""Notices. Accounts take turns at them."""
MOST_WAITING = 20
"""Signals of one space that wait to be told, and as many questions: who may answer them may ask any
number. Those beyond are told as one."""
MOST_TOLD = 10_000
"""Characters of one, as the inbox shows them: all that waits is in memory."""
MOST_KNOWN = 1000
"""Ids of questions that are told as one. More of one space than it may have open (`hub_questions`)
are only counted, and so told when they are answered."""
ASKS = "question"
_log = logging.getLogger("carrel.notify")

Notice = dict[str, Any]
Failed = Callable[[str, Notice, str], None]
"""The space, what was to be told, and why it was not."""


class NotTold(Exception):
    """This way is closed now; `for_good` when it makes no sense to try again."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class NoticeChannel(Protocol):
    """To a person. Raises `NotTold`."""

    async def tell(self, notice: Notice) -> None: ...


class Notifier:
    """`note` is the file in which it says how far it has come. What one account has to say goes out
    in order; accounts take turns, and none waits for another's tries."""

    def __init__(
        self,
        log: HubLog,
        end: LogEnd,
        note: Path,
        ways: Sequence[NoticeChannel],
        failed: Failed,
        account: Callable[[str], str] = str,
    ) -> None:
        """`account` gives whose a space is."""
        self._log = log
        self._end = end
        self._note = note
        self._ways = [(way, asyncio.Semaphore(AT_ONCE_BY_WAY)) for way in ways]
        self._failed = failed
        self._account = account
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._bell = asyncio.Event()
        self._caught_up = asyncio.Event()

    def ring(self, _spaces: object = None) -> None:
        """There is something new in the log."""
        self._bell.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        place = noted = await self._begin()
        last = await self._log.last_place()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._bell.clear()
                await self._end.settled()
                found = await self._log.read(PlaceQuery(place, None, TYPES, BATCH))
                for one in found:
                    self._take(one, tasks)
                    place = one.place
                if place >= last or not found:
                    # What was answered before a restart is known now.
                    self._caught_up.set()
                # What waits is told again after a crash, with what came after it.
                untold = [lane.waiting[0].place for lane in self._lanes.values() if lane.waiting]
                told = min([place, *(one - 1 for one in untold)])
                if told != noted:
                    # A full disk may have room the next time.
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(self._write, told)
                        noted = told
                if not found:
                    await self._bell.wait()

    async def _begin(self) -> int:
        """What was there before anybody wanted to hear of it is not told."""
        try:
            return int(self._note.read_text())
        except (OSError, ValueError):
            await self._end.settled()
            place = await self._log.last_place()
            await asyncio.to_thread(self._write, place)
            return place

    def _take(self, placed: Placed, tasks: asyncio.TaskGroup) -> None:
        try:
            notice = _notice(placed)
        except (ValueError, KeyError, TypeError):
            _log.warning("message %d of %s cannot be read", placed.seq, placed.space_id)
            return
        account = self._account(placed.space_id)
        for number in range(len(self._ways)):
            lane = self._lanes.get((account, number))
            if placed.type == ANSWER:
                if lane is not None:
                    lane.leave_out(placed.space_id, notice["id"])
                continue
            if lane is not None:
                lane.add(_Waiting(placed.place, notice))
                continue
            lane = self._lanes[account, number] = _Lane()
            lane.add(_Waiting(placed.place, notice))
            tasks.create_task(self._serve(account, number))

    async def _serve(self, account: str, number: int) -> None:
        lane = self._lanes[account, number]
        await self._caught_up.wait()
        while lane.waiting:
            await self._tell_by(*self._ways[number], lane)
            lane.end()
            self._bell.set()
        del self._lanes[account, number]

    async def _tell_by(self, way: NoticeChannel, turns: asyncio.Semaphore, lane: _Lane) -> None:
        pause_s, why, notice = FIRST_PAUSE_S, "", lane.begin()
        for _ in range(TRIES):
            try:
                async with turns:
                    if not lane.is_answered:
                        await way.tell(notice)
                return
            except NotTold as error:
                why = str(error)
                if error.for_good:
                    break
            except Exception as error:
                # What a stranger wrote is not to end all notices.
                why = f"{type(error).__name__}: {error}"
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        _log.warning("a person could not be told: %s", why)
        self._failed(notice["space"], notice, why)

    def _write(self, place: int) -> None:
        draft = self._note.with_suffix(".new")
        draft.write_text(str(place))
        os.replace(draft, self._note)


@dataclass
class _Waiting:
    """`more`: it stands for so many of its kind, of which it is the first place; how many of each
    id, as far as these are known."""

    place: int
    notice: Notice
    more: Counter[str] = field(default_factory=Counter)


class _Lane:
    """What one account has to say by one way, in order. The first is being told."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self._more: dict[tuple[str, str], _Waiting] = {}
        """By space and kind."""
        self._begun = False
        self.is_answered = False
        """The one that is being told, which may be tried again and again."""

    def add(self, one: _Waiting) -> None:
        key = _key(one)
        more = self._more.get(key)
        if more is None:
            if sum(_key(of) == key for of in self.waiting) >= MOST_WAITING:
                self._more[key] = more = one
            self.waiting.append(one)
        if more is not None:
            more.notice = one.notice
            asks = one.notice["kind"] == ASKS and len(more.more) < MOST_KNOWN
            more.more[one.notice["id"] if asks else ""] += 1

    def leave_out(self, space: str, number: str) -> None:
        """A question that was answered, and was not told yet."""
        if (more := self._more.get((space, ASKS))) is not None:
            del more.more[number]
            if not more.more:
                del self._more[space, ASKS]
                self.waiting.remove(more)
        for one in list(self.waiting):
            if _key(one) == (space, ASKS) and one.notice["id"] == number and not one.more:
                if self._begun and one is self.waiting[0]:
                    self.is_answered = True
                else:
                    self.waiting.remove(one)

    def begin(self) -> Notice:
        """The first, which takes no more of its kind from now on."""
        self._begun, self.is_answered = True, False
        one = self.waiting[0]
        if not one.more:
            return one.notice
        del self._more[_key(one)]
        count, last = one.more.total(), next(reversed(one.more))
        text = f"… and {count} more. The log has them: carrel log {one.notice['space']}"
        return {**one.notice, "id": last or one.notice["id"], "text": text, "more": count}

    def end(self) -> None:
        self._begun = False
        self.waiting.popleft()


def _key(waiting: _Waiting) -> tuple[str, str]:
    return waiting.notice["space"], waiting.notice["kind"]


def _notice(placed: Placed) -> Notice:
    envelope = json.loads(placed.body)
    if placed.type == ANSWER:
        return {"id": envelope["reply_to"]}
    payload = envelope["payload"]
    asks = placed.type == QUESTION
    return {
        "kind": ASKS if asks else "signal",
        "id": envelope["id"],
        "space": placed.space_id,
        "seq": placed.seq,
        "at": placed.at,
        "text": (payload["question"] if asks else payload["message"])[:MOST_TOLD],
        "choices": payload.get("choices", []),
        "priority": "high" if asks else payload.get("priority", "medium"),
        "suggested_actions": payload.get("suggested_actions", []),
    }


# The desktop of the daemon's user, where there is one

PROGRAM = "notify-send"
WAIT_S = 10.0
"""It hands the words over and ends; a session that hangs is not waited for."""
MAX_TEXT = 500
_URGENCY = {"low": "low", "medium": "normal", "high": "normal", "urgent": "critical"}
_SESSION = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")


class Desktop:
    """Implements `NoticeChannel`."""

    def __init__(self, program: str) -> None:
        self._program = program

    async def tell(self, notice: Notice) -> None:
        asks = "asks" if notice["kind"] == ASKS else "says"
        words = [
            *(self._program, "--app-name=Carrel", f"--urgency={_URGENCY[notice['priority']]}"),
            *("--", f"{notice['space']} {asks}", html.escape(notice["text"][:MAX_TEXT])),
        ]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise NotTold(f"{self._program}: {error.strerror}", for_good=True) from None
        try:
            async with asyncio.timeout(WAIT_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise NotTold(f"{self._program} does not end", for_good=True) from None
        if code:
            raise NotTold(f"{self._program} ended with {code}", for_good=True)


def find_desktop(env: Mapping[str, str]) -> Desktop | None:
    """None where there is no session to show it in, or no program for it."""
    program = shutil.which(PROGRAM, path=env.get("PATH", os.defpath))
    if program is None or not any(env.get(name) for name in _SESSION):
        return None
    return Desktop(program)


# A webhook: each notice is sent to an address of the administrator, as JSON

LATER = (408, 425, 429)
"""Refusals that say: not now."""
WHOLE_S = 30.0
"""For all of one post: a host that answers byte by byte is never silent for long."""


class NoticeWebhook:
    """Implements `NoticeChannel`. At least once: whoever answers too late gets it again."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def tell(self, notice: Notice) -> None:
        await asyncio.to_thread(self._post, json.dumps(notice).encode())

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "carrel"}
        refusal = post(self._address, body, headers)
        if refusal is not None:
            raise NotTold(f"the webhook {refusal.message}", for_good=refusal.for_good)


@dataclass(frozen=True)
class Refusal:
    """Why something did not arrive, after the name of who was to have it, and whether another
    try is of no use."""

    message: str
    for_good: bool = False


def post(url: str, body: bytes, headers: dict[str, str]) -> Refusal | None:
    """Blocking, for `WHOLE_S` at most, and some seconds to find the host. Where it points was
    checked or chosen: nobody on the way may point elsewhere."""
    request = urllib.request.Request(url, body, headers, method="POST")
    connections = _Connections()
    opener = urllib.request.build_opener(NoRedirect, connections.plain(), connections.secure())
    try:
        with connections, opener.open(request, timeout=WAIT_S) as answer:
            answer.read(1)
        if connections.late:
            # What came before it was shut down may look like an answer.
            return Refusal(f"did not answer within {WHOLE_S:g} seconds")
    except urllib.error.HTTPError as error:
        with error:
            for_good = error.code < 500 and error.code not in LATER
        return Refusal(f"answered {error.code}", for_good)
    except (OSError, ValueError, HTTPException) as error:
        return Refusal(f"cannot be reached: {error}", isinstance(error, InvalidURL))
    return None


class _Connections:
    """Those of one post; they are shut down when its time is over."""

    def __init__(self) -> None:
        self.late = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(WHOLE_S, self._shut)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for one in self._sockets:
            one.close()

    def plain(self) -> urllib.request.BaseHandler:
        noted = self._noted(HTTPConnection)

        class Plain(urllib.request.HTTPHandler):
            def http_open(self, request: urllib.request.Request) -> HTTPResponse:
                return self.do_open(noted, request)

        return Plain()

    def secure(self) -> urllib.request.BaseHandler:
        noted = self._noted(HTTPSConnection)

        class Secure(urllib.request.HTTPSHandler):
            def https_open(self, request: urllib.request.Request) -> HTTPResponse:
                return self.do_open(noted, request)

        return Secure()

    def _noted(self, kind: Callable[..., HTTPConnection]) -> Callable[..., HTTPConnection]:
        def connect(*where: Any, **how: Any) -> socket.socket:
            made = socket.create_connection(*where, **how)
            # Another name of it: the first one is given away when TLS begins.
            self._sockets.append(made.dup())
            return made

        def make(*where: Any, **how: Any) -> HTTPConnection:
            connection: Any = kind(*where, **how)
            connection._create_connection = connect
            return cast(HTTPConnection, connection)

        return make

    def _shut(self) -> None:
        self.late = True
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


# The outcomes of requests

AT_ONCE = 8
"""Of all accounts but the owner's, who has as many; one has half at most."""
SIGNATURE = "Carrel-Signature"
"""`sha256=` and the HMAC of the body with the caller's secret, in hexadecimal."""


class OutcomeSender:
    """Implements `Sender`. At least once: whoever answers too late gets it again."""

    def __init__(self) -> None:
        self._turns = CallerSlots(AT_ONCE)
        # Not those of the daemon, which all else would wait for behind a host that is silent.
        self._threads = ThreadPoolExecutor(2 * AT_ONCE, "carrel-outcomes")

    async def send(
        self, account: str, webhook: Webhook, body: Callable[[], Awaitable[bytes]]
    ) -> None:
        loop = asyncio.get_running_loop()
        async with self._turns.of(account):
            await loop.run_in_executor(self._threads, self._post, webhook, await body())

    def _post(self, webhook: Webhook, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "carrel"}
        if webhook.secret:
            signed = hmac.new(webhook.secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={signed}"
        refusal = post(webhook.url, body, headers)
        if refusal is not None:
            raise NotSent(f"it {refusal.message}", for_good=refusal.for_good)
