"""One sentence, a hint and an exit code; never a traceback."""

from __future__ import annotations

import json

import pytest

from carrel.cli.commands import COMMANDS, SECTIONS
from carrel.cli.errors import exit_code, report
from carrel.client.problems import error_from
from carrel.domain import errors
from tests.cli.program import Program


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing"),
        (["lss"], "hint: carrel ls"),
        (["instance", "strat"], "hint: carrel instance start"),
        (["qqqqqq"], "hint: carrel --help"),
        (["ls", "--nothing"], "--nothing"),
        (["show"], "SPACE"),
        (["new", "--memory", "3Q"], "3Q"),
        (["new", "--network", "maybe"], "none, open"),
        (["new", "--label", "x"], "KEY=VALUE"),
        (["new", "a", "--empty"], "only one of"),
        (["run", "nothing"], "nothing"),
        (["completion", "cmd"], "cmd"),
        (["--url", "ftp://x", "ls"], "ftp://x"),
    ],
)
def test_mistakes_of_usage(carrel: Program, words: list[str], said: str) -> None:
    assert said in carrel.bad(2, *words)


def test_a_bad_name_is_told_in_a_sentence(carrel: Program) -> None:
    said = carrel.bad(2, "new", "--empty", "--name", "Bad Name")
    assert said.startswith("carrel: name: A space's name has up to 63 lower-case letters")
    assert "--help" in said and "body" not in said and "openapi" not in said


def test_errors_of_the_daemon(carrel: Program) -> None:
    assert "no space 'nobody'" in carrel.bad(3, "show", "nobody")
    assert "/nonexistent" in carrel.bad(3, "new", "/nonexistent")
    said = carrel.bad(2, "new", "--empty", "--name", "Not A Name")
    assert "63 lower-case letters" in said and "regex" not in said
    said = carrel.bad(2, "new", "--empty", "--env", "1X=2")
    assert "letters, digits and underscores" in said and "regex" not in said


def test_as_json(carrel: Program) -> None:
    done = carrel("show", "nobody", "--json")
    found = json.loads(done.err)
    assert (done.code, found["code"], done.out) == (3, "space_not_found", "")
    assert found["detail"] and found["hint"]
    done = carrel("ls", "--nothing", "--json")
    assert json.loads(done.err)["code"] == "message_invalid"


def test_text_of_others_steers_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Also in a pipe: somebody may look at it later."""
    message = "It said last:\n\x1b]0;title\x07\x1b[2J\u202ered\r"
    assert report(errors.SetupFailed(message, hint="h\x1b[8m")) == exit_code(
        errors.SetupFailed(message)
    )
    said = capfd.readouterr().err
    assert said.startswith("carrel: It said last:\n\\x1b]0;title") and said.endswith("\n")
    assert all(line.isprintable() for line in said.split("\n"))


def test_every_code_has_an_exit_code_that_is_meant() -> None:
    """All of `carrel.errors`: usage is 2, the rest is 1 or one of the table."""
    level: list[type[errors.CarrelError]] = [errors.CarrelError]
    while level:
        for kind in level:
            code = exit_code(error_from({"code": kind.code, "detail": "x"}))
            assert code in (*range(1, 9), 126, 127), kind.code
        level = [below for kind in level for below in kind.__subclasses__()]
    assert exit_code(errors.SpaceNotFound("x")) == 3
    assert exit_code(RuntimeError("x")) == 1


def test_what_nobody_foresaw_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from carrel.cli import main

    def fail(_words: list[str]) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(main, "_plain", fail)
    assert main.run(["ls"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in said and "Traceback" not in said
    monkeypatch.setenv("CARREL_DEBUG", "1")
    assert main.run(["ls"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from carrel.cli import main

    def interrupt(_words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_plain", interrupt)
    assert main.run(["ls"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_help_is_there(carrel: Program) -> None:
    text = carrel.good("--help")
    assert all(f"\n{title}:\n" in text for title in SECTIONS)
    listed = {
        line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()
    }
    assert {name.split()[0] for name in COMMANDS} <= listed
    assert carrel.good() == text
    assert "--memory" in carrel.good("new", "-h")
    assert "attach" in carrel.good("run", "--help")
    assert "--timeout" in carrel.good("run", "wait", "--help")


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_it_is_what_a_shell_reads(self, carrel: Program, shell: str) -> None:
        assert "_CARREL_COMPLETE" in carrel.good("completion", shell)

    def complete(self, carrel: Program, *words: str) -> list[str]:
        env = {
            "_CARREL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("carrel", *words)),
            "COMP_CWORD": str(len(words)),
        }
        done = carrel(env=env)
        assert done.code == 0, done
        return [line.partition(",")[2] for line in done.out.split()]

    def test_verbs_options_and_choices(self, carrel: Program) -> None:
        assert "exec" in self.complete(carrel, "ex")
        assert self.complete(carrel, "run", "at") == ["attach"]
        assert "--memory" in self.complete(carrel, "new", "--mem")
        assert self.complete(carrel, "new", "--network", "o") == ["open"]

    def test_names_of_spaces_and_runs(self, carrel: Program, space: str) -> None:
        assert self.complete(carrel, "show", space[:9]) == [space]
        assert f"{space}:" in self.complete(carrel, "cp", space[:9])
        run = carrel.good("exec", "-d", space, "sleep", "30").strip()
        assert run in self.complete(carrel, "run", "show", "ru_")
        carrel.good("run", "signal", run, "KILL")

    def test_without_a_daemon_it_is_silent(self, carrel: Program) -> None:
        carrel.env["CARREL_DATA"] = "/nonexistent/carrel"
        assert self.complete(carrel, "show", "") == []
