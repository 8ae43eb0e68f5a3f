"""What a devcontainer.json asks for, as far as a space gives it: the file is a stranger's.

What reaches outside of a space is dropped, each with its reason: commands on the host, mounts of
the host, its network and its variables, privileges. What a space has by itself (an init, limits,
a name) is dropped without a word.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from carrel.domain.environments import SetupCommand, Variable
from carrel.domain.plans import DroppedRequest, PlannedMount
from carrel.environments.devcontainer import is_engines_own

WORKSPACE = "/workspace"
"""Where sandboxes show a space's tree."""
MOST_TEXT = 32 << 10
"""Of one value with its references replaced: they could make it grow."""
_REFERENCE = re.compile(r"\$\{([^${}]{1,200})\}")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_PRIVILEGES: Mapping[str, str] = {
    "privileged": "a space has no privileges outside of it",
    "capAdd": "a space has the capabilities of its own root, and no others",
    "securityOpt": "the filters of a space stay as they are",
}
_HOST = "it would be the host's"
_OUTSIDE: Mapping[str, str] = {
    "--privileged": _PRIVILEGES["privileged"],
    "--cap-add": _PRIVILEGES["capAdd"],
    "--security-opt": _PRIVILEGES["securityOpt"],
    "--device": "a space has no devices of the host",
    "--device-cgroup-rule": "a space has no devices of the host",
    "--gpus": "a space has no devices of the host",
    "--ipc": _HOST,
    "--pid": _HOST,
    "--userns": _HOST,
    "--uts": _HOST,
    "--cgroupns": _HOST,
    "--net": "the network of a space is chosen with --network of Carrel",
    "--network": "the network of a space is chosen with --network of Carrel",
    "--add-host": "the network of a space is its own",
    "--dns": "the network of a space is its own",
    "-p": "ports are forwarded with `carrel port`",
    "--publish": "ports are forwarded with `carrel port`",
    "--env-file": "it would be read on the host",
    "--volumes-from": "a space sees no other containers",
}
_OWN = frozenset(
    {"--init", "--rm", "-d", "--detach", "-i", "-t", "-it", "--interactive", "--tty", "--sig-proxy"}
)
"""Without a value; a space has it, or does not need it."""
_OWN_VALUED = frozenset(
    {"--name", "--hostname", "-h", "--label", "-l", "--memory", "-m", "--memory-swap", "--cpus"}
    | {
        "--shm-size",
        "--ulimit",
        "--pids-limit",
        "--restart",
        "--platform",
        "--pull",
        "--stop-signal",
    }
    | {"--cap-drop", "--cpu-shares", "--log-driver", "--log-opt", "--entrypoint", "--stop-timeout"}
)
_VALUED = frozenset(
    {"-e", "--env", "-u", "--user", "-w", "--workdir", "-v", "--volume", "--mount", "--tmpfs"}
) | (frozenset(_OUTSIDE) - {"--privileged"})


@dataclass
class _Taken:
    variables: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, PlannedMount] = field(default_factory=dict)
    dropped: dict[DroppedRequest, None] = field(default_factory=dict)
    user: str = ""
    folder: str = ""


@dataclass(frozen=True)
class VettedDevcontainer:
    folder: str
    user: str
    """That its runArgs name, if any."""
    variables: tuple[Variable, ...]
    hooks: tuple[SetupCommand, ...]
    mounts: tuple[PlannedMount, ...]
    dropped: tuple[DroppedRequest, ...]


