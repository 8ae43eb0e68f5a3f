"""Images: root file systems that spaces can have as their system."""

from __future__ import annotations

import os

from carrel.cli.call import VerbCall, each, invalid
from carrel.cli.output import AnswerTable, StatusLine, clean, fields
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

IMAGE = Argument("image")
PIECE = 256 * 1024


def _names(image: dict[str, Any]) -> str:
    return ", ".join(map(clean, image["names"])) or "-"


IMAGES = AnswerTable(
    "images",
    {
        "NAME": _names,
        "ID": "id",
        "SIZE": lambda image: size_text(image["size_bytes"]),
        "USED": lambda image: age_of(image["used_at"]),
        "SPACES": lambda image: str(len(image["spaces"])),
        "FROM": lambda image: clean(image["source"]),
    },
    shrink=("FROM", "NAME"),
    empty="There is none yet: carrel image import NAME ARCHIVE",
)


ENGINE = Option("--engine auto|podman|buildah|docker", "Instead of the best.", to="engine")
NAME = Option("--name NAME", "One more name for it.", to="name")


@Verb(
    Argument("path", required=False, completes="files"),
    Option("--dockerfile PATH", "This one, relative to the project.", to="dockerfile"),
    Option("--devcontainer PATH", "This devcontainer.json, or its folder.", to="devcontainer"),
    Option("--by-devcontainer", "The project's devcontainer.json.", to="by_devcontainer"),
    Option("--target STAGE", "The stage of the Dockerfile.", to="target"),
    Option("--build-arg K=V", "An argument of the build.", to="args"),
    Option("--build-network engine|none|host", "What its steps reach.", to="network"),
    *(ENGINE, NAME),
)
def image_build(call: VerbCall) -> None:
    """Build the image that a project's files describe, once for each content.

    It takes the project's Dockerfile, else its devcontainer.json. An engine is needed: podman,
    buildah or docker. The image's id is printed.
    """
    content = {**call.content(), "project": os.path.abspath(call.text("path") or ".")}
    _tell(call, _made(call, "images.build", content))


@Verb(
    Argument("image"),
    Option("--anew", "From its registry, although an engine has it.", to="anew"),
    Option("--local", "Never from a registry.", to="local"),
    *(ENGINE, NAME),
)
def image_pull(call: VerbCall) -> None:
    """Take an image from an engine that has it, or from its registry.

    An engine is needed: podman, buildah or docker. The image's id is printed.
    """
    _tell(call, _made(call, "images.pull", {**call.content(), "image": call.text("image")}))


def _made(call: VerbCall, by: str, content: dict[str, Any]) -> dict[str, Any]:
    from carrel.client.events import take_image

    line = StatusLine()
    try:
        return take_image(call.link, content, lambda step: line.show(_progress(step)), by=by)
    finally:
        line.clear()


@Verb(
    Argument("name"),
    Argument("source", completes="files"),
    Option("--reference REF", "Which of several images in an archive.", to="reference"),
)
def image_import(call: VerbCall) -> None:
    """Import an image from an archive or a folder; no engine is needed.

    SOURCE is an archive of docker save or podman save, an archive or a folder in OCI's layout, or a
    root file system: as a tar, compressed or not, or as a folder. - is standard input.
    The image's id is printed.
    """
    line, source = StatusLine(), call.text("source")
    try:
        if source == "-":
            made = _import_input(call, line)
        elif call.link.place.socket:
            made = _import_path(call, line, os.path.abspath(source))
        else:
            made = _import_file(call, line, source)
    finally:
        line.clear()
    _tell(call, made)


def _import_path(call: VerbCall, line: StatusLine, path: str) -> dict[str, Any]:
    from carrel.client.events import take_image

    content = {**call.content(), "name": call.text("name"), "path": path}
    return take_image(call.link, content, lambda step: line.show(_progress(step)))


def _import_file(call: VerbCall, line: StatusLine, source: str) -> dict[str, Any]:
    """The daemon is on another machine."""
    if os.path.isdir(source):
        raise invalid(
            "A folder can only be imported where the daemon runs.",
            hint="Send it as a tar: tar -C FOLDER -c . | carrel image import NAME -",
        )
    with open(source, "rb") as file:
        return _upload(call, line, file)


