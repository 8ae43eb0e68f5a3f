"""What happened to spaces, a line for each event: when, where, and what, in words."""

from __future__ import annotations

import time

from carrel.cli.output import cut, terminal_width
from carrel.cli.transcript import MOST_SUBJECT, call_text, cost_text, first_line
from carrel.cli.values import count_text, seconds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from carrel.cli.call import VerbCall

    Data = Mapping[str, Any]

_STATES = {
    "creating": "is being made",
    "ready": "is ready",
    "running": "runs something",
    "stopping": "is being stopped",
    "stopped": "is stopped",
    "failed": "has failed",
    "removing": "is being removed",
    "removed": "is removed",
}


class EventLines:
    """Knows the names of spaces, and asks for those that it does not know yet."""

    def __init__(self, call: VerbCall) -> None:
        self._call = call
        self._names: dict[str, str] = {"": "-"}
        self._width = terminal_width() or MOST_SUBJECT

    def line(self, event: Data) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds_of(event["at"])))
        data = event["data"] if isinstance(event["data"], dict) else {}
        what = first_line(_words(str(event["type"]), data))
        return cut(f"{at}  {self._name(event['space'] or '')}  {what}", self._width)

    def _name(self, space: str) -> str:
        if space not in self._names:
            self._names[space] = self._ask(space)
        return self._names[space]

    def _ask(self, space: str) -> str:
        from carrel.domain.errors import CarrelError

        try:
            return first_line(self._call.ask("spaces.show", space)["name"])
        except CarrelError:
            # Nobody knows it any more.
            return first_line(space)


def _words(type: str, data: Data) -> str:
    payload = data.get("payload")
    if type.startswith("agent.") and isinstance(payload, dict):
        known = _AGENT.get(type.removeprefix("agent."))
        return f"agent: {known(payload) if known else type}"
    words = _EVENTS.get(type)
    return words(data) if words else f"{type} {_plain(data)}"


def _plain(data: Data) -> str:
    """Texts and numbers of an event that has no words of its own; what is inside of something
    else is left out."""
    pairs = [(name, value) for name, value in data.items() if isinstance(value, str | int | float)]
    return " ".join(f"{name}={first_line(str(value))}" for name, value in pairs)


def _why(data: Data) -> str:
    """What was wrong, if something was."""
    problem = data.get("problem")
    if isinstance(problem, dict):
        problem = problem.get("message")
    return f": {problem}" if problem else ""


def _run_ended(data: Data) -> str:
    how = {
        "exited": f"ended with {data.get('code')}",
        "signaled": f"was ended by signal {data.get('signal')}",
    }
    reason = str(data.get("reason"))
    return f"{data.get('run_id')} {how.get(reason, f'ended: {reason}')}"


def _run_started(data: Data) -> str:
    argv = data.get("argv")
    return f"{data.get('run_id')} started: {' '.join(map(str, argv)) if argv else ''}"


def _reconciled(data: Data) -> str:
    actions = data.get("actions")
    return f"{len(actions) if isinstance(actions, list) else 0} things were put in order"


def _step(ending: str) -> Callable[[Data], str]:
    return lambda data: f"{data.get('operation')}: {data.get('step')} {ending}{_why(data)}"


def _text(before: str, field: str) -> Callable[[Data], str]:
    return lambda data: f"{before} {first_line(str(data.get(field, '')))}"


def _progress(data: Data) -> str:
    percent = data.get("percent")
    done = f" ({percent:g} %)" if isinstance(percent, int | float) else ""
    return f"reports{done}: {data.get('message')}"


