"""What callers may ask for: names, labels, environments, tiers; checked and resolved."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from carrel.domain.errors import SpaceInvalid
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Retention, SpaceRequest
from carrel.domain.trees import DIRECT

GIB = 1 << 30
TIERS = {
    "minimal": Limits(cpus=0.5, memory_bytes=GIB, disk_bytes=2 * GIB),
    "default": Limits(cpus=2.0, memory_bytes=4 * GIB, disk_bytes=10 * GIB),
    "large": Limits(cpus=4.0, memory_bytes=8 * GIB, disk_bytes=50 * GIB),
}
MAX_DESCRIPTION = 10_000
MAX_LABELS = 64
MAX_VALUE = 256
MAX_ENV_BYTES = 128 * 1024
"""What one command can be given is bounded by the kernel; the rest of it is the command's."""
MAX_SECONDS = 100 * 365 * 86400.0
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_ID_LIKE = re.compile(r"(?:sp|ru|tk)_.*")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or _ID_LIKE.fullmatch(name):
        raise SpaceInvalid(
            f"{_shown(name)} cannot be a space's name.",
            hint="Use up to 63 lower-case letters, digits, dots, dashes and underscores, "
            "beginning and ending with a letter or digit.",
        )


def check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise SpaceInvalid(f"A space has at most {MAX_LABELS} labels.", hint="Leave some out.")
    for key, value in labels.items():
        if not _LABEL.fullmatch(key):
            raise SpaceInvalid(
                f"{_shown(key)} cannot be a label.",
                hint="Use up to 63 letters, digits, dots, dashes, underscores and slashes.",
            )
        if len(value) > MAX_VALUE or not value.isprintable():
            raise SpaceInvalid(
                f"The label {key} has a value that cannot be kept.",
                hint=f"Use up to {MAX_VALUE} printable characters.",
            )


def check_description(description: str) -> None:
    _check_text(description)
    if len(description) > MAX_DESCRIPTION or "\0" in description:
        raise SpaceInvalid(
            f"A description has at most {MAX_DESCRIPTION} characters, and no NUL.",
            hint="Put what is longer into a file of the space.",
        )


def check_environment(env: Mapping[str, str]) -> None:
    size = 0
    for key, value in env.items():
        if not _VARIABLE.fullmatch(key) or "\0" in value:
            raise SpaceInvalid(
                f"{_shown(key)} cannot be a variable of the environment.",
                hint="Use letters, digits and underscores, and values without NUL.",
            )
        _check_text(value)
        size += len(key) + len(value)
    if size > MAX_ENV_BYTES:
        raise SpaceInvalid(
            f"The environment is larger than {MAX_ENV_BYTES} bytes.",
            hint="Put large values into files.",
        )


def check_retention(retention: Retention) -> None:
    for seconds in (retention.ttl_s, retention.idle_s, retention.keep_s):
        if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
            raise SpaceInvalid(
                "A retention is a number of seconds, 0 for ever.", hint="Use 0 or more."
            )


def check_project(project: Project) -> None:
    for text in (project.location, project.ref or ""):
        if "\0" in text or len(text) > 4096:
            raise SpaceInvalid("The project's location cannot be used.", hint="Shorten it.")
        _check_text(text)
    if project.kind is not ProjectKind.EMPTY and not project.location:
        raise SpaceInvalid("The project has no location.", hint="Name a folder or a URL.")


def resolve_limits(tier: str, limits: Limits) -> Limits:
    """The tier's, with what was asked for on top."""
    if tier and tier not in TIERS:
        raise SpaceInvalid(f"There is no tier {_shown(tier)}.", hint=f"Use {', '.join(TIERS)}.")
    for name, value in dataclasses.asdict(limits).items():
        if name != "strict" and value is not None and not 0 < value < 1 << 62:
            raise SpaceInvalid(f"{value} cannot be a limit ({name}).", hint="Use more than 0.")
    base = TIERS.get(tier, Limits())
    asked = {
        field.name: value
        for field in dataclasses.fields(Limits)
        if (value := getattr(limits, field.name)) is not None
    }
    return dataclasses.replace(base, **asked)


def check_request(request: SpaceRequest) -> Limits:
    """All that can be said without looking at the machine. Raises `SpaceInvalid`."""
    if request.name:
        check_name(request.name)
    if not request.base_id:
        check_project(request.project)
    check_labels(request.labels)
    check_description(request.description)
    check_environment(request.env)
    check_retention(request.retention)
    check_place(request)
    return resolve_limits(request.tier, request.limits)


def check_place(request: SpaceRequest) -> None:
    """The driver and the folder come together, and only from the service itself."""
    if (request.driver == DIRECT) != bool(request.place):
        raise SpaceInvalid(
            f"The tree driver {DIRECT!r} is not for spaces that callers make: its tree would be "
            "a folder of this machine itself.",
            hint="Leave the driver out; to work in a folder directly, send a request for it.",
        )


def name_from(project: Project, space_id: str) -> str:
    """Readable, and unique by the end of the id."""
    last = re.split(r"[/:]", project.location.rstrip("/"))[-1].removesuffix(".git")
    word = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40].strip("-")
    return f"{word or 'space'}-{space_id[-6:]}"


def _check_text(text: str) -> None:
    """Names of files may hold bytes that are no text; nothing else comes that way."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SpaceInvalid("The text is not valid.", hint="Send UTF-8.") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
