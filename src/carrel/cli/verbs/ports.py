"""What is at work in spaces, and their ports on this machine's loopback."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import FAINT, WARM, AnswerTable, clean, fields
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.values import age_of, size_text
from carrel.cli.verbs.spaces import doing, named_ports, runtime_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PORT = 65535
MOST_NAMED = 6
ANYWHERE = ("0.0.0.0", "::")


# What is at work


def _ports(one: dict[str, Any]) -> str:
    """Those that are forwarded with where they are here."""
    local = {forward["port"]: forward["local"] for forward in one["forwards"]}
    ports = sorted({port["port"] for port in one["listening"]} | set(local))
    words = [f"{port}->{local[port]}" if port in local else str(port) for port in ports]
    more = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "") or "-"


def _usage(one: dict[str, Any], name: str) -> Any:
    return (one["usage"] or {}).get(name)


def _memory(one: dict[str, Any]) -> str:
    used = _usage(one, "memory_bytes")
    return "-" if used is None else size_text(used)


def _cpu(one: dict[str, Any]) -> str:
    used = _usage(one, "cpu_seconds")
    return "-" if used is None else f"{used:.1f} s"


def _servers(one: dict[str, Any]) -> str:
    return ", ".join(f"{each['name']} ({each['state'] or 'off'})" for each in one["space"]["mcp"])


PS = AnswerTable(
    "spaces",
    {
        "SPACE": lambda one: one["space"]["name"],
        "AGENT": lambda one: one["space"]["agent"] or "-",
        "DOES": lambda one: doing(one["space"]),
        "RUNS": lambda one: str(len(one["runs"]) or "-"),
        "SERVERS": lambda one: _servers(one) or "-",
        "PORTS": _ports,
        "CPU": _cpu,
        "MEMORY": _memory,
    },
    shrink=("DOES", "SERVERS", "SPACE", "PORTS"),
    empty="Nothing is at work: no space is ready.",
)


@Verb(Argument("space", required=False, completes="spaces"))
def ps(call: VerbCall) -> None:
    """Show what is at work in a space: its agent, commands, servers, ports, and what they use.

    Without a SPACE, a line for each that is ready or running. A port that is on this machine is
    shown with its number here, as 3000->41234: see `carrel port`.
    """
    space = call.text("space")
    if space:
        call.answer(call.ask("ps.show", space), _describe)
    else:
        call.answer(call.ask("ps.list"), PS)


def _describe(one: dict[str, Any]) -> str:
    space = one["space"]
    pids = _usage(one, "pids")
    sandbox = f"{runtime_of(space)}, network {space['network']}"
    used = f"cpu {_cpu(one)}, memory {_memory(one)}" if one["usage"] else ""
    pairs = [
        ("space", f"{clean(space['name'])} ({space['id']})"),
        ("state", str(space["state"])),
        ("sandbox", sandbox + (f", {pids} processes" if pids else "")),
        ("uses", used),
        ("agent", f"{clean(space['agent'])}, {doing(space)}" if space["agent"] else ""),
        ("servers", clean(_servers(one))),
    ]
    pairs += _several("runs", [_run(run) for run in one["runs"]])
    pairs += _several("services", [_service(service) for service in one.get("services", ())])
    pairs.append(("its ports", clean(named_ports(space))))
    pairs += _several("listens", [_listening(port) for port in one["listening"]])
    pairs += _several("forwards", [_forward(forward) for forward in one["forwards"]])
    pairs += _several("ssh", [_session(each) for each in one.get("ssh", ())])
    return fields([*pairs, ("note", one["caution"])])


def _several(name: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(name if at == 0 else "", line) for at, line in enumerate(lines)]


def _run(run: dict[str, Any]) -> str:
    return f"{run['id']}  {age_of(run['created_at'])}  {clean(run['display_command'])}"


def _session(one: dict[str, Any]) -> str:
    where = "the agent's terminal" if one["conversation"] else one["place"]
    whence = f"process {one['client']}"
    if one.get("key"):
        whence = f"{clean(one['origin'])} with the key {one['key']}"
    return f"{one['session']}  {age_of(one['begun_at'])}  {where}, from {whence}"


def _service(one: dict[str, Any]) -> str:
    health = f", {one['health']}" if one["health"] else ""
    ports = f"  {', '.join(map(str, one['ports']))}" if one["ports"] else ""
    again = f", started {one['restarts']} times again" if one["restarts"] else ""
    why = f"  {clean(one['problem'])}" if one["problem"] else ""
    return f"{clean(one['name'])}  {one['state']}{health}{again}{ports}  {one['run']}{why}".rstrip()


def _listening(port: dict[str, Any]) -> str:
    program = clean(port["program"]) + (f" ({port['pid']})" if port["pid"] else "")
    where = "" if port["host"] in ANYWHERE else f" on {port['host']}"
    return f"{port['port']}{where}  {program}".rstrip()


def _forward(forward: dict[str, Any]) -> str:
    count = forward["connections"]
    busy = f"  {count} connection{'' if count == 1 else 's'}" if count else ""
    problem = f"  {clean(forward['problem'])}" if forward.get("problem") else ""
    return f"{forward['port']} is {_here(forward)}{busy}{problem}"


def _here(forward: dict[str, Any]) -> str:
    return f"127.0.0.1:{forward['local']}"


# Services

SERVICES = AnswerTable(
    "services",
    {
        "SERVICE": lambda one: one["name"],
        "STATE": lambda one: one["state"],
        "HEALTH": lambda one: one["health"] or "-",
        "PORTS": lambda one: ", ".join(map(str, one["ports"])) or "-",
        "RESTARTS": lambda one: str(one["restarts"] or "-"),
        "IMAGE": lambda one: one["image"],
        "RUN": lambda one: one["run"] or "-",
        "PROBLEM": lambda one: one["problem"] or "-",
    },
    shrink=("PROBLEM", "IMAGE"),
    empty="It has no services: see `carrel new --services`.",
)


@Verb(
    SPACE,
    Argument("service", required=False, many=True),
    Option("--restart", "End these, or all of them, and start them again."),
)
def services(call: VerbCall) -> None:
    """Show the services of a space: what its project's compose file runs beside it.

    `carrel exec --in SERVICE` runs a command in the sandbox of one, and `carrel logs --in SERVICE`
    prints what one has said.
    """
    space, names = call.text("space"), call.texts("service")
    if call.flag("restart"):
        known = [one["name"] for one in call.ask("services.list", space)["services"]]
        for name in names or known:
            call.ask("services.restart", space, name)
    found = call.ask("services.list", space)
    wanted = [one for one in found["services"] if not names or one["name"] in names]
    call.answer({**found, "services": wanted}, SERVICES)


# Ports here

PORTS = AnswerTable(
    "ports",
    {
        "PORT": lambda one: str(one["port"]),
        "PROGRAM": lambda one: one["program"] or "-",
        "ADDRESS": lambda one: one["host"] or "-",
        "HERE": lambda one: one["here"] or "-",
        "CONNECTIONS": lambda one: str(one["connections"] or "-"),
    },
    shrink=("PROGRAM",),
    paint={
        "HERE": lambda words: FAINT if words == "-" else "",
        "PROGRAM": lambda words: WARM if words == "nothing" else "",
    },
    empty="Nothing listens in it, and nothing is forwarded.",
)


@Verb(
    SPACE,
    Argument("port", required=False, many=True),
    Option("--stop", "Stop forwarding these ports, or all of the space."),
)
def port(call: VerbCall) -> None:
    """Bring a port of a space to this machine's loopback, until it is stopped.

    PORT is that of the space, as 3000, or 3000:8080 to have it as 8080 here; else a free one is
    chosen. Nothing need listen there yet. Only your own programs get in, and none that run in
    spaces. It lasts until you stop it, or the space stops. Without a PORT, show what listens and
    what is forwarded.
    """
    space, words = call.text("space"), call.texts("port")
    if call.flag("stop"):
        _stop(call, space, words)
    elif words:
        _begin(call, space, words)
    else:
        call.answer(call.ask("ports.list", space), _listed(call))


def _begin(call: VerbCall, space: str, words: list[str]) -> None:
    wanted = [_wanted(word) for word in words]
    made = []
    for number, local in wanted:
        content = {"port": number, "local": local}
        made.append(call.ask("ports.forward", space, content=content))
        if not call.json:
            call.say(_here(made[-1]))
    if call.json:
        call.show(made[0] if len(made) == 1 else made)
        return
    listening = {one["port"] for one in call.ask("ports.list", space)["listening"]}
    for number, _ in wanted:
        if number not in listening:
            call.note(f"Nothing listens on {number} in {clean(space)} yet.")


def _stop(call: VerbCall, space: str, words: list[str]) -> None:
    if words:
        ports = [_wanted(word)[0] for word in words]
    else:
        ports = [one["port"] for one in call.ask("ports.list", space)["forwards"]]
    stopped = [call.ask("ports.stop", space, str(one)) for one in ports]
    if call.json:
        call.show(stopped)


def _wanted(word: str) -> tuple[int, int]:
    number, colon, local = word.partition(":")
    if _is_port(number) and (not colon or local == "0" or _is_port(local)):
        return int(number), int(local or 0)
    raise invalid(
        f"{clean(word)!r} is no port.", hint=f"Write 3000, or 3000:8080; ports are 1 to {MAX_PORT}."
    )


def _is_port(word: str) -> bool:
    return word.isascii() and word.isdigit() and 0 < int(word[:6]) <= MAX_PORT


def _listed(call: VerbCall) -> Any:
    def text(found: dict[str, Any]) -> str:
        forwards = {one["port"]: one for one in found["forwards"]}
        rows = [dict(one) for one in found["listening"]]
        listening = {one["port"] for one in rows}
        for number in forwards.keys() - listening:
            rows.append({"port": number, "host": "", "program": "nothing"})
        for one in rows:
            forward = forwards.get(one["port"])
            one["here"] = _here(forward) if forward else ""
            one["connections"] = forward["connections"] if forward else 0
        if found["caution"]:
            call.note(found["caution"])
        if not rows:
            call.note(PORTS.empty)
        return PORTS({"ports": sorted(rows, key=lambda one: one["port"])}) if rows else ""

    return text
