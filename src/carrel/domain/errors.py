"""Every error a user can meet, each with a stable code.

    CarrelError                      internal
    ├── ProjectError                 what a space should start from is not usable
    │   ├── ProjectNotFound          project_not_found
    │   ├── ProjectNotAFolder        project_not_a_folder
    │   ├── ProjectUnreadable        project_unreadable
    │   ├── ProjectReadOnly          project_read_only
    │   ├── ProjectInUse             project_in_use: another space works in it
    │   ├── ProjectChanged           project_changed
    │   ├── ProjectTooLarge          project_too_large
    │   ├── ProjectInvalid           project_invalid
    │   ├── RefNotFound              ref_not_found
    │   ├── GitFailed                git_failed
    │   ├── GitTimeout               git_timeout
    │   └── ArchiveInvalid           archive_invalid
    ├── InsufficientDisk             insufficient_disk
    ├── TreeError                    a private copy cannot be made or used
    │   ├── TreeUnavailable          tree_unavailable
    │   ├── TreeNotFound             tree_not_found
    │   ├── TreeExists               tree_exists
    │   ├── TreeDamaged              tree_damaged
    │   ├── BaseNotFound             base_not_found
    │   ├── BaseInUse                base_in_use
    │   └── PathError
    │       ├── PathEscapes          path_escapes
    │       ├── PathInvalid          path_invalid
    │       ├── PathNotFound         path_not_found
    │       ├── PathExists           path_exists
    │       ├── PathDenied           path_denied
    │       └── PathWrongKind        path_wrong_kind
    ├── ImageError                   about images, which spaces can have as their system
    │   ├── ImageInvalid             image_invalid: it cannot be used, or is not one
    │   ├── ImageNotFound            image_not_found
    │   └── ImageInUse               image_in_use: by a space
    ├── SandboxUnavailable           sandbox_unavailable: the sandbox is broken, not the command
    │   ├── IsolationUnproven        isolation_unproven
    │   ├── LimitsUnavailable        limits_unavailable
    │   ├── LauncherUnavailable      launcher_unavailable
    │   ├── ImageNeeded              image_needed: a container of an engine is made of an image
    │   ├── ContainerUnavailable     container_unavailable: podman or docker cannot make one
    │   ├── ContainerGone            container_gone: somebody else removed or ended it
    │   ├── WarmUnavailable          warm_unavailable: it can only be started cold
    │   └── SandboxNotFound          sandbox_not_found
    ├── CommandError                 the command is at fault, the sandbox is fine
    │   ├── CommandInvalid           command_invalid
    │   ├── CommandNotFound          command_not_found
    │   ├── CommandNotExecutable     command_not_executable
    │   ├── SetupFailed              setup_failed: a set-up command of the project
    │   └── RunNotFound              run_not_found
    ├── SpaceError                   a space cannot be found, made or moved
    │   ├── SpaceNotFound            space_not_found
    │   ├── SpaceAmbiguous           space_ambiguous: more than one is meant
    │   ├── SpaceInvalid             space_invalid: what was asked for cannot be
    │   ├── NameTaken                name_taken
    │   ├── TooManySpaces            too_many_spaces: of one token, or of one label
    │   ├── StateConflict            state_conflict: not in this state
    │   ├── UnexportedChanges        unexported_changes: would be lost
    │   └── KeyReused                idempotency_key_reused
    ├── AccessError                  the caller may not
    │   ├── AuthenticationFailed     authentication_failed
    │   ├── Forbidden                forbidden
    │   ├── AgreementNeeded          agreement_needed: a person is asked first
    │   └── TokenNotFound            token_not_found
    ├── RequestError                 a request cannot be understood or is too much
    │   ├── MessageInvalid           message_invalid
    │   ├── TooLarge                 too_large
    │   ├── RateLimited              rate_limited
    │   ├── NoReceiver               no_receiver: nobody is there to answer
    │   ├── DeadlinePassed           timeout: nobody answered in time
    │   ├── SlowReader               slow_reader: cut off, and may replay
    │   └── TooManyClients           insufficient_resources
    ├── AgentError                   a turn cannot be run, or went wrong
    │   ├── ResolveFailed            resolve_failed
    │   ├── ProviderMismatch         provider_mismatch: a continuation of another provider
    │   ├── ContinuationNotFound     continuation_not_found
    │   ├── ModelNotSupported        model_not_supported
    │   ├── UnsupportedFrontend      unsupported_frontend
    │   ├── FrontendNotInstalled     frontend_not_installed
    │   ├── EmptyResponse            empty_response
    │   ├── PermissionDenied         permission_denied
    │   ├── Interrupted              interrupted
    │   ├── AgentCrashed             agent_crashed
    │   ├── TurnNotFound             turn_not_found
    │   ├── VariableRefused          variable_refused: not together with a key that is kept here
    │   ├── NotTrusted               not_trusted: nobody has agreed to what the project brings
    │   ├── CredentialNotFound       credential_not_found
    │   ├── KeyMissing               key_missing: the agent has nothing to log in with
    │   ├── LoginExpired             login_expired: an imported login is not accepted any more
    │   └── NetworkNeeded            network_needed: the space has none, and the agent needs it
    ├── InstanceError                a dedicated MCP server cannot be had
    │   ├── InstanceNotFound         instance_not_found
    │   ├── ServerNotFound           server_not_found: no kind of server has that name
    │   ├── ServerNotInstalled       server_not_installed
    │   ├── InstanceFailed           instance_failed: it ended, or never answered
    │   └── TooManyInstances         too_many_instances
    ├── GenerationError              what was to be made cannot be had
    │   ├── RequestInvalid           request_invalid
    │   ├── RequestNotFound          request_not_found
    │   ├── RequestReused            request_id_reused: it came with something else before
    │   ├── RequestCancelled         cancelled
    │   ├── Capacity                 capacity: too many wait already
    │   ├── VersionNotFound          version_not_found
    │   └── WorkspaceGone            workspace_gone: its files cannot be fetched any more
    ├── LandingError                 work cannot be brought into its project, or taken back
    │   ├── LandingRefused           landing_refused
    │   ├── LandingConflicts         landing_conflict: both sides changed the same
    │   ├── LandingHalfDone          landing_half_done: it went wrong, and so did taking it back
    │   ├── NothingToLand            nothing_to_land
    │   ├── QueueEntryNotFound       queue_entry_not_found
    │   ├── CheckFailed              check_failed: the command that was to check it ended badly
    │   └── NotUndoable              not_undoable
    ├── EngineError                  podman, buildah or docker cannot do it
    │   ├── EngineUnavailable        engine_unavailable
    │   ├── EngineFailed             engine_failed
    │   ├── EngineTimeout            engine_timeout
    │   ├── ImageBuildFailed         image_build_failed: a step of the build ended badly
    │   └── ImageNotInEngine         image_not_in_engine: none has an image of that name
    ├── EnvironmentRefused           environment_refused: what was asked for cannot be made here
    ├── SshUnavailable               ssh_unavailable: no OpenSSH, or no accounts in the space
    ├── SshKeyInvalid                ssh_key_invalid: it is no public key that the listener takes
    ├── SshKeyNotFound               ssh_key_not_found
    ├── EditorUnavailable            editor_unavailable: it is not installed where it was called
    ├── PortUnavailable              port_unavailable: of the host, or nothing listens in the space
    ├── PortNotForwarded             port_not_forwarded
    ├── RaceNotFound                 race_not_found
    ├── TakeRefused                  take_refused: files of a space cannot be taken into another
    ├── CommentError                 about comments on the files of spaces
    │   ├── CommentRefused           comment_refused: it cannot be kept or sent
    │   └── CommentNotFound          comment_not_found
    ├── StoreError                   the records cannot be read or written
    │   ├── StoreDamaged             store_damaged
    │   ├── StoreBusy                store_busy
    │   ├── StoreTooNew              store_too_new
    │   └── StoreReadOnly            store_read_only
    └── DaemonError                  the daemon cannot be reached or started
        ├── DaemonUnavailable        daemon_unavailable
        └── DaemonRunning            daemon_running: another one has the data folder

A command that ran and ended badly is no error here: that is an `Exit`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class Kind(NamedTuple):
    """What follows from an error: the status of an answer, the exit code of `carrel`, and whether
    it may be otherwise the next time."""

    status: int
    exit: int
    again: bool = False


INVALID = Kind(422, 2)
"""What was said cannot be understood."""
UNUSABLE = Kind(422, 1)
"""It is understood, and cannot be done with."""
NAMED_MISSING = Kind(422, 3)
"""What the body names is not there, so it is the body that is wrong."""
NOT_FOUND = Kind(404, 3)
GONE = Kind(410, 3)
CONFLICT = Kind(409, 4)
"""Not as things are."""
DENIED = Kind(403, 5)
UNKNOWN_CALLER = Kind(401, 5)
NOT_INSTALLED = Kind(409, 7)
CANNOT = Kind(422, 7)
"""This machine cannot."""
DAMAGED = Kind(500, 7)
UNAVAILABLE = Kind(503, 7, again=True)
NO_ROOM = Kind(507, 7, again=True)
NO_DAEMON = Kind(503, 6, again=True)
BUSY = Kind(429, 4, again=True)
"""Too much at once."""
TOO_LARGE = Kind(413, 1)
UPSTREAM = Kind(502, 1, again=True)
"""Somebody else's program failed."""
LATE = Kind(504, 1, again=True)
INTERNAL = Kind(500, 1)
NO_COMMAND = Kind(422, 127)
NOT_EXECUTABLE = Kind(422, 126)


