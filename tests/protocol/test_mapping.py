"""The mapping table: complete, and every path in it exists."""

import re
from pathlib import Path

import pytest
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

TEXT = (Path(__file__).parents[2] / "proto/MAPPING.md").read_text(encoding="utf-8")
FILES = [adapter_pb2.DESCRIPTOR, event_pb2.DESCRIPTOR, router_pb2.DESCRIPTOR]
MESSAGES: dict[str, Descriptor] = {
    name: message for file in FILES for name, message in file.message_types_by_name.items()
}
SERVICES = {name: service for file in FILES for name, service in file.services_by_name.items()}
ROOTS = {"AgentEvent", "AdapterEntry"} | {name for name in MESSAGES if name.endswith(("Request", "Response"))}


class Row:
    """One row of a table."""

    def __init__(self, line: str) -> None:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 3, line
        self.field, self.place, self.remark = cells
        self.is_refused = self.place.startswith("refused: because ")
        self.paths = [] if self.is_refused else self.place.split(", ")


ROWS = [
    Row(line) for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| Field |", "| --- |"))
]


# --- the paths


def resolve(path: str) -> None:
    """Walk one path through the descriptors.

    Raises:
        LookupError: a part of it does not exist.
    """
    name, *parts = re.findall(r'\w+|\["[^"]+"\]', path)
    if name in SERVICES:
        (method,) = parts
        SERVICES[name].methods_by_name[method]
        return
    if name not in ROOTS:
        raise LookupError(f"{name} is no request, response or event")
    here: Descriptor | EnumDescriptor | FieldDescriptor | None = MESSAGES[name]
    for part in parts:
        here = step(here, part)


def step(
    here: Descriptor | EnumDescriptor | FieldDescriptor | None, part: str
) -> "Descriptor | EnumDescriptor | None":
    """Go one part on; ``None`` stands for a scalar, an open key or a oneof, where a path ends."""
    if part.startswith("["):
        if isinstance(here, Descriptor) and here.GetOptions().map_entry:
            return after(here.fields_by_name["value"])
        if isinstance(here, Descriptor) and here.full_name == "google.protobuf.Struct":
            return None
        raise LookupError(f"{part}: not a map")
    if isinstance(here, EnumDescriptor):
        here.values_by_name[part]
        return None
    if isinstance(here, Descriptor):
        return None if part in here.oneofs_by_name else after(here.fields_by_name[part])
    raise LookupError(f"{part}: nothing beneath this")


def after(field: FieldDescriptor) -> "Descriptor | EnumDescriptor | None":
    return field.message_type or field.enum_type


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.field)
def test_every_path_exists_or_the_row_says_why_there_is_none(row: Row) -> None:
    if row.is_refused:
        assert len(row.place.split()) >= 5
        return
    for quoted in row.paths:
        path = re.fullmatch(r"`([^`]+)`", quoted)
        assert path, f"not a path: {quoted}"
        resolve(path[1])
    for mentioned in re.findall(r"`([A-Z]\w+\.[^`]+)`", row.remark):
        resolve(mentioned)


def test_paths_mentioned_as_the_place_to_look_instead_exist() -> None:
    refused = [row for row in ROWS if row.is_refused]
    mentioned = [path for row in refused for path in re.findall(r"`([A-Z]\w+\.[^`]+)`", row.place + row.remark)]
    assert len(mentioned) >= 5
    for path in mentioned:
        resolve(path)


