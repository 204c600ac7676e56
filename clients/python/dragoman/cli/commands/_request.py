"""The options of ``dragoman run``, and the request that is made of them."""

from typing import TYPE_CHECKING, Annotated

import click
from dragoman.cli import values
from dragoman.cli.commands._fallback import FallbackOptions
from dragoman.cli.commands._options import Seconds, SetupOptions, option, text
from msgspec import Struct

if TYPE_CHECKING:
    from dragoman.v1 import adapter_pb2 as pb
    from dragoman.v1 import event_pb2


class LimitOptions(Struct, frozen=True):
    """How long a run may take, and what it may use."""

    timeout: Annotated[float | None, option("--timeout", "Time limit of the whole run.", "SECONDS", type=Seconds())]
    idle_timeout: Annotated[
        float | None,
        option(
            "--idle-timeout",
            "How long the agent may be silent; time in tool calls and time waiting for an answer do not count.",
            "SECONDS",
            type=Seconds(),
        ),
    ]
    tool_timeout: Annotated[
        float | None, option("--tool-timeout", "Time limit of one tool call.", "SECONDS", type=Seconds())
    ]

    budget: Annotated[
        tuple[str, ...],
        option(
            "--budget", "What the run may use: '2 USD', '100k tokens', '20 tool calls'; 'ask' asks before.", "CAP"
        ),
    ]

    def caps(self) -> "event_pb2.Budget | None":
        """Return the budget, if one was given.

        Raises:
            click.BadParameter: it is malformed.
        """
        if not self.budget:
            return None
        from dragoman.cli.budgets import budget  # noqa: PLC0415 - protobuf, and an adapter may wait to be started

        return budget(self.budget)

    def put(self, request: "pb.ExecuteRequest") -> None:
        """Write the limits that were given into a request."""
        caps = self.caps()
        if caps is not None:
            request.limits.budget.CopyFrom(caps)
        limits = {"wall": self.timeout, "idle": self.idle_timeout, "tool_call": self.tool_timeout}
        for name, seconds in limits.items():
            if seconds is not None:
                getattr(request.limits, name).FromNanoseconds(round(seconds * 1e9))