class CarrelError(Exception):
    """Base of all. `hint` says what to do; `details` are for programs."""

    code: ClassVar[str] = "internal"
    kind: ClassVar[Kind] = INTERNAL
    again: ClassVar[bool | None] = None
    """Whether it may be otherwise the next time; None: as its kind says."""
    advice: ClassVar[str] = ""
    """The hint of one that is raised without any."""

    @property
    def passing(self) -> bool:
        return self.kind.again if self.again is None else self.again

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.advice
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ProjectError(CarrelError):
    code = "project_invalid"
    kind = UNUSABLE


class ProjectNotFound(ProjectError):
    code = "project_not_found"
    kind = NAMED_MISSING


class ProjectNotAFolder(ProjectError):
    code = "project_not_a_folder"
    kind = UNUSABLE


class ProjectUnreadable(ProjectError):
    code = "project_unreadable"
    kind = UNUSABLE
    advice = "Look at its owner and mode."


class ProjectReadOnly(ProjectError):
    code = "project_read_only"
    kind = UNUSABLE


class ProjectInUse(ProjectError):
    code = "project_in_use"
    kind = CONFLICT


class ProjectChanged(ProjectError):
    code = "project_changed"
    kind = CONFLICT
    again = True


class ProjectTooLarge(ProjectError):
    code = "project_too_large"
    kind = UNUSABLE


