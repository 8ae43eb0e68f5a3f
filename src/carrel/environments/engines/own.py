"""Podman and buildah without a daemon, with a store of our own below the data folder.

The store keeps the layers of earlier builds and pulls. Several may work in it at once: each has a
mount namespace and a folder of what runs of its own. What a killed one left in the store is
removed when nobody works in it (`tidy`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import stat
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.engines import UNWATCHED, BuildNetwork, EngineWatch, ImageBuild
from carrel.domain.errors import (
    CarrelError,
    EngineFailed,
    EngineTimeout,
    EngineUnavailable,
    ImageBuildFailed,
    ImageNotInEngine,
)
from carrel.environments.engines.contents import check_mounts, check_networks, has_mounts
from carrel.environments.engines.features import FeatureTool
from carrel.environments.engines.place import EnginePlace, remove_folder
from carrel.environments.engines.processes import (
    KEEP_FREE,
    EngineBounds,
    EngineSaid,
    run_engine,
)
from carrel.environments.engines.sandbox import (
    PATH,
    PROJECT,
    STORE,
    WORK,
    EngineSandbox,
    sub_ids,
)

PROBE_S = 20.0
"""A store that is set up anew takes less than one second."""
SAVE_S = 900.0
"""Ten gigabytes, on a slow disk."""
PULL_S = 3600.0
"""Some gigabytes, over a slow line."""
RUNTIMES = ("runc", "crun")
"""runc first: crun gives up where version 1 of control groups is mixed with version 2."""
DRIVERS = ("overlay", "vfs")
"""vfs copies every layer: only where the data folder's file system is no place for an overlay."""
MOST_FILES = 1 << 20
NO_IDS = (
    " It has one user id only: images whose files belong to several users cannot be built. "
    "Give yourself a range in /etc/subuid and /etc/subgid, and install uidmap."
)
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""Of the steps, as newer engines have it: without MKNOD, nobody makes the device of a disk."""
SETTINGS = "/run/containers.conf"
LOGINS = "/run/logins.json"
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class OwnEngineProgram:
    """What differs between the two."""

    name: str
    oldest: tuple[int, int]
    package: str
    sound: tuple[int, int] = (1 << 16, 0)
    """From here on no mount of a step is known to lead out of its container (CVE-2024-1753,
    -9407, -9675, -11218)."""

    def save(self, image: str, archive: str) -> tuple[str, ...]:
        if self.name == "podman":
            return ("save", "--quiet", "--format", "oci-archive", "--output", archive, image)
        return ("push", "--quiet", image, f"oci-archive:{archive}")

    def has(self, image: str) -> tuple[str, ...]:
        if self.name == "podman":
            return ("image", "exists", image)
        return ("inspect", "--type", "image", image)

    def containers(self) -> tuple[str, ...]:
        """Prints the ids of all that builds have left."""
        return ("ps", "-aq", "--external") if self.name == "podman" else ("containers", "-aq")


PODMAN = OwnEngineProgram("podman", (4, 0), "podman", (5, 4))
BUILDAH = OwnEngineProgram("buildah", (1, 26), "buildah", (1, 39))


class OwnEngine:
    """An `ImageEngine`."""

    def __init__(
        self,
        program: OwnEngineProgram,
        place: EnginePlace,
        *,
        keep_free: int = KEEP_FREE,
        tool: FeatureTool | None = None,
    ) -> None:
        self._tool = tool
        self._program = program
        self._place = place
        self._keep_free = keep_free
        self._driver = ""

    @property
    def name(self) -> str:
        return self._program.name

    # Trying it

    def probe(self) -> Availability:
        name, install = self.name, f"sudo apt-get install {self._program.package} runc bubblewrap"
        for needed in (name, "bwrap"):
            if shutil.which(needed, path=PATH) is None:
                return Availability(False, f"{needed} is not installed.", install)
        if not any(shutil.which(one, path=PATH) for one in RUNTIMES):
            return Availability(False, f"{name} is here, but neither runc nor crun.", install)
        try:
            version = self._version()
            if version is None or version < self._program.oldest:
                least = ".".join(map(str, self._program.oldest))
                found = "of an unknown version" if version is None else f"{version[0]}.{version[1]}"
                why = f"{name} is {found}, which is too old: at least {least} is needed."
                return Availability(False, why, f"Install a newer {name}.")
            driver = self._choose_driver()
        except EngineTimeout:
            why = f"{name} hangs: it did not answer within {PROBE_S:.0f} s."
            return Availability(False, why, f"{name} info")
        except (CarrelError, OSError) as error:
            return Availability(False, str(error), f"{name} info")
        how = "copies its layers, for no overlay can be mounted" if driver == "vfs" else "works"
        ids = "" if os.geteuid() == 0 or sub_ids() else NO_IDS
        return Availability(True, f"{name} {version[0]}.{version[1]} {how}.{ids}")

    def _version(self) -> tuple[int, int] | None:
        with self._place.working() as work:
            sandbox = EngineSandbox(work)
            bounds = EngineBounds(PROBE_S)
            said = run_engine(sandbox.argv(self.name, "--version"), sandbox.environment(), bounds)
        found = _VERSION.search(said.text)
        return (int(found[1]), int(found[2])) if found and said.code == 0 else None

    def _choose_driver(self) -> str:
        """The first with which it can work here."""
        if self._driver:
            return self._driver
        last = "it says nothing"
        for driver in DRIVERS:
            with self._place.working() as work:
                said = self._run(work, ("info",), PROBE_S, driver=driver)
            if said.code == 0:
                self._driver = driver
                return driver
            last = said.lines[-1] if said.lines else last
            # Anything else may pass: a machine that is out of processes, say.
            if "overlay" not in said.text.lower():
                break
        raise EngineUnavailable(f"{self.name} does not work here: {last}", hint=f"{self.name} info")

    # Its work

    def build(self, build: ImageBuild, archive: Path, watch: EngineWatch) -> None:
        image = f"localhost/carrel-build:{uuid.uuid4().hex}"
        names = [image]
        self._choose_driver()
        if not build.features:
            self._build(build, image, watch)
        else:
            base = build.image
            if not base:
                base = f"{image}-base"
                names.append(base)
                self._build(build, base, watch)
            with self._place.one_by_one(watch.check):
                self._add_features(build, (base, image), watch)
        self._save(image, archive, watch)
        # Its layers stay for the next build; the names would only pile up.
        with self._place.working() as work:
            for name in names:
                self._run(work, ("untag" if self.name == "podman" else "rmi", name), PROBE_S)

    def _build(self, build: ImageBuild, image: str, watch: EngineWatch) -> None:
        check_networks(build)
        version = self._version() or self._program.oldest
        if version < self._program.sound:
            check_mounts(build, f"{self.name} {version[0]}.{version[1]}")
        with self._place.working() as work:
            # Else another project's files would be in this image.
            anew = ["--no-cache"] if has_mounts(build) else []
            command = ["build", *self._options(work), *anew, "--tag", image, *build_words(build)]
            said = self._run(work, command, build.most_s, watch, project=build.project)
        if said.code != 0:
            raise build_failure(said)

    def _add_features(self, build: ImageBuild, names: tuple[str, str], watch: EngineWatch) -> None:
        if self._tool is None:
            raise EngineUnavailable("The tool that adds features is not installed.")
        with self._place.working() as work:
            options = self._options(work)
            if build.network is not BuildNetwork.ENGINE:
                options += ["--network", str(build.network)]
            engine = (self._words(self._driver or DRIVERS[0]), options)
            words = self._tool.command(build, names, engine, work)
            sandbox = self._sandbox(work, build.project, self._tool.files(build, work))
            # The tool asks registries itself.
            sandbox = replace(sandbox, offline=build.network is BuildNetwork.NONE)
            bounds = EngineBounds(build.most_s, (self._place.folder,), self._keep_free)
            said = run_engine(sandbox.argv(*words), sandbox.environment(), bounds, watch)
        if said.code != 0:
            raise build_failure(said)

    def has(self, name: str) -> bool:
        try:
            self._choose_driver()
            with self._place.working() as work:
                return self._run(work, self._program.has(name), PROBE_S).code == 0
        except (CarrelError, OSError):
            return False

    def save(self, name: str, archive: Path, watch: EngineWatch) -> None:
        if not self.has(name):
            raise ImageNotInEngine(
                f"{self.name} has no image {name} in Carrel's store.",
                hint=f"Fetch it with `carrel image pull {name}`.",
            )
        self._save(name, archive, watch)

    def _save(self, image: str, archive: Path, watch: EngineWatch) -> None:
        with self._place.working() as work:
            written = work / "image.tar"
            command = self._program.save(image, f"{WORK}/{written.name}")
            said = self._run(work, command, SAVE_S, watch)
            if said.code != 0:
                raise engine_failure(f"{self.name} could not write the image", said)
            if not stat.S_ISREG(written.lstat().st_mode):
                raise EngineFailed(f"{self.name} has written no archive.", hint="Try again.")
            os.replace(written, archive)

    def pull(self, name: str, watch: EngineWatch) -> None:
        self._choose_driver()
        with self._place.working() as work:
            said = self._run(work, ("pull", name), PULL_S, watch, logins=True)
        if said.code != 0:
            raise engine_failure(f"{self.name} could not fetch {name}", said)

    # Leftovers

    def tidy(self) -> None:
        with contextlib.suppress(CarrelError, OSError):
            self._place.alone(self._remove_containers)

    def _remove_containers(self) -> None:
        if not (self._place.folder / self._store(self._driver or DRIVERS[0])).is_dir():
            return
        work = self._place.store("work") / uuid.uuid4().hex
        work.mkdir(mode=0o700)
        try:
            listed = self._run(work, self._program.containers(), PROBE_S, room=False)
            ids = [line for line in listed.lines if re.fullmatch(r"[0-9a-f]{8,64}", line)]
            if ids and listed.code == 0:
                force = ("--force",) if self.name == "podman" else ()
                self._run(work, ("rm", *force, *ids), PROBE_S, room=False)
        finally:
            remove_folder(work)

    def empty(self) -> bool:
        """Removes all that the store has, unless somebody works in it. As its namespace: the files
        may be of ids that only this has."""

        def remove() -> None:
            work = self._place.store("work") / uuid.uuid4().hex
            work.mkdir(mode=0o700)
            try:
                for driver in DRIVERS:
                    store = self._place.folder / self._store(driver)
                    if store.is_dir():
                        sandbox = EngineSandbox(work, store, privileged=True)
                        argv = sandbox.argv("find", STORE, "-mindepth", "1", "-delete")
                        run_engine(argv, sandbox.environment(), EngineBounds(SAVE_S))
            finally:
                remove_folder(work)
            self._driver = ""

        return self._place.alone(remove)

    # One run

    def _run(
        self,
        work: Path,
        command: Sequence[str],
        most_s: float,
        watch: EngineWatch = UNWATCHED,
        *,
        driver: str = "",
        project: Path | None = None,
        logins: bool = False,
        room: bool = True,
    ) -> EngineSaid:
        """Without `room` it works on a full disk too, for it makes room."""
        driver = driver or self._driver or DRIVERS[0]
        found = registry_logins() if logins else None
        files = {LOGINS: found} if found is not None else {}
        sandbox = self._sandbox(work, project, files, driver)
        disks = (self._place.folder,) if room else ()
        argv = sandbox.argv(*self._words(driver), *command)
        bounds = EngineBounds(most_s, disks, self._keep_free)
        return run_engine(argv, sandbox.environment(), bounds, watch)

    def _sandbox(
        self, work: Path, project: Path | None, files: Mapping[str, Path], driver: str = ""
    ) -> EngineSandbox:
        settings = work / "containers.conf"
        settings.write_text(containers_conf())
        env = {"CONTAINERS_CONF": SETTINGS, "BUILDAH_ISOLATION": "oci"}
        if LOGINS in files:
            env["REGISTRY_AUTH_FILE"] = LOGINS
        store = self._place.store(self._store(driver or self._driver or DRIVERS[0]))
        return EngineSandbox(
            *(work, store, project), files={SETTINGS: settings, **files}, env=env, privileged=True
        )

    def _words(self, driver: str) -> list[str]:
        words = [self.name, "--root", STORE, "--runroot", "/run/engine"]
        words += ["--storage-driver", driver]
        return [*words, "--tmpdir", "/run/tmp"] if self.name == "podman" else words

    def _store(self, driver: str) -> str:
        """A store is of one driver for good."""
        return self.name if driver == DRIVERS[0] else f"{self.name}-{driver}"

    def _options(self, work: Path) -> list[str]:
        """Of every build; with the group under which its containers are, which a killed one cannot
        remove itself."""
        group = ["--cgroup-parent", f"/{self._place.group(work)}"] if os.geteuid() == 0 else []
        return ["--layers", "--force-rm", *group]


def build_words(build: ImageBuild, project: str = PROJECT) -> list[str]:
    """The options of a build and its context, which all engines write alike."""
    words = ["--file", f"{project}/{build.dockerfile}"]
    if build.network is not BuildNetwork.ENGINE:
        words += ["--network", str(build.network)]
    if build.target:
        words += ["--target", build.target]
    for name, value in sorted(build.args.items()):
        words += ["--build-arg", f"{name}={value}"]
    return [*words, f"{project}/{build.context}"]


def build_failure(said: EngineSaid) -> ImageBuildFailed:
    return ImageBuildFailed(
        f"The image could not be built. Its last lines:\n{said.text}",
        hint="Mend the step that failed, or name another image with --image.",
        code=said.code,
        lines=list(said.lines),
    )


def engine_failure(what: str, said: EngineSaid) -> EngineFailed:
    last = said.lines[-1] if said.lines else f"it ended with {said.code}"
    return EngineFailed(
        f"{what}: {last}", hint="Run `carrel doctor`, and try again.", lines=list(said.lines)
    )


def containers_conf() -> str:
    """Podman asks for more than a process may have, for systemd, and for crun, unless told else."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    files = MOST_FILES if files == resource.RLIM_INFINITY else min(files, MOST_FILES)
    processes = most if processes == resource.RLIM_INFINITY else min(processes, most)
    runtime = next((one for one in RUNTIMES if shutil.which(one, path=PATH)), RUNTIMES[0])
    return (
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", '
        f'"nproc={processes}:{processes}"]\n'
        f"default_capabilities = {json.dumps(CAPABILITIES)}\n"
        '[engine]\ncgroup_manager = "cgroupfs"\n'
        f'runtime = "{runtime}"\nevents_logger = "file"\n'
    )


def registry_logins() -> Path | None:
    """Where the person's passwords for registries are."""
    folders = [os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("DOCKER_CONFIG", "")]
    home = os.path.expanduser("~")
    candidates = [
        Path(folders[0], "containers/auth.json") if folders[0] else None,
        Path(home, ".config/containers/auth.json"),
        Path(folders[1] or f"{home}/.docker", "config.json"),
    ]
    return next((one for one in candidates if one and one.is_file()), None)
