"""Turns of agents: give an agent something to do, and what it needs for that; see what it does,
permit it, interrupt it."""

from __future__ import annotations

import os

from carrel.cli.call import FAILED, VerbCall, invalid, text_of, without_empty
from carrel.cli.output import (
    AnswerTable,
    clean,
    fields,
    flush,
    is_terminal,
    put,
    tell,
    terminal_width,
)
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.transcript import (
    TRANSCRIPT_OPTIONS,
    Transcript,
    cost_text,
    duration_of,
    ending_of,
    first_line,
    harmless,
)
from carrel.cli.values import age_of, count_text, size_text
from carrel.cli.verbs.agents import confirm, renew_login
from carrel.cli.verbs.hub import hub_place, space_id
from carrel.client import turns as agent_turns
from carrel.client.http import LONG_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

AGENT = Option("--agent NAME", "The frontend: see `carrel agents`.")
PERMISSION = "--permission ask|sandboxed|deny"
START_OPTIONS = (
    Option("--model TEXT", "Use this model; otherwise the frontend's default.", to="turn.model"),
    Option("--session NAME", "Name the conversation.", to="turn.session"),
    Option(PERMISSION, "Choose what it may do without asking.", to="turn.permission"),
    Option("--trust", "Agree to the settings and hooks that the project brings.", to="turn.trust"),
    Option("--turn-env K=V", "Set a variable for this turn only.", to="turn.env"),
    Option("--attach FILE...", "Send a file of this machine with the prompt."),
    Option("--context FILE...", "Give the agent a document to read from now on."),
    Option("--system-prompt TEXT|@FILE", "Add to the agent's system prompt for this turn."),
)
"""Options of every verb that starts an agent."""
TURN_OPTIONS = (
    Option("--wait", "Wait until it has ended; print what the agent said last."),
    *START_OPTIONS,
    Option("--timeout TIME", "End the turn after this time.", to="turn.timeout_s"),
    Option(
        "--answer TIME",
        "Deny permissions that nobody gives within this time (5m).",
        to="turn.answer_s",
    ),
    *TRANSCRIPT_OPTIONS,
)
"""Options of every verb that begins a turn."""
CONTINUE_OPTIONS = (
    Option("--continue", "Go on with the last conversation of this space."),
    Option("--resume KEY", "Go on with this conversation."),
)


# What a turn is asked for


def content(call: VerbCall, prompt: str) -> dict[str, Any]:
    """The turn as the API takes it; what was not said is left to the daemon."""
    wanted = call.content().get("turn", {})
    wanted["system_prompt"] = text_of(call.text("system_prompt"))
    return without_empty({"prompt": prompt, "frontend": call.text("agent"), **wanted})


def continuation(call: VerbCall, space: str) -> dict[str, Any]:
    """The conversation that is to be continued, as a part of the content, if one is."""
    if not (call.flag("continue") or call.text("resume")):
        return {}
    found = agent_turns.last_continuation(call.link, space)
    if found is None:
        from carrel.domain.errors import ContinuationNotFound

        raise ContinuationNotFound(
            "There is no conversation in this space yet.", hint="Leave out --continue."
        )
    key = call.text("resume")
    return {"continuation": {**found, "key": key} if key else found}


def prompt_of(text: str) -> str:
    if text == "-":
        import sys

        text = sys.stdin.read()
    if not text.strip():
        raise invalid(
            "The prompt is empty.", hint="Give a prompt, or - to read it from standard input."
        )
    return text


def upload_files(call: VerbCall, space: str) -> dict[str, Any]:
    """Puts files of this machine into the space; gives those that go with the prompt, as a part
    of the content."""
    for path in call.texts("context"):
        _upload(call, space, path)
    names = [_upload(call, space, path) for path in call.texts("attach")]
    return {"attachments": [_attachment(name) for name in names]} if names else {}


def check_files(call: VerbCall) -> None:
    """Before anything is made for a turn: those that would be put into its space can be read."""
    for path in (*call.texts("context"), *call.texts("attach")):
        with open(path, "rb"):
            pass


def _attachment(name: str) -> dict[str, Any]:
    from mimetypes import guess_type

    return {"path": name, "folder": "context", "media_type": guess_type(name)[0] or ""}


def _upload(call: VerbCall, space: str, path: str) -> str:
    """Puts a file there under its own name, and gives that."""
    name = os.path.basename(os.path.abspath(path))
    with open(path, "rb") as file:
        data = file.read()
    call.ask("context.put", space, name, body=data, timeout_s=LONG_S)
    return name


# Trust


def find_trust(call: VerbCall, space: str, frontend: str) -> dict[str, Any]:
    """What the project brings for the agent, and whether somebody agreed to it."""
    query = [("frontend", frontend)] if frontend else []
    found: dict[str, Any] = call.ask("trust.show", space, query=query)
    return found


