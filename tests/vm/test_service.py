"""One daemon, one way to live: as a service of systemd, or started by the first command."""

from __future__ import annotations

from tests.vm.machine import EAT, Machine, together


def _control(user: str) -> str:
    return "systemctl" if user == "root" else "systemctl --user"


def test_a_service_and_commands_agree(vm: Machine) -> None:
    together(lambda user: agree(vm, user), ("ling", "root"))


def agree(vm: Machine, user: str) -> None:
    made = "carrel new --empty --name served --memory 200M && carrel exec -d served -- sleep 5000"
    run = vm.run(user, made).ok().splitlines()[-1]
    control = _control(user)
    goes_on = f"carrel run show {run} | grep -q running"
    vm.script(
        user,
        "carrel service status | grep 'no service'",
        "carrel service install | grep ' active'",
        goes_on,
        f"{control} restart carrel",
        goes_on,
        f"carrel exec served -- {EAT}",
        "carrel down",
        f"test $({control} is-active carrel) = inactive",
        f"{control} stop carrel",
        goes_on,
        # A command has started the service, not a daemon of its own.
        f"test $({control} is-active carrel) = active",
        f"{control} stop carrel",
        "carrel down 2>&1 | grep 'No daemon runs'",
        f"{control} start carrel",
        f"{control} daemon-reexec",
        goes_on,
        "kill -9 $(carrel status | sed -n 's/.*process //p')",
        goes_on,
        "carrel service remove",
        goes_on,
        f"carrel exec served -- {EAT}",
        "carrel service status | grep 'no service'",
        "carrel rm --force served",
    )


def test_a_reboot(vm: Machine) -> None:
    """A service is back by itself; files are read back, and limits hold again."""
    users = ("root", "dev", "ling")
    runs: dict[str, str] = {}

    def before(user: str) -> None:
        said = vm.script(
            user,
            "carrel new --empty --name kept --agent scripted --memory 200M",
            "carrel exec kept -- sh -c 'echo kept > file'",
            "" if user == "dev" else "carrel service install",
            "carrel send kept 'say one' --wait",
            "carrel send kept --continue 'sleep 5000'",
            "carrel exec -d kept -- sleep 5000",
        )
        runs[user] = said.splitlines()[-1]

    def after(user: str) -> None:
        if user != "dev":
            vm.wait(user, f"{_control(user)} is-active -q carrel")
        vm.script(
            user,
            f"carrel run show {runs[user]} > shown",
            "carrel turns kept >> shown",
            "test $(grep -c running shown) = 0",
            "carrel start kept",
            'test "$(carrel exec kept -- cat file)" = kept',
            f"carrel exec kept -- {EAT}",
            "carrel send kept --wait --continue hello | grep -E 'turn [23]: hello'",
            "carrel rm --force kept",
            "carrel service remove",
        )

    together(before, users)
    vm.reboot()
    together(after, users)
