"""What is read from a Dockerfile."""

from __future__ import annotations

import string
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain.environments import EnvironmentReport, Image, Rule
from carrel.environments.dockerfile import MAX_STAGES, MAX_VARIABLES
from tests.environments.rig import messages, think


def docker(text: str) -> EnvironmentReport:
    return think({"Dockerfile": dedent(text)})


def variables(report: EnvironmentReport) -> dict[str, str]:
    return {one.name: one.value for one in report.variables}


def image(report: EnvironmentReport) -> Image:
    assert report.decided.rule is Rule.DOCKERFILE
    return report.image


def test_a_whole_one() -> None:
    report = docker("""\
        # syntax=docker/dockerfile:1
        ARG VERSION=3.12
        FROM --platform=$BUILDPLATFORM python:${VERSION}-slim AS base
        ENV APP=/app \\
            # in between
            MODE="quite productive"

        WORKDIR $APP
        RUN pip install flask
        FROM base
        COPY . .
        USER nobody
        EXPOSE 8000 53/udp
        CMD ["flask", "run"]
        """)
    assert report.notes == ()
    assert report.decided.path == "Dockerfile"
    assert report.decided.why == "Dockerfile says how the image is built, on python:3.12-slim."
    found = image(report)
    assert (found.reference, found.user, found.folder) == ("python:3.12-slim", "nobody", "/app")
    assert found.build is not None
    assert (found.build.dockerfile, found.build.context) == ("Dockerfile", ".")
    assert variables(report) == {"APP": "/app", "MODE": "quite productive"}
    assert [one.line for one in report.variables] == [4, 4]
    assert [(port.number, port.protocol) for port in report.ports] == [(8000, "tcp"), (53, "udp")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ENV A=1 B=2", {"A": "1", "B": "2"}),
        ("ENV A one two  three", {"A": "one two  three"}),
        ("env A=x", {"A": "x"}),
        ('ENV A="b c" B=d\\ e', {"A": "b c", "B": "d e"}),
        ("ENV A='$HOME' B=\\$X", {"A": "$HOME", "B": "$X"}),
        ('ENV A=\'one "two"\' B="it\'s"', {"A": 'one "two"', "B": "it's"}),
        ('ENV A="a \\"quoted\\" \\n"', {"A": 'a "quoted" \\n'}),
        ("ENV A= B=", {"A": "", "B": ""}),
        ("ENV A=x=y", {"A": "x=y"}),
        ("ENV A=1\\\n  B=2", {"A": "1", "B": "2"}),
    ],
)
def test_writing_variables(line: str, expected: dict[str, str]) -> None:
    report = think({"Dockerfile": f"FROM a\n{line}\n"})
    assert report.notes == ()
    assert variables(report) == expected


@pytest.mark.parametrize(
    ("written", "value", "resolved"),
    [
        ("$V", "v", True),
        ("a${V}b", "avb", True),
        ("$V-${V}_$V.", "v-v_v.", True),
        ("${V:-x}", "v", True),
        ("${EMPTY:-x}", "x", True),
        ("${EMPTY-x}", "", True),
        ("${V:+x}", "x", True),
        ("${EMPTY:+x}", "", True),
        ("${EMPTY+x}", "x", True),
        ("${EMPTY:-${V:-${EMPTY}}}", "v", True),
        ("${V:-$UNKNOWN}", "v", True),
        ("${EMPTY:-a$UNKNOWN}", "a${UNKNOWN}", False),
        ("/bin:$PATH", "/bin:${PATH}", False),
        ("${PATH:+$PATH:}/bin", "${PATH:+$PATH:}/bin", False),
        ("$COPY", "/bin:${PATH}", False),
        ("${V#pattern}", "${V#pattern}", False),
        ("$", "$", True),
        ("'$V'", "$V", True),
    ],
)
def test_variables_in_variables(written: str, value: str, resolved: bool) -> None:
    report = docker(f"FROM a\nARG V=v\nENV EMPTY= COPY=/bin:$PATH\nENV A={written}\n")
    assert report.notes == ()
    found = next(one for one in report.variables if one.name == "A")
    assert (found.value, found.resolved) == (value, resolved)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ENV A", "ENV A has no value."),
        ("ENV A=1 B", "ENV takes NAME=VALUE."),
        ("ENV =1", "'' cannot be a variable."),
        ("ENV A='", "A single quote is not closed."),
        ('ENV A="$B', "A double quote is not closed."),
        ("ENV A=${B", "A } is missing."),
        ("ENV A=${}", "A ${…} has no name."),
        ('ENV A="${C:?it must}"', "C must be given: it must"),
        # The blank ends the word, as it does for the builder.
        ("ENV A=\\\n  1", "ENV takes NAME=VALUE."),
        ("EXPOSE http", "'http' is not a port."),
        ("EXPOSE 70000", "'70000' is not a port."),
        ("EXPOSE 80/ham", "'80/ham' is not a port."),
        ("EXPOSE 1-60000", "'1-60000' is a range of more than 100 ports."),
        ("EXPOSE $PORT", "Only a build knows what EXPOSE is here."),
        ("USER $UID", "Only a build knows what USER is here."),
        ("INSTALL python", "'INSTALL' is not an instruction."),
        ("FROM", "FROM takes an image, and a name after AS."),
        ("FROM a b c", "FROM takes an image, and a name after AS."),
    ],
)
def test_a_line_that_is_wrong(line: str, message: str) -> None:
    text = f"FROM a\nENV C=\n{line}\nENV D=d\n"
    report = docker(text)
    assert messages(report) == [("Dockerfile", 3, message)]
    assert variables(report)["D"] == "d"


