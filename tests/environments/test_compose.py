"""Compose files: what of them a space gets, and that no file is worse than refused."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain.availability import Availability
from carrel.domain.environments import Build
from carrel.domain.errors import EnvironmentRefused
from carrel.domain.plans import EnvironmentPlan, PlanKind, PlanRequest
from carrel.domain.services import (
    Condition,
    Dependency,
    HealthCheck,
    MountKind,
    RestartPolicy,
    ServiceMount,
    ServiceSpec,
    StackPlan,
)
from carrel.environments.compose import ComposeStack, own_compose_files, read_stack
from carrel.environments.compose_vetting import duration, signal_number
from carrel.environments.files import MalformedFile, ProjectReader, open_folder
from carrel.environments.plans import plan_project
from carrel.environments.stacks import plan_stack
from carrel.environments.yaml_files import interpolated, parse_yaml, variables_in
from tests.sampling import examples

HOST = EnvironmentPlan(PlanKind.HOST, "")
AUTO = PlanRequest("none", services="auto")


class Means:
    """Every image is here, or none; and an engine, or none."""

    def __init__(self, images: bool = True, engine: bool = True) -> None:
        self._images, self._engine = images, engine

    def engine(self) -> Availability:
        return Availability(self._engine, "" if self._engine else "No engine is here.")

    def features(self) -> Availability:
        return Availability(False, "")

    def has(self, image: str) -> bool:
        return self._images

    def keeps(self, image: str) -> bool:
        return self._images


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return folder


def read(folder: Path, services: object, **more: object) -> ComposeStack:
    write(folder, compose_yaml={"services": services, **more})
    with open_folder(folder) as files:
        return read_stack(ProjectReader(files), ("compose.yaml",), {"GIVEN": "by the space"})


def one(folder: Path, fields: dict[str, object], **more: object) -> tuple[ServiceSpec, list[str]]:
    found = read(folder, {"a": {"image": "i", **fields}}, **more)
    return found.services["a"], [dropped.what for dropped in found.dropped]


def plan(folder: Path, request: PlanRequest = AUTO, means: Means | None = None) -> StackPlan:
    return plan_stack(folder, request, HOST, means or Means())


# What a space gets


def test_a_service_as_most_files_have_it(tmp_path: Path) -> None:
    write(tmp_path, init__first="", a__sql="")
    (tmp_path / "a.sql").write_text("")
    write(tmp_path, db__env="EXTRA=1\nPASSWORD=file\n# no\nexport QUOTED='a b' # c\n")
    spec, dropped = one(
        tmp_path,
        {
            "image": "postgres:16",
            "command": "postgres -c 'a b=c'",
            "environment": {"PASSWORD": "x", "DEBUG": True, "N": 3, "GIVEN": None},
            "env_file": ["db/env"],
            "user": "postgres",
            "working_dir": "/srv/",
            "volumes": [
                "data:/var/lib/data",
                "./init:/init:ro",
                "/cache",
                "./a.sql:/b/a.sql",
                "./new:/n",
            ],
            "tmpfs": "/run:size=1m",
            "healthcheck": {"test": "pg_isready", "interval": "1m30s", "retries": 5},
            "restart": "on-failure:3",
            "ports": ["127.0.0.1:15432:5432/tcp", 80, {"target": 443}, "3000-3002"],
            "expose": [5432],
            "hostname": "database",
            "networks": {"back": {"aliases": ["pg"]}},
            "stop_signal": "INT",
            "stop_grace_period": "1m",
        },
        volumes={"data": None},
    )
    assert dropped == []
    environment = {"EXTRA": "1", "PASSWORD": "x", "QUOTED": "a b", "DEBUG": "true", "N": "3"}
    assert spec.environment == {**environment, "GIVEN": "by the space"}
    assert spec.command == ("postgres", "-c", "a b=c")
    assert (spec.user, spec.folder, spec.stop_signal) == ("postgres", "/srv", "SIGINT")
    sources = {mount.target: mount.source for mount in spec.mounts}
    assert sources["/n"] != sources["/cache"]
    assert {mount.target: (mount.kind, mount.source, mount.read_only) for mount in spec.mounts} == {
        "/run": (MountKind.MEMORY, "", False),
        "/init": (MountKind.TREE, "init", True),
        "/cache": (MountKind.VOLUME, sources["/cache"], False),
        "/n": (MountKind.VOLUME, sources["/n"], False),
        "/b/a.sql": (MountKind.TREE, "a.sql", False),
        "/var/lib/data": (MountKind.VOLUME, "data", False),
    }
    check = HealthCheck(("/bin/sh", "-c", "pg_isready"), 90.0, 30.0, 5, 0.0)
    assert spec.health == check
    assert (spec.restart, spec.restarts) == (RestartPolicy.ON_FAILURE, 3)
    assert spec.ports == (5432, 80, 443, 3000)
    assert spec.names == ("database", "pg")
    assert spec.stop_grace_s == 60.0


def test_services_come_after_what_they_wait_for(tmp_path: Path) -> None:
    services = {
        "web": {"image": "w", "depends_on": {"db": {"condition": "service_healthy"}}},
        "db": {"image": "d", "depends_on": ["init"]},
        "init": {"image": "n"},
        "debug": {"image": "x", "profiles": ["debug"]},
    }
    stack = read(tmp_path, services)
    assert [spec.name for spec in stack.chosen()] == ["init", "db", "web"]
    assert [spec.name for spec in stack.chosen(("db",))] == ["init", "db"]
    assert [spec.name for spec in stack.chosen(("debug",), "web")] == ["debug", "init", "db"]
    assert stack.services["web"].depends_on == (Dependency("db", Condition.HEALTHY),)
    services["init"] = {"image": "n", "depends_on": ["web"]}
    with pytest.raises(MalformedFile, match="wait for each other"):
        read(tmp_path, services).chosen()


def test_files_are_merged_and_extended(tmp_path: Path) -> None:
    write(
        tmp_path,
        base_yaml={"services": {"common": {"image": "c", "environment": ["A=1", "B=2"]}}},
        compose_yaml={
            "x-shared": {"restart": "always"},
            "services": {
                "a": {"extends": {"file": "base.yaml", "service": "common"}, "command": ["x"]},
                "b": {"extends": "a", "environment": {"B": "3"}},
                "c": {"image": "i", "extends": {"file": "../out.yaml", "service": "common"}},
            },
        },
        compose_override_yaml="",
    )
    (tmp_path / "compose.override.yaml").write_text(
        yaml.safe_dump({"services": {"a": {"command": ["y"], "environment": {"C": "4"}}}})
    )
    with open_folder(tmp_path) as files:
        reader = ProjectReader(files)
        paths = own_compose_files(reader)
        found = read_stack(reader, paths, {})
    assert paths == ("compose.yaml", "compose.override.yaml")
    assert found.services["a"].command == ("y",)
    assert found.services["a"].environment == {"A": "1", "B": "2", "C": "4"}
    assert found.services["b"].environment["B"] == "3"
    assert [dropped.what for dropped in found.dropped] == ["c: extends"]


def test_variables_are_of_the_project_and_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "leaked")
    (tmp_path / ".env").write_text("TAG=7\nGIVEN=of the file\n")
    spec, dropped = one(
        tmp_path,
        {
            "image": "img:${TAG}",
            "environment": ["A=${SECRET_OF_THE_DAEMON}", "B=$GIVEN", "SECRET_OF_THE_DAEMON"],
        },
    )
    assert spec.image == "img:7"
    assert spec.environment == {"A": "", "B": "by the space"}
    assert dropped == ["${SECRET_OF_THE_DAEMON} of compose.yaml"]


# What it does not get


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"privileged": True}, "a: privileged"),
        ({"cap_add": ["SYS_ADMIN"]}, "a: cap_add"),
        ({"security_opt": ["seccomp:unconfined"]}, "a: security_opt"),
        ({"devices": ["/dev/kvm"]}, "a: devices"),
        ({"pid": "host"}, "a: pid"),
        ({"ipc": "host"}, "a: ipc"),
        ({"network_mode": "host"}, "a: network_mode: host"),
        ({"volumes": ["/etc:/host"]}, "a: volumes: /etc"),
        ({"volumes": ["/var/run/docker.sock:/docker.sock"]}, "a: volumes: /var/run/docker.sock"),
        ({"volumes": ["../..:/host"]}, "a: volumes: ../.."),
        ({"volumes": ["~/.ssh:/ssh"]}, "a: volumes: ~/.ssh"),
        ({"volumes": ["./a:/proc/x"]}, "a: volumes: /proc/x"),
        ({"volumes": ["./a:/"]}, "a: volumes: /"),
        ({"volumes": ["./a:/etc/hosts"]}, "a: volumes: /etc/hosts"),
        ({"volumes": [{"type": "npipe", "target": "/x"}]}, "a: volumes: npipe"),
        ({"volumes_from": ["b"]}, "a: volumes_from"),
        ({"extra_hosts": ["host:host-gateway"]}, "a: extra_hosts"),
        ({"env_file": "/etc/passwd"}, "a: env_file: /etc/passwd"),
        ({"env_file": "../.env"}, "a: env_file: ../.env"),
        ({"secrets": ["outside"]}, "a: secrets: outside"),
        ({"sysctls": {"kernel.core_pattern": "|/x"}}, "a: sysctls"),
        ({"deploy": {"replicas": 9}}, "a: deploy"),
        ({"brand_new_key": 1}, "a: brand_new_key"),
        ({"depends_on": ["nobody"]}, "a: depends_on: nobody"),
        ({"healthcheck": {"test": ["RUN", "x"]}}, "a: healthcheck.test"),
        ({"restart": "sometimes"}, "a: restart: sometimes"),
        ({"ports": ["many"]}, "a: ports: many"),
        ({"stop_signal": "SIGNOTHING"}, "a: stop_signal: SIGNOTHING"),
        ({"hostname": "a\n1.2.3.4 bank"}, "a: hostname: a\n1.2.3.4 bank"),
        ({"environment": {"A B": "x"}}, "a: environment: A B"),
    ],
)
def test_what_reaches_outside_or_is_unknown_is_dropped_with_a_reason(
    tmp_path: Path, fields: dict[str, object], what: str
) -> None:
    spec, dropped = one(tmp_path, fields, secrets={"outside": {"file": "/etc/shadow"}})
    assert dropped == [what]
    # What was said of health, and cannot be used, is not replaced by what the image says.
    assert spec == ServiceSpec("a", "i", own_health="healthcheck" in fields)


def test_a_volume_with_options_is_a_folder_of_the_space(tmp_path: Path) -> None:
    options = {"driver_opts": {"type": "none", "o": "bind", "device": "/etc"}}
    spec, dropped = one(tmp_path, {"volumes": ["v:/v"]}, volumes={"v": options})
    assert spec.mounts == (ServiceMount(MountKind.VOLUME, "/v", "v"),)
    assert dropped == ["a: the volume v: driver_opts"]


@pytest.mark.parametrize("where", ["compose", "env", "env_file"])
def test_a_long_variable_is_not_repeated_without_an_end(tmp_path: Path, where: str) -> None:
    """A page of text would take gigabytes of the daemon's memory."""
    long = "A=" + "x" * 60_000 + "\n"
    many = "".join(f"B{number}=y$A\n" for number in range(200))
    lines = ["y$A"] * 200 if where == "compose" else []
    write(tmp_path, more__env=long + many)
    (tmp_path / ".env").write_text(long + (many if where == "env" else ""))
    fields = {"image": "i", "env_file": "more/env"} if where == "env_file" else {"image": "i"}
    with pytest.raises(MalformedFile, match="longer than is read"):
        read(tmp_path, {"a": fields}, **{"x-lines": lines})