def _import_input(call: VerbCall, line: StatusLine) -> dict[str, Any]:
    """It may take its time, which the daemon does not give: so all of it is read first."""
    from tempfile import TemporaryFile

    with TemporaryFile() as waiting:
        size = 0
        while piece := os.read(0, PIECE):
            size += waiting.write(piece)
            line.show(f"reading {size_text(size)}")
        waiting.seek(0)
        return _upload(call, line, waiting)


def _upload(call: VerbCall, line: StatusLine, file: Any) -> dict[str, Any]:
    from carrel.client.http import LONG_S, operation

    def pieces() -> Iterator[bytes]:
        sent = 0
        while piece := file.read(PIECE):
            yield piece
            sent += len(piece)
            line.show(f"sending {size_text(sent)}")
        line.show("unpacking")

    query = [("name", call.text("name")), ("reference", call.text("reference") or None)]
    request = operation("images.upload", query=query, body=pieces(), timeout_s=LONG_S)
    made: dict[str, Any] = call.link.json(request)
    return made


def _progress(step: dict[str, Any]) -> str:
    done, total = step.get("done", 0), step.get("total", 0)
    words = clean(step.get("stage", ""))
    if total:
        words += f" {min(100, 100 * done // total)} %"
    if step.get("bytes_done"):
        words += f", {size_text(step['bytes_done'])}"
    return words


def _tell(call: VerbCall, image: dict[str, Any]) -> None:
    if call.json:
        call.show(image)
        return
    call.say(image["id"])
    for note in image["notes"]:
        call.note(_note(note))


def _note(note: dict[str, Any]) -> str:
    more = note["count"] - len(note["names"])
    names = [clean(name) for name in note["names"]] + ([f"{more:,} more"] if more > 0 else [])
    return f"{clean(note['what'])}: {', '.join(names)}"


image_ls = Verb(help="List the images.", ask="images.list", text=IMAGES)


def _about(image: dict[str, Any]) -> str:
    config = image["config"]
    lines = [
        ("id", image["id"]),
        ("names", _names(image)),
        ("size", f"{size_text(image['size_bytes'])} in {image['entries']:,} entries"),
        ("imported", age_of(image["created_at"])),
        ("built", clean(image["made"])),
        ("from", clean(image["source"])),
        ("folder", clean(image["folder"])),
        ("spaces", ", ".join(image["spaces"])),
        ("platform", clean(config["platform"])),
        ("user", clean(config["user"])),
        ("folder inside", clean(config["workdir"])),
        ("entry point", clean(" ".join(config["entrypoint"]))),
        ("command", clean(" ".join(config["cmd"]))),
        ("ports", clean(", ".join(config["ports"]))),
        ("volumes", clean(", ".join(config["volumes"]))),
    ]
    lines += [("variable", clean("=".join(pair))) for pair in config["env"]]
    lines += [("label", clean("=".join(pair))) for pair in config["labels"]]
    lines += [("note", _note(note)) for note in image["notes"]]
    return fields((name, value) for name, value in lines if value)


image_show = Verb(IMAGE, help="Show an image: by its name or id.", ask="images.show", text=_about)


@Verb(Argument("image", many=True))
def image_rm(call: VerbCall) -> int:
    """Remove images that no space uses.

    By its id, or its only name, an image goes; by one of several names, that name goes.
    """
    return each(call, call.texts("image"), lambda one: call.ask("images.remove", one), names=False)


PRUNED = AnswerTable(
    "images",
    {"NAME": _names, "ID": "id", "FREES": lambda image: size_text(image["size_bytes"])},
    empty="There is none to remove.",
)


@Verb(
    Option(
        "--budget SIZE",
        "Remove those not used for longest, until all together take no more.",
        to="budget_bytes",
    ),
    Option("-n, --dry-run", "Only say what would go.", to="dry_run"),
)
def image_prune(call: VerbCall) -> None:
    """Remove images that no space uses.

    Without --budget those that have no name any more.
    """
    done = call.ask("images.prune", content=call.content())
    call.answer(done, PRUNED)