def test_all_of_one_line_see_what_was_before_it() -> None:
    report = docker("FROM a\nENV A=1\nENV A=2 B=$A\nENV C=$A\n")
    assert variables(report) == {"A": "2", "B": "1", "C": "2"}


def test_arguments() -> None:
    report = docker("""\
        ARG TAG=1 NAME=app
        ARG FULL=${NAME}:${TAG}
        FROM $FULL
        ENV OUTSIDE=$TAG
        ARG TAG
        ENV INSIDE=$TAG
        ARG TAG=2
        ENV NEWER=$TAG
        ENV TAG=env
        ARG TAG=3
        ENV WINS=$TAG
        """)
    assert image(report).reference == "app:1"
    found = variables(report)
    assert found["OUTSIDE"] == "${TAG}"
    assert (found["INSIDE"], found["NEWER"], found["WINS"]) == ("1", "2", "env")


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("ARG V\nFROM python:${V:-3.12}", "python:3.12"),
        ("FROM ${IMAGE:-debian}", "debian"),
        ('FROM "python:3"', "python:3"),
        ("FROM\tpython:3 as Base\nFROM BASE", "python:3"),
        ("FROM a AS x\nFROM b AS x\nFROM x", "b"),
        ("FROM scratch", "scratch"),
        ("FROM a@sha256:0123", "a@sha256:0123"),
        ("\ufeffFROM python:3\r\nENV A=1\r\n", "python:3"),
    ],
)
def test_the_base(text: str, base: str) -> None:
    report = docker(text)
    assert report.notes == ()
    assert image(report).reference == base


@pytest.mark.parametrize("written", ["python:$V", "$V", "${V}-${W}"])
def test_a_base_that_only_a_build_knows(written: str) -> None:
    report = docker(f"ARG V\nFROM {written}\nENV A=1\n")
    assert messages(report) == [("Dockerfile", 2, "Only a build knows what FROM is here.")]
    assert image(report).reference == ""
    assert image(report).why == "Dockerfile says how the image is built."
    assert variables(report) == {"A": "1"}


def test_a_stage_inherits() -> None:
    report = docker("""\
        FROM a AS one
        ARG SECRET=s
        ENV A=1
        EXPOSE 1
        WORKDIR /w
        USER u
        FROM one AS two
        ENV B=$A$SECRET
        EXPOSE 2
        WORKDIR sub/../deep
        FROM b AS three
        ENV C=3
        FROM two
        """)
    found = image(report)
    assert (found.reference, found.user, found.folder) == ("a", "u", "/w/deep")
    assert variables(report) == {"A": "1", "B": "1${SECRET}"}
    assert [port.number for port in report.ports] == [1, 2]