class Vetting:
    """Of one file. `project` is the name of the project's folder."""

    def __init__(self, path: str, config: Mapping[str, object], project: str) -> None:
        self._path = path
        self._config = config
        self._project = project or "project"
        self._taken = _Taken()

    def vet(
        self, folder: str, variables: tuple[Variable, ...], hooks: tuple[SetupCommand, ...]
    ) -> VettedDevcontainer:
        """With what the rule has found of it already."""
        taken = self._taken
        taken.folder = self._folder(folder)
        self._privileges()
        self._workspace_mount()
        for mount in _as_list(self._config.get("mounts")):
            self._mount(mount, "mounts")
        self._run_arguments()
        env = [*self._variables(variables)]
        named = {one.name for one in env}
        for name, value in taken.variables.items():
            if name not in named:
                env.append(Variable(name, value, self._path, resolved="${" not in value))
        kept = tuple(self._hook(one) for one in hooks)
        return VettedDevcontainer(
            taken.folder,
            taken.user,
            tuple(env),
            kept,
            tuple(taken.mounts.values()),
            tuple(taken.dropped),
        )

    def _drop(self, what: str, why: str) -> None:
        self._taken.dropped.setdefault(DroppedRequest(what[:200], why))

    # References

    def substituted(self, text: str, what: str) -> str:
        """With references to the project replaced. Those to the container's own variables stay."""

        def value(match: re.Match[str]) -> str:
            kind, _, rest = match[1].partition(":")
            if kind in ("localEnv", "env"):
                name, _, default = rest.partition(":")
                self._drop(f"{what}: ${{{kind}:{name}}}", "a space has none of your variables")
                return default
            return self._value(kind, match[0])

        return _REFERENCE.sub(value, text[:MOST_TEXT])[:MOST_TEXT]

    def _value(self, kind: str, written: str) -> str:
        known = {
            "localWorkspaceFolder": WORKSPACE,
            "localWorkspaceFolderBasename": self._project,
            # Whatever the file says, the tree is there.
            "containerWorkspaceFolder": WORKSPACE,
            "containerWorkspaceFolderBasename": posixpath.basename(WORKSPACE),
            "devcontainerId": hashlib.sha256(self._project.encode()).hexdigest()[:20],
        }
        return known.get(kind, written)

    def _folder(self, folder: str) -> str:
        text = self.substituted(folder, "workspaceFolder")
        if not text or "\0" in text or "${" in text or not text.startswith("/"):
            if text:
                self._drop("workspaceFolder", "it is no absolute path")
            return ""
        return posixpath.normpath(text)

    # Its parts

    def _privileges(self) -> None:
        for key, why in _PRIVILEGES.items():
            if self._config.get(key):
                self._drop(key, why)
        if self._config.get("initializeCommand"):
            self._drop("initializeCommand", "it would run on the host")
        options = self._config.get("build")
        if isinstance(options, dict):
            if options.get("options"):
                self._drop("build.options", "they are options of the host's engine")
            if options.get("cacheFrom"):
                self._drop("build.cacheFrom", "nothing is fetched that nobody named")
            args = options.get("args")
            for name in args if isinstance(args, dict) else ():
                if is_engines_own(name):
                    self._drop(f"build.args: {name}", "it would count for builds of others too")
        if self._config.get("hostRequirements"):
            self._drop(
                "hostRequirements", "limits are given with --tier or --cpus, --memory, --disk"
            )
        if self._config.get("secrets"):
            self._drop("secrets", "keys are given with `carrel auth`")

    def _workspace_mount(self) -> None:
        mount = self._config.get("workspaceMount")
        if not mount:
            return
        fields = _mount_fields(mount) or {}
        source = fields.get("source", fields.get("src", ""))
        if source.rstrip("/") not in ("${localWorkspaceFolder}", "${localWorkspaceFolder}/."):
            self._drop("workspaceMount", "it shows another folder of the host")

    def _variables(self, variables: tuple[Variable, ...]) -> Iterator[Variable]:
        for one in variables:
            value = self.substituted(one.value, one.name) if "${" in one.value else one.value
            yield replace(one, value=value, resolved="${" not in value)

    def _hook(self, hook: SetupCommand) -> SetupCommand:
        return replace(hook, argv=tuple(self.substituted(word, hook.stage) for word in hook.argv))

    def _mount(self, written: object, what: str) -> None:
        fields = _mount_fields(written)
        if fields is None:
            self._drop(what, f"{str(written)[:80]!r} is no mount")
            return
        kind = fields.get("type", "volume")
        source = fields.get("source", fields.get("src", ""))
        name = next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")
        target = posixpath.normpath(self.substituted(name, what)) if name else ""
        if not target.startswith("/") or target in ("/", "//") or "\0" in target or "${" in target:
            self._drop(f"{what}: {name or written}", "its target is no path inside")
        elif "docker.sock" in source or "podman.sock" in source:
            self._drop(f"{what}: {source}", "who has an engine's socket has the host")
        elif kind == "tmpfs":
            self._taken.mounts[target] = PlannedMount(target, "tmpfs")
        elif kind == "volume":
            volume = self.substituted(source, what)
            kept = volume if _VOLUME.fullmatch(volume) else ""
            self._taken.mounts[target] = PlannedMount(target, "volume", kept)
        else:
            self._drop(f"{what}: {source} at {target}", "a space sees nothing else of the host")

    def _run_arguments(self) -> None:
        words = [word for word in _as_list(self._config.get("runArgs")) if isinstance(word, str)]
        at = 0
        while at < len(words):
            name, equals, value = words[at].partition("=")
            at += 1
            if not equals and name in _VALUED | _OWN_VALUED:
                value = words[at] if at < len(words) else ""
                at += 1
            elif not equals and name[:2] in ("-e", "-v", "-u", "-p") and not name.startswith("--"):
                name, value = name[:2], name[2:] or value
            self._argument(name, value)

    def _argument(self, name: str, value: str) -> None:
        if name in ("-e", "--env"):
            key, equals, text = value.partition("=")
            if not equals or not _NAME.fullmatch(key) or "\0" in text:
                self._drop(f"runArgs: {name} {key}", "a space has none of your variables")
            else:
                self._taken.variables[key] = self.substituted(text, key)
        elif name in ("-u", "--user"):
            self._taken.user = value
        elif name in ("-v", "--volume"):
            self._volume(value)
        elif name == "--mount":
            self._mount(value, "runArgs")
        elif name == "--tmpfs":
            self._mount({"type": "tmpfs", "target": value.partition(":")[0]}, "runArgs")
        elif name in _OUTSIDE:
            self._drop(f"runArgs: {name} {value}".strip(), _OUTSIDE[name])
        elif name not in _OWN | _OWN_VALUED | {"-w", "--workdir"}:
            self._drop(f"runArgs: {name} {value}".strip(), "Carrel does not know this option")

    def _volume(self, value: str) -> None:
        source, colon, rest = value.partition(":")
        target = rest.partition(":")[0] if colon else source
        named = colon and _VOLUME.fullmatch(source)
        kind = "volume" if named or not colon else "bind"
        self._mount({"type": kind, "source": source if colon else "", "target": target}, "runArgs")


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mount_fields(written: object) -> dict[str, str] | None:
    """`type=…,source=…,target=…`, or an object of the same."""
    if isinstance(written, dict):
        return {str(key): value for key, value in written.items() if isinstance(value, str)}
    if not isinstance(written, str) or "=" not in written:
        return None
    pairs = (part.partition("=") for part in written.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs}
