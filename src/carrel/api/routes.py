"""Every operation of the API, one row each.

HTTP routes, the OpenAPI document, the clients and the test of who may call what are derived
from these rows. Only the standard library is imported, so that the `carrel` program can read
them without delay; types are therefore named here and found in `carrel.api.types`.

An operation called `group.verb` is answered by the method `verb` of the service `group`. It gets
the caller, then what the path names, the query and the body, as far as the row has them, and
returns the answer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Who = Literal["admin", "hidden", "own", "open"]
"""Who may call it: administrators only; everybody, though what is out of a token's scope does not
exist for it; everybody, about what is their own; everybody, without a token too."""


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    who: Who
    answer: str
    body: str = ""
    optional: bool = False
    """The body may be left out, and is then as its defaults say."""
    query: str = ""
    status: int = 200
    errors: tuple[str, ...] = ()
    """Beside those that every operation can end with: see `ALWAYS`."""
    again: bool = False
    """Sending it twice does no harm, so a client repeats it when the connection breaks."""
    long: bool = False
    """It grows with a project or a machine: clients wait longer for it."""
    waits: bool = False
    """It may take as long as its query says: it ends when the caller goes or the daemon ends."""
    keyed: bool = False
    """It takes an `Idempotency-Key`."""
    streams: str = ""
    """What comes as server-sent events, for who accepts them."""
    media: str = "application/json"
    """Of the answer. What is no JSON is written by hand: `answer` is then a sentence."""
    takes: str = ""
    """The media type of a body that is no JSON."""
    parts: bool = False
    """A `Range` of the answer can be asked for."""
    ends: str = ""
    """When it is answered with 204 and nothing."""

    @property
    def is_list(self) -> bool:
        """It answers with many records, each as large as who made it liked."""
        return self.method == "GET" and self.answer.endswith("List")

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.partition(".")[2]


BYTES = "application/octet-stream"

ALWAYS = (
    "authentication_failed",
    "forbidden",
    "too_large",
    "message_invalid",
    "rate_limited",
    "internal",
    "store_busy",
    "daemon_unavailable",
    "insufficient_disk",
)

SPACE = ("space_not_found", "space_ambiguous")
CHANGING = ("state_conflict", "tree_damaged", "tree_unavailable", "sandbox_unavailable")
BACK_ENDS = (
    "tree_unavailable",
    "tree_damaged",
    "sandbox_unavailable",
    "isolation_unproven",
    "launcher_unavailable",
    "limits_unavailable",
    "image_needed",
    "container_unavailable",
    "container_gone",
)
COMMAND = (
    *SPACE,
    *CHANGING,
    "command_invalid",
    "command_not_found",
    "command_not_executable",
    "launcher_unavailable",
    "isolation_unproven",
    "limits_unavailable",
    "container_unavailable",
    "container_gone",
)
RUN = ("run_not_found", "space_not_found")
PATHS = (
    *SPACE,
    *CHANGING,
    "path_not_found",
    "path_invalid",
    "path_escapes",
    "path_denied",
    "path_exists",
    "path_wrong_kind",
)
DIFF = (
    *SPACE,
    *CHANGING,
    *("path_not_found", "path_invalid", "path_escapes"),
    "checkpoint_not_found",
    *("git_failed", "git_timeout", "launcher_unavailable"),
)
TURN = ("turn_not_found", "space_not_found")
STARTING_A_TURN = (
    *(*COMMAND, "unsupported_frontend", "frontend_not_installed", "provider_mismatch"),
    *("continuation_not_found", "model_not_supported", "permission_denied"),
    *("variable_refused", "not_trusted", "resolve_failed", "path_not_found"),
    *("path_invalid", "path_escapes", "path_denied", "path_wrong_kind"),
    *("key_missing", "login_expired", "network_needed"),
)
PROJECT = (
    "project_not_found",
    "project_not_a_folder",
    "project_unreadable",
    "project_changed",
    "project_too_large",
    "project_invalid",
    "ref_not_found",
    "git_failed",
    "git_timeout",
    "archive_invalid",
    "base_not_found",
)

IMAGE = ("image_not_found", "tree_damaged")
ENGINE = (
    *("engine_unavailable", "engine_failed", "engine_timeout", "image_build_failed"),
    *("image_not_in_engine", "environment_refused", "insufficient_disk", "too_large"),
    *("state_conflict", "image_not_found"),
)
"""Of an image that an engine makes."""
IMPORT = ("image_invalid", "tree_damaged", "tree_unavailable", "path_invalid")

ASKED = ("request_not_found",)
"""Of a request."""
MADE = (*ASKED, *CHANGING, "workspace_gone", "space_not_found")
INSTANCE = ("instance_not_found", "launcher_unavailable")
STARTING = (
    *SPACE,
    *CHANGING,
    "project_not_found",
    "project_not_a_folder",
    "project_unreadable",
    "project_invalid",
    "server_not_found",
    "server_not_installed",
    "instance_failed",
    "too_many_instances",
    "command_invalid",
    "command_not_found",
    "command_not_executable",
    "launcher_unavailable",
    "isolation_unproven",
    "limits_unavailable",
)

OPERATIONS = (
    # Spaces
    Operation(
        *("spaces.create", "POST", "/v1/spaces", "own"),
        body="NewSpace",
        answer="SpaceInfo",
        status=201,
        keyed=True,
        streams="`progress`, then `space` or `problem`",
        errors=(
            *("space_invalid", "name_taken", "idempotency_key_reused", "setup_failed"),
            *("service_failed", "too_many_spaces", "model_not_supported"),
            *("server_not_found", "server_not_installed", *PROJECT, *BACK_ENDS),
        ),
    ),
    Operation(
        *("spaces.list", "GET", "/v1/spaces", "own"),
        query="SpaceListQuery",
        answer="SpaceList",
        again=True,
    ),
    Operation(
        *("spaces.show", "GET", "/v1/spaces/{space}", "hidden"),
        answer="SpaceInfo",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("spaces.update", "PATCH", "/v1/spaces/{space}", "hidden"),
        body="SpaceUpdate",
        answer="SpaceInfo",
        errors=(*SPACE, "space_invalid", "name_taken", "state_conflict"),
    ),
    Operation(
        *("spaces.stop", "POST", "/v1/spaces/{space}/stop", "hidden"),
        body="StopBody",
        optional=True,
        answer="SpaceInfo",
        again=True,
        long=True,
        errors=(*SPACE, *CHANGING, "launcher_unavailable"),
    ),
    Operation(
        *("spaces.start", "POST", "/v1/spaces/{space}/start", "hidden"),
        answer="SpaceInfo",
        again=True,
        long=True,
        errors=(
            "service_failed",
            *(*SPACE, *CHANGING, "launcher_unavailable"),
            *("limits_unavailable", "isolation_unproven"),
        ),
    ),
    Operation(
        *("spaces.restart", "POST", "/v1/spaces/{space}/restart", "hidden"),
        body="StopBody",
        optional=True,
        answer="SpaceInfo",
        long=True,
        errors=(
            "service_failed",
            *(*SPACE, *CHANGING, "launcher_unavailable"),
            *("limits_unavailable", "isolation_unproven"),
        ),
    ),
    Operation(
        *("spaces.remove", "DELETE", "/v1/spaces/{space}", "hidden"),
        query="RemoveQuery",
        answer="RemovalInfo",
        long=True,
        errors=(*SPACE, *CHANGING, "unexported_changes", "launcher_unavailable"),
    ),
    Operation(
        *("spaces.changes", "GET", "/v1/spaces/{space}/changes", "hidden"),
        query="ChangesQuery",
        answer="ChangeList",
        again=True,
        long=True,
        errors=(*SPACE, *CHANGING, "space_invalid"),
    ),
    Operation(
        *("spaces.usage", "GET", "/v1/spaces/{space}/usage", "hidden"),
        query="UsageQuery",
        answer="UsageInfo",
        again=True,
        long=True,
        errors=(*SPACE, *CHANGING),
    ),
    Operation(
        *("spaces.usage_of_all", "GET", "/v1/usage", "own"),
        query="UsageOfAllQuery",
        answer="UsageList",
        again=True,
        long=True,
    ),
    Operation(
        *("spaces.verify", "POST", "/v1/spaces/{space}/verify", "hidden"),
        answer="ProofInfo",
        again=True,
        long=True,
        errors=(*SPACE, *CHANGING, "launcher_unavailable", "isolation_unproven"),
    ),
    # What is at work, and ports
    Operation(
        *("ps.show", "GET", "/v1/spaces/{space}/ps", "hidden"),
        answer="PsInfo",
        again=True,
        errors=(*SPACE, *CHANGING, "launcher_unavailable"),
    ),
    Operation(
        *("ps.list", "GET", "/v1/ps", "own"),
        answer="PsList",
        again=True,
        long=True,
    ),
    Operation(
        *("services.list", "GET", "/v1/spaces/{space}/services", "hidden"),
        answer="ServiceList",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("services.restart", "POST", "/v1/spaces/{space}/services/{service}/restart", "hidden"),
        answer="ServiceInfo",
        again=True,
        long=True,
        errors=(*COMMAND, "service_failed"),
    ),
    Operation(
        *("ports.list", "GET", "/v1/spaces/{space}/ports", "hidden"),
        answer="PortList",
        again=True,
        errors=(*SPACE, *CHANGING, "launcher_unavailable"),
    ),
    Operation(
        *("ports.forward", "POST", "/v1/spaces/{space}/ports", "admin"),
        body="NewForward",
        answer="ForwardInfo",
        status=201,
        again=True,
        errors=(*SPACE, *CHANGING, "port_unavailable"),
    ),
    Operation(
        *("ports.stop", "DELETE", "/v1/spaces/{space}/ports/{port}", "admin"),
        answer="ForwardInfo",
        errors=(*SPACE, *CHANGING, "port_not_forwarded"),
    ),
    Operation(
        *("ssh.access", "GET", "/v1/ssh", "admin"),
        answer="SshAccessInfo",
        again=True,
        errors=("ssh_unavailable",),
    ),
    Operation(
        *("ssh.listener", "GET", "/v1/ssh/listener", "admin"),
        answer="SshListenerInfo",
        again=True,
        errors=("ssh_unavailable",),
    ),
    Operation(
        *("ssh.listen", "PUT", "/v1/ssh/listener", "admin"),
        body="SshListenBody",
        optional=True,
        answer="SshListenerInfo",
        again=True,
        long=True,
        errors=("ssh_unavailable", "port_unavailable"),
    ),
    Operation(
        *("ssh.stop_listening", "DELETE", "/v1/ssh/listener", "admin"),
        answer="SshListenerInfo",
        again=True,
        errors=("ssh_unavailable",),
    ),
    Operation(
        *("ssh_keys.add", "POST", "/v1/ssh/keys", "admin"),
        body="NewSshKey",
        answer="SshKeyInfo",
        status=201,
        errors=("ssh_key_invalid", "space_invalid", "ssh_unavailable"),
    ),
    Operation(
        *("ssh_keys.list", "GET", "/v1/ssh/keys", "admin"),
        answer="SshKeyList",
        again=True,
        errors=("ssh_unavailable",),
    ),
    Operation(
        *("ssh_keys.remove", "DELETE", "/v1/ssh/keys/{key:path}", "admin"),
        answer="SshKeyInfo",
        long=True,
        errors=("ssh_key_not_found", "ssh_unavailable", "sandbox_unavailable"),
    ),
    # Reviews
    Operation(
        *("review.diff", "POST", "/v1/spaces/{space}/diff", "hidden"),
        body="DiffBody",
        optional=True,
        answer="As `git diff` has it, after a line for each commit",
        media="text/x-diff",
        again=True,
        long=True,
        errors=DIFF,
    ),
    Operation(
        *("review.files", "POST", "/v1/spaces/{space}/diff/files", "hidden"),
        body="DiffFilesBody",
        optional=True,
        answer="DiffSummary",
        again=True,
        long=True,
        errors=DIFF,
    ),
    # What was kept of removed ones
    Operation(*("trash.list", "GET", "/v1/trash", "own"), answer="TrashList", again=True),
    Operation(
        *("trash.restore", "POST", "/v1/trash/{space}/restore", "hidden"),
        answer="SpaceInfo",
        status=201,
        long=True,
        errors=("space_not_found", "base_not_found", "name_taken", "too_many_spaces", *CHANGING),
    ),
    # Checkpoints
    Operation(
        *("checkpoints.take", "POST", "/v1/spaces/{space}/checkpoints", "hidden"),
        body="CheckpointBody",
        optional=True,
        answer="CheckpointInfo",
        status=201,
        long=True,
        errors=(*SPACE, *CHANGING, "too_large", "launcher_unavailable"),
    ),
    Operation(
        *("checkpoints.list", "GET", "/v1/spaces/{space}/checkpoints", "hidden"),
        answer="CheckpointList",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("checkpoints.rewind", "POST", "/v1/spaces/{space}/rewind", "hidden"),
        body="RewindBody",
        optional=True,
        answer="CheckpointInfo",
        long=True,
        errors=(*(*SPACE, *CHANGING, "checkpoint_not_found", "too_large", "launcher_unavailable"),),
    ),
    Operation(
        *("checkpoints.fork", "POST", "/v1/spaces/{space}/fork", "hidden"),
        body="ForkBody",
        optional=True,
        answer="ForkList",
        status=201,
        long=True,
        errors=(
            *("checkpoint_not_found", "name_taken", "too_large", "launcher_unavailable"),
            "too_many_spaces",
            *(*SPACE, *CHANGING),
        ),
    ),
    # Landings
    Operation(
        *("landings.land", "POST", "/v1/spaces/{space}/land", "hidden"),
        body="LandBody",
        optional=True,
        answer="LandingInfo",
        long=True,
        waits=True,
        errors=(
            *("landing_refused", "landing_conflict", "landing_half_done", "nothing_to_land"),
            "check_failed",
            *(*SPACE, *CHANGING, *PROJECT, "launcher_unavailable"),
        ),
    ),
    Operation(
        *("landings.list", "GET", "/v1/landings", "admin"),
        query="LandingsQuery",
        answer="LandingList",
        again=True,
    ),
    Operation(
        *("landings.undo", "POST", "/v1/undo", "admin"),
        body="UndoBody",
        optional=True,
        answer="LandingInfo",
        long=True,
        errors=("not_undoable", "landing_half_done", *PROJECT),
    ),
    Operation(
        *("review.export", "POST", "/v1/spaces/{space}/export", "hidden"),
        body="ExportBody",
        answer="A patch, a bundle of git, or a tar",
        media=BYTES,
        again=True,
        long=True,
        errors=(
            *("landing_refused", "landing_conflict", "nothing_to_land", "launcher_unavailable"),
            *(*SPACE, *CHANGING, *PROJECT),
        ),
    ),
    Operation(
        *("landings.take", "POST", "/v1/spaces/{space}/take", "hidden"),
        body="TakeBody",
        answer="TakeInfo",
        long=True,
        errors=(
            *("take_refused", "landing_half_done", "path_not_found", "launcher_unavailable"),
            *(*SPACE, *CHANGING, "git_failed", "git_timeout"),
        ),
    ),
    # Comments
    Operation(
        *("comments.add", "POST", "/v1/spaces/{space}/comments", "hidden"),
        body="NewComment",
        answer="CommentInfo",
        status=201,
        errors=(*PATHS, "comment_refused"),
    ),
    Operation(
        *("comments.list", "GET", "/v1/spaces/{space}/comments", "hidden"),
        answer="CommentList",
        again=True,
        errors=(*SPACE, *CHANGING),
    ),
    Operation(
        *("comments.remove", "DELETE", "/v1/spaces/{space}/comments/{comment}", "hidden"),
        answer="CommentList",
        errors=("comment_not_found", *SPACE, *CHANGING),
    ),
    Operation(
        *("comments.send", "POST", "/v1/spaces/{space}/comments/send", "hidden"),
        body="SendComments",
        optional=True,
        answer="CommentsSent",
        long=True,
        errors=("comment_refused", *STARTING_A_TURN),
    ),
    # Races
    Operation(
        *("races.create", "POST", "/v1/races", "own"),
        body="RaceBody",
        answer="RaceInfo",
        status=201,
        long=True,
        errors=(
            *("space_invalid", "name_taken", "setup_failed", *STARTING_A_TURN),
            "too_many_spaces",
            *("server_not_found", "server_not_installed", *PROJECT, *BACK_ENDS),
        ),
    ),
    Operation(
        *("races.show", "GET", "/v1/races/{race}", "hidden"),
        answer="RaceInfo",
        again=True,
        long=True,
        errors=("race_not_found",),
    ),
    Operation(
        *("races.check", "POST", "/v1/races/{race}/check", "hidden"),
        query="RaceQuery",
        answer="RaceInfo",
        again=True,
        long=True,
        waits=True,
        errors=("race_not_found", *COMMAND),
    ),
    # The queue of landings
    Operation(
        *("queue.add", "POST", "/v1/queue", "admin"),
        body="QueueBody",
        answer="QueueList",
        status=201,
        errors=("landing_refused", "state_conflict", *SPACE),
    ),
    Operation(
        *("queue.list", "GET", "/v1/queue", "admin"),
        query="QueueQuery",
        answer="QueueList",
        again=True,
    ),
    Operation(
        *("queue.cancel", "POST", "/v1/queue/{entry}/cancel", "admin"),
        answer="QueueEntryInfo",
        errors=("queue_entry_not_found", "state_conflict"),
    ),
    # Commands
    Operation(
        *("runs.execute", "POST", "/v1/spaces/{space}/exec", "hidden"),
        body="ExecBody",
        answer="ExecInfo",
        errors=COMMAND,
    ),
    Operation(
        *("runs.start", "POST", "/v1/spaces/{space}/runs", "hidden"),
        body="RunBody",
        answer="RunInfo",
        status=201,
        errors=COMMAND,
    ),
    Operation(
        *("runs.list", "GET", "/v1/spaces/{space}/runs", "hidden"),
        query="RunListQuery",
        answer="RunList",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("runs.show", "GET", "/v1/runs/{run}", "hidden"), answer="RunInfo", again=True, errors=RUN
    ),
    Operation(
        *("runs.wait", "GET", "/v1/runs/{run}/wait", "hidden"),
        query="WaitQuery",
        answer="RunInfo",
        again=True,
        long=True,
        errors=RUN,
    ),
    Operation(
        *("runs.signal", "POST", "/v1/runs/{run}/signal", "hidden"),
        body="SignalBody",
        answer="RunInfo",
        errors=(*RUN, *COMMAND),
    ),
    Operation(
        *("runs.output", "GET", "/v1/runs/{run}/output", "hidden"),
        query="OutputQuery",
        answer="Bytes",
        media=BYTES,
        again=True,
        errors=RUN,
    ),
    # Files
    Operation(
        *("files.read", "GET", "/v1/spaces/{space}/files", "hidden"),
        query="ReadQuery",
        answer="The file",
        media=BYTES,
        parts=True,
        again=True,
        errors=(*PATHS, "range_not_satisfiable"),
    ),
    Operation(
        *("files.write", "PUT", "/v1/spaces/{space}/files", "hidden"),
        query="WriteQuery",
        takes=BYTES,
        answer="File",
        errors=(*PATHS, "request_timeout"),
    ),
    Operation(
        *("files.delete", "DELETE", "/v1/spaces/{space}/files", "hidden"),
        query="DeleteQuery",
        answer="Done",
        errors=PATHS,
    ),
    Operation(
        *("files.stat", "GET", "/v1/spaces/{space}/files/stat", "hidden"),
        query="PathQuery",
        answer="File",
        again=True,
        errors=PATHS,
    ),
    Operation(
        *("files.list", "GET", "/v1/spaces/{space}/files/list", "hidden"),
        query="FolderQuery",
        answer="FileList",
        again=True,
        errors=PATHS,
    ),
    Operation(
        *("files.move", "POST", "/v1/spaces/{space}/files/move", "hidden"),
        body="MoveBody",
        answer="Done",
        errors=PATHS,
    ),
    Operation(
        *("files.mkdir", "POST", "/v1/spaces/{space}/files/mkdir", "hidden"),
        body="FolderBody",
        answer="Done",
        errors=PATHS,
    ),
    Operation(
        *("files.read_archive", "GET", "/v1/spaces/{space}/archive", "hidden"),
        query="ArchiveQuery",
        answer="A tar.zst, or with `plain` a tar",
        media="application/zstd",
        again=True,
        long=True,
        errors=PATHS,
    ),
    Operation(
        *("files.write_archive", "PUT", "/v1/spaces/{space}/archive", "hidden"),
        query="FolderQuery",
        takes=BYTES,
        answer="Done",
        long=True,
        errors=(*PATHS, "archive_invalid", "request_timeout"),
    ),
    Operation(
        *("files.copied", "POST", "/v1/spaces/{space}/copied", "hidden"),
        body="CopiedBody",
        answer="Done",
        again=True,
        errors=(*SPACE, *CHANGING, "copy_not_found"),
    ),
    # Agents
    Operation(
        *("turns.start", "POST", "/v1/spaces/{space}/turns", "hidden"),
        body="NewTurn",
        answer="TurnInfo",
        status=201,
        long=True,
        errors=STARTING_A_TURN,
    ),
    Operation(
        *("turns.list", "GET", "/v1/spaces/{space}/turns", "hidden"),
        query="TurnListQuery",
        answer="TurnList",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("turns.show", "GET", "/v1/turns/{turn}", "hidden"),
        query="TurnQuery",
        answer="TurnInfo",
        again=True,
        long=True,
        waits=True,
        errors=TURN,
    ),
    Operation(
        *("turns.interrupt", "POST", "/v1/turns/{turn}/interrupt", "hidden"),
        answer="TurnInfo",
        status=202,
        errors=(*TURN, "state_conflict"),
    ),
    Operation(
        *("turns.stop", "POST", "/v1/turns/{turn}/stop", "hidden"),
        answer="TurnInfo",
        status=202,
        errors=(*TURN, "state_conflict"),
    ),
    Operation(
        *("turns.input", "POST", "/v1/turns/{turn}/input", "hidden"),
        body="InputBody",
        answer="TurnInfo",
        status=202,
        errors=(*TURN, "state_conflict", "unsupported_frontend"),
    ),
    Operation(
        *("turns.decide", "POST", "/v1/turns/{turn}/permissions/{permission}", "hidden"),
        body="DecisionBody",
        answer="TurnInfo",
        status=202,
        errors=(*TURN, "state_conflict", "unsupported_frontend"),
    ),
    Operation(
        *("turns.terminal", "GET", "/v1/spaces/{space}/terminal", "hidden"),
        query="TerminalQuery",
        answer="TerminalInfo",
        again=True,
        errors=(*SPACE, "state_conflict"),
    ),
    Operation(
        *("trust.show", "GET", "/v1/spaces/{space}/trust", "hidden"),
        query="TrustQuery",
        answer="TrustInfo",
        again=True,
        errors=(*SPACE, "unsupported_frontend", "state_conflict"),
    ),
    Operation(
        *("trust.say", "POST", "/v1/spaces/{space}/trust", "hidden"),
        body="TrustBody",
        answer="TrustInfo",
        errors=(*SPACE, "unsupported_frontend", "state_conflict", "not_trusted"),
    ),
    Operation(
        *("context.list", "GET", "/v1/spaces/{space}/context", "hidden"),
        answer="ContextList",
        again=True,
        errors=(*SPACE, "state_conflict"),
    ),
    Operation(
        *("context.read", "GET", "/v1/spaces/{space}/context/{name}", "hidden"),
        answer="The file",
        media=BYTES,
        again=True,
        errors=(*SPACE, "state_conflict", "path_not_found", "path_invalid"),
    ),
    Operation(
        *("context.put", "PUT", "/v1/spaces/{space}/context/{name}", "hidden"),
        takes=BYTES,
        answer="ContextList",
        errors=(*SPACE, "state_conflict", "path_not_found", "path_invalid"),
    ),
    Operation(
        *("context.remove", "DELETE", "/v1/spaces/{space}/context/{name}", "hidden"),
        answer="ContextList",
        errors=(*SPACE, "state_conflict", "path_not_found", "path_invalid"),
    ),
    Operation(
        *("agents.list", "GET", "/v1/agents", "own"),
        answer="FrontendList",
        again=True,
        long=True,
    ),
    Operation(
        *("agents.look", "PUT", "/v1/agents/path", "admin"),
        body="PathBody",
        answer="FrontendList",
        again=True,
        long=True,
    ),
    Operation(
        *("agents.install", "POST", "/v1/agents/{name}/install", "admin"),
        answer="FoundFrontend",
        again=True,
        long=True,
        errors=("unsupported_frontend", "frontend_not_installed"),
    ),
    Operation(
        *("agents.take", "PUT", "/v1/agents/{name}/import", "admin"),
        body="ImportBody",
        answer="FoundFrontend",
        again=True,
        long=True,
        errors=("unsupported_frontend", "too_large", "credential_not_found"),
    ),
    Operation(
        *("agents.forget", "DELETE", "/v1/agents/{name}/import", "admin"),
        answer="FoundFrontend",
        long=True,
        errors=("unsupported_frontend", "credential_not_found"),
    ),
    Operation(
        *("invocations.build", "POST", "/v1/invocations", "admin"),
        body="NewInvocation",
        answer="InvocationInfo",
        errors=(
            *("unsupported_frontend", "frontend_not_installed", "provider_mismatch"),
            *("continuation_not_found", "model_not_supported", "permission_denied"),
            *("resolve_failed", "not_trusted", "path_not_found", "path_invalid"),
        ),
    ),
    Operation(
        *("kits.resolve", "POST", "/v1/kits/resolve", "admin"),
        body="KitsBody",
        answer="Resolution",
        again=True,
    ),
    Operation(
        *("kits.describe", "POST", "/v1/kits/describe", "admin"),
        body="KitsBody",
        answer="Description",
        again=True,
        errors=("resolve_failed", "unsupported_frontend"),
    ),
    Operation(
        *("credentials.list", "GET", "/v1/credentials", "admin"),
        answer="CredentialList",
        again=True,
    ),
    Operation(
        *("credentials.set", "PUT", "/v1/credentials/{name}", "admin"),
        body="CredentialBody",
        answer="CredentialList",
        again=True,
        errors=("credential_not_found",),
    ),
    Operation(
        *("credentials.remove", "DELETE", "/v1/credentials/{name}", "admin"),
        answer="CredentialList",
        errors=("credential_not_found",),
    ),
    # Dedicated MCP servers
    Operation(
        *("instances.start", "POST", "/v1/instances", "hidden"),
        body="NewInstance",
        answer="InstanceInfo",
        status=201,
        long=True,
        errors=STARTING,
    ),
    Operation(
        *("instances.list", "GET", "/v1/instances", "own"),
        query="InstanceListQuery",
        answer="InstanceList",
        again=True,
        errors=SPACE,
    ),
    Operation(
        *("instances.show", "GET", "/v1/instances/{instance}", "hidden"),
        answer="InstanceInfo",
        again=True,
        errors=INSTANCE,
    ),
    Operation(
        *("instances.release", "DELETE", "/v1/instances/{instance}", "hidden"),
        query="ReleaseQuery",
        answer="Release",
        again=True,
        long=True,
        errors=INSTANCE,
    ),
    Operation(
        *("instances.heartbeat", "POST", "/v1/instances/{instance}/heartbeat", "hidden"),
        answer="ListedInstance",
        again=True,
        errors=INSTANCE,
    ),
    Operation(
        *("instances.logs", "GET", "/v1/instances/{instance}/logs", "hidden"),
        query="LogQuery",
        answer="Text",
        media="text/plain",
        again=True,
        errors=INSTANCE,
    ),
    Operation(*("servers.list", "GET", "/v1/servers", "own"), answer="ServerList", again=True),
    Operation(
        *("servers.put", "PUT", "/v1/servers/{name}", "admin"),
        body="ServerBody",
        answer="ServerList",
        again=True,
    ),
    Operation(
        *("servers.remove", "DELETE", "/v1/servers/{name}", "admin"),
        answer="ServerList",
        errors=("server_not_found",),
    ),
    Operation(
        *("sessions.request", "POST", "/request-session", "admin"),
        body="SessionBody",
        answer="SessionInfo",
        status=201,
        errors=STARTING,
    ),
    Operation(
        *("sessions.release", "POST", "/release-session", "hidden"),
        body="ReleaseBody",
        answer="SessionRelease",
        errors=INSTANCE,
    ),
    # Requests
    Operation(
        *("requests.submit", "POST", "/v1/requests", "own"),
        body="NewRequest",
        answer="RequestInfo",
        status=202,
        keyed=True,
        again=True,
        errors=(
            *("request_invalid", "request_id_reused", "capacity", "space_invalid"),
            *("unsupported_frontend", "variable_refused", "project_read_only", "project_in_use"),
            *("login_expired", "network_needed", *PROJECT, *SPACE),
        ),
    ),
    Operation(
        *("requests.list", "GET", "/v1/requests", "own"),
        query="RequestListQuery",
        answer="RequestList",
        again=True,
    ),
    Operation(
        *("requests.show", "GET", "/v1/requests/{request_id}", "hidden"),
        query="RequestWaitQuery",
        answer="RequestInfo",
        again=True,
        long=True,
        errors=ASKED,
    ),
    Operation(
        *("requests.cancel", "POST", "/v1/requests/{request_id}/cancel", "hidden"),
        answer="RequestInfo",
        again=True,
        long=True,
        errors=(*ASKED, "launcher_unavailable"),
    ),
    Operation(
        *("requests.answer", "POST", "/v1/requests/{request_id}/answer", "hidden"),
        body="RequestAnswerBody",
        answer="Done",
        errors=(*ASKED, "state_conflict"),
    ),
    Operation(
        *("requests.extend", "POST", "/v1/requests/{request_id}/extend", "hidden"),
        body="ExtendBody",
        answer="RequestInfo",
        again=True,
        long=True,
        errors=(*ASKED, "request_invalid", "state_conflict", "workspace_gone"),
    ),
    Operation(
        *("requests.done", "POST", "/v1/requests/{request_id}/done", "hidden"),
        answer="RequestInfo",
        again=True,
        long=True,
        errors=(*ASKED, "state_conflict"),
    ),
    Operation(
        *("requests.remove", "DELETE", "/v1/requests/{request_id}", "hidden"),
        answer="RequestInfo",
        again=True,
        long=True,
        errors=(*ASKED, "launcher_unavailable"),
    ),
    Operation(
        *("requests.follow", "GET", "/v1/requests/{request_id}/events", "hidden"),
        query="FollowQuery",
        answer="Frames, to the outcome",
        media="text/event-stream",
        ends="`Last-Event-ID` is the outcome: there is no more",
        errors=ASKED,
    ),
    Operation(
        *("requests.files", "GET", "/v1/requests/{request_id}/files", "hidden"),
        query="MadeQuery",
        answer="ResultFileList",
        again=True,
        long=True,
        errors=MADE,
    ),
    Operation(
        *("requests.fetch", "GET", "/v1/requests/{request_id}/files/{path:path}", "hidden"),
        answer="The file",
        media=BYTES,
        parts=True,
        again=True,
        long=True,
        errors=(*MADE, *PATHS, "range_not_satisfiable"),
    ),
    Operation(
        *("requests.archive", "GET", "/v1/requests/{request_id}/archive", "hidden"),
        query="MadeArchiveQuery",
        answer="A tar.gz",
        media="application/gzip",
        again=True,
        long=True,
        errors=MADE,
    ),
    # A series may have slashes in its name: all that stands before the last word is it.
    Operation(
        *("requests.versions", "GET", "/v1/series/{series:path}/versions", "hidden"),
        answer="VersionList",
        again=True,
        errors=("version_not_found",),
    ),
    Operation(
        *("requests.diff", "GET", "/v1/series/{series:path}/diff", "hidden"),
        query="DiffQuery",
        answer="As `git diff` has it",
        media="text/x-diff",
        again=True,
        long=True,
        errors=(
            *("version_not_found", "workspace_gone"),
            *("tree_damaged", "tree_unavailable", "git_failed"),
        ),
    ),
    # What waits for a person
    Operation(*("inbox.list", "GET", "/v1/inbox", "own"), answer="InboxList", again=True),
    Operation(*("inbox.see", "POST", "/v1/inbox/seen", "own"), answer="Seen"),
    Operation(
        *("inbox.answer", "POST", "/v1/inbox/{item}/answer", "hidden"),
        body="AnswerBody",
        answer="Answered",
        errors=("space_not_found", "state_conflict"),
    ),
    # The daemon
    Operation(
        *("events.read", "GET", "/v1/events", "own"),
        query="EventsQuery",
        answer="EventList",
        streams="A stream; with `Accept: application/json` what there is",
        errors=SPACE,
    ),
    Operation(*("daemon.health", "GET", "/v1/health", "open"), answer="Health", again=True),
    Operation(*("daemon.info", "GET", "/v1/info", "own"), answer="Info", again=True),
    Operation(
        *("daemon.metrics", "GET", "/metrics", "admin"),
        answer="In Prometheus's text format",
        media="text/plain",
        again=True,
    ),
    Operation(*("daemon.shutdown", "POST", "/v1/shutdown", "admin"), answer="Ending", status=202),
    # For administrators
    Operation(
        *("tokens.create", "POST", "/v1/tokens", "admin"),
        body="NewToken",
        answer="TokenWithSecret",
        status=201,
        errors=("space_invalid",),
    ),
    Operation(*("tokens.list", "GET", "/v1/tokens", "admin"), answer="TokenList", again=True),
    Operation(
        *("tokens.revoke", "DELETE", "/v1/tokens/{token}", "admin"),
        answer="Token",
        errors=("token_not_found",),
    ),
    Operation(
        *("bases.list", "GET", "/v1/bases", "admin"),
        answer="BaseList",
        again=True,
        errors=("tree_damaged",),
    ),
    Operation(
        *("bases.build", "POST", "/v1/bases", "admin"),
        body="NewBase",
        answer="BaseInfo",
        status=201,
        again=True,
        long=True,
        errors=(*PROJECT, "space_invalid", "tree_unavailable", "tree_damaged"),
    ),
    # Images
    Operation(
        *("images.take", "POST", "/v1/images", "admin"),
        body="NewImage",
        answer="ImageInfo",
        status=201,
        again=True,
        long=True,
        streams="`progress`, then `image` or `problem`",
        errors=IMPORT,
    ),
    Operation(
        *("images.upload", "PUT", "/v1/images", "admin"),
        query="ImageUploadQuery",
        takes=BYTES,
        answer="ImageInfo",
        status=201,
        long=True,
        errors=(*IMPORT, "request_timeout"),
    ),
    Operation(
        *("images.build", "POST", "/v1/images/build", "admin"),
        body="ImageToBuild",
        answer="ImageInfo",
        status=201,
        again=True,
        long=True,
        streams="`progress`, then `image` or `problem`",
        errors=(*IMPORT, *ENGINE, *PROJECT),
    ),
    Operation(
        *("images.pull", "POST", "/v1/images/pull", "admin"),
        body="ImageToPull",
        answer="ImageInfo",
        status=201,
        again=True,
        long=True,
        streams="`progress`, then `image` or `problem`",
        errors=(*IMPORT, *ENGINE),
    ),
    Operation(*("images.list", "GET", "/v1/images", "own"), answer="ImageList", again=True),
    Operation(
        *("images.prune", "POST", "/v1/images/prune", "admin"),
        body="PruneBody",
        optional=True,
        answer="ImageList",
        long=True,
        errors=("tree_damaged", "tree_unavailable"),
    ),
    Operation(
        *("images.show", "GET", "/v1/images/{image:path}", "hidden"),
        answer="ImageInfo",
        again=True,
        errors=IMAGE,
    ),
    Operation(
        *("images.remove", "DELETE", "/v1/images/{image:path}", "admin"),
        answer="ImageInfo",
        long=True,
        errors=(*IMAGE, "image_in_use", "tree_unavailable"),
    ),
    Operation(
        *("cleanup.collect", "POST", "/v1/gc", "admin"),
        body="CollectBody",
        optional=True,
        answer="Report",
        long=True,
        errors=("tree_damaged",),
    ),
    Operation(
        *("cleanup.disk_use", "GET", "/v1/df", "admin"),
        answer="DiskReport",
        again=True,
        long=True,
    ),
    Operation(
        *("cleanup.examine", "GET", "/v1/doctor", "admin"),
        answer="Diagnosis",
        again=True,
        long=True,
    ),
)

BY_NAME = {row.name: row for row in OPERATIONS}
