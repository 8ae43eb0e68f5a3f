"""Files of development containers as public projects have them, written here after their shape, and
what comes of each: a kind of plan, or a refusal with its reason."""

from __future__ import annotations

from typing import NamedTuple

DOCKERFILE = "FROM debian:12\nENV STAGE=dev\nUSER dev\n"


class Devcontainer(NamedTuple):
    """`dropped` are words that must be in what is dropped, in order; `refused` is in the reason
    why there is no image."""

    name: str
    text: str
    kind: str = "image"
    dropped: tuple[str, ...] = ()
    refused: str = ""
    files: dict[str, str] = {}  # noqa: RUF012  # never written to


DEVCONTAINERS = [
    Devcontainer("the smallest", '{"image": "debian:12"}'),
    Devcontainer(
        "of a template, with comments",
        """// For format details, see the documentation.
{
  "name": "Python 3",
  // Or use a Dockerfile or Docker Compose file.
  "image": "example.org/devcontainers/python:1-3.12-bullseye",
  // Features to add to the dev container.
  // "features": {},
  // "forwardPorts": [],
  "postCreateCommand": "pip3 install --user -r requirements.txt",
  // "customizations": {},
}
""",
    ),
    Devcontainer(
        "with features",
        """{"image": "example.org/base:bookworm", "features": {
  "example.org/features/node:1": {"version": "20"},
  "./local-feature": {}}, "remoteUser": "vscode"}""",
        dropped=("features: example.org/features/node:1", "features: ./local-feature"),
    ),
    Devcontainer(
        "docker in docker",
        """{"image": "dev:1", "privileged": true, "runArgs": ["--init", "--privileged"],
  "mounts": ["source=dind-var-lib-docker,target=/var/lib/docker,type=volume"]}""",
        dropped=("privileged", "runArgs: --privileged"),
    ),
    Devcontainer(
        "docker from outside",
        """{"image": "dev:1", "mounts": [
  "source=/var/run/docker.sock,target=/var/run/docker-host.sock,type=bind"]}""",
        dropped=("mounts: /var/run/docker.sock",),
    ),
    Devcontainer(
        "a debugger of compiled languages",
        """{"build": {"dockerfile": "Dockerfile"},
  "runArgs": ["--cap-add=SYS_PTRACE", "--security-opt", "seccomp=unconfined"]}""",
        "build",
        ("runArgs: --cap-add SYS_PTRACE", "runArgs: --security-opt seccomp=unconfined"),
        files={".devcontainer/Dockerfile": DOCKERFILE},
    ),
    Devcontainer(
        "the same, in keys of its own",
        """{"image": "dev:1", "capAdd": ["SYS_PTRACE"], "securityOpt": ["seccomp=unconfined"],
  "init": true}""",
        dropped=("capAdd", "securityOpt"),
    ),
    Devcontainer(
        "the person's keys",
        """{"image": "dev:1", "mounts": [
  "source=${localEnv:HOME}/.ssh,target=/home/node/.ssh,type=bind,readonly",
  {"source": "${localEnv:HOME}${localEnv:USERPROFILE}/.aws", "target": "/root/.aws", "type": "bind"}
]}""",
        dropped=("/.ssh at /home/node/.ssh", "/.aws at /root/.aws"),
    ),
    Devcontainer(
        "the person's variables",
        """{"image": "dev:1", "remoteEnv": {"TOKEN": "${localEnv:GITHUB_TOKEN}",
  "EDITOR": "${localEnv:EDITOR:vi}", "PATH": "${containerEnv:PATH}:/opt/bin"}}""",
        dropped=("TOKEN: ${localEnv:GITHUB_TOKEN}", "EDITOR: ${localEnv:EDITOR}"),
    ),
    Devcontainer(
        "a command on the host",
        """{"image": "dev:1", "initializeCommand": "bash .devcontainer/init.sh",
  "postCreateCommand": ["make", "deps"]}""",
        dropped=("initializeCommand",),
    ),
    Devcontainer(
        "the host's network",
        '{"image": "dev:1", "runArgs": ["--network=host", "--add-host", "a:127.0.0.1"]}',
        dropped=("runArgs: --network host", "runArgs: --add-host a:127.0.0.1"),
    ),
    Devcontainer(
        "a graphics card",
        """{"image": "dev:1", "runArgs": ["--gpus", "all", "--shm-size=8g", "--ipc=host"],
  "hostRequirements": {"gpu": "optional"}}""",
        dropped=("hostRequirements", "runArgs: --gpus all", "runArgs: --ipc host"),
    ),
    Devcontainer(
        "the machine's root",
        '{"image": "dev:1", "runArgs": ["-v", "/:/host", "-v/etc/shadow:/s:ro", "--pid", "host"]}',
        dropped=("runArgs: / at /host", "runArgs: /etc/shadow at /s", "runArgs: --pid host"),
    ),
    Devcontainer(
        "another workspace",
        """{"image": "dev:1", "workspaceMount": "source=/home,target=/work,type=bind",
  "workspaceFolder": "/work"}""",
        dropped=("workspaceMount",),
    ),
    Devcontainer(
        "its workspace elsewhere",
        """{"image": "dev:1",
  "workspaceMount": "source=${localWorkspaceFolder},target=/src,type=bind,consistency=cached",
  "workspaceFolder": "/src/${localWorkspaceFolderBasename}"}""",
    ),
    Devcontainer(
        "volumes for what is built",
        """{"image": "dev:1", "mounts": [
  "source=${localWorkspaceFolderBasename}-node_modules,target=/workspace/node_modules,type=volume",
  "type=tmpfs,target=/scratch"]}""",
    ),
    Devcontainer(
        "a build of the project's root",
        """{"build": {"dockerfile": "../Dockerfile.dev", "context": "..", "target": "dev",
  "args": {"VARIANT": "3.12"}, "cacheFrom": "example.org/cache"}, "remoteUser": "root"}""",
        "build",
        ("build.cacheFrom",),
        files={"Dockerfile.dev": "ARG VARIANT\nFROM python:${VARIANT} AS dev\n"},
    ),
    Devcontainer(
        "a build with the engine's options",
        '{"build": {"dockerfile": "Dockerfile", "options": ["--network=host", "--secret=id=x"]}}',
        "build",
        ("build.options",),
        files={".devcontainer/Dockerfile": DOCKERFILE},
    ),
    Devcontainer(
        "a build in the old form",
        '{"dockerFile": "Dockerfile", "context": "..", "appPort": [3000, "8080:80"]}',
        "build",
        files={".devcontainer/Dockerfile": DOCKERFILE},
    ),
    Devcontainer(
        "compose",
        """{"dockerComposeFile": ["../docker-compose.yml", "docker-compose.yml"],
  "service": "app", "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
  "shutdownAction": "stopCompose"}""",
        refused="compose",
    ),
    Devcontainer(
        "a service of a compose file",
        '{"dockerComposeFile": "compose.yml", "service": "app", "runServices": ["db"]}',
        files={
            ".devcontainer/compose.yml": "services:\n"
            "  app: {image: 'dev:1', command: sleep 1, volumes: ['..:/workspaces/a:cached']}\n"
            "  db: {image: 'postgres:16', restart: unless-stopped}\n"
        },
    ),
    Devcontainer(
        "a service that is built",
        '{"dockerComposeFile": ["../compose.yaml"], "service": "app", "remoteUser": "dev"}',
        "build",
        files={
            "compose.yaml": "services: {app: {build: {context: ., dockerfile: dev/Dockerfile}}}\n",
            "dev/Dockerfile": DOCKERFILE,
        },
    ),
    Devcontainer(
        "a service that is not there",
        '{"dockerComposeFile": "compose.yml", "service": "app"}',
        files={".devcontainer/compose.yml": "services: {db: {image: 'p:1'}}\n"},
        refused="the service app, which has no image",
    ),
    Devcontainer(
        "all of the hooks",
        """{"image": "dev:1", "onCreateCommand": "a", "updateContentCommand": ["b", "c"],
  "postCreateCommand": {"server": "npm ci", "db": ["make", "db"]}, "postStartCommand": "d",
  "postAttachCommand": "e", "waitFor": "onCreateCommand"}""",
    ),
    Devcontainer(
        "ports with names",
        """{"image": "dev:1", "forwardPorts": [3000, 5432, "db:6379"],
  "portsAttributes": {"3000": {"label": "Web", "onAutoForward": "notify"}},
  "otherPortsAttributes": {"onAutoForward": "silent"}}""",
    ),
    Devcontainer(
        "a user with the ids of the host",
        """{"image": "dev:1", "containerUser": "node", "updateRemoteUserUID": true,
  "userEnvProbe": "loginInteractiveShell", "overrideCommand": false,
  "runArgs": ["--userns=keep-id", "--name", "${localEnv:USER}-dev"]}""",
        dropped=("runArgs: --userns keep-id",),
    ),
    Devcontainer(
        "variables by runArgs",
        """{"image": "dev:1", "runArgs": ["-e", "A=1", "--env", "HOME", "--env-file",
  ".devcontainer/.env", "-u", "dev"]}""",
        dropped=("runArgs: --env HOME", "runArgs: --env-file .devcontainer/.env"),
    ),
    Devcontainer(
        "an image of the person's variable",
        '{"image": "example.org/dev:${localEnv:TAG}"}',
        refused="depends on your variables",
    ),
    Devcontainer("no image at all", '{"name": "Nothing"}', refused="names no image"),
    Devcontainer(
        "a Dockerfile that is not there",
        '{"build": {"dockerfile": "Dockerfile"}}',
        refused="which is not there",
    ),
    Devcontainer(
        "a Dockerfile outside",
        '{"build": {"dockerfile": "../../Dockerfile"}}',
        refused="inside the project",
    ),
    Devcontainer("cut off", '{"image": "dev:1", "features": {', refused="not valid JSON"),
    Devcontainer("a list", '["image"]', refused="not a JSON object"),
    Devcontainer("keys of wrong kinds", """{"image": 3, "forwardPorts": {}, "mounts": "x",
  "runArgs": {"a": 1}, "remoteEnv": [], "features": []}""", refused="names no image"),
    Devcontainer(
        "mounts that are none",
        '{"image": "dev:1", "mounts": ["/a:/b", 3, {"target": "relative"}, "target=/"]}',
        dropped=("mounts", "mounts", "mounts: relative", "mounts: /"),
    ),
]  # fmt: skip
