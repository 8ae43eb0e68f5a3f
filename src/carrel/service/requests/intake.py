"""What may be asked for; checked before anything is done."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.errors import Forbidden, RequestInvalid
from carrel.domain.requests import TOOL, Generate, Keeping, Policy, Webhook
from carrel.service.requests.book import RequestRules

MAX_INSTRUCTIONS = 200_000
MAX_NOTES = 500_000
"""Of architecture, context and context files, in all."""
MAX_CONTEXT_FILES = 100
MAX_SECONDS = 10 * 365 * 86_400.0
MAX_HOLD_S = 86_400.0
MAX_VERSIONS = 1000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_SERIES = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"[!-~]{1,2000}")
_OWN_ID = re.compile(r"rq_.*")


def check(caller: Caller, asked: Generate, rules: RequestRules) -> None:
    """Raises `RequestInvalid` and `Forbidden`."""
    _check_words(asked)
    _check_keeping(asked.keeping)
    _check_context(asked)
    if asked.timeout_s is not None:
        _check_seconds("timeout_s", asked.timeout_s, least=1.0)
    if asked.check is not None:
        if not asked.check.argv or not all("\0" not in word for word in asked.check.argv):
            raise RequestInvalid("The check must be a command.", hint="Give its words as a list.")
        _check_seconds("check.timeout_s", asked.check.timeout_s, least=0.001)
    if asked.webhook is not None:
        _check_webhook(caller, asked.webhook, rules)
    if asked.workspace_path:
        _check_direct(caller, asked)


def _check_words(asked: Generate) -> None:
    if asked.tool != TOOL:
        raise RequestInvalid(f"There is no tool {asked.tool[:40]!r}.", hint=f"Use {TOOL!r}.")
    if not asked.instructions.strip():
        raise RequestInvalid("There are no instructions.", hint="Say what is to be made.")
    if len(asked.instructions) > MAX_INSTRUCTIONS:
        raise RequestInvalid(
            f"The instructions have {len(asked.instructions)} characters.",
            hint=f"At most {MAX_INSTRUCTIONS} are taken; put the rest into `context`.",
        )
    if "\0" in asked.instructions or _is_broken(asked.instructions):
        raise RequestInvalid("The instructions are no text.", hint="Send text.")
    if asked.request_id and (
        not _ID.fullmatch(asked.request_id) or _OWN_ID.fullmatch(asked.request_id)
    ):
        raise RequestInvalid(
            f"{asked.request_id[:40]!r} cannot be a request's id.",
            hint="Use up to 128 letters, digits, dots, dashes, colons and underscores, and not"
            " `rq_` at its beginning.",
        )
    if len(asked.owner) > 256 or not asked.owner.isprintable():
        raise RequestInvalid(
            "The owner cannot be kept.", hint="Use up to 256 printable characters."
        )


def text_length(asked: Generate) -> int:
    """Of all that it says, in characters."""
    texts = (asked.instructions, asked.architecture, asked.context, *asked.context_files.values())
    return sum(map(len, (*texts, *asked.env.values())))


def _check_context(asked: Generate) -> None:
    files: Mapping[str, str] = asked.context_files
    texts = (asked.architecture, asked.context, *files.values())
    if sum(map(len, texts)) > MAX_NOTES or len(files) > MAX_CONTEXT_FILES:
        raise RequestInvalid(
            "The architecture and the context are too long.",
            hint=f"At most {MAX_NOTES} characters in {MAX_CONTEXT_FILES} files are taken; put more"
            " into a project.",
        )
    if any("\0" in text or _is_broken(text) for text in texts):
        raise RequestInvalid("Architecture or context are no text.", hint="Send text.")


def _check_keeping(keeping: Keeping) -> None:
    _check_seconds("retention.seconds", keeping.seconds, least=1.0)
    if not 0 <= keeping.hold_s <= MAX_HOLD_S:
        raise RequestInvalid("hold_s is out of range.", hint=f"Use 0 to {MAX_HOLD_S:g} seconds.")
    if keeping.policy is Policy.VERSIONED:
        if not _SERIES.fullmatch(keeping.series):
            raise RequestInvalid(
                "A version needs the name of its series.",
                hint="Use up to 128 letters, digits, dots, dashes, underscores and slashes.",
            )
        if not 1 <= keeping.newest <= MAX_VERSIONS:
            raise RequestInvalid(
                "This number of versions cannot be kept.", hint=f"Use 1 to {MAX_VERSIONS}."
            )
    elif keeping.series:
        raise RequestInvalid("Only versions have a series.", hint="Ask for the policy `versioned`.")


def _check_seconds(what: str, seconds: float, least: float) -> None:
    if not least <= seconds <= MAX_SECONDS:
        raise RequestInvalid(f"{what} is out of range.", hint=f"Use at least {least:g} seconds.")


def _check_webhook(caller: Caller, webhook: Webhook, rules: RequestRules) -> None:
    try:
        parts = urlsplit(webhook.url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or not _ADDRESS.fullmatch(webhook.url):
        raise RequestInvalid("The webhook is no address.", hint="Use http:// or https://.")
    if parts.username is not None or parts.password is not None:
        raise RequestInvalid(
            "The webhook's address names a user.",
            hint="Leave the user out; the webhook can check the `secret` instead.",
        )
    if caller.scope.kind is not ScopeKind.ADMIN and host not in rules.webhook_hosts:
        raise Forbidden(
            f"This token may not have results sent to {host[:80]}.",
            hint="Have the host added to `request_webhook_hosts`.",
        )


def _check_direct(caller: Caller, asked: Generate) -> None:
    if caller.scope.kind is not ScopeKind.ADMIN or caller.name != "local":
        raise Forbidden(
            "Carrel makes the workspace itself.",
            hint="Leave `workspace_path` out; only callers on this machine may name a folder.",
        )
    if asked.project is not None:
        raise RequestInvalid(
            "A folder to work in and a project were both named.", hint="Leave one of them out."
        )
    if asked.keeping.policy is not Policy.EPHEMERAL:
        raise RequestInvalid(
            "A retention policy does not apply to a folder of your own: the folder stays.",
            hint="Leave the policy out.",
        )


def digest(asked: Generate) -> str:
    """Of all that matters for what is made."""
    bare = dataclasses.replace(asked, request_id="", tied=False)
    said = json.dumps(dataclasses.asdict(bare), sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


def _is_broken(text: str) -> bool:
    """Half of a character cannot be written to any file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
