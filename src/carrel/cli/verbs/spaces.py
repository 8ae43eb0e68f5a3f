"""Spaces: list, show, stop, start, change, remove and prove them."""

from __future__ import annotations

from carrel.cli.call import UNSOUND, VerbCall, each
from carrel.cli.output import CALM, FAINT, LOUD, WARM, AnswerTable, clean, fields, loud, table
from carrel.cli.spec import SOME_SPACES, SPACE, Argument, Option, Verb
from carrel.cli.values import age_of, size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Columns = dict[str, str | Callable[[dict[str, Any]], str]]

STATES = (
    *("creating", "ready", "running", "stopping"),
    *("stopped", "failed", "removing", "removed"),
)
PAGE = 1000
MOST_CHANGES = 100_000
SHORT_ID = 7
"""Of a commit, as git shows it."""
UNCONFINED = " !"
"""Behind the name of a runtime that confines nothing."""
RETENTION = (
    Option("--ttl TIME", "Remove it this long after it was made.", to="retention.ttl_s"),
    Option("--idle TIME", "Stop it after this long unused.", to="retention.idle_s"),
    Option("--keep TIME", "Remove it this long after its stop.", to="retention.keep_s"),
)
NETWORK = Option(
    "--network none|open",
    "Choose its network; default: open where the agent must reach a model.",
    to="network",
)
ENV = Option("-e, --env K=V", "Set a variable for all its commands.", to="env")
MCP = Option(
    "--mcp SERVER...", "Give its agent an MCP server: see `carrel instance servers`.", to="mcp"
)
_SIZES = {"memory_bytes": "memory", "disk_bytes": "disk", "file_bytes": "file size"}
_COUNTS = {"cpus": "cpus", "pids": "processes", "open_files": "open files"}
CHANGE_LETTERS = {
    "added": "A",
    "modified": "M",
    "deleted": "D",
    "renamed": "R",
    "mode": "P",
    "type": "T",
}


# How spaces are shown


def runtime_of(space: dict[str, Any]) -> str:
    """The runtime's name, marked when nothing confines what runs there."""
    return f"{space['runtime']}{'' if confined(space) else UNCONFINED}"


def confined(space: dict[str, Any]) -> bool:
    """While it is created nobody knows; `auto` never takes one that does not confine."""
    return space.get("confined") is not False


def project_of(space: dict[str, Any]) -> str:
    project = space["project"]
    place = project["location"] or f"({project['kind']})"
    return f"{place}@{project['ref']}" if project.get("ref") else str(place)


def doing(space: dict[str, Any]) -> str:
    """What its agent does now, or the space itself where it has none or is not ready."""
    if space["state"] in ("ready", "running") and space.get("activity"):
        words = str(space.get("doing") or space["activity"])
    elif space["state"] == "running":
        count = space["live_runs"]
        words = "runs a command" if count == 1 else f"runs {count} commands"
    else:
        words = str(space["state"])
    return words if confined(space) else f"{words}, unconfined{UNCONFINED}"


def _doing_colour(words: str) -> str:
    if words.startswith("failed"):
        return LOUD
    if words.startswith(("waiting", "exited", "retrying")):
        return WARM
    return CALM if words.startswith(("working", "runs")) else ""


def _waits(space: dict[str, Any]) -> str:
    """What the inbox has of it, in words."""
    words = [
        f"{count} {'message' if kind == 'signal' else kind}{'' if count == 1 else 's'}"
        for kind, count in space.get("waits", {}).items()
    ]
    return ", ".join(words) or "-"


NOW: Columns = {
    "NAME": "name",
    "AGENT": "agent",
    "DOES": doing,
    "FOR": lambda space: age_of(space.get("since")),
    "WAITS FOR YOU": _waits,
}
MORE: Columns = {
    "ID": "id",
    "STATE": "state",
    "RUNTIME": runtime_of,
    "NETWORK": "network",
    "RUNS": lambda space: str(space.get("live_runs") or "-"),
    "AGE": lambda space: age_of(space["created_at"]),
}


