"""What callers may ask for in a new space, checked and resolved without looking at the machine; and
what is asked for when another space is to be as one was.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from carrel.domain.errors import SpaceInvalid
from carrel.domain.limits import Limits
from carrel.domain.projects import GitReach, Project, ProjectKind
from carrel.domain.races import RACE
from carrel.domain.runtimes import Runtime
from carrel.domain.services import PlannedService
from carrel.domain.spaces import Retention, Space, SpaceRequest
from carrel.domain.systems import SpaceEnvironment
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


OWN = "carrel."
"""How labels begin that nobody but Carrel sets."""


def check_labels(labels: Mapping[str, str], own: Mapping[str, str]) -> None:
    """`own` are labels of Carrel's that stay as they are."""
    if any(own.get(key) != value for key, value in labels.items() if key.startswith(OWN)):
        raise SpaceInvalid(
            f"Labels that begin with {OWN} are Carrel's own.", hint="Use another name for it."
        )
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
                "A retention time must be a number of seconds; 0 means for ever.",
                hint="Use 0 or more.",
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


def request_again(old: Space, name: str, realm: str) -> SpaceRequest:
    """For a space as an older one was."""
    return SpaceRequest(
        project=old.project,
        base_id=old.base_id,
        name=name,
        realm=realm,
        runtime=old.runtime,
        driver=old.driver,
        network=old.network,
        network_asked=old.network_asked,
        tier=old.tier,
        limits=old.limits,
        labels={key: value for key, value in old.labels.items() if key != RACE},
        env=old.env,
        retention=old.retention,
        description=old.description,
        parent=old.parent,
        family=old.family,
        wake=old.wake,
        mcp=old.mcp,
        guest=old.guest,
        account=old.account,
        environment=environment_of(old),
    )


def environment_of(space: Space) -> SpaceEnvironment | None:
    """For another space with the same image. Nothing is built or looked for, and no commands of the
    project run."""
    image = space.image
    services = tuple(PlannedService(one.spec, one.image.image_id) for one in space.services)
    if image is None:
        return SpaceEnvironment(services=services) if services else None
    return SpaceEnvironment(
        image.image_id,
        image.name,
        image.asked_user,
        image.variables,
        ports=image.ports,
        services=services,
    )


def check_request(request: SpaceRequest) -> Limits:
    """All that can be said without looking at the machine. Raises `SpaceInvalid`."""
    if request.name:
        check_name(request.name)
    if not request.base_id:
        check_project(request.project)
    own = request.transient or request.race is not None
    check_labels(request.labels, request.labels if own else {})
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


def check_services(runtime: Runtime) -> None:
    """Raises `SpaceInvalid`."""
    if not runtime.capabilities.systems:
        raise SpaceInvalid(
            f"The runtime {runtime.name} has no images, and services need them.",
            hint="Use the runtime bubblewrap, or leave the services out: --services none",
        )
    if runtime.capabilities.needs_image:
        raise SpaceInvalid(
            f"Services run beside bubblewrap, and not beside a container of {runtime.name}.",
            hint="Leave --runtime out, or leave the services out: --services none",
        )


def check_systems(runtime: Runtime) -> None:
    """Raises `SpaceInvalid`."""
    if not runtime.capabilities.systems:
        raise SpaceInvalid(
            f"The runtime {runtime.name} has no images.",
            hint="Use the runtime bubblewrap, or leave --image out.",
        )


def reach_of(request: SpaceRequest) -> GitReach:
    if request.guest:
        return GitReach.NONE
    return GitReach.AGREE if request.follow_git else GitReach.AGREED
