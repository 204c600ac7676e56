"""Stored agents: created, listed, changed and deleted by callers, and put into the requests that name them."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from dragoman.protocol import audit
from dragoman.protocol.bounds import check_request
from dragoman.protocol.budgets import budget_problems
from dragoman.protocol.caller import current_caller
from dragoman.protocol.duties import declarations, unsupported
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid, invalid_fields
from dragoman.protocol.identity import near_names
from dragoman.protocol.texts import struct_values
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.api.active_agents import ActiveAgents, asked
from dragoman.router.api.calls import refuse
from dragoman.router.api.paging import decode_any, encode_token, fitting, invalid_token, page_size
from dragoman.router.api.validation import execute_objection
from dragoman.router.model.ports import Clock
from dragoman.router.policy.agent_secrets import references, resolve, secret_violations
from dragoman.router.policy.stored_agents import MOST_BYTES, filled, loosened, name_problem
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import adapter_pb2, event_pb2
from dragoman.v1 import router_pb2 as pb
from google.protobuf import struct_pb2

_MOST_NAMES: Final = 10_000
"""Names among which similar ones are looked for."""
_MOST_PROBLEMS: Final = 16
"""Wrong settings that an error names."""
_SECRET_BYTES: Final = 32 * 1024
"""Of one secret: what the contract allows a header or an MCP server's variable, and more."""
_COMPACTION: Final = "sessionCompaction"
"""The setting that a router evaluates, whatever the adapter's schema says."""