def spaces_table(*, long: bool) -> AnswerTable:
    return AnswerTable(
        "spaces",
        {**NOW, **(MORE if long else {}), "PROJECT": project_of},
        shrink=("PROJECT", "NAME", "DOES", "WAITS FOR YOU"),
        marked=UNCONFINED,
        paths=("PROJECT",),
        paint={
            "DOES": _doing_colour,
            "WAITS FOR YOU": lambda words: "" if words == "-" else WARM,
            "PROJECT": lambda _: FAINT,
        },
        empty="There are no spaces. Make one: carrel new",
    )


TRASH = AnswerTable(
    "trash",
    {
        "NAME": lambda kept: kept["space"]["name"],
        "ID": lambda kept: kept["space"]["id"],
        "CHANGES": lambda kept: str(kept["changes"]),
        "SIZE": lambda kept: size_text(kept["bytes_kept"]),
        "REMOVED": lambda kept: age_of(kept["trashed_at"]),
        "PROJECT": lambda kept: project_of(kept["space"]),
    },
    shrink=("PROJECT", "NAME"),
    paths=("PROJECT",),
    empty="Nothing was kept.",
)


def describe(space: dict[str, Any], changed: str = "") -> str:
    problem = space.get("problem")
    runtime = space["runtime"] if confined(space) else loud("process !  nothing confines it")
    pairs = [
        ("name", space["name"]),
        ("id", space["id"]),
        ("state", space["state"] + (f" ({n} running)" if (n := space["live_runs"]) else "")),
        ("problem", f"{problem['step']}: {problem['message']}" if problem else ""),
        ("hint", problem["hint"] if problem else ""),
        ("project", clean(project_of(space))),
        ("changes", clean(changed)),
        ("base", space["base"]),
        ("runtime", runtime),
        ("network", space["network"]),
        ("files", f"{clean(space['path'])} ({space['driver']})" if space["path"] else ""),
        ("tier", space["tier"]),
        ("limits", limits_text(space)),
        ("labels", clean(_pairs(space["labels"]))),
        ("variables", clean(_pairs(space["env"]))),
        ("goes", _retention(space["retention"])),
        ("restored", space["restored_from"]),
        ("is for", clean(space["description"])),
        ("agent", _agent(space)),
        ("sees", clean(_sees(space))),
        ("image", clean(image_of(space))),
        ("services", clean(", ".join(space.get("services", ())))),
        ("its ports", clean(named_ports(space))),
        ("set up", clean("; ".join(space.get("setup", ())))),
        ("packages", clean(", ".join(space.get("packages", ())))),
        ("downloads", "shared in its project" if space.get("downloads") else ""),
        ("withheld", clean("; ".join(space.get("withheld", ())))),
        ("servers", clean("; ".join(map(_server, space.get("mcp", ()))))),
        ("made by", space["parent"]),
        ("created", f"{space['created_at']} ({age_of(space['created_at'])} ago)"),
        ("last used", f"{age_of(space['active_at'])} ago"),
        ("stopped", space["stopped_at"] or ""),
        ("removed", space["removed_at"] or ""),
    ]
    left_out = [f"{one['path']}: {one['why']}" for one in space.get("left_out", ())]
    notes = (space.get("image") or {}).get("notes", ())
    pairs += [("about image" if at == 0 else "", clean(one)) for at, one in enumerate(notes)]
    pairs += [("left out" if at == 0 else "", clean(one)) for at, one in enumerate(left_out)]
    pairs += [("not covered" if at == 0 else "", gap) for at, gap in enumerate(space["uncovered"])]
    return fields(pairs)


def image_of(space: dict[str, Any]) -> str:
    image = space.get("image") or {}
    return f"{image['name']} ({image['id']}), as {image['user']}" if image.get("id") else ""


def named_ports(space: dict[str, Any]) -> str:
    """Those that its project's files name, whether or not anything listens there."""
    ports = (space.get("image") or {}).get("ports", ())
    return ", ".join(f"{one['number']} {one['label']}".strip() for one in ports)