def test_an_environment_longer_than_a_command_can_have_is_refused(tmp_path: Path) -> None:
    many = {f"V{number}": "x" * 30_000 for number in range(5)}
    with pytest.raises(MalformedFile, match="its environment is longer"):
        one(tmp_path, {"environment": many})


def test_places_with_two_slashes_are_the_same_places(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    spec, dropped = one(
        tmp_path,
        {
            "tmpfs": ["//", "//proc", "//run/own"],
            "secrets": [{"source": "s", "target": "//workspace"}],
            "configs": [{"source": "s", "target": "//etc/hosts"}],
        },
        secrets={"s": {"file": "secret"}},
        configs={"s": {"file": "secret"}},
    )
    assert [mount.target for mount in spec.mounts] == ["/run/own"]
    wrong = ("/", "/proc", "/workspace", "/etc/hosts")
    assert dropped == [f"a: volumes: {place}" for place in wrong]


def test_a_health_check_costs_the_daemon_little(tmp_path: Path) -> None:
    spec, _ = one(tmp_path, {"healthcheck": {"test": "true", "interval": "1ms"}})
    assert spec.health is not None and spec.health.interval_s == 1.0


def test_a_mount_in_another_is_left_out(tmp_path: Path) -> None:
    spec, dropped = one(tmp_path, {"volumes": [".:/app", "/app/node_modules"]})
    assert [mount.target for mount in spec.mounts] == ["/app"]
    assert dropped == ["a: volumes: /app/node_modules"]


def test_files_of_the_project_can_be_secrets(tmp_path: Path) -> None:
    write(tmp_path, conf__key="")
    spec, dropped = one(tmp_path, {"secrets": ["key"]}, secrets={"key": {"file": "./conf/key.txt"}})
    mount = ServiceMount(MountKind.TREE, "/run/secrets/key", "conf/key.txt", read_only=True)
    assert (spec.mounts, dropped) == ((mount,), [])


@pytest.mark.parametrize(
    "text",
    [
        "services: [",
        "[]",
        "services: 3",
        "services: {}",
        "services: {a: {image: x, build: {context: ../..}}}",
        "services: {a: {build: 'https://host/repo.git#main', image: x}}",
        "services: {'a b': {image: x}}",
        'services: {a: {image: x, command: "it\'s"}}',
        "services: {a: {image: '${NO'}}",
        "services: {a: {image: '${NO:?say it}'}}",
        "services: {a: {extends: a}}",
        "services: !!python/object/apply:os.system ['true']",
        "services: {a: {image: !custom x}}",
        "? [a]\n: b",
        "a: " + "[" * 100 + "]" * 100,
        "a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b]\n"
        "d: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d]\n"
        "f: &f [*e, *e, *e, *e, *e, *e, *e, *e]\nservices: {a: {command: *f}}",
        "a: &a {b: *a}",
        "x: &x {<<: [*x, *x]}",
        "a" * 300_000,
    ],
)
def test_files_that_cannot_be_used_are_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    write(tmp_path, compose_yaml=text)
    with pytest.raises(EnvironmentRefused) as caught:
        plan(tmp_path)
    assert caught.value.code == "environment_refused"
    automatic = plan(tmp_path, PlanRequest())
    assert automatic.services == ()
    assert automatic.why.startswith("No services run: ")


# Which files


def test_nothing_runs_without_being_asked_for(tmp_path: Path) -> None:
    write(tmp_path, compose_yaml={"services": {"a": {"image": "i"}}})
    assert [spec.name for spec in plan(tmp_path, PlanRequest()).services] == ["a"]
    for request in (PlanRequest("tools:1"), PlanRequest("none"), PlanRequest(services="none")):
        assert plan(tmp_path, request) == StackPlan()
    with pytest.raises(EnvironmentRefused, match="is not inside"):
        plan(tmp_path, PlanRequest("none", services="../compose.yaml"))
    with pytest.raises(EnvironmentRefused, match="image i of the service a is not here"):
        plan(tmp_path, means=Means(images=False))
    write(tmp_path, compose_yaml={"services": {"dev": {"image": "i"}}})
    with pytest.raises(EnvironmentRefused, match="cannot be named dev"):
        plan(tmp_path)


def test_the_service_that_is_built_as_the_space_is_is_dev(tmp_path: Path) -> None:
    services = {
        "app": {"build": ".", "environment": {"DB": "db"}, "privileged": True},
        "db": {"image": "d"},
    }
    write(tmp_path, Dockerfile="FROM d\n", compose_yaml={"services": services})
    image = plan_project(tmp_path, PlanRequest(), Means())
    assert image.build == Build("Dockerfile")
    found = plan_stack(tmp_path, PlanRequest(), image, Means())
    assert [spec.name for spec in found.services] == ["db"]
    assert found.variables == {"DB": "db"}
    assert "app is dev" in found.why
    without = plan(tmp_path, PlanRequest("none", services="auto"))
    assert [spec.name for spec in without.services] == ["app", "db"]
    with pytest.raises(EnvironmentRefused, match="app must be built"):
        plan(tmp_path, means=Means(engine=False))


def test_a_devcontainer_names_a_service(tmp_path: Path) -> None:
    services = {
        "dev": {"image": "d", "environment": {"A": "1"}, "user": "me", "volumes": ["v:/v"]},
        "db": {"image": "p"},
        "more": {"image": "p"},
    }
    config = '{"dockerComposeFile": "../compose.yaml", "service": "dev", "runServices": ["db"]}'
    write(tmp_path, _devcontainer__devcontainer_json="", compose_yaml={"services": services})
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/devcontainer.json").write_text(config)
    request = PlanRequest(by_devcontainer=True)
    image = plan_project(tmp_path, request, Means())
    assert (image.kind, image.image, image.user) == (PlanKind.IMAGE, "d", "me")
    assert [(one.name, one.value) for one in image.variables] == [("A", "1")]
    found = plan_stack(tmp_path, request, image, Means())
    assert [spec.name for spec in found.services] == ["db"]
    assert [one.what for one in found.dropped] == ["dev: volumes: /v"]
    write(tmp_path, compose_yaml={"services": {"db": {"image": "p"}}})
    with pytest.raises(EnvironmentRefused, match="the service dev, which has no image"):
        plan_project(tmp_path, request, Means())


# Words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: on", "on"),
        ("a: 22:22", "22:22"),
        ("a: 0123", "0123"),
        ("a: 1e3", "1e3"),
        ("a: 2026-01-01", "2026-01-01"),
        ("a: 'true'", "true"),
        ("a: true", True),
        ("a: 12", 12),
        ("a: 1.5", 1.5),
        ("a: ~", None),
        ("a:", None),
        ("a: .inf", ".inf"),
        ("a: {<<: {x: 1, y: 2}, y: 3}", {"x": 1, "y": 3}),
    ],
)
def test_plain_words_are_what_they_look_like(text: str, value: object) -> None:
    assert parse_yaml(text) == {"a": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-${A}", "1-1"),
        ("$$A $${A}", "$A ${A}"),
        ("${E-x}${E:-y}${N-z}", "yz"),
        ("${N:-${E:-deep}}", "deep"),
        ("${A:+set}${N+not}", "set"),
        ("${A:?no}", "1"),
        ("{a: b}", "{a: b}"),
    ],
)
def test_references_are_replaced_as_compose_does_it(text: str, value: str) -> None:
    assert interpolated(text, {"A": "1", "E": ""}, lambda _name: None) == value


