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
    ├── SandboxUnavailable           sandbox_unavailable: the sandbox is broken, not the command
    │   ├── IsolationUnproven        isolation_unproven
    │   ├── LimitsUnavailable        limits_unavailable
    │   ├── LauncherUnavailable      launcher_unavailable
    │   ├── WarmUnavailable          warm_unavailable: it can only be started cold
    │   └── SandboxNotFound          sandbox_not_found
    ├── CommandError                 the command is at fault, the sandbox is fine
    │   ├── CommandInvalid           command_invalid
    │   ├── CommandNotFound          command_not_found
    │   ├── CommandNotExecutable     command_not_executable
    │   └── RunNotFound              run_not_found
    ├── SpaceError                   a space cannot be found, made or moved
    │   ├── SpaceNotFound            space_not_found
    │   ├── SpaceAmbiguous           space_ambiguous: more than one is meant
    │   ├── SpaceInvalid             space_invalid: what was asked for cannot be
    │   ├── NameTaken                name_taken
    │   ├── StateConflict            state_conflict: not in this state
    │   ├── UnexportedChanges        unexported_changes: would be lost
    │   └── KeyReused                idempotency_key_reused
    ├── AccessError                  the caller may not
    │   ├── AuthenticationFailed     authentication_failed
    │   ├── Forbidden                forbidden
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
    │   └── CredentialNotFound       credential_not_found
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

from typing import ClassVar