def limits_text(space: dict[str, Any]) -> str:
    limits = space["limits"]
    words = [f"{_SIZES[key]} {size_text(limits[key])}" for key in _SIZES if limits.get(key)]
    if not limits.get("disk_bytes") and space.get("default_disk_bytes"):
        words.append(f"disk {size_text(space['default_disk_bytes'])} (by default)")
    words += [f"{_COUNTS[key]} {limits[key]:g}" for key in _COUNTS if limits.get(key)]
    if limits.get("wall_seconds"):
        words.append(f"time {time_text(limits['wall_seconds'])}")
    loose = [one["kind"] for one in space["enforced"] if not one["enforced"]]
    if loose:
        words.append(f"not enforced here: {', '.join(loose)}")
    return ", ".join(words)


def _retention(retention: dict[str, Any]) -> str:
    words = []
    for key, what in (
        ("ttl_s", "removed after"),
        ("idle_s", "stopped when idle after"),
        ("keep_s", "removed so long after a stop:"),
    ):
        if retention.get(key):
            words.append(f"{what} {time_text(retention[key])}")
    if retention.get("discard"):
        words.append("changes and all")
    return ", ".join(words)


def _agent(space: dict[str, Any]) -> str:
    """Which it is, what it does, and what it has used."""
    if not space.get("agent"):
        return ""
    spent = space["spent"]
    does = space.get("doing") or f"{space['activity']} for {age_of(space['since'])}"
    words = [f"{clean(space['agent'])}, {does}"]
    if spent["turns"]:
        tokens = f"{spent['input_tokens']:,} in, {spent['output_tokens']:,} out"
        words.append(f"{spent['turns']} turns, tokens {tokens}")
    if spent["cost_usd"]:
        words.append(f"${spent['cost_usd']:.2f}")
    return "; ".join(words)


def _sees(space: dict[str, Any]) -> str:
    """What of the host it is shown beside the system."""
    tools = [f"{one['name']} ({', '.join(one['paths'])})" for one in space.get("tools", ())]
    others = [f"{place} ({one})" for place, one in space.get("sees", {}).items()]
    return ", ".join((*tools, *space.get("shown", ()), *others))


def _server(one: dict[str, Any]) -> str:
    """An MCP server of a space, and what is wrong with it."""
    words = f"{one['name']}, {one['state'] or 'not there'}"
    return f"{words} ({one['problem']['message']})" if one["problem"] else words


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _name(space: dict[str, Any]) -> str:
    return str(space["name"])


# Verbs


@Verb(SPACE)
def show(call: VerbCall) -> None:
    """Show everything about a space."""
    space = call.ask("spaces.show", call.text("space"))
    call.answer(space, lambda space: describe(space, _changed(call, space)))


def _changed(call: VerbCall, space: dict[str, Any]) -> str:
    """How much it has changed, in a line; nothing while that cannot be known."""
    from carrel.domain.errors import CarrelError, counted

    if space["state"] not in ("ready", "running", "stopped"):
        return ""
    try:
        found = call.ask("spaces.changes", space["id"], query=[("limit", 1)])
    except CarrelError:
        return ""
    all = (found["files"], len(found["commits"]))
    left = (found["left_files"], found["left_commits"])
    words = counted(*all)
    if any(left):
        words += ", not copied out" if left == all else f"; {counted(*left)} not copied out"
    elif any(all):
        words += ", copied out"
    return f"{words}; {hidden}" if (hidden := _hidden(found)) else words


def _hidden(found: dict[str, Any]) -> str:
    """What is not listed, counted."""
    words = []
    if count := found["ignored"]:
        words.append(f"{count:,} ignored file{'' if count == 1 else 's'}")
    if found["git"]:
        words.append(f"{found['git']:,} of .git")
    return ", ".join(words)


