"""Programs of agents that somebody else starts, and kits."""

from __future__ import annotations

from os.path import abspath

from carrel.cli.call import FAILED, VerbCall, invalid, without_empty
from carrel.cli.output import clean
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.verbs.turns import AGENT, START_OPTIONS, content, prompt_of

UPLOADS = ("attach", "context")
"""Options of turns in spaces."""


@Verb(
    Argument("prompt", required=False),
    AGENT,
    Option("--state FOLDER", "Its own folder, for settings and conversations; made if need be."),
    Option("--cwd FOLDER", "Where it works; otherwise the current folder."),
    Option(
        "--mode interactive|headless|non_interactive",
        "How it is spoken to (interactive).",
        to="turn.interaction_mode",
    ),
    Option("--io pty|pipes|inherit", "What it reads from and writes to.", to="turn.io_mode"),
    Option("--resume KEY", "Go on with this conversation, which is in --state."),
    *(one for one in START_OPTIONS if one.name not in UPLOADS),
)
def invocation(call: VerbCall) -> None:
    """Print how to start an agent's program yourself, outside of any space.

    Its settings are written into --state. With --json all of it is printed: arguments, folder,
    variables, what it reads first, the conversation, warnings. No stored key is in it:
    `credentials` names the variables that you set. A prompt of - is read from standard input.
    """
    agent, state = call.text("agent"), call.text("state")
    if not (agent and state):
        raise invalid(
            "An agent and its folder are needed.", hint="Use: --agent NAME --state FOLDER"
        )
    wanted = content(call, prompt_of(call.text("prompt")) if call.text("prompt") else "")
    folders = {"state": abspath(state), "cwd": abspath(call.text("cwd") or ".")}
    if key := call.text("resume"):
        listed = call.ask("agents.list")["frontends"]
        provider = next((one["provider"] for one in listed if one["name"] == agent), "any")
        wanted["continuation"] = {"provider": provider, "key": key}
    answer = call.ask("invocations.build", content=without_empty({**wanted, **folders}))
    for warning in () if call.json else answer["warnings"]:
        call.note(clean(f"! {warning}"))
    call.answer(answer, lambda one: clean(one["spec"]["display_command"]))


@Verb(Argument("kit", many=True))
def kit_resolve(call: VerbCall) -> int:
    """Say whether kits can be had."""
    found = call.ask("kits.resolve", content={"kits": call.texts("kit")})
    call.answer(found, lambda one: clean("ok" if one["ok"] else one["error"]["message"]))
    return 0 if found["ok"] else FAILED


@Verb(Argument("kit", many=True), AGENT)
def kit_describe(call: VerbCall) -> None:
    """List what kits bring for an agent: hooks, skills, tools, MCP servers, commands."""
    wanted = without_empty({"kits": call.texts("kit"), "frontend": call.text("agent")})
    call.answer(call.ask("kits.describe", content=wanted), _brought)


def _brought(found: dict[str, list[str]]) -> str:
    return "\n".join(clean(f"{kind}: {', '.join(names)}") for kind, names in found.items() if names)