class ProjectInvalid(ProjectError):
    code = "project_invalid"
    kind = UNUSABLE
    advice = "Check what it names."


class RefNotFound(ProjectError):
    code = "ref_not_found"
    kind = NAMED_MISSING


class GitFailed(ProjectError):
    code = "git_failed"
    kind = UNUSABLE
    advice = "Check the address and the network, or try it with git itself."


class GitTimeout(ProjectError):
    code = "git_timeout"
    kind = UNUSABLE
    again = True


class ArchiveInvalid(ProjectError):
    code = "archive_invalid"
    kind = UNUSABLE


class InsufficientDisk(CarrelError):
    code = "insufficient_disk"
    kind = NO_ROOM


class TreeError(CarrelError):
    code = "tree_unavailable"
    kind = UNAVAILABLE


class TreeUnavailable(TreeError):
    code = "tree_unavailable"
    kind = UNAVAILABLE
    advice = "`carrel doctor` says what this machine can do."


class TreeNotFound(TreeError):
    code = "tree_not_found"
    kind = NOT_FOUND


class TreeExists(TreeError):
    code = "tree_exists"
    kind = CONFLICT


class TreeDamaged(TreeError):
    code = "tree_damaged"
    kind = DAMAGED


class BaseNotFound(TreeError):
    code = "base_not_found"
    kind = NOT_FOUND


class BaseInUse(TreeError):
    code = "base_in_use"
    kind = CONFLICT


class PathError(TreeError):
    code = "path_invalid"
    kind = UNUSABLE


class PathEscapes(PathError):
    code = "path_escapes"
    kind = DENIED
    advice = "Name a path within the tree."