def test_durations_and_signals() -> None:
    assert duration("1h2m3s500ms") == 3723.5
    assert duration("5") is None
    assert duration("1s x") is None
    assert (signal_number("int"), signal_number("SIGINT"), signal_number("2")) == (2, 2, 2)
    assert signal_number("x") is None
    assert signal_number(str(signal.SIGKILL.value)) == 9


# Whatever somebody writes

_WORDS = """
image build command environment env_file volumes tmpfs depends_on healthcheck restart ports expose
networks extends secrets configs stop_signal stop_grace_period links hostname user working_dir
profiles test interval retries target source type file service context
"""
_KEYS = st.sampled_from(_WORDS.split())
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["${A:-b}", "./x:/y", "a", "b", "/x", "1m", "CMD", "always", "8080:80", "${"]),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(_KEYS, _TEXTS), inner, max_size=4)
    ),
    max_leaves=12,
)
_SERVICES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "dev", "x y"]), st.dictionaries(_KEYS, _VALUES, max_size=8)
)


def understood(folder: Path, text: str) -> None:
    """A plan, or a refusal with a sentence; and automatically always a plan."""
    (folder / "compose.yaml").write_bytes(text.encode("utf-8", "replace"))
    try:
        found = plan(folder)
    except EnvironmentRefused as error:
        assert error.message
        assert error.hint
        assert plan(folder, PlanRequest()).services == ()
        return
    assert len({spec.name for spec in found.services}) == len(found.services)
    for spec in found.services:
        for mount in spec.mounts:
            assert mount.target.startswith("/")
            assert ".." not in mount.target.split("/")
            assert not mount.source.startswith(("/", "../"))
            assert ".." not in mount.source.split("/")


@settings(max_examples=examples(60, exhaustive=5000), deadline=None)
@given(services=_SERVICES, top=st.dictionaries(_KEYS, _VALUES, max_size=3))
def test_any_services_are_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, services: object, top: dict[str, object]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    understood(folder, yaml.safe_dump({**top, "services": services}, allow_unicode=True))


@settings(max_examples=examples(60, exhaustive=5000), deadline=None)
@given(text=st.one_of(st.text(max_size=300), st.text("abc:-[]{}&*!|>'\"#%@ \n\t<?,", max_size=200)))
def test_any_text_is_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    understood(tmp_path_factory.getbasetemp(), text)


@settings(max_examples=examples(100, exhaustive=10_000), deadline=None)
@given(text=st.text("$AB{}:-?+ x", max_size=60))
def test_any_reference_is_replaced_or_refused(text: str) -> None:
    try:
        assert isinstance(interpolated(text, {"A": "$B"}, lambda _name: None), str)
    except MalformedFile as error:
        assert error.message


@settings(max_examples=examples(60, exhaustive=5000), deadline=None)
@given(text=st.text(max_size=200))
def test_any_file_of_variables_is_read(text: str) -> None:
    assert all("\0" not in value for value in variables_in(text).values())