@Verb(
    Option("-a, --all", "List removed ones too."),
    Option(f"--state {'|'.join(STATES)}...", "List only those in this state."),
    Option("--label K=V", "List only those with this label."),
    Option("-l, --long", "Show ids, states, runtimes and networks too."),
    Option("-q, --quiet", "Print ids only."),
)
def ls(call: VerbCall) -> None:
    """List spaces, newest first: what each does, for how long, and what waits for you."""
    states = STATES if call.flag("all") else call.texts("state")
    query: list[tuple[str, object]] = [("limit", PAGE)]
    query += [("state", state) for state in states]
    query += [("label", f"{key}={value}") for key, value in call.pairs("label").items()]
    spaces = pages(call, "spaces.list", "spaces", query=query)
    if call.flag("quiet") and not call.json:
        for space in spaces:
            call.say(space["id"])
        return
    if not call.json and spaces:
        _add_waits(call, spaces)
    answer = {"spaces": spaces, "total": len(spaces)}
    call.answer(answer, spaces_table(long=call.flag("long")))


def _add_waits(call: VerbCall, spaces: list[dict[str, Any]]) -> None:
    found: dict[str, dict[str, int]] = {}
    for item in call.ask("inbox.list")["items"]:
        kinds = found.setdefault(item["space"], {})
        kinds[item["kind"]] = kinds.get(item["kind"], 0) + 1
    for space in spaces:
        space["waits"] = found.get(space["id"], {})


def pages(
    call: VerbCall, operation: str, field: str, *named: str, query: list[tuple[str, object]]
) -> list[dict[str, Any]]:
    """All that an operation lists, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        more = [("after", after)] if after else []
        page = call.ask(operation, *named, query=[*query, *more])
        found += page[field]
        after = page.get("next") or ""
        if not after:
            return found


@Verb(
    SPACE,
    Option("--ignored", "List files that git ignores too."),
    Option("--git", "List git's own files too."),
    Option("--all", "List both."),
    Option("--system", "List what was installed or written in the system of its image instead."),
)
def changes(call: VerbCall) -> None:
    """List what differs from the project that a space started from: commits and files."""
    all = call.flag("all")
    ignored, git = call.flag("ignored") or all, call.flag("git") or all
    query = [("limit", MOST_CHANGES), ("ignored", ignored), ("git", git)]
    if call.flag("system"):
        query.append(("system", True))
    answer = call.ask("spaces.changes", call.text("space"), query=query)
    if call.json:
        call.show(answer)
        return
    for commit in answer["commits"]:
        where = f"{commit['repository']}: " if commit["repository"] else ""
        call.say(clean(f"commit {commit['id'][:SHORT_ID]} {where}{commit['subject']}"))
    for change in answer["changes"]:
        old = f"{clean(change['old_path'])} -> " if change["old_path"] else ""
        call.say(f"{CHANGE_LETTERS.get(change['kind'], '?')} {old}{clean(change['path'])}")
    if left := answer["total"] - len(answer["changes"]):
        call.note(f"… and {left:,} more.")
    kept_back = {"ignored": 0 if ignored else answer["ignored"], "git": 0 if git else answer["git"]}
    if hidden := _hidden(kept_back):
        call.note(f"and {hidden}: --all shows them")


@Verb(
    SOME_SPACES,
    Option("--grace TIME", "Wait this long before processes are killed.", to="grace_s"),
)
def stop(call: VerbCall) -> int:
    """Stop spaces: everything in them is ended; their files stay."""

    def work(space: str) -> Any:
        return call.ask("spaces.stop", space, content=call.content())

    return each(call, call.texts("space"), work, names=True)


@Verb(
    SOME_SPACES,
    Option("--grace TIME", "Wait this long before processes are killed.", to="grace_s"),
)
def restart(call: VerbCall) -> int:
    """Restart spaces: everything in them is ended, and they are ready again."""

    def work(space: str) -> Any:
        return call.ask("spaces.restart", space, content=call.content())

    return each(call, call.texts("space"), work, names=True)


@Verb(SOME_SPACES)
def start(call: VerbCall) -> int:
    """Start spaces that were stopped, or failed."""
    return each(
        call, call.texts("space"), lambda space: call.ask("spaces.start", space), names=True
    )


@Verb(
    SPACE,
    Option("--name TEXT", "Give it a new name.", to="name"),
    Option("-l, --label K=V", "Add or replace a label."),
    Option("--no-label K...", "Remove a label."),
    Option("--ssh-agent yes|no", "Let what runs in it use your SSH agent, when you `ssh -A`."),
    *RETENTION,
)
def update(call: VerbCall) -> None:
    """Change a space's name, labels, or when it is removed."""
    word = call.text("space")
    content = call.content()
    added, gone = call.pairs("label"), call.texts("no_label")
    if agent := call.text("ssh_agent"):
        content["ssh_agent"] = agent == "yes"
    if added or gone or "retention" in content:
        # The API replaces them as a whole.
        now = call.ask("spaces.show", word)
        if added or gone:
            kept = {key: value for key, value in now["labels"].items() if key not in gone}
            content["labels"] = {**kept, **added}
        if "retention" in content:
            content["retention"] = {**now["retention"], **content["retention"]}
    call.answer(call.ask("spaces.update", word, content=content), _name)