class PathInvalid(PathError):
    code = "path_invalid"
    kind = UNUSABLE
    advice = "Name another one."


class PathNotFound(PathError):
    code = "path_not_found"
    kind = NOT_FOUND
    advice = "Check the path."


class PathExists(PathError):
    code = "path_exists"
    kind = CONFLICT
    advice = "Name another one, or remove it first."


class PathDenied(PathError):
    code = "path_denied"
    kind = DENIED
    advice = "Look at its owner and mode."


class PathWrongKind(PathError):
    code = "path_wrong_kind"
    kind = CONFLICT
    advice = "Look at what is there."


class CopyNotFound(TreeError):
    code = "copy_not_found"
    kind = NOT_FOUND


class ImageError(CarrelError):
    code = "image_invalid"
    kind = UNUSABLE


class ImageInvalid(ImageError):
    code = "image_invalid"
    kind = UNUSABLE


class ImageNotFound(ImageError):
    code = "image_not_found"
    kind = NOT_FOUND


class ImageInUse(ImageError):
    code = "image_in_use"
    kind = CONFLICT


class SandboxUnavailable(CarrelError):
    code = "sandbox_unavailable"
    kind = UNAVAILABLE
    advice = "`carrel doctor` says what this machine can do."


class IsolationUnproven(SandboxUnavailable):
    code = "isolation_unproven"
    kind = UNAVAILABLE
    again = False


class LimitsUnavailable(SandboxUnavailable):
    code = "limits_unavailable"
    kind = CANNOT


class LauncherUnavailable(SandboxUnavailable):
    code = "launcher_unavailable"
    kind = UNAVAILABLE
    advice = "Try again; the daemon's log has more."


class ImageNeeded(SandboxUnavailable):
    code = "image_needed"
    kind = UNUSABLE


class ContainerUnavailable(SandboxUnavailable):
    code = "container_unavailable"
    kind = UNAVAILABLE


class ContainerGone(SandboxUnavailable):
    code = "container_gone"
    kind = UNAVAILABLE


class WarmUnavailable(SandboxUnavailable):
    code = "warm_unavailable"
    kind = UNAVAILABLE


class SandboxNotFound(SandboxUnavailable):
    code = "sandbox_not_found"
    kind = NOT_FOUND


class CommandError(CarrelError):
    code = "command_invalid"
    kind = UNUSABLE


class CommandInvalid(CommandError):
    code = "command_invalid"
    kind = UNUSABLE


class CommandNotFound(CommandError):
    code = "command_not_found"
    kind = NO_COMMAND


class CommandNotExecutable(CommandError):
    code = "command_not_executable"
    kind = NOT_EXECUTABLE


class SetupFailed(CommandError):
    """A set-up command of a project."""

    code = "setup_failed"
    kind = UNUSABLE


class ServiceFailed(CommandError):
    """A service of a space did not start, or did not become healthy."""

    code = "service_failed"
    kind = UNUSABLE


class RunNotFound(CommandError):
    code = "run_not_found"
    kind = NOT_FOUND


class SpaceError(CarrelError):
    code = "space_invalid"
    kind = INVALID


class SpaceNotFound(SpaceError):
    code = "space_not_found"
    kind = NOT_FOUND


class CheckpointNotFound(SpaceError):
    code = "checkpoint_not_found"
    kind = NOT_FOUND


class SpaceAmbiguous(SpaceError):
    code = "space_ambiguous"
    kind = CONFLICT


class SpaceInvalid(SpaceError):
    code = "space_invalid"
    kind = INVALID


class NameTaken(SpaceError):
    code = "name_taken"
    kind = CONFLICT


class TooManySpaces(SpaceError):
    code = "too_many_spaces"
    kind = BUSY


class StateConflict(SpaceError):
    code = "state_conflict"
    kind = CONFLICT


class UnexportedChanges(SpaceError):
    code = "unexported_changes"
    kind = CONFLICT


class KeyReused(SpaceError):
    code = "idempotency_key_reused"
    kind = UNUSABLE


class AccessError(CarrelError):
    code = "forbidden"
    kind = DENIED


class AuthenticationFailed(AccessError):
    code = "authentication_failed"
    kind = UNKNOWN_CALLER


class Forbidden(AccessError):
    code = "forbidden"
    kind = DENIED