class SessionOptions(Struct, frozen=True):
    """Which conversation a run continues."""

    task: Annotated[str, text("--task", "KEY", "Task key; the session stored for it is resumed, and stored again.")]
    agent: Annotated[str, text("--agent", "ID", "Your ID of the agent; sessions are stored per agent.")]
    resume: Annotated[str, text("--resume", "RUN", "Resume the session of an earlier run.")]
    fresh: Annotated[bool, option("--fresh", "Start a new session for the task.")]
    fork: Annotated[bool, option("--fork", "Continue in a copy of the session; the original is unchanged.")]

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            click.UsageError: they do.
        """
        if self.resume and self.fresh:
            raise click.UsageError("--resume and --fresh exclude each other")
        if self.fork and (self.fresh or not (self.resume or self.task)):
            raise click.UsageError("--fork needs a session to copy: give --task or --resume, without --fresh")

    def put(self, request: "pb.ExecuteRequest") -> None:
        """Write the session that is to be resumed into a request."""
        request.task_key = self.task
        if self.agent:
            request.agent.id = self.agent
        if self.resume:
            request.session.resume_run_id = self.resume
        if self.fresh:
            request.session.fresh = True
        if self.fork:
            request.session.fork = True


class PermissionOptions(Struct, frozen=True):
    """What the agent may do."""

    allow: Annotated[tuple[str, ...], option("--allow", "Allow this tool.", "TOOL")]
    deny: Annotated[tuple[str, ...], option("--deny", "Deny this tool; takes precedence over --allow.", "TOOL")]
    permission_mode: Annotated[
        str, text("--permission-mode", "MODE", "The agent's own permission mode, e.g. acceptEdits.")
    ]
    dangerously_allow_all: Annotated[
        bool, option("--dangerously-allow-all", "Allow everything without asking. Dangerous.")
    ]

    def put(self, request: "pb.ExecuteRequest", *, interactive: bool) -> None:
        """Write the permissions into a request, unless there are none."""
        from dragoman.v1 import event_pb2  # noqa: PLC0415 - as above

        # The first rule that matches decides, so that what is denied stays denied.
        rules = [
            event_pb2.PermissionRule(decision=decision, tool_name=tool)
            for decision, tools in (
                (event_pb2.PERMISSION_DECISION_DENY, self.deny),
                (event_pb2.PERMISSION_DECISION_ALLOW, self.allow),
            )
            for tool in tools
        ]
        permissions = event_pb2.Permissions(
            rules=rules,
            native_mode=self.permission_mode,
            auto_approve=self.dangerously_allow_all,
            interactive=interactive,
        )
        if permissions.ListFields():
            request.permissions.CopyFrom(permissions)


class RunOptions(Struct, frozen=True):
    """The options of ``dragoman run`` that describe the run."""

    setup: SetupOptions
    template: Annotated[bool, option("--template", "PROMPT is a template with {{path.to.value}}.")]
    limits: LimitOptions
    session: SessionOptions
    permissions: PermissionOptions
    label_pairs: Annotated[tuple[str, ...], option("--label", "Label of the run, for your own use.", "KEY=VALUE")]
    fallback: FallbackOptions
    attach: Annotated[
        tuple[str, ...],
        option("--attach", "Give the agent this file; its model, too, if it is an image.", "FILE"),
    ]
    changes: Annotated[
        bool, option("--changes", "Record the workspace first, and list the changed files at the end.")
    ]
    diff: Annotated[bool, option("--diff", "The same as --changes, with the diffs.")]
    run_id: Annotated[str, text("--run-id", "ID", "Your ID for the run. Default: a new one.")]

    def check(self, prompt: str | None) -> None:
        """Refuse a wrong call before anything is started.

        Args:
            prompt: the prompt, if there is one. Only ``config.promptTemplate`` stands for it, or an agent
                that is named by ``--agent``, whose work is known where it looks for it.

        Raises:
            click.UsageError: an option is malformed or missing, or two contradict each other.
        """
        self.session.check()
        config = self.setup.config()
        if prompt is None and not (self.session.agent or config.get("promptTemplate")):
            raise click.UsageError("Missing PROMPT; '-' reads standard input.")
        self.setup.env()
        values.labels(self.label_pairs)
        self.limits.caps()

    def request(
        self, adapter: str, prompt: str | None, described: "pb.DescribeResponse", *, interactive: bool
    ) -> "pb.ExecuteRequest":
        """Return the request for one run.

        What was not given is left out, except for a working directory and for interactive permissions where the
        adapter supports them: it rejects fields that it does not support.

        Args:
            adapter: the adapter's name, or an alias.
            prompt: the prompt, if there is one.
            described: what the adapter is.
            interactive: whether the agent's questions can be answered.

        Raises:
            DragomanError: a setting has no JSON form.
            click.UsageError: the current directory does not exist any more, or an option is malformed.
        """
        # They import gRPC and protobuf, and this module is imported before an adapter is started.
        from dragoman.cli.commands._attachments import attachments  # noqa: PLC0415
        from dragoman.client import execute_request  # noqa: PLC0415
        from dragoman.v1 import event_pb2  # noqa: PLC0415

        features = {item.feature for item in described.capabilities.items}
        config = self.setup.config(described.config_schema_json)
        cwd = self.setup.cwd and values.directory(self.setup.cwd)
        # A fallback adapter may use the directory although the first adapter does not.
        uses_cwd = event_pb2.FEATURE_WORKSPACE in features or self.fallback.fallback
        if cwd is None and uses_cwd and "cwd" not in config:
            cwd = values.directory(None)
        request = execute_request(
            adapter,
            None if self.template else prompt,
            cwd=cwd,
            model=self.setup.model,
            config=config,
            env=self.setup.env(),
        )
        if self.template and prompt is not None:
            request.prompt_template = prompt
        request.run_id = self.run_id
        request.track_changes = self.changes or self.diff
        request.attachments.extend(attachments(self.attach, images=event_pb2.FEATURE_IMAGES in features))
        request.labels.update(values.labels(self.label_pairs))
        self.limits.put(request)
        self.session.put(request)
        asks = not features.isdisjoint({event_pb2.FEATURE_PERMISSION_REQUESTS, event_pb2.FEATURE_INPUT_REQUESTS})
        asks = asks or request.limits.budget.ask
        self.permissions.put(request, interactive=interactive and asks)
        self.fallback.put(request)
        return request