@Verb(SOME_SPACES, Option("-f, --force", "Remove it with unexported changes."))
def rm(call: VerbCall) -> int:
    """Remove spaces.

    A space with unexported changes is kept, unless --force is given. For a while,
    `carrel undelete` restores the changes.
    """
    query = [("force", call.flag("force"))]

    def work(space: str) -> Any:
        removal = call.ask("spaces.remove", space, query=query)
        if not call.json and removal["kept"]:
            name = removal["kept"]["space"]["name"]
            call.note(f"{_kept(removal['kept'])} kept for a while: carrel undelete {name}")
            if removal["lost"]:
                call.note(removal["lost"])
        elif not call.json and removal["lost"]:
            call.note(f"Nothing was kept: {removal['lost']}")
        return removal

    return each(call, call.texts("space"), work, names=False)


def _kept(kept: Any) -> str:
    count, system = kept["changes"], kept["system"]
    if not count:
        ignored = "What git ignores, and what is in .git, is"
        return "What was written in its system is" if system else ignored
    changes = "1 change" if count == 1 else f"{count:,} changes"
    if system:
        return f"{changes}, and what was written in its system, are"
    return f"{changes} is" if count == 1 else f"{changes} are"


@Verb(Argument("space", required=False))
def undelete(call: VerbCall) -> None:
    """Restore the changes of a removed space in a new one; without SPACE, list what was kept."""
    if word := call.text("space"):
        call.answer(call.ask("trash.restore", word), _name)
    else:
        call.answer(call.ask("trash.list"), TRASH)


@Verb(SPACE, Option("-v, --verbose", "Show every attempt, not only those that succeeded."))
def verify(call: VerbCall) -> int:
    """Try to break out of a space, and report how each attempt went.

    The exit code is 8 when an attempt succeeded.
    """
    proof = call.ask("spaces.verify", call.text("space"))
    call.answer(proof, lambda proof: _proof(proof, all=call.flag("verbose")))
    return 0 if proof["holds"] else UNSOUND


def _proof(proof: dict[str, Any], *, all: bool) -> str:
    attempts = proof["attempts"]
    rows = [
        (one["name"], "refused" if one["refused"] else "SUCCEEDED !", one["detail"])
        for one in attempts
        if all or not one["refused"]
    ]
    lines = [table(("ATTEMPT", "RESULT", "DETAIL"), rows, shrink=(2,), marked="!")] if rows else []
    refused = sum(one["refused"] for one in attempts)
    if proof["holds"]:
        verdict = f"{proof['runtime']} holds: {refused} of {len(attempts)} attempts were refused."
    else:
        broken = f"{len(attempts) - refused} of {len(attempts)} attempts succeeded."
        verdict = loud(f"{proof['runtime']} does not hold:") + f" {broken}"
    return "\n".join([*lines, verdict])