class AgreementNeeded(AccessError):
    """`question_id` is in its details: the question waits in the inbox."""

    code = "agreement_needed"
    kind = DENIED


class TokenNotFound(AccessError):
    code = "token_not_found"
    kind = NOT_FOUND


class RequestError(CarrelError):
    code = "message_invalid"
    kind = INVALID


class MessageInvalid(RequestError):
    code = "message_invalid"
    kind = INVALID


class TooLarge(RequestError):
    code = "too_large"
    kind = TOO_LARGE


class RateLimited(RequestError):
    code = "rate_limited"
    kind = BUSY


class NoReceiver(RequestError):
    code = "no_receiver"
    kind = NOT_FOUND


class DeadlinePassed(RequestError):
    code = "timeout"
    kind = LATE


class SlowReader(RequestError):
    code = "slow_reader"
    kind = BUSY


class TooManyClients(RequestError):
    code = "insufficient_resources"
    kind = UNAVAILABLE


class TooManyQuestions(RequestError):
    code = "too_many_questions"
    kind = BUSY


class AgentError(CarrelError):
    code = "agent_crashed"
    kind = UPSTREAM


class ResolveFailed(AgentError):
    code = "resolve_failed"
    kind = UNUSABLE


class ProviderMismatch(AgentError):
    code = "provider_mismatch"
    kind = INVALID
    advice = "Begin a new conversation."


class ContinuationNotFound(AgentError):
    code = "continuation_not_found"
    kind = NOT_FOUND
    advice = "Begin a new conversation."


class ModelNotSupported(AgentError):
    code = "model_not_supported"
    kind = INVALID


class UnsupportedFrontend(AgentError):
    code = "unsupported_frontend"
    kind = INVALID


class FrontendNotInstalled(AgentError):
    code = "frontend_not_installed"
    kind = NOT_INSTALLED


class EmptyResponse(AgentError):
    code = "empty_response"
    kind = UPSTREAM


class PermissionDenied(AgentError):
    code = "permission_denied"
    kind = DENIED


class Interrupted(AgentError):
    code = "interrupted"
    kind = CONFLICT
    again = True


class AgentCrashed(AgentError):
    code = "agent_crashed"
    kind = UPSTREAM


class TurnNotFound(AgentError):
    code = "turn_not_found"
    kind = NOT_FOUND


class VariableRefused(AgentError):
    code = "variable_refused"
    kind = DENIED


class NotTrusted(AgentError):
    code = "not_trusted"
    kind = DENIED


class CredentialNotFound(AgentError):
    code = "credential_not_found"
    kind = NOT_FOUND


class KeyMissing(AgentError):
    code = "key_missing"
    kind = UNUSABLE


class LoginExpired(AgentError):
    code = "login_expired"
    kind = UNUSABLE


class NetworkNeeded(AgentError):
    code = "network_needed"
    kind = UNUSABLE


class InstanceError(CarrelError):
    code = "instance_error"
    kind = INTERNAL


class InstanceNotFound(InstanceError):
    code = "instance_not_found"
    kind = NOT_FOUND


class ServerNotFound(InstanceError):
    code = "server_not_found"
    kind = NOT_FOUND


class ServerNotInstalled(InstanceError):
    code = "server_not_installed"
    kind = NOT_INSTALLED


class InstanceFailed(InstanceError):
    code = "instance_failed"
    kind = UPSTREAM


class TooManyInstances(InstanceError):
    code = "too_many_instances"
    kind = BUSY


class GenerationError(CarrelError):
    code = "request_invalid"
    kind = INVALID


class RequestInvalid(GenerationError):
    code = "request_invalid"
    kind = INVALID


class RequestNotFound(GenerationError):
    code = "request_not_found"
    kind = NOT_FOUND


class RequestReused(GenerationError):
    code = "request_id_reused"
    kind = CONFLICT


class RequestCancelled(GenerationError):
    code = "cancelled"
    kind = CONFLICT
    again = True


class Capacity(GenerationError):
    code = "capacity"
    kind = BUSY


class VersionNotFound(GenerationError):
    code = "version_not_found"
    kind = NOT_FOUND


class WorkspaceGone(GenerationError):
    code = "workspace_gone"
    kind = GONE