_EVENTS: dict[str, Callable[[Data], str]] = {
    "space.state": lambda data: _STATES.get(str(data.get("to")), str(data.get("to"))) + _why(data),
    "space.updated": lambda data: f"has changed: {', '.join(map(str, data))}",
    "space.restored": _text("is restored from", "from"),
    "step.begun": _step("begins"),
    "step.done": _step("is done"),
    "step.failed": _step("failed"),
    "run.started": _run_started,
    "run.ended": _run_ended,
    "limit.hit": _text("reached a limit:", "message"),
    "service.state": lambda data: f"service {data.get('service')} is {data.get('to')}{_why(data)}",
    "instance.state": lambda data: (
        f"instance {data.get('instance_id')} ({data.get('server')}) is {data.get('to')}{_why(data)}"
    ),
    "server.failed": lambda data: f"the server {data.get('server')} failed{_why(data)}",
    "request.state": lambda data: (
        f"request {data.get('key') or data.get('request_id')} is {data.get('to')}"
        + (f": {data['message']}" if data.get("message") else "")
    ),
    "checkpoint.taken": lambda data: (
        f"no checkpoint: {data['problem']['message']}"
        if "problem" in data
        else f"checkpoint {data.get('checkpoint_id')}, {data.get('changed')} files changed"
    ),
    "checkpoint.rewound": lambda data: f"put back to {data.get('to')}",
    "ssh.begun": lambda data: f"somebody came by SSH ({data.get('place')})",
    "ssh.did": lambda data: f"by SSH: {data.get('what')}",
    "ssh.ended": lambda _data: "a connection by SSH was closed",
    "port.listens": lambda data: (
        f"{data.get('program') or 'something'} listens on port {data.get('port')}"
    ),
    "port.closed": lambda data: f"nothing listens on port {data.get('port')} any more",
    "forward.begun": lambda data: f"port {data.get('port')} is 127.0.0.1:{data.get('local')}",
    "forward.ended": lambda data: f"port {data.get('port')} is forwarded no more{_why(data)}",
    "space.forked": lambda data: f"forked from {data.get('from')}",
    "space.exported": lambda data: f"its work was exported as a {data.get('format')}",
    "race.begun": lambda data: f"is in the race {data.get('race')}",
    "landing.landed": lambda data: f"landed on {data.get('branch')}",
    "landing.queued": lambda data: f"is in line to land on {data.get('branch')}",
    "landing.checked": lambda data: (
        f"the check for {data.get('branch')} {'passed' if data.get('passed') else 'failed'}"
    ),
    "landing.returned": lambda data: f"does not land on {data.get('branch')}: {data.get('reason')}",
    "landing.undone": lambda data: f"the landing on {data.get('branch')} was taken back",
    "take.done": lambda data: f"{data.get('files')} files were taken from {data.get('from')}",
    "take.undone": lambda data: f"the take {data.get('take_id')} was taken back",
    "comment.added": lambda data: (
        f"a comment on {data.get('path')}:{data.get('line')}:"
        f" {first_line(str(data.get('text', '')))}"
    ),
    "comment.removed": lambda data: f"the comment {data.get('comment_id')} was removed",
    "comments.sent": lambda data: f"comments were sent to the agent: {data.get('turn')}",
    "reconciled": _reconciled,
    "event.unreadable": lambda data: (
        f"a message cannot be read: {data.get('type')}, {data.get('bytes')} bytes"
    ),
    "gap": lambda data: (
        f"events between {data.get('after')} and {data.get('first')} are no longer kept"
    ),
    "buffer_taskspace_progress": _progress,
    "buffer_taskspace_signal_user": _text("tells the user:", "message"),
    "buffer_user_question": _text("asks the user:", "question"),
    "buffer_user_answer": _text("the user answers:", "answer"),
    "buffer_user_seen": lambda _data: "the user has read what it told",
    "buffer_space_message": _text("gets a message:", "text"),
    "buffer_walkthrough": _text("explains its work:", "content"),
    "buffer_dropped": lambda data: (
        f"messages {data.get('first')} to {data.get('last')} are no longer kept"
    ),
}


# Of agents


def _state(data: Data) -> str:
    activity = data.get("activity")
    return str(activity) if activity else f"the turn is {data.get('state')}"


def _complete(data: Data) -> str:
    result = data.get("result")
    if not isinstance(result, dict):
        return "has ended"
    if result.get("success"):
        return f"is done: {first_line(str(result.get('final_output') or ''))}"
    error = result.get("error") or {}
    return f"has failed: {error.get('message')} ({error.get('code')})"


def _output(data: Data) -> str:
    text = str(data.get("output") or "").strip()
    more = f" … +{lines} lines" if (lines := text.count("\n")) else ""
    return f"{'failed' if data.get('is_error') else 'got'}: {first_line(text)}{more}"


def _permission(data: Data) -> str:
    decision = {"allow": "may", "deny": "may not"}.get(
        str(data.get("decision")), "asks whether it may"
    )
    return f"{decision} call {call_text(data.get('name'), data.get('input'))}"


def _log(data: Data) -> str:
    if "raw" in data:
        return "wrote something that Carrel does not understand"
    how = {"thinking": "thinks: ", "retry": "tries again: ", "error": "has a problem: "}
    return how.get(str(data.get("kind")), "") + first_line(str(data.get("text") or ""))


def _usage(data: Data) -> str:
    tokens = [value for name in ("input_tokens", "output_tokens") if (value := data.get(name))]
    whole = sum(value for value in tokens if isinstance(value, int | float))
    cost = data.get("cost_usd")
    price = cost_text({"cost_usd": cost}) if isinstance(cost, int | float) else ""
    return f"used {count_text(whole)} tokens{f', {price}' if price else ''}"


_AGENT: dict[str, Callable[[Data], str]] = {
    "state": _state,
    "message": _text("says:", "text"),
    "tool_call": lambda data: f"calls {call_text(data.get('name'), data.get('input'))}",
    "tool_result": _output,
    "permission": _permission,
    "usage": _usage,
    "log": _log,
    "complete": _complete,
}
