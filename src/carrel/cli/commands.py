"""Which verbs there are, by section of the help, and the module of each.

The verb `carrel request diff` is `request_diff` in its module, which is imported when it is
called, or described. One that only calls an operation of the contract is a row here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.cli.spec import Verb

SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Spaces": {
        "new": ("new",),
        "spaces": (
            *("ls", "show", "stop", "start", "restart", "update"),
            *("rm", "undelete", "verify"),
        ),
        "exec": ("exec", "shell"),
        "runs": ("runs", "logs", "run show", "run attach", "run wait", "run signal"),
        "hub": ("events",),
        "machine": ("top",),
        "ports": ("ps", "services", "port"),
        "ssh": ("ssh", "ssh-config", "ssh-proxy"),
        "ssh_listener": ("ssh-listen", "ssh-key add", "ssh-key ls", "ssh-key rm"),
        "open": ("open",),
    },
    "Agents": {
        "agents": ("agents", "auth set", "auth ls", "inbox", "answer"),
        "": ("auth rm",),
        "turns": (
            *("send", "turns", "turn show", "interrupt", "permit", "trust"),
            *("context add", "context ls", "context rm"),
        ),
        "attach": ("attach",),
        "invocations": ("invocation", "kit resolve", "kit describe"),
        "hub": (
            *("hub send", "hub request", "hub follow", "hub dump", "hub clients"),
            *("log", "notify"),
        ),
    },
    "Review": {
        "spaces": ("changes",),
        "review": ("diff",),
        "race": ("race",),
        "comments": ("comment", "comments"),
        "cp": ("cp",),
        "land": ("land", "queue", "undo"),
        "take": ("take", "export"),
        "checkpoints": ("checkpoint", "checkpoints", "rewind", "fork"),
    },
    "Images": {
        "images": (
            *("image build", "image pull", "image import", "image ls", "image show", "image rm"),
            "image prune",
        ),
    },
    "Servers": {
        "instances": (
            *("instance start", "instance ls", "instance show", "instance logs", "instance stop"),
            *("instance servers", "instance add"),
        ),
        "": ("instance remove",),
        "instance_run": ("instance run",),
        "instance_connect": ("instance connect",),
        "mcp": ("mcp",),
    },
    "Requests": {
        "request_new": ("request new",),
        "requests": (
            *("request ls", "request show", "request cancel", "request answer"),
            *("request files", "request fetch", "request extend", "request rm"),
            *("request versions", "request diff"),
        ),
        "mcp": ("codesmith",),
    },
    "Daemon": {
        "daemon": (
            *("up", "down", "status"),
            *("service install", "service remove", "service status"),
            *("token create", "token ls", "token revoke", "completion"),
        ),
        "machine": ("doctor", "inspect", "df", "gc"),
        "config": (*("config show", "config get", "config set", "config explain", "config path"),),
    },
}
"""By section of the help and by module; those without one are `ROWS`."""
ROWS = {
    "auth rm": (("name",), "credentials.remove", "Forget a key that agents are given."),
    "instance remove": (
        ("name",),
        "servers.remove",
        "Remove an MCP server that was added; its instances go on.",
    ),
}
"""The arguments, the operation and the help of verbs that do nothing else."""
COMMANDS = {
    name: module
    for modules in SECTIONS.values()
    for module, names in modules.items()
    for name in names
}
"""The module of each."""
GROUPS = {
    "config": "Show, explain and change the settings of Carrel on this machine.",
    "auth": "Manage the keys that agents are given.",
    "context": "Give the agent of a space files to read.",
    "hub": "Send, ask for and follow messages between people, agents and editors.",
    "image": "Keep root file systems that spaces can have as their system.",
    "instance": "Run dedicated MCP servers: one process for each client.",
    "kit": "Ask about kits, bundles of skills, hooks and tools; none can be had yet.",
    "request": "Have an agent make something in a workspace of its own.",
    "run": "Show one command, attach to it, wait for it, signal it.",
    "turn": "Show one turn of an agent.",
    "service": "Keep the daemon as a service of systemd.",
    "ssh-key": "Manage the keys that open the listener for SSH.",
    "token": "Manage tokens for the API on TCP.",
}
DEFAULTS = {"request": "new"}
"""The verb of a group when none is named: `carrel request "…"`."""
ALONE = {"config": "show"}
"""The verb of a group whose name stands alone, or with options only."""
HELP = ("-h", "--help")


def find_command(words: list[str]) -> tuple[str, list[str]] | None:
    """The name of the verb, and what follows it; None when there is no such verb."""
    if not words:
        return None
    name, rest = words[0], words[1:]
    if name in GROUPS:
        rest = with_verb(name, rest)
        if not rest:
            return None
        name, rest = f"{name} {rest[0]}", rest[1:]
    return (name, rest) if name in COMMANDS else None


def load(name: str) -> Verb:
    if name in ROWS:
        from carrel.cli.spec import Argument, Verb

        arguments, operation, help = ROWS[name]
        return Verb(*map(Argument, arguments), help=help, ask=operation)
    module = __import__(f"carrel.cli.verbs.{COMMANDS[name]}", fromlist=("",))
    verb: Verb = getattr(module, name.replace(" ", "_").replace("-", "_"))
    return verb


def with_verb(group: str, words: list[str]) -> list[str]:
    """What follows the name of a group, with its default verb when none is named. A single
    plain word is a verb, known or not: nothing is begun by a slip of the finger."""
    if group in ALONE and all(word.startswith("-") and word not in HELP for word in words):
        return [ALONE[group], *words]
    if group not in DEFAULTS or not words or words[0] in HELP or _names_verb(group, words):
        return words
    return [DEFAULTS[group], *words]


def _names_verb(group: str, words: list[str]) -> bool:
    if not words[0].startswith("-"):
        return words[0].isalpha() and words[0].islower()
    before = words[: words.index("--")] if "--" in words else words
    return any(f"{group} {word}" in COMMANDS for word in before)