class CarrelError(Exception):
    """Base of all. `hint` says what to do; `details` are for programs."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ProjectError(CarrelError):
    code = "project_invalid"


class ProjectNotFound(ProjectError):
    code = "project_not_found"


class ProjectNotAFolder(ProjectError):
    code = "project_not_a_folder"


class ProjectUnreadable(ProjectError):
    code = "project_unreadable"


class ProjectReadOnly(ProjectError):
    code = "project_read_only"


class ProjectInUse(ProjectError):
    code = "project_in_use"


class ProjectChanged(ProjectError):
    code = "project_changed"


class ProjectTooLarge(ProjectError):
    code = "project_too_large"


class ProjectInvalid(ProjectError):
    code = "project_invalid"


class RefNotFound(ProjectError):
    code = "ref_not_found"


class GitFailed(ProjectError):
    code = "git_failed"


class GitTimeout(ProjectError):
    code = "git_timeout"


class ArchiveInvalid(ProjectError):
    code = "archive_invalid"


class InsufficientDisk(CarrelError):
    code = "insufficient_disk"


class TreeError(CarrelError):
    code = "tree_unavailable"


class TreeUnavailable(TreeError):
    code = "tree_unavailable"


class TreeNotFound(TreeError):
    code = "tree_not_found"


class TreeExists(TreeError):
    code = "tree_exists"


class TreeDamaged(TreeError):
    code = "tree_damaged"


class BaseNotFound(TreeError):
    code = "base_not_found"


class BaseInUse(TreeError):
    code = "base_in_use"


class PathError(TreeError):
    code = "path_invalid"


class PathEscapes(PathError):
    code = "path_escapes"


class PathInvalid(PathError):
    code = "path_invalid"


class PathNotFound(PathError):
    code = "path_not_found"


class PathExists(PathError):
    code = "path_exists"


class PathDenied(PathError):
    code = "path_denied"


class PathWrongKind(PathError):
    code = "path_wrong_kind"


class SandboxUnavailable(CarrelError):
    code = "sandbox_unavailable"


class IsolationUnproven(SandboxUnavailable):
    code = "isolation_unproven"


class LimitsUnavailable(SandboxUnavailable):
    code = "limits_unavailable"


class LauncherUnavailable(SandboxUnavailable):
    code = "launcher_unavailable"


class WarmUnavailable(SandboxUnavailable):
    code = "warm_unavailable"


class SandboxNotFound(SandboxUnavailable):
    code = "sandbox_not_found"


class CommandError(CarrelError):
    code = "command_invalid"


class CommandInvalid(CommandError):
    code = "command_invalid"


class CommandNotFound(CommandError):
    code = "command_not_found"


class CommandNotExecutable(CommandError):
    code = "command_not_executable"


class RunNotFound(CommandError):
    code = "run_not_found"


class SpaceError(CarrelError):
    code = "space_invalid"


class SpaceNotFound(SpaceError):
    code = "space_not_found"


class SpaceAmbiguous(SpaceError):
    code = "space_ambiguous"


class SpaceInvalid(SpaceError):
    code = "space_invalid"


class NameTaken(SpaceError):
    code = "name_taken"


class StateConflict(SpaceError):
    code = "state_conflict"


class UnexportedChanges(SpaceError):
    code = "unexported_changes"


class KeyReused(SpaceError):
    code = "idempotency_key_reused"


class AccessError(CarrelError):
    code = "forbidden"


class AuthenticationFailed(AccessError):
    code = "authentication_failed"


class Forbidden(AccessError):
    code = "forbidden"


class TokenNotFound(AccessError):
    code = "token_not_found"


class RequestError(CarrelError):
    code = "message_invalid"


class MessageInvalid(RequestError):
    code = "message_invalid"


class TooLarge(RequestError):
    code = "too_large"


class RateLimited(RequestError):
    code = "rate_limited"


class NoReceiver(RequestError):
    code = "no_receiver"


class DeadlinePassed(RequestError):
    code = "timeout"


class SlowReader(RequestError):
    code = "slow_reader"


class TooManyClients(RequestError):
    code = "insufficient_resources"


class AgentError(CarrelError):
    code = "agent_crashed"


class ResolveFailed(AgentError):
    code = "resolve_failed"


class ProviderMismatch(AgentError):
    code = "provider_mismatch"


class ContinuationNotFound(AgentError):
    code = "continuation_not_found"


class ModelNotSupported(AgentError):
    code = "model_not_supported"


class UnsupportedFrontend(AgentError):
    code = "unsupported_frontend"


class FrontendNotInstalled(AgentError):
    code = "frontend_not_installed"


class EmptyResponse(AgentError):
    code = "empty_response"


class PermissionDenied(AgentError):
    code = "permission_denied"


class Interrupted(AgentError):
    code = "interrupted"


class AgentCrashed(AgentError):
    code = "agent_crashed"


class TurnNotFound(AgentError):
    code = "turn_not_found"


class CredentialNotFound(AgentError):
    code = "credential_not_found"


class InstanceError(CarrelError):
    code = "instance_error"


class InstanceNotFound(InstanceError):
    code = "instance_not_found"


class ServerNotFound(InstanceError):
    code = "server_not_found"


class ServerNotInstalled(InstanceError):
    code = "server_not_installed"


class InstanceFailed(InstanceError):
    code = "instance_failed"


class TooManyInstances(InstanceError):
    code = "too_many_instances"


class GenerationError(CarrelError):
    code = "request_invalid"


class RequestInvalid(GenerationError):
    code = "request_invalid"


class RequestNotFound(GenerationError):
    code = "request_not_found"


class RequestReused(GenerationError):
    code = "request_id_reused"


class RequestCancelled(GenerationError):
    code = "cancelled"


class Capacity(GenerationError):
    code = "capacity"


class VersionNotFound(GenerationError):
    code = "version_not_found"


class WorkspaceGone(GenerationError):
    code = "workspace_gone"


class StoreError(CarrelError):
    code = "store_damaged"


class StoreDamaged(StoreError):
    code = "store_damaged"


class StoreBusy(StoreError):
    code = "store_busy"


class StoreTooNew(StoreError):
    code = "store_too_new"


class StoreReadOnly(StoreError):
    code = "store_read_only"


class DaemonError(CarrelError):
    code = "daemon_unavailable"


class DaemonUnavailable(DaemonError):
    code = "daemon_unavailable"


class DaemonRunning(DaemonError):
    code = "daemon_running"