@pytest.mark.parametrize(
    "path",
    [
        "ExecuteRequest.agent.companyId",
        "ExecuteRequest.run_id.more",
        'ExecuteRequest.run_id["key"]',
        "AgentEvent.result.outcome.OUTCOME_GREAT",
        "AgentEvent.body.text",
        "Failure.kind",
        "AdapterService.Fly",
        "Nothing.at_all",
    ],
)
def test_a_wrong_path_is_noticed(path: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        resolve(path)


# --- the rows


def named(form: str, names: str) -> list[str]:
    return [form.replace("*", name) for name in names.split()]


FIELDS = [
    *named(
        "AdapterExecutionContext.*",
        "runId agent.id agent.companyId agent.name agent.adapterType agent.adapterConfig runtime.sessionId "
        "runtime.sessionParams runtime.sessionDisplayId runtime.taskKey config context context.taskId "
        "context.issueId context.wakeReason context.wakeCommentId context.commentId context.approvalId "
        "context.approvalStatus context.issueIds onLog.stream onLog.chunk onMeta onSpawn.pid onSpawn.startedAt "
        "authToken",
    ),
    *named(
        "AdapterExecutionResult.*",
        "exitCode signal timedOut errorMessage usage usage.inputTokens usage.outputTokens "
        "usage.cachedInputTokens sessionId sessionParams sessionDisplayId provider model costUsd resultJson "
        "summary clearSession",
    ),
    *named("AdapterSessionCodec.*", "deserialize serialize getDisplayId"),
    *named(
        "ServerAdapterModule.*",
        "type execute testEnvironment sessionCodec supportsLocalAgentJwt models.id models.label "
        "agentConfigurationDoc supportsInstructionsBundle instructionsPathKey "
        "requiresMaterializedRuntimeSkills supportsSkills listSkills syncSkills",
    ),
    *named("UIAdapterModule.*", "type label parseStdoutLine ConfigFields buildAdapterConfig"),
    *named("CLIAdapterModule.*", "type formatStdoutEvent formatStdoutEvent.line formatStdoutEvent.debug"),
    *named(
        "AdapterInvocationMeta.*",
        "adapterType command cwd commandArgs commandNotes env prompt promptMetrics context",
    ),
    *named("AdapterEnvironmentTestContext.*", "companyId adapterType config"),
    *named(
        "AdapterEnvironmentTestResult.*",
        "adapterType status status.pass status.warn status.fail checks testedAt",
    ),
    *named("AdapterEnvironmentCheck.*", "code level level.info level.warn level.error message detail hint"),
    *named("TranscriptEntry.*", "kind ts init.model init.sessionId assistant.text thinking.text user.text"),
    *named("TranscriptEntry.*", "tool_call.name tool_call.input stderr.text system.text stdout.text"),
    *named("TranscriptEntry.tool_result.*", "toolUseId content isError"),
    *named(
        "TranscriptEntry.result.*",
        "text inputTokens outputTokens cachedTokens costUsd subtype isError errors",
    ),
    *named(
        "PREFIX_*",
        "AGENT_ID COMPANY_ID API_URL RUN_ID TASK_ID WAKE_REASON WAKE_COMMENT_ID APPROVAL_ID APPROVAL_STATUS "
        "LINKED_ISSUE_IDS API_KEY",
    ),
    *named("{{*}}", "agentId companyId runId company agent run context"),
    *named(
        "adapterConfig.*",
        "cwd promptTemplate bootstrapPromptTemplate model effort env extraArgs timeoutSec graceSec "
        "instructionsFilePath maxTurns command dangerouslySkipPermissions "
        "dangerouslyBypassApprovalsAndSandbox",
    ),
    *named("AgentAdapter.*", "id displayName detect capabilities run cancel.runId resume.runId resume.message"),
    *named("AgentDetection.*", "executablePath version configDir skillsDir"),
    *named("AgentDetection.authState.*", "ok missing expired"),
    *named("AgentCapabilities.*", "surgicalEdit nativeSkillLoading streaming resume contextWindowHint"),
    *named("AgentCapabilities.permissionMode.*", "strict permissive none"),
    *named("AgentRunParams.*", "runId cwd systemPrompt userPrompt skillDir allowedTools timeoutMs"),
    *named(
        "AgentEvent.*",
        "thinking.text tool_call.name tool_call.input tool_call.id tool_result.id tool_result.output "
        "text_delta.text file_write.path error.error done.reason.completed done.reason.cancelled "
        "done.reason.error",
    ),
    *("PATH scan", "config-dir probe", "both signals agree", "only one signal fires"),
    *("detection cache", "24 h TTL", "SIGHUP", "all in parallel", "prompt to run the auth flow"),
    *("agents.setActive.agentId", "switching mid-run is not allowed", "od.capabilities_required"),
    *("preferred agent", "any other detected agent", "API fallback", "explicit opt-in to fallback"),
    *("one-click offer", "fails (crash, auth, timeout)", "skillInjectionStrategy"),
    *(
        f"skill injection: {way}"
        for way in (
            *("native loading", "prompt", "file in the workspace"),
            *("tmpdir and flag", "global config dir", "environment variable"),
        )
    ),
]
"""Every field of Paperclip's and Open Design's interfaces, under the names they have there."""

LATER = [
    *named(
        "later AdapterExecutionContext.*",
        "signal onCancellationReady stopRemoteStartup executionContinuation runtimeCommandSpec.command "
        "runtimeCommandSpec.detectCommand runtimeCommandSpec.installCommand executionTarget "
        "executionTransport runtimeMcp.name runtimeMcp.url runtimeMcp.token runtimeMcp.connectionId "
        "runtimeTools.version runtimeTools.guidance runtimeTools.mcpEndpoint runtimeTools.restUrls "
        "runtimeTools.bearerToken runtimeTools.expiresAt runtimeTools.tools runtimeTools.delivery "
        "onEvent.eventType onEvent.stream onEvent.level onEvent.color onEvent.message onEvent.payload "
        "onRuntimeProgress onDispatch onSpawn.processGroupId startupTraceContext",
    ),
    *named(
        "later AdapterExecutionResult.*",
        "errorCode errorFamily.transient_upstream errorFamily.provider_quota errorFamily.model_refusal "
        "errorFamily.refresh_token_reused errorFamily.refresh_token_expired "
        "errorFamily.refresh_token_invalidated retryNotBefore errorMeta errorMeta.loginUrl "
        "executionRecovery usageBasis.per_run usageBasis.session_cumulative biller cacheAdjustedCostUsd "
        "question.prompt question.choices runtimeServices referencedProjectStagingFailures "
        "runContextDiagnostics nativeFinalization",
    ),
    *named(
        "later AdapterExecutionResult.billingType.*",
        "api subscription metered_api subscription_included subscription_overage credits fixed unknown",
    ),
    *named(
        "later AdapterExecutionResult.runTelemetry.*",
        "toolCalls failedToolCalls retryCount searchCalls fileReads fileWrites testCalls timeToFirstWriteMs "
        "timeToFirstTestMs",
    ),
    *named(
        "later ServerAdapterModule.*",
        "sessionManagement.supportsSessionResume sessionManagement.nativeContextManagement "
        "sessionManagement.defaultSessionCompaction listModels refreshModels detectModel.model "
        "detectModel.provider detectModel.source detectModel.candidates modelProfiles getConfigSchema "
        "onHireApproved loginCapability acp getRuntimeCommandSpec runtimeToolDelivery",
    ),
    *named(
        "later ServerAdapterModule.skills.*",
        "supported mode desiredSkills entries warnings entry.key entry.runtimeName entry.versionIds "
        "entry.desired entry.managed entry.state.available entry.state.configured entry.state.installed "
        "entry.state.missing entry.state.stale entry.state.external entry.origin entry.location "
        "entry.sourcePath entry.targetPath entry.detail",
    ),
    *named(
        "later ServerAdapterModule.getQuotaWindows.*",
        "provider source ok error windows.label windows.usedPercent windows.resetsAt windows.valueLabel "
        "windows.detail",
    ),
    *named("later AdapterEnvironmentTestContext.*", "executionTarget environmentName deployment"),
    *named("later executionTarget.*", "local ssh sandbox"),
    *named("later plugin.*", "factory install override adapterUiParser"),
    *named(
        "later TranscriptEntry.*",
        "assistant.delta assistant.channel assistant.itemId thinking.lifecycle tool_call.toolUseId "
        "tool_result.delta diff workspace_change.files workspace_change.lines workspace_file_reference "
        "run_result.disposition run_result.verification run_result.remainingWork run_result.blocker "
        "run_terminal",
    ),
    *named(
        "later TranscriptEntry.provider_activity.*",
        "plan tool_execution delegation context review hook memory safety wait status",
    ),
    *named("later TranscriptEntry.runtime_request.*", "permission input approval pending resolved expired"),
]
"""What Paperclip's later interface has beyond the first one."""


def test_every_field_has_its_row() -> None:
    assert sorted(set(FIELDS) - {row.field for row in ROWS}) == []
    assert sorted(set(LATER) - {row.field for row in ROWS}) == []


def test_no_field_has_two_rows_and_no_row_is_empty() -> None:
    names = [row.field for row in ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert all(row.field and row.place for row in ROWS)


def test_what_is_refused_stays_the_exception() -> None:
    refused = {row.field for row in ROWS if row.is_refused and not row.field.startswith("later ")}
    assert refused == {
        "AdapterInvocationMeta.context",
        "AdapterInvocationMeta.prompt",
        "CLIAdapterModule.formatStdoutEvent.debug",
        "ServerAdapterModule.requiresMaterializedRuntimeSkills",
        "no remote git",
        "skill injection: file in the workspace",
        "switching mid-run is not allowed",
    }
