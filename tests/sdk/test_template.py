"""Templates put in what the caller gave, never a secret, and say what was not there."""

import json

import pytest
from dragoman.sdk._json import JsonObject, JsonValue
from dragoman.sdk._template import DEFAULT_PROMPT, Rendered, render, template_data
from hypothesis import given
from hypothesis import strategies as st

DATA: JsonObject = {
    "agent": {"id": "a1", "name": "Ada", "n": 5.0, "half": 0.5, "on": True, "nothing": None, "empty": ""},
    "list": ["zero", {"one": 1}, [2.0]],
    "evil": "{{agent.name}} \\1 \\g<0>",
    "dash-ed_9": {"": "unreachable"},
    "nan": float("nan"),
    "large": 1e300,
    "object": {"n": 2.0},
}


@pytest.mark.parametrize(
    ("template", "text", "missing"),
    [
        ("", "", ()),
        ("plain { } {{}} {{ }} }} {{", "plain { } {{}} {{ }} }} {{", ()),
        ("{{agent.name}}", "Ada", ()),
        ("{{ agent.name }}/{{\tagent.id\n}}", "Ada/a1", ()),
        ("{{agent.n}} {{agent.half}} {{agent.on}} {{large}}", "5 0.5 true 1e+300", ()),
        ("[{{agent.empty}}]", "[]", ()),
        ("{{list.0}} {{list.1.one}} {{list.2.0}}", "zero 1 2", ()),
        ("{{list}}", '["zero",{"one":1},[2]]', ()),
        ("{{object}}", '{"n":2}', ()),
        ("{{list.1}} {{list.2}}", '{"one":1} [2]', ()),
        ("{{evil}}", "{{agent.name}} \\1 \\g<0>", ()),
        ("{{a}}{{agent.nothing}}{{agent.name.x}}{{a}}", "", ("a", "agent.nothing", "agent.name.x")),
        ("{{list.3}}{{list.-1}}{{list.x}}", "", ("list.3", "list.-1", "list.x")),
        ("{{list." + "9" * 5000 + "}}", "", ("list." + "9" * 5000,)),
        ("{{nan}}", "", ("nan",)),
        (
            "{{agent..name}} {{.agent}} {{agent.}} {{agent name}}",
            "{{agent..name}} {{.agent}} {{agent.}} {{agent name}}",
            (),
        ),
        ("{{{agent.id}}}", "{a1}", ()),
        ("{{dash-ed_9}}", '{"":"unreachable"}', ()),
        ("a\\n{{agent.id}}", "a\\na1", ()),
    ],
)
def test_rendering(template: str, text: str, missing: tuple[str, ...]) -> None:
    assert render(template, DATA) == Rendered(text, missing)


@given(value=st.text(), around=st.text(alphabet="ab {}"))
def test_text_is_put_in_as_it_is_and_once(value: str, around: str) -> None:
    if "{{" in around or "}}" in around or around.endswith("{") or around.startswith("}"):
        around = ""
    rendered = render(f"{around}{{{{v}}}}{around}", {"v": value})
    assert rendered == Rendered(f"{around}{value}{around}", ())


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), st.lists))
def test_lists_are_json(value: JsonValue) -> None:
    rendered = render("{{v}}", {"v": [value]})
    assert json.loads(rendered.text) == [value]


FULL = template_data(
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
    brand={"name": "Paperclip"},
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


def test_both_spellings_may_be_given() -> None:
    camel = template_data(
        run_id="r",
        agent={"id": "a", "companyId": "c", "adapterConfig": {"env": {"X": "SECRET"}, "model": "m"}},
        context={"taskId": "t", "issueIds": ["i"]},
    )
    assert render("{{companyId}} {{agent.company_id}} {{agent.adapter_config.model}}", camel).text == "c c m"
    assert render("{{context.task_id}} {{context.linkedIssueIds.0}}", camel).text == "t i"
    assert "SECRET" not in json.dumps(camel)


def test_the_default_prompt_reads_well_with_little_and_says_what_is_missing() -> None:
    full = render(DEFAULT_PROMPT, FULL)
    assert full == Rendered("You are agent agent-1 (Ada). Continue your Paperclip work.", ())
    bare = render(DEFAULT_PROMPT, template_data(run_id="r", agent={"id": "a", "name": ""}))
    assert bare == Rendered("You are agent a (). Continue your Dragoman work.", ("agent.name",))


def test_the_callers_data_is_not_touched() -> None:
    config: JsonObject = {"env": {"X": "1"}, "a": {"token": "2"}}
    template_data(run_id="r", agent={"adapter_config": config}, context={"extra": {"k": "v"}})
    assert config == {"env": {"X": "1"}, "a": {"token": "2"}}
