"""Templates can use what the caller gave, in both spellings, and never a secret."""

import json
from typing import Any

import pytest
from dragoman.protocol.template_values import template_values
from dragoman.protocol.templates import Rendered, default_prompt, render
from dragoman.v1 import adapter_pb2 as api
from google.protobuf import json_format


def values_of(*, brand: str = "Dragoman", **request: Any) -> dict[str, Any]:
    return template_values(json_format.ParseDict(request, api.ExecuteRequest()), brand)


FULL = values_of(
    run_id="run-1",
    agent={
        "id": "agent-1",
        "company_id": "company-1",
        "name": "Ada",
        "adapter_type": "claude_local",
        "adapter_config": {
            "model": "opus",
            "maxTurns": 5.0,
            "maxTokens": 4096.0,
            "env": {"X": "SECRET-env"},
            "apiKey": "SECRET-key",
            "apiKeys": ["SECRET-keys"],
            "nested": [{"env": {"Y": "SECRET-nested"}, "authToken": "SECRET-token", "note": "fine"}],
        },
    },
    company={"id": "company-1", "name": "Acme", "password": "SECRET-company", "issueKey": "AC-1"},
    run={"number": 7.0, "id": "forged"},
    context={
        "task_id": "task-1",
        "wake_reason": "assigned",
        "comment_id": "comment-1",
        "approval_id": "",
        "linked_issue_ids": ["i1", "i2"],
        "extra": {"taskTitle": "Fix it", "wakeReason": "forged", "token": "SECRET-context", "tokens": 3.0},
    },
    brand="Paperclip",
)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # The variables of the guides.
        *(("agentId", "agent-1"), ("companyId", "company-1"), ("runId", "run-1")),
        *(("agent.id", "agent-1"), ("agent.companyId", "company-1"), ("agent.name", "Ada")),
        *(("agent.adapterType", "claude_local"), ("agent.adapterConfig.model", "opus")),
        *(("company.id", "company-1"), ("company.name", "Acme"), ("run.id", "run-1"), ("run.number", "7")),
        *(("context.taskId", "task-1"), ("context.issueId", "task-1"), ("context.wakeReason", "assigned")),
        *(("context.commentId", "comment-1"), ("context.wakeCommentId", "comment-1")),
        *(("context.issueIds", '["i1","i2"]'), ("context.linkedIssueIds.1", "i2")),
        ("brand.name", "Paperclip"),
        # The same in the spelling of the protocol.
        *(("agent.company_id", "company-1"), ("agent.adapter_type", "claude_local")),
        *(("agent.adapter_config.maxTurns", "5"), ("context.task_id", "task-1"), ("context.task_title", "Fix it")),
        # What was given besides.
        *(("context.taskTitle", "Fix it"), ("company.issueKey", "AC-1"), ("context.tokens", "3")),
        *(("agent.adapterConfig.maxTokens", "4096"), ("agent.adapterConfig.nested.0.note", "fine")),
    ],
)
def test_the_variables_that_templates_can_use(path: str, text: str) -> None:
    assert render(f"{{{{{path}}}}}", FULL) == Rendered(text, ())


@pytest.mark.parametrize(
    "path",
    [
        *("agent.adapterConfig.env", "agent.adapterConfig.env.X", "agent.adapter_config.env.X"),
        *("agent.adapterConfig.apiKey", "agent.adapterConfig.apiKeys", "agent.adapterConfig.nested.0.authToken"),
        *("agent.adapterConfig.nested.0.env.Y", "company.password", "context.token", "context.extra"),
        *("env", "config", "authToken", "context.approvalId"),
    ],
)
def test_secrets_and_absent_things_cannot_be_reached(path: str) -> None:
    assert render(f"{{{{{path}}}}}", FULL) == Rendered("", (path,))


def test_no_secret_is_anywhere_in_the_data() -> None:
    assert "SECRET" not in json.dumps(FULL)
    assert "forged" not in json.dumps(FULL)


def test_the_extra_context_has_the_same_names() -> None:
    values = values_of(context={"extra": {"issueId": "i", "issueIds": ["j"]}})
    assert render("{{context.taskId}} {{context.linkedIssueIds.0}} {{context.issue_id}}", values).text == "i j i"


def test_the_company_is_known_by_either() -> None:
    assert values_of(company={"id": "c"})["companyId"] == "c"


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ({"id": "a", "name": "Ada"}, "You are agent a (Ada). Continue your Dragoman work."),
        ({"id": "a"}, "You are agent a. Continue your Dragoman work."),
        ({"name": "Ada"}, "You are agent Ada. Continue your Dragoman work."),
        ({"name": "{{agent.id}}"}, "You are agent {{agent.id}}. Continue your Dragoman work."),
        ({}, "Continue your Dragoman work."),
    ],
)
def test_the_default_prompt_names_the_agent_as_far_as_it_is_known(agent: dict[str, str], text: str) -> None:
    values = values_of(agent=agent)
    assert render(default_prompt(values), values) == Rendered(text, ())


def test_the_default_prompt_names_the_callers_brand() -> None:
    assert render(default_prompt(FULL), FULL).text == "You are agent agent-1 (Ada). Continue your Paperclip work."