class LandingError(CarrelError):
    pass


class LandingRefused(LandingError):
    code = "landing_refused"
    kind = CONFLICT


class LandingConflicts(LandingError):
    code = "landing_conflict"
    kind = CONFLICT


class LandingHalfDone(LandingError):
    code = "landing_half_done"
    kind = CONFLICT


class NothingToLand(LandingError):
    code = "nothing_to_land"
    kind = CONFLICT


class CheckFailed(LandingError):
    code = "check_failed"
    kind = CONFLICT


class QueueEntryNotFound(LandingError):
    code = "queue_entry_not_found"
    kind = NOT_FOUND


class NotUndoable(LandingError):
    code = "not_undoable"
    kind = CONFLICT


class EngineError(CarrelError):
    code = "engine_failed"
    kind = UPSTREAM


class EngineUnavailable(EngineError):
    code = "engine_unavailable"
    kind = CANNOT


class EngineFailed(EngineError):
    code = "engine_failed"
    kind = UPSTREAM


class EngineTimeout(EngineError):
    code = "engine_timeout"
    kind = LATE


class ImageBuildFailed(EngineError):
    code = "image_build_failed"
    kind = UNUSABLE


class ImageNotInEngine(EngineError):
    code = "image_not_in_engine"
    kind = NAMED_MISSING


class EnvironmentRefused(CarrelError):
    code = "environment_refused"
    kind = UNUSABLE


class SshUnavailable(CarrelError):
    code = "ssh_unavailable"
    kind = UNUSABLE


class SshKeyInvalid(CarrelError):
    code = "ssh_key_invalid"
    kind = INVALID


class SshKeyNotFound(CarrelError):
    code = "ssh_key_not_found"
    kind = NOT_FOUND


class EditorUnavailable(CarrelError):
    code = "editor_unavailable"
    kind = UNUSABLE


class PortUnavailable(CarrelError):
    code = "port_unavailable"
    kind = CONFLICT


class PortNotForwarded(CarrelError):
    code = "port_not_forwarded"
    kind = NOT_FOUND


class RaceNotFound(CarrelError):
    code = "race_not_found"
    kind = NOT_FOUND


class TakeRefused(CarrelError):
    code = "take_refused"
    kind = CONFLICT


class CommentError(CarrelError):
    pass


class CommentRefused(CommentError):
    code = "comment_refused"
    kind = CONFLICT


class CommentNotFound(CommentError):
    code = "comment_not_found"
    kind = NOT_FOUND


class StoreError(CarrelError):
    code = "store_damaged"
    kind = DAMAGED


class StoreDamaged(StoreError):
    code = "store_damaged"
    kind = DAMAGED


class StoreBusy(StoreError):
    code = "store_busy"
    kind = UNAVAILABLE


class StoreTooNew(StoreError):
    code = "store_too_new"
    kind = DAMAGED


class StoreReadOnly(StoreError):
    code = "store_read_only"
    kind = UNAVAILABLE
    again = False


class DaemonError(CarrelError):
    code = "daemon_unavailable"
    kind = NO_DAEMON


class DaemonUnavailable(DaemonError):
    code = "daemon_unavailable"
    kind = NO_DAEMON


class DaemonRunning(DaemonError):
    code = "daemon_running"
    kind = CONFLICT


def error_class(code: str) -> type[CarrelError]:
    """Also of a code that only a newer daemon, or an agent, knows."""
    return declared().get(code) or type("UnknownError", (CarrelError,), {"code": code})


def declared() -> dict[str, type[CarrelError]]:
    """All of these by code. A base shares its code with its most usual kind, which is the one
    meant."""
    found: dict[str, type[CarrelError]] = {}
    level: list[type[CarrelError]] = [CarrelError]
    while level:
        found.update((one.code, one) for one in level if one.__module__ == __name__)
        level = [below for one in level for below in one.__subclasses__()]
    return found


# In the messages of several rooms


def counted(files: int, commits: int) -> str:
    """As a person says it: "2 changes and 1 commit"."""
    words = [
        f"{number:,} {word}{'' if number == 1 else 's'}"
        for number, word in ((files, "change"), (commits, "commit"))
        if number or (word == "change" and not commits)
    ]
    return " and ".join(words)
