"""The variables of prompt templates, made from a request. Pure."""

import re
from typing import Final

from dragoman.protocol.redaction.public_values import public_data, public_settings
from dragoman.protocol.texts import JsonObject, JsonValue, struct_values
from dragoman.v1 import adapter_pb2

_CAPITAL: Final = re.compile("(?<=[a-z0-9])([A-Z])")
_ALIASES: Final = (("taskId", "issueId"), ("wakeCommentId", "commentId"), ("linkedIssueIds", "issueIds"))
"""Names of one value of the context; a template may use either."""


def template_values(request: adapter_pb2.ExecuteRequest, brand_name: str) -> JsonObject:
    """Return the variables that templates can use.

    ``agentId``, ``companyId``, ``runId``; ``agent`` {id, companyId, name, adapterType, adapterConfig}, ``company``,
    ``run`` {id}, ``context`` {taskId, issueId, wakeReason, wakeCommentId, commentId, approvalId, approvalStatus,
    issueIds, linkedIssueIds}, ``brand`` {name}. Each object also holds what else the request says of it, and each key
    can be used in both spellings (``company_id``, ``companyId``). ``context.extra`` is spread into ``context``, where
    the named fields win. Empty fields of agent and context are absent.

    Secrets are out of reach: no ``env``, no value under a key that names a secret anywhere in ``adapterConfig``, nor
    under one that names a credential elsewhere.
    """
    agent = _agent(request.agent)
    company = _both_spellings(public_data(struct_values(request.company)))
    run = _both_spellings(public_data(struct_values(request.run)))
    return {
        "agentId": agent.get("id"),
        "companyId": agent.get("companyId") or company.get("id"),
        "runId": request.run_id,
        "agent": agent,
        "company": company,
        "run": {**run, "id": request.run_id},
        "context": _context(request.context),
        "brand": {"name": brand_name},
    }


def _agent(agent: adapter_pb2.Agent) -> JsonObject:
    fields = {"id": agent.id, "companyId": agent.company_id, "name": agent.name, "adapterType": agent.adapter_type}
    config = public_settings(struct_values(agent.adapter_config))
    return _both_spellings({**{key: value for key, value in fields.items() if value}, "adapterConfig": config})


def _context(context: adapter_pb2.Context) -> JsonObject:
    linked: list[JsonValue] = [*context.linked_issue_ids]
    fields: JsonObject = {
        "taskId": context.task_id or context.issue_id,
        "issueId": context.issue_id or context.task_id,
        "wakeReason": context.wake_reason,
        "wakeCommentId": context.wake_comment_id or context.comment_id,
        "commentId": context.comment_id or context.wake_comment_id,
        "approvalId": context.approval_id,
        "approvalStatus": context.approval_status,
        "issueIds": linked,
        "linkedIssueIds": linked,
    }
    values = _both_spellings(public_data(struct_values(context.extra)))
    values |= _both_spellings({key: value for key, value in fields.items() if value})
    for one, other in _ALIASES:
        if one in values or other in values:
            values.setdefault(one, values.get(other))
            values.setdefault(other, values.get(one))
    return values


def _both_spellings(data: JsonObject) -> JsonObject:
    spelled = dict(data)
    for key, value in data.items():
        first, *others = key.split("_")
        spelled.setdefault(first + "".join(map(str.capitalize, others)), value)
        spelled.setdefault(_CAPITAL.sub(r"_\1", key).lower(), value)
    return spelled