class StoredAgents:
    """The stored agents of all routers that share a run log.

    Args:
        run_log: where they are.
        adapters: the adapters.
        clock: the time.
        secrets: the directory with a file for each secret; ``None`` if there are none.
    """

    def __init__(self, run_log: RunLog, adapters: AdapterPool, clock: Clock, secrets: Path | None) -> None:
        self._run_log = run_log
        self.adapters = adapters
        self.active = ActiveAgents(run_log, clock)
        """Those of tasks."""
        self._clock = clock
        self._secrets = secrets

    async def create(self, agent: pb.StoredAgent) -> pb.StoredAgent:
        """Store a new agent, and return it as it is stored.

        Raises:
            DragomanError: AGENT_EXISTS, or what is wrong with it.
        """
        await self._check(agent)
        created = pb.StoredAgent()
        created.CopyFrom(agent)
        created.version = 1
        created.created_at.FromNanoseconds(self._now_ns())
        created.updated_at.CopyFrom(created.created_at)
        while not await asked(self._run_log.store.agents.insert(created)):
            known = await self._find(agent.name)
            if known is not None:
                message = f"Agent {agent.name!r} exists already; choose another name, or update it."
                raise DragomanError(Reason.AGENT_EXISTS, message, _metadata(known))
        return created

    async def get(self, name: str) -> pb.StoredAgent:
        """Return an agent.

        Raises:
            DragomanError: AGENT_NOT_FOUND, or RUN_LOG_UNAVAILABLE.
        """
        agent = await self._find(name) if not name_problem(name) else None
        if agent is None:
            raise await self._unknown(name)
        return agent

    async def page(self, request: pb.ListAgentsRequest) -> pb.ListAgentsResponse:
        """Return a page of agents, by name.

        Raises:
            DragomanError: INVALID_PAGE_TOKEN or RUN_LOG_UNAVAILABLE.
        """
        after, size = _after(request.page_token), page_size(request.page_size)
        found = await asked(self._run_log.store.agents.page(after, size + 1))
        shown = fitting(found[:size])
        token = encode_token([shown[-1].name]) if len(found) > len(shown) else ""
        return pb.ListAgentsResponse(agents=shown, next_page_token=token)

    async def update(self, agent: pb.StoredAgent) -> pb.StoredAgent:
        """Replace an agent of the version that the caller knows, and return it as it is stored.

        Raises:
            DragomanError: AGENT_NOT_FOUND, VERSION_MISMATCH, or what is wrong with it.
        """
        if not agent.version:
            raise invalid("agent.version", "is missing; give the version that GetAgent returns")
        await self._check(agent)
        known = await self.get(agent.name)
        is_another = agent.HasField("created_at") and agent.created_at != known.created_at
        if agent.version != known.version or is_another:
            raise _mismatch(known, is_another=is_another)
        changed = pb.StoredAgent()
        changed.CopyFrom(agent)
        changed.version = known.version + 1
        changed.created_at.CopyFrom(known.created_at)
        changed.updated_at.FromNanoseconds(self._now_ns())
        if not await asked(self._run_log.store.agents.replace(changed)):
            raise _mismatch(await self.get(agent.name))
        return changed

    async def delete(self, name: str, version: int) -> bool:
        """Delete an agent; False if there was none.

        Args:
            name: the agent.
            version: the version that the caller knows; 0 for any.

        Raises:
            DragomanError: INVALID_REQUEST, VERSION_MISMATCH or RUN_LOG_UNAVAILABLE.
        """
        if problem := name_problem(name):
            raise invalid("name", problem)
        while (known := await self._find(name)) is not None:
            if version and version != known.version:
                raise _mismatch(known)
            if await asked(self._run_log.store.agents.delete(name, known.version)):
                return True
        return False

    async def fill(self, request: adapter_pb2.ExecuteRequest, name: str) -> adapter_pb2.ExecuteRequest:
        """Return the request that is run for a caller's one, which is left as it is.

        Args:
            request: the caller's.
            name: the agent that it names, or that is the active one of its task.

        Raises:
            DragomanError: AGENT_NOT_FOUND, NOT_PERMITTED, AGENT_INCOMPLETE, INVALID_REQUEST or RUN_LOG_UNAVAILABLE.
        """
        agent = await self.get(name)
        backend = await self.adapters.find(agent.adapter)
        if backend is None:
            raise _incomplete(agent, f"adapter {agent.adapter!r} is not known here any more")
        # Before anything of the agent is read or shown: its secrets, and what is wrong with it.
        current_caller().check_adapter(backend.record.type)
        described = backend.record.description
        wrong = [*_unsuited(agent, described)] if described is not None else []
        if wrong:
            raise _incomplete(agent, f"{wrong[0].path} {wrong[0].description}", violations=wrong)
        await self._resolve(agent)
        following = filled(request, agent, lambda name: self.adapters.present(name) is backend)
        check_request(following.DESCRIPTOR, following.SerializeToString())
        refuse(execute_objection(following))
        return following

    async def mode_problem(self, name: str, mode: str) -> str:
        """Return why a run of an agent may not change to a permission mode; empty if it may.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        agent = await self._find(name)
        if agent is None:
            return f"agent {name!r}, which decides about it, is gone"
        return "; ".join(one.description for one in loosened(event_pb2.Permissions(native_mode=mode), agent))

    async def _resolve(self, agent: pb.StoredAgent) -> None:
        names = references(agent)
        if not names:
            return
        # In a thread: a file system that hangs is not to stop all else.
        read = await asyncio.to_thread(lambda: {name: read_secret(self._secrets, name) for name in names})
        missing = sorted(name for name, value in read.items() if value is None)
        if missing:
            why = f"this router has no secret {', '.join(missing)}; add it to the directory of --secrets"
            raise _incomplete(agent, why, secrets=missing)
        shown = resolve(agent, {name: value for name, value in read.items() if value is not None})
        if shown:
            why = f"the secret {', '.join(shown)} is too short or a plain word, so it would be shown; replace it"
            raise _incomplete(agent, why, secrets=shown)

    async def _check(self, agent: pb.StoredAgent) -> None:
        """Refuse an agent that could not run.

        Raises:
            DragomanError: INVALID_REQUEST, NOT_SUPPORTED, or what keeps its adapter from being asked.
        """
        if problem := name_problem(agent.name):
            raise invalid("agent.name", problem)
        if agent.ByteSize() > MOST_BYTES:
            raise invalid("agent", f"has {agent.ByteSize():,} bytes, and may have {MOST_BYTES:,}")
        if wrong := [*secret_violations(agent), *budget_problems(agent.limits.budget)]:
            raise invalid_fields(_within(wrong))
        request = filled(adapter_pb2.ExecuteRequest(), agent, lambda _name: True)
        if (objection := execute_objection(request)) is not None:
            raise invalid(f"agent.{objection[0]}", objection[1])
        backend = await self.adapters.get(agent.adapter)
        audit.about(adapter=backend.record.type)
        if wrong := [*_unsuited(agent, await _description(backend))]:
            reason = Reason.NOT_SUPPORTED if wrong[0].description.startswith(_UNSUPPORTED) else Reason.INVALID_REQUEST
            raise invalid_fields(_within(wrong), reason)

    async def _find(self, name: str) -> pb.StoredAgent | None:
        return await asked(self._run_log.store.agents.get(name))

    async def _unknown(self, name: str) -> DragomanError:
        # Only for callers who may list them.
        may_list = current_caller().may_read("")
        known = await asked(self._run_log.store.agents.names(_MOST_NAMES)) if may_list else []
        near = near_names(name[:200], known)
        hint = f"did you mean {' or '.join(near)}?" if near else "ListAgents lists the stored ones."
        metadata = {"agent": name[:200], "did_you_mean": ",".join(near)}
        return DragomanError(Reason.AGENT_NOT_FOUND, f"Agent {name[:200]!r} not found; {hint}", metadata)

    def _now_ns(self) -> int:
        return int(self._clock.time() * 1e9)


_UNSUPPORTED: Final = "is not supported by adapter"


def _unsuited(agent: pb.StoredAgent, described: adapter_pb2.DescribeResponse) -> Iterable[FieldViolation]:
    """Yield the fields of an agent that its adapter would refuse, by what it says of itself."""
    request = filled(adapter_pb2.ExecuteRequest(), agent, lambda _name: True)
    for rule in unsupported(request, declarations(described)):
        yield FieldViolation(rule.name, f"{_UNSUPPORTED} {described.adapter!r}; leave it out")
    if agent.HasField("config"):
        yield from setting_violations(agent.config, described.config_schema_json)


def setting_violations(settings: struct_pb2.Struct, schema_json: str) -> list[FieldViolation]:
    """Return the settings that a schema does not allow.

    Args:
        settings: an agent's.
        schema_json: the adapter's schema, a JSON object; empty if it has none.
    """
    if not schema_json:
        return []
    import jsonschema  # noqa: PLC0415 - slow to import
    import referencing  # noqa: PLC0415 - as above

    values = struct_values(settings)
    values.pop(_COMPACTION, None)
    # A registry of its own: a schema that names another one by a URL is not to make this router fetch it.
    validator = jsonschema.Draft202012Validator(json.loads(schema_json), registry=referencing.Registry())
    try:
        errors = sorted(validator.iter_errors(values), key=lambda error: [str(part) for part in error.absolute_path])
    except (referencing.exceptions.Unresolvable, jsonschema.exceptions.UnknownType, ValueError, RecursionError):
        return []  # the adapter itself decides
    return [
        FieldViolation(".".join(("config", *map(str, error.absolute_path))), error.message[:300])
        for error in errors[:_MOST_PROBLEMS]
    ]


async def _description(backend: AdapterBackend) -> adapter_pb2.DescribeResponse:
    if backend.record.is_rejected:
        raise backend.refusal()
    if backend.record.description is None:
        with await backend.use():
            pass
    return backend.record.description or adapter_pb2.DescribeResponse(adapter=backend.record.type)


def read_secret(folder: Path | None, name: str) -> str | None:
    """Return a secret, without the line end of its file; ``None`` if there is none that can be used."""
    if folder is None:
        return None
    path = folder / name
    try:
        if not path.is_file() or path.stat().st_size > _SECRET_BYTES:
            return None
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    text = text.removesuffix("\n").removesuffix("\r")
    return None if not text or "\0" in text else text


def _within(violations: Sequence[FieldViolation]) -> list[FieldViolation]:
    return [FieldViolation(f"agent.{one.path}", one.description) for one in violations]


def _metadata(agent: pb.StoredAgent) -> dict[str, str]:
    return {"agent": agent.name, "version": str(agent.version)}


def _mismatch(known: pb.StoredAgent, *, is_another: bool = False) -> DragomanError:
    now = "was deleted and created anew" if is_another else f"has version {known.version} by now"
    message = f"Agent {known.name!r} {now}; get it, and change that one."
    return DragomanError(Reason.VERSION_MISMATCH, message, _metadata(known))


def _incomplete(
    agent: pb.StoredAgent, why: str, *, secrets: Sequence[str] = (), violations: Sequence[FieldViolation] = ()
) -> DragomanError:
    metadata = {**_metadata(agent), **({"secrets": ",".join(secrets)} if secrets else {})}
    hint = "" if secrets else "; update the agent"
    message = f"Stored agent {agent.name!r} cannot run: {why}{hint}."
    return DragomanError(Reason.AGENT_INCOMPLETE, message, metadata, tuple(violations))


def _after(token: str) -> str:
    if not token:
        return ""
    match decode_any(token):
        case [str(name)] if "\0" not in name:
            return name
        case _:
            raise invalid_token()
