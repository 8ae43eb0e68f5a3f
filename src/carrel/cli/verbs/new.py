"""carrel new: makes a space, which is ready when this returns."""

from __future__ import annotations

import os

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import StatusLine, clean, is_terminal, loud
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import size_text
from carrel.cli.verbs import turns
from carrel.cli.verbs.spaces import ENV, MCP, NETWORK, RETENTION, confined
from carrel.client.events import create
from carrel.client.projects import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOTED = 5
"""So much of what is left out is told at once; `carrel show` has more."""
BUILDING = (
    "The image of {} is made first, once for what it is built of: this may take minutes. "
    "--image none uses the host's toolchain."
)


@Verb(
    Argument("project", required=False, completes="files"),
    Option("--empty", "Start from nothing."),
    Option("--name TEXT", "Name it; otherwise a name is made up.", to="name"),
    Option("--ref TEXT", "Start from a branch, tag or commit of a repository."),
    Option("--base ID", "Start from a base that exists."),
    Option("--exclude PATTERN...", "Leave out files, as .gitignore does.", to="exclude"),
    Option(
        "--follow-git",
        "Copy what git needs from other repositories that the project names.",
        to="follow_git",
    ),
    Option("--no-home-tools", "Do not show it the toolchains in your home."),
    Option("--show PATH...", "Show it this path of the machine too, read-only."),
    Option("--see OTHER...", "Show it another space's files at /see/OTHER, read-only.", to="see"),
    Option(
        "--setup",
        "Run the project's set-up commands (see `carrel inspect`); once for all its spaces.",
        to="run_setup",
    ),
    Option(
        "--no-setup",
        "Run no commands that the project's carrel.toml or devcontainer.json asks for.",
    ),
    Option("--no-caches", "Share no downloaded packages with other spaces of the project."),
    Option(
        "--with-credentials",
        "Give it your passwords and tokens for package managers, and .netrc.",
        to="with_credentials",
    ),
    Option(
        "--runtime auto|bubblewrap|landlock|process|podman|docker",
        "Choose what confines it; podman and docker need --image.",
        to="runtime",
    ),
    Option(
        "--image auto|none|NAME",
        "Run its commands in this image: a name, an archive or folder (/… or ./…); auto: by the "
        "project's files.",
        kind="text",
        to="image",
    ),
    Option("--dockerfile PATH", "Or in the image that this file builds.", to="dockerfile"),
    Option(
        "--devcontainer PATH", "Or by this devcontainer.json, or its folder.", to="devcontainer"
    ),
    Option("--by-devcontainer", "Or by the project's devcontainer.json.", to="by_devcontainer"),
    Option(
        "--services auto|none|PATH",
        "Run the services of the project's compose file, or of the one at PATH, beside it.",
        kind="text",
        to="services",
    ),
    Option("--driver TEXT", "Choose how its tree is made; otherwise the best.", to="driver"),
    NETWORK,
    Option("--tier minimal|default|large", "Use this set of limits.", to="tier"),
    Option("--memory SIZE", "Limit its memory (512M, 4G).", to="limits.memory_bytes"),
    Option("--cpus N", "Limit its processors.", kind="number", to="limits.cpus"),
    Option("--pids N", "Limit its processes.", to="limits.pids"),
    Option("--disk SIZE", "Limit what it takes on disk.", to="limits.disk_bytes"),
    Option("--wall TIME", "Limit how long a command runs.", to="limits.wall_seconds"),
    Option("--strict", "Refuse when a limit cannot be enforced.", to="limits.strict"),
    Option("-l, --label K=V", "Add a label.", to="labels"),
    *RETENTION,
    Option(
        "--discard",
        "Let clean-up remove it with unexported changes.",
        to="retention.discard",
    ),
    ENV,
    Option("--agent NAME", "The agent: see `carrel agents`.", to="agent"),
    MCP,
    Option("--wake", "Let a message to it begin a turn of its agent when that is idle.", to="wake"),
    Option("-m, --message PROMPT", "Tell its agent what to do."),
    *turns.TURN_OPTIONS,
)
def new(call: VerbCall) -> int:
    """Make a space from a project: a folder, a git URL, an archive.

    Without PROJECT it takes the current folder. A folder is copied as it is, with uncommitted
    and ignored files; with --ref it is read as a repository, at that ref. The name of the
    space is printed when it is ready.
    """
    turn = _turn(call)
    steps = SpaceSteps(call)
    try:
        space = create(call.link, _content(call), steps.show)
    finally:
        steps.line.clear()
    if call.json:
        call.show(space)
    else:
        _tell(call, space)
    return _first_turn(call, space, turn)


