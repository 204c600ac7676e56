"""From a request to what the agent gets, and to what is reported of it."""

from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import AdapterInfo, Settings, capabilities
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._request.environment import run_variables
from dragoman.sdk._request.job import environment_inputs, masked_argv, render_prompt
from dragoman.sdk._request.settings import read_settings
from dragoman.sdk.spec import common_properties
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.schemas import config_schema

SCHEMA = ConfigSchema(config_schema(common_properties()))
INFO = AdapterInfo(
    type="agent",
    label="Agent",
    version="1",
    configuration_doc="",
    config_schema=SCHEMA.schema,
    capabilities=capabilities(pb.FEATURE_WORKSPACE),
)
BRANDS = [("Paperclip", "PAPERCLIP"), ("Galyarder", "GALYARDER"), ("CoHalo", "COHALO")]


def full(brand: str = "Paperclip", prefix: str = "PAPERCLIP", **config: Any) -> api.ExecuteRequest:
    """Return a request that says everything a template can name."""
    request = api.ExecuteRequest(
        run_id="run-7",
        agent=api.Agent(id="agent-1", company_id="company-1", name="Ada", adapter_type="agent_local"),
        workspace=api.Workspace(cwd="/"),
        brand=api.Brand(name=brand, env_prefix=prefix),
        api_url="http://127.0.0.1:3100",
        auth_token="token-4711-4711",
        context=api.Context(
            task_id="task-1",
            wake_reason="comment",
            wake_comment_id="comment-1",
            approval_id="approval-1",
            approval_status="approved",
            linked_issue_ids=["issue-1", "issue-2"],
        ),
    )
    request.agent.adapter_config.update({"model": "opus", "n": 5, "env": {"KEY": "s3cret"}, "apiKey": "s3cret"})
    request.company.update({"id": "company-1", "name": "Acme", "password": "s3cret"})
    request.run.update({"source": "timer", "id": "forged"})
    request.context.extra.update({"deep": {"list": ["a", {"b": 2.0}]}, "taskId": "forged"})
    request.config.SetInParent()  # else the one stored with the agent is used
    request.config.update(config)
    return request


def settings_of(request: api.ExecuteRequest) -> Settings:
    return read_settings(request, INFO, SCHEMA)


def prompt(request: api.ExecuteRequest, *, resumes: bool = False) -> str:
    return render_prompt(request, settings_of(request), resumes=resumes)[0]


VARIABLES = {
    "agentId": "agent-1",
    "companyId": "company-1",
    "runId": "run-7",
    "agent.id": "agent-1",
    "agent.name": "Ada",
    "agent.companyId": "company-1",
    "agent.company_id": "company-1",
    "agent.adapterType": "agent_local",
    "agent.adapterConfig.model": "opus",
    "agent.adapterConfig.n": "5",
    "company.id": "company-1",
    "company.name": "Acme",
    "run.id": "run-7",
    "run.source": "timer",
    "context.taskId": "task-1",
    "context.task_id": "task-1",
    "context.issueId": "task-1",
    "context.wakeReason": "comment",
    "context.wakeCommentId": "comment-1",
    "context.commentId": "comment-1",
    "context.approvalId": "approval-1",
    "context.approvalStatus": "approved",
    "context.issueIds": '["issue-1","issue-2"]',
    "context.issueIds.1": "issue-2",
    "context.linkedIssueIds.0": "issue-1",
    "context.deep.list.1.b": "2",
}
UNREACHABLE = [
    "agent.adapterConfig.env.KEY",
    "agent.adapterConfig.apiKey",
    "company.password",
    "env.KEY",
    "auth_token",
]


@pytest.mark.parametrize(("brand", "prefix"), BRANDS)
@pytest.mark.parametrize("path", VARIABLES)
def test_every_variable_of_a_template(path: str, brand: str, prefix: str) -> None:
    request = full(brand, prefix)
    request.prompt_template = f"<{{{{{path}}}}}> for {{{{brand.name}}}}"
    assert prompt(request) == f"<{VARIABLES[path]}> for {brand}"


@pytest.mark.parametrize("path", UNREACHABLE)
def test_no_secret_can_be_reached(path: str) -> None:
    request = full()
    request.prompt_template = f"<{{{{{path}}}}}>"
    text, _, missing = render_prompt(request, settings_of(request), resumes=False)
    assert text == "<>"
    assert missing == (path,)


def test_the_other_names_of_task_and_comment() -> None:
    request = full()
    request.context.ClearField("task_id")
    request.context.ClearField("wake_comment_id")
    request.context.issue_id, request.context.comment_id = "issue-9", "comment-9"
    request.context.ClearField("extra")
    request.prompt_template = "{{context.taskId}} {{context.issueId}} {{context.wakeCommentId}} {{context.commentId}}"
    assert prompt(request) == "issue-9 issue-9 comment-9 comment-9"
    variables = run_variables(environment_inputs(request, settings_of(request), "m"))
    assert variables["PAPERCLIP_TASK_ID"] == "issue-9"
    assert variables["PAPERCLIP_WAKE_COMMENT_ID"] == "comment-9"