def set_trust(call: VerbCall, space: str, found: dict[str, Any], *, yes: bool = True) -> Any:
    """Agrees to just what was found, or takes that back."""
    said = {"digest": found["digest"], "trust": yes, "frontend": found["frontend"]}
    return call.ask("trust.say", space, content=said)


def _ask_trust(call: VerbCall, space: str, wanted: dict[str, Any]) -> None:
    """Asks once for what the project brings, in a terminal; elsewhere nobody could answer."""
    if wanted.get("trust") or call.json or not (is_terminal(0) and is_terminal(2)):
        return
    found = find_trust(call, space, wanted.get("frontend", ""))
    if found["trusted"] or found["problem"] or found["agreed"] is not None:
        return
    call.note(clean(f"The project brings for {found['frontend']}: {', '.join(found['files'])}"))
    call.note("It is the project's code, and would run with the agent's key in its reach.")
    set_trust(call, space, found, yes=confirm("Use it?"))


# A turn from its beginning to its end


def begin_turn(call: VerbCall, space: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Begins a turn; what it goes without is told to whoever watches."""
    from carrel.domain.errors import LoginExpired

    try:
        turn = agent_turns.begin(call.link, space, wanted)
    except LoginExpired as error:
        if not renew_login(call, str(error.details.get("frontend", ""))):
            raise
        turn = agent_turns.begin(call.link, space, wanted)
    for note in () if call.json else turn["notes"]:
        call.note(clean(f"! {note}"))
    return turn


def run_turn(call: VerbCall, space: str, wanted: dict[str, Any]) -> int:
    """Begins a turn, and with --wait follows it to its end. The exit code is 0 for a success."""
    wanted = {**wanted, **upload_files(call, space)}
    _ask_trust(call, space, wanted)
    if not call.flag("wait"):
        call.answer(begin_turn(call, space, wanted), _id)
        call.note_logout()
        return 0
    turn: dict[str, Any] = {}
    word = call.text("space") or space
    shown = Transcript(call, word, to_error=True, live=True)
    try:
        watched = agent_turns.Watched(hub_place(call), space, start=not call.flag("no_start"))
        try:
            turn = begin_turn(call, space, wanted)
            watched.follow(turn, _hearing(call, shown), lambda: _lost(call), begun=False)
        finally:
            watched.close()
        return _ended(call, agent_turns.wait(call.link, turn["id"]), shown)
    except KeyboardInterrupt:
        shown.let_go()
        return _left(call, word, turn)


def _id(turn: dict[str, Any]) -> str:
    return str(turn["id"])


def _ids(answer: dict[str, Any]) -> str:
    return "\n".join(map(_id, answer["turns"]))


def _hearing(call: VerbCall, shown: Transcript) -> Callable[[dict[str, Any]], None]:
    """What is done with each event: with --json it is a line as it is."""
    return _print_event if call.json else shown.hear


def _print_event(event: dict[str, Any]) -> None:
    import json

    put(json.dumps(event) + "\n")
    flush()


def _lost(call: VerbCall) -> None:
    if not call.json:
        call.note("The daemon went away; the agent goes on. Connecting again …")


def _left(call: VerbCall, space: str, turn: dict[str, Any]) -> int:
    """Nobody waits any more: says what goes on, and how it is ended."""
    from carrel.cli.errors import INTERRUPTED

    if is_terminal(2):
        tell("\n")
    if turn:
        call.note(f"The agent goes on ({turn['id']}). To stop it: carrel interrupt {space}")
        call.note(f"To go on watching: carrel logs -f {space}")
    else:
        call.note(f"The agent may have begun. To see: carrel turns {space}")
    return INTERRUPTED


def _compact(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _ended(call: VerbCall, turn: dict[str, Any], shown: Transcript) -> int:
    result = turn["result"] or {"success": False, "final_output": ""}
    if call.json:
        call.show(turn)
    else:
        final = result["final_output"] if result["success"] else ""
        if shown.settle(final):
            call.say(harmless(final))
        shown.outcome(turn)
        if hint := ((result.get("error") or {}).get("details") or {}).get("hint"):
            call.note(clean(f"hint: {hint}"))
    return 0 if result["success"] else FAILED


# What an agent did


def show_turn(call: VerbCall, turn: dict[str, Any], space: str, *, follow: bool = False) -> None:
    """Prints the transcript of a turn; with `follow` to its end."""
    live = follow and turn["state"] == "running"
    shown = Transcript(call, space, live=live)
    if not call.json:
        shown.prompt(turn)
    _hear_turn(call, turn, _hearing(call, shown), live=live)
    turn = agent_turns.wait(call.link, turn["id"]) if live else call.ask("turns.show", turn["id"])
    if call.json:
        call.show(turn)
    else:
        shown.outcome(turn)


def _hear_turn(
    call: VerbCall, turn: dict[str, Any], heard: Callable[[dict[str, Any]], None], *, live: bool
) -> None:
    from carrel.domain.errors import SpaceNotFound

    try:
        watched = agent_turns.Watched(
            hub_place(call), turn["space"], start=not call.flag("no_start")
        )
    except SpaceNotFound:
        # It is removed, and its log with it; the record of the turn is still there.
        return
    try:
        if live:
            watched.follow(turn, heard, lambda: _lost(call), begun=True)
        else:
            watched.read(turn, heard)
    finally:
        watched.close()


# Verbs


@Verb(
    SPACE,
    Argument("prompt"),
    AGENT,
    Option("--queue", "Send it to the agent that works now, or let it wait until that is done."),
    *CONTINUE_OPTIONS,
    *TURN_OPTIONS,
)
def send(call: VerbCall) -> int | None:
    """Give the agent of a space something to do.

    A prompt of - is read from standard input. Without --wait it prints the id of the turn and
    returns while the agent works. With --wait the exit code is 0 only when the agent
    succeeded.
    """
    space = space_id(call, call.text("space"), "")
    prompt = prompt_of(call.text("prompt"))
    wanted = {**content(call, prompt), **continuation(call, space)}
    if not call.flag("queue"):
        return run_turn(call, space, wanted)
    working = call.ask("spaces.show", space)["working"]
    if working and _say(call, working, prompt):
        return None
    return run_turn(call, space, {**wanted, "queue": True})


def _say(call: VerbCall, turn: str, text: str) -> bool:
    """Whether the agent that works takes it now."""
    from carrel.domain.errors import StateConflict, UnsupportedFrontend

    try:
        call.answer(call.ask("turns.input", turn, content={"text": text}), _id)
    except (UnsupportedFrontend, StateConflict):
        return False
    return True


def _idle(message: str, hint: str = "") -> Exception:
    from carrel.domain.errors import StateConflict

    return StateConflict(message, hint=hint)


def _tokens(turn: dict[str, Any]) -> str:
    usage = turn["usage"]
    return count_text(usage["input_tokens"] + usage["output_tokens"])


def _result(turn: dict[str, Any]) -> str:
    """Its first line: of what the agent said last, or of what went wrong."""
    result = turn["result"] or {}
    error = result.get("error")
    return first_line(error["message"] if error else result.get("final_output", "")) or "-"


TURN_COLUMNS: dict[str, str | Callable[[dict[str, Any]], str]] = {
    "TURN": "id",
    "AGE": lambda turn: age_of(turn["created_at"]),
    "ENDED": ending_of,
    "TIME": duration_of,
    "TOKENS": _tokens,
    "COST": lambda turn: cost_text(turn["usage"]) or "-",
    "PROMPT": lambda turn: first_line(turn["prompt"]) or "-",
    "RESULT": _result,
}
WIDE = 100
"""Columns of a terminal that has room for prompts beside the results."""


@Verb(SPACE)
def turns(call: VerbCall) -> None:
    """List what the agents of a space were given to do, newest first."""
    columns = dict(TURN_COLUMNS)
    if (terminal_width() or WIDE) < WIDE:
        del columns["PROMPT"]
    shrink = [head for head in ("PROMPT", "RESULT", "ENDED") if head in columns]
    empty = "No agent has worked in this space."
    call.answer(
        call.ask("turns.list", call.text("space")),
        AnswerTable("turns", columns, shrink=shrink, empty=empty),
    )


@Verb(Argument("turn", completes="runs"), *TRANSCRIPT_OPTIONS)
def turn_show(call: VerbCall) -> None:
    """Show a turn of an agent: what it said, what it did, how it ended.

    Thoughts and the output of tools are folded; --full shows all of it. With --json every
    event is a line, and the turn is the last one.
    """
    turn = call.ask("turns.show", call.text("turn"))
    if not call.json:
        call.say(_head(turn))
    show_turn(call, turn, turn["space"])


def _head(turn: dict[str, Any]) -> str:
    kept = turn["continuation"] or {}
    pairs = [
        ("turn", turn["id"]),
        ("space", turn["space"]),
        ("agent", clean(turn["frontend"]) + (" in a terminal" if turn["terminal"] else "")),
        ("model", clean(turn["model"])),
        ("session", clean(turn["session"])),
        ("conversation", clean(kept.get("key", ""))),
        ("permission", turn["permission"]),
        ("begun", f"{turn['created_at']} ({age_of(turn['created_at'])} ago)"),
        ("ended", f"{turn['ended_at'] or ''} {ending_of(turn)}".strip()),
        *(("without" if at == 0 else "", clean(note)) for at, note in enumerate(turn["notes"])),
    ]
    return fields(pairs) + "\n"


@Verb(
    SPACE,
    Option("--stop", "End the agent, in a terminal too."),
    Option("--kill", "End it at once, whatever it is doing."),
    Option("--queued", "Remove the turns that wait, and leave the one that runs."),
)
def interrupt(call: VerbCall) -> None:
    """Interrupt the agent of a space, as Ctrl-C does.

    A turn ends then, and the next that waits begins; in a terminal the agent stops what it does,
    and waits.
    """
    space = call.ask("spaces.show", call.text("space"))
    if call.flag("queued"):
        listed = call.ask("turns.list", space["id"])["turns"]
        waiting = [one["id"] for one in listed if one["state"] == "queued"]
        call.answer({"turns": [call.ask("turns.interrupt", one) for one in waiting]}, _ids)
        return
    working = space["working"]
    if not working:
        raise _idle(
            f"No agent works in {space['name']}.", hint="`carrel turns SPACE` lists its turns."
        )
    if call.flag("kill"):
        call.ask("runs.signal", working, content={"signal": "KILL"})
        turn = call.ask("turns.show", working)
    else:
        turn = call.ask("turns.stop" if call.flag("stop") else "turns.interrupt", working)
    call.answer(turn)


PERMISSIONS = AnswerTable(
    "permissions",
    {"ID": "id", "TOOL": "name", "WITH": lambda one: _compact(one["input"])},
    shrink=("WITH",),
    empty="Nothing waits for a permission.",
)


@Verb(
    SPACE,
    Argument("permission", required=False),
    Option("--all", "Permit or deny all that wait now."),
    Option("--deny", "Deny it, instead of permitting it."),
)
def permit(call: VerbCall) -> None:
    """List what an agent asks permission for, and permit or deny it.

    Without PERMISSION it lists what waits for an answer. Agents ask in turns with
    --permission ask; what nobody answers in time is denied.
    """
    wanted, all, deny = call.text("permission"), call.flag("all"), call.flag("deny")
    # What is not understood permits nothing.
    if wanted and all:
        raise invalid(
            "A permission and --all cannot be used together.", hint="Leave out one of them."
        )
    if deny and not wanted and not all:
        raise invalid("--deny needs a permission.", hint="Name the permission, or use --all.")
    turn = agent_turns.working(call.link, call.text("space"))
    waiting = turn["permissions"] if turn else []
    if not wanted and not all:
        call.answer({"turn": turn["id"] if turn else None, "permissions": waiting}, PERMISSIONS)
        return
    if not turn:
        raise _idle(f"No agent works in {call.text('space')}.")
    for one in [one["id"] for one in waiting] if all else [wanted]:
        turn = agent_turns.decide(call.link, turn["id"], one, allow=not deny)
    call.answer(turn)


@Verb(
    SPACE,
    AGENT,
    Option("--show", "Only list the files."),
    Option("--no", "Withdraw your agreement."),
)
def trust(call: VerbCall) -> None:
    """Agree to the settings, hooks and servers that a project brings for its agent.

    They are the project's code, and run where they can reach the agent's key; until you
    agree, the agent starts without them. Your agreement holds for exactly this content, in
    every space, until one of the files changes. Programs that they call are not covered.
    """
    space = call.text("space")
    found = find_trust(call, space, call.text("agent"))
    if not call.flag("show"):
        found = set_trust(call, space, found, yes=not call.flag("no"))
    if call.json:
        call.show(found)
        return
    for file in found["files"]:
        call.say(clean(file))
    if not found["files"]:
        call.note(f"The project brings nothing for {found['frontend']}.")
    elif not found["trusted"]:
        call.note(f"Not agreed to: {found['frontend']} goes without.")


# Files that the agent is given to read


@Verb(SPACE, Argument("files", many=True, completes="files"))
def context_add(call: VerbCall) -> None:
    """Give the agent of a space files to read, beside the project.

    The files keep their names, and replace earlier ones of the same name. The agent sees them
    at once.
    """
    names = [_upload(call, call.text("space"), path) for path in call.texts("files")]
    call.answer({"files": names})


context_ls = Verb(
    SPACE,
    help="List what the agent of a space is given to read.",
    ask="context.list",
    text=AnswerTable(
        "files",
        {"NAME": "name", "SIZE": lambda file: size_text(file["size"])},
        empty="There is nothing: carrel context add SPACE FILE...",
    ),
)


@Verb(SPACE, Argument("names", many=True))
def context_rm(call: VerbCall) -> None:
    """Remove files that the agent of a space was given to read."""
    for name in call.texts("names"):
        call.ask("context.remove", call.text("space"), name)