@pytest.mark.parametrize(
    "heredoc",
    [
        "RUN <<EOF\nFROM evil\nEXPOSE 1\nEOF",
        "RUN <<-EOF\n\tFROM evil\n\tEOF",
        "RUN <<'E F'\nFROM evil\nE F",
        'RUN python3 <<"EOF" > /x\nFROM evil\nEOF',
        "RUN <<A cat && <<B cat\nFROM evil\nA\nFROM evil\nB",
        "COPY <<EOF /etc/x\nFROM evil\n EOF\nEOF",
        "ONBUILD RUN <<EOF\nFROM evil\nEOF",
        "RUN 3<<EOF cat\nFROM evil\nEOF",
        "RUN <<EOF cat \\\n  more\nFROM evil\nEOF",
        "RUN echo '<<EOF'",
        'RUN ["echo", "<<EOF"]',
        "RUN cat <<<EOF",
        "LABEL a=<<EOF",
    ],
)
def test_heredocs_are_no_instructions(heredoc: str) -> None:
    report = docker(f"FROM good\n{heredoc}\nENV A=1\n")
    assert report.notes == ()
    assert image(report).reference == "good"
    assert variables(report) == {"A": "1"}
    assert report.ports == ()


def test_another_escape() -> None:
    report = docker("# escape=`\nFROM a\nENV A=C:\\dir `\n  B=2\n")
    assert report.notes == ()
    assert variables(report) == {"A": "C:\\dir", "B": "2"}


def test_long_lines() -> None:
    report = docker("FROM a\nENV A=1 \\ \t\n\n  # between\n  B=2 \\\n\n  C=x\\\\\nENV D=4")
    assert report.notes == ()
    assert variables(report) == {"A": "1", "B": "2", "C": "x\\", "D": "4"}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "It has no FROM."),
        ("# only a comment\n", None, "It has no FROM."),
        ("ARG A=1\n", None, "It has no FROM."),
        ("FROM a\nRUN <<EOF\nnever ends\n", 2, "The heredoc EOF does not end."),
        ("# escape=x\nFROM a\n", 1, "The escape directive takes \\ or `."),
        ("FROM a\nENV A=xx\n" + "ENV A=$A$A\n" * 40, None, "Its variables grow too large."),
        ("FROM a\n" + "WORKDIR aaaaaaaa\n" * 5000, None, "Its variables grow too large."),
        ("FROM a AS a\n" * (MAX_STAGES + 1), None, "It has more than 100 stages."),
        (
            "FROM a\n" + "ENV A=\n" * (MAX_VARIABLES + 1),
            None,
            "It sets more than 1000 variables.",
        ),
        (
            "FROM a\n" + "".join(f"EXPOSE {n}00-{n}99\n" for n in range(1, 12)),
            None,
            "It exposes more than 1000 ports.",
        ),
    ],
)
def test_what_cannot_be_used_decides_nothing(text: str, line: int | None, message: str) -> None:
    report = docker(text)
    assert report.decided.rule is Rule.DEFAULT
    assert messages(report) == [("Dockerfile", line, f"It cannot be used. {message}")]


def test_what_comes_before_the_first_from() -> None:
    report = docker("RUN true\nFROM a\n")
    assert messages(report) == [("Dockerfile", 1, "RUN comes before the first FROM.")]
    assert image(report).reference == "a"


def test_variables_that_are_nested_too_deeply() -> None:
    report = docker("FROM a\nENV A=" + "${B:-" * 100 + "}" * 100 + "\n")
    assert messages(report) == [("Dockerfile", 2, "Its variables are nested too deeply.")]


def test_a_containerfile_comes_after() -> None:
    both = think({"Dockerfile": "FROM a", "Containerfile": "FROM b"})
    assert image(both).reference == "a"
    assert [(match.rule, match.path) for match in both.also] == [(Rule.DOCKERFILE, "Containerfile")]
    assert image(think({"Containerfile": "FROM b"})).reference == "b"


WORDS = st.text(string.ascii_letters + string.digits + " $'\"\\=#<>&|\t{}:", max_size=12)


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"\A[A-Z_]{1,8}\Z"), WORDS, max_size=5))
def test_what_is_quoted_comes_back(values: dict[str, str]) -> None:
    """Whatever a value holds, single quotes with the quotes themselves escaped keep it."""
    pairs = [f"{name}='" + value.replace("'", "'\\''") + "'" for name, value in values.items()]
    report = think({"Dockerfile": "FROM a\n" + ("ENV " + " ".join(pairs) if pairs else "")})
    assert report.notes == ()
    assert variables(report) == values
    assert all(one.resolved for one in report.variables)