@pytest.mark.parametrize(("brand", "prefix"), BRANDS)
def test_every_variable_of_the_environment(brand: str, prefix: str) -> None:
    request = full(brand, prefix)
    variables = run_variables(environment_inputs(request, settings_of(request), "marker"))
    assert variables == {
        f"{prefix}_{name}": value
        for name, value in {
            "AGENT_ID": "agent-1",
            "COMPANY_ID": "company-1",
            "API_URL": "http://127.0.0.1:3100",
            "RUN_ID": "run-7",
            "TASK_ID": "task-1",
            "WAKE_REASON": "comment",
            "WAKE_COMMENT_ID": "comment-1",
            "APPROVAL_ID": "approval-1",
            "APPROVAL_STATUS": "approved",
            "LINKED_ISSUE_IDS": "issue-1,issue-2",
            "API_KEY": "token-4711-4711",
        }.items()
    }


def test_the_prompt_wins_over_the_template_and_the_request_over_the_config() -> None:
    request = full(promptTemplate="config {{runId}}")
    assert prompt(request) == "config run-7"
    request.prompt_template = "request {{runId}}"
    assert prompt(request) == "request run-7"
    request.prompt_template = ""
    assert prompt(request) == "config run-7"
    request.prompt = "as it is {{runId}}"
    assert prompt(request) == "as it is {{runId}}"
    request.prompt = ""
    assert prompt(request) == "", "an empty prompt is a prompt"


def test_without_any_of_them_there_is_a_default() -> None:
    assert prompt(full("CoHalo", "COHALO")) == "You are agent agent-1 (Ada). Continue your CoHalo work."


def test_values_that_only_the_default_asks_for_are_not_missed() -> None:
    request = full()
    request.ClearField("agent")
    text, _, missing = render_prompt(request, settings_of(request), resumes=False)
    assert text == "Continue your Paperclip work."
    assert missing == (), "the caller wrote no template"


def test_what_is_handed_over_goes_before_the_prompt_of_a_new_session_as_it_is() -> None:
    request = full(promptTemplate="go on, {{agent.name}}")
    request.session.fresh, request.session.handover = True, "before: {{agent.name}} did é"
    text, sizes, missing = render_prompt(request, settings_of(request), resumes=False)
    assert text == "before: {{agent.name}} did é\n\ngo on, Ada"
    assert sizes == {"handover": 29, "prompt": 10}
    assert not missing


def test_what_is_handed_over_goes_with_a_new_session_only() -> None:
    by_handle = api.SessionSelector(reason="x", handle=pb.SessionHandle(native_id="i"))
    for selector in (api.SessionSelector(handover="x"), by_handle):
        with pytest.raises(DragomanError) as caught:
            settings_of(api.ExecuteRequest(session=selector))
        assert any(one.path.startswith("session.") for one in caught.value.violations)


def test_the_bootstrap_text_goes_before_a_new_session_only() -> None:
    request = full(bootstrapPromptTemplate="Welcome {{agent.name}}")
    request.prompt = "do ü"
    text, sizes, missing = render_prompt(request, settings_of(request), resumes=False)
    assert text == "Welcome Ada\n\ndo ü"
    assert sizes == {"bootstrap": 11, "prompt": 5}
    assert missing == ()
    text, sizes, _ = render_prompt(request, settings_of(request), resumes=True)
    assert (text, sizes) == ("do ü", {"prompt": 5})


def test_a_missing_value_is_reported_once() -> None:
    request = full(bootstrapPromptTemplate="{{a.b}} {{runId}}", promptTemplate="{{a.b}}{{c}}")
    text, _, missing = render_prompt(request, settings_of(request), resumes=False)
    assert text == " run-7\n\n"
    assert missing == ("a.b", "c")


@pytest.mark.parametrize(
    ("argv", "prompt", "shown"),
    [
        (["x", "-p", "write a poem"], "write a poem", ["x", "-p", "[prompt: 12 bytes]"]),
        (["x", "--prompt=write a poem"], "write a poem", ["x", "--prompt=[prompt: 12 bytes]"]),
        (["x", "grüß mich!"], "grüß mich!", ["x", "[prompt: 12 bytes]"]),
        (["x", "-p", "go"], "go", ["x", "-p", "[prompt: 2 bytes]"]),
        (["go", "--go", "go"], "go", ["[prompt: 2 bytes]", "--go", "[prompt: 2 bytes]"]),
        (["x"], "", ["x"]),
    ],
)
def test_the_prompt_is_masked_to_its_length(argv: list[str], prompt: str, shown: list[str]) -> None:
    assert masked_argv(argv, prompt) == shown
