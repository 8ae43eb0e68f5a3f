"""Which verbs there are, and the file of each."""

from __future__ import annotations

VERBS = {
    "new": "new",
    "ls": "ls",
    "show": "show",
    "exec": "exec",
    "shell": "shell",
    "cp": "cp",
    "logs": "logs",
    "changes": "changes",
    "events": "events",
    "top": "top",
    "stop": "stop",
    "start": "start",
    "update": "update",
    "rm": "rm",
    "undelete": "undelete",
    "gc": "gc",
    "verify": "verify",
    "doctor": "doctor",
    "inspect": "inspect",
    "runs": "runs",
    "run": "",
    "run show": "run_show",
    "run attach": "run_attach",
    "run wait": "run_wait",
    "run signal": "run_signal",
    "hub": "",
    "hub send": "hub_send",
    "hub request": "hub_request",
    "hub follow": "hub_follow",
    "hub dump": "hub_dump",
    "hub clients": "hub_clients",
    "send": "send",
    "attach": "attach",
    "permit": "permit",
    "interrupt": "interrupt",
    "turns": "turns",
    "agents": "agents",
    "context": "",
    "context add": "context_add",
    "context ls": "context_ls",
    "context rm": "context_rm",
    "auth": "",
    "auth set": "auth_set",
    "auth ls": "auth_ls",
    "auth rm": "auth_rm",
    "instance": "",
    "instance start": "instance_start",
    "instance ls": "instance_ls",
    "instance show": "instance_show",
    "instance logs": "instance_logs",
    "instance stop": "instance_stop",
    "instance run": "instance_run",
    "instance connect": "instance_connect",
    "instance servers": "instance_servers",
    "instance add": "instance_add",
    "instance remove": "instance_remove",
    "request": "",
    "request new": "request_new",
    "request ls": "request_ls",
    "request show": "request_show",
    "request cancel": "request_cancel",
    "request answer": "request_answer",
    "request files": "request_files",
    "request fetch": "request_fetch",
    "request extend": "request_extend",
    "request rm": "request_rm",
    "request versions": "request_versions",
    "request diff": "request_diff",
    "codesmith": "codesmith",
    "inbox": "inbox",
    "answer": "answer",
    "mcp": "mcp",
    "log": "log",
    "notify": "notify",
    "token": "",
    "token create": "token_create",
    "token ls": "token_ls",
    "token revoke": "token_revoke",
    "up": "up",
    "down": "down",
    "status": "status",
    "completion": "completion",
}
"""By what is typed; a name without a file has the verbs below it."""

GROUPS = {
    "auth": "Keys that agents are given.",
    "context": "Files that the agent of a space is given to read.",
    "hub": "Messages between people, agents and editors: say, ask, listen.",
    "instance": "Dedicated MCP servers: one process for each client.",
    "request": "Have something made, in a workspace of its own.",
    "run": "Look at one command, attach to it, wait for it, signal it.",
    "token": "Tokens for the API on TCP.",
}
MEANT = {"request": "new"}
"""The verb of a group when none is named: `carrel request "…"`."""
HELP = ("-h", "--help")


def find_verb(words: list[str]) -> tuple[str, list[str]] | None:
    """The file of the verb, and what follows it; None when there is no such verb."""
    if not words:
        return None
    name, rest = words[0], words[1:]
    if name in GROUPS:
        rest = with_verb(name, rest)
        if not rest:
            return None
        name, rest = f"{name} {rest[0]}", rest[1:]
    file = VERBS.get(name)
    return (file, rest) if file else None


def with_verb(group: str, words: list[str]) -> list[str]:
    """What follows the name of a group, with the verb that is meant when none is named. A single
    plain word is a verb, known or not: nothing is begun by a slip of the finger."""
    if group not in MEANT or not words or words[0] in HELP or _names_verb(group, words):
        return words
    return [MEANT[group], *words]


def _names_verb(group: str, words: list[str]) -> bool:
    if not words[0].startswith("-"):
        return words[0].isalpha() and words[0].islower()
    before = words[: words.index("--")] if "--" in words else words
    return any(f"{group} {word}" in VERBS for word in before)