class SpaceSteps:
    """What happens until the space is ready: where that is a terminal, as it happens; and in any
    case that an image is built first, which may take minutes."""

    def __init__(self, call: VerbCall) -> None:
        self.line = StatusLine()
        self._call = call
        self._told = False

    def show(self, step: dict[str, Any]) -> None:
        if (path := step.get("building", "")) and not self._told:
            self._told = True
            self.line.clear()
            self._call.note(BUILDING.format(clean(path)))
        if not self._call.json:
            self.line.show(_progress(step))


def _turn(call: VerbCall) -> dict[str, Any]:
    """The first turn as the API takes it; empty without one. Nothing is made for one that would be
    refused."""
    turns.check_files(call)
    message = call.text("message")
    if not message:
        return {}
    if not call.text("agent"):
        from carrel.domain.errors import UnsupportedFrontend

        raise UnsupportedFrontend("A task needs an agent.", hint="Say which: --agent NAME")
    if call.text("network") == "none":
        _check_network(call)
    return turns.content(call, turns.prompt_of(message))


def _names_service(call: VerbCall) -> bool:
    """Whether the first turn has a service of its own, with models that only it knows."""
    from carrel.domain.keys import names_service

    return names_service(call.pairs("turn_env"))


def _check_network(call: VerbCall) -> None:
    for one in call.ask("agents.list")["frontends"]:
        named = any(name.endswith(("_URL", "_HOST", "_ENDPOINT")) for name in call.pairs("env"))
        if one["name"] == call.text("agent") and one["needs_network"] and not named:
            from carrel.domain.errors import NetworkNeeded

            raise NetworkNeeded(
                f"{one['name']} must reach its model, and --network none leaves it no network.",
                hint="Use: --network open",
            )


def _tell(call: VerbCall, space: dict[str, Any]) -> None:
    call.say(space["name"])
    if not confined(space):
        call.note(loud("process !") + " Nothing confines what runs in this space.")
    for one in space["enforced"]:
        if not one["enforced"]:
            call.note(loud("not enforced here:") + f" {one['kind']}: {one['how']}")
    for note in (space.get("image") or {}).get("notes", ()):
        call.note(clean(note))
    if space.get("setup"):
        call.note(f"Set up in a sandbox by: {clean('; '.join(space['setup']))}")
    for one in space.get("left_out", ())[:_NOTED]:
        call.note(f"{clean(one['path'])}: {clean(one['why'])}")
    if is_terminal(2):
        call.note(f"Ready ({space['id']}): carrel shell {space['name']}")


def _progress(step: dict[str, Any]) -> str:
    done, total = step.get("done", 0), step.get("total", 0)
    words = clean(step.get("stage", ""))
    if total:
        words += f" {done:,}/{total:,}"
    elif done:
        words += f" {done:,}"
    if step.get("bytes_done"):
        words += f", {size_text(step['bytes_done'])}"
    return words


def _first_turn(call: VerbCall, space: dict[str, Any], turn: dict[str, Any]) -> int:
    if turn:
        return turns.run_turn(call, space["id"], turn)
    turns.upload_files(call, space["id"])
    if call.flag("trust"):
        turns.set_trust(call, space["id"], turns.find_trust(call, space["id"], ""))
    return 0


def _content(call: VerbCall) -> dict[str, Any]:
    """The space as the API takes it, without what is for its first turn."""
    content = {**call.content(), **_origin(call)}
    model = content.pop("turn", {}).get("model", "")
    if model and not _names_service(call):
        content["model"] = model
    if call.flag("no_home_tools"):
        content["home_tools"] = False
    if call.flag("no_setup"):
        if call.flag("setup"):
            raise invalid("It is set up, or it is not.", hint="Use --setup or --no-setup.")
        content["run_setup"] = False
    if call.flag("no_caches"):
        content["share_downloads"] = False
    if (image := call.text("image")).startswith((".", "~")):
        content["image"] = os.path.abspath(os.path.expanduser(image))
    if paths := call.texts("show"):
        content["show"] = [os.path.abspath(path) for path in paths]
    return content


def _origin(call: VerbCall) -> dict[str, Any]:
    project, base, empty = call.text("project"), call.text("base"), call.flag("empty")
    if sum(map(bool, (project, base, empty))) > 1:
        raise invalid(
            "A space starts from one of these: a project, a base, or nothing.",
            hint="Give only one of PROJECT, --base and --empty.",
        )
    if base:
        return {"base": base}
    if empty:
        return {"project": describe(None)}
    return {"project": describe(project or ".", call.text("ref") or None)}
