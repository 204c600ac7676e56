"""What the model API adapter is: an agent for a machine without agents."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Final

from dragoman.adapters.model_api import access
from dragoman.adapters.model_api.loop import Loop
from dragoman.adapters.model_api.providers import (
    ANTHROPIC,
    INSTALL_HINT,
    OPENAI,
    PROVIDERS,
    Service,
    is_installed,
    sdk_version,
)
from dragoman.adapters.model_api.reply import Message
from dragoman.adapters.model_api.tools import offered
from dragoman.adapters.model_api.transcripts import Transcripts, is_session_id, settled, state_directory
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    FailureError,
    FailureInfo,
    InProcessAdapter,
    JsonValue,
    Settings,
    Turn,
    as_bool,
    as_string,
    capabilities,
    rules,
    shipped_documents,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"
WHOLE_FILES: Final = "wholeFiles"
"""The native mode in which files may only be written as a whole."""

INHERITED: Final = (
    *(name for item in PROVIDERS.values() for name in (*item.key_variables, item.url_variable, item.model_variable)),
    *("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"),
)


class ModelApiAdapter(InProcessAdapter):
    """Talks to a model itself, and lets it read and write files."""

    inherit: ClassVar[Collection[str]] = INHERITED
    api_key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY")
    login_hint: ClassVar[str] = "Set ANTHROPIC_API_KEY or OPENAI_API_KEY in env."
    install_hint: ClassVar[str] = INSTALL_HINT

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="model_api",
            label="Model API",
            version=VERSION,
            aliases=("api-fallback", "api_fallback", *access.ALIASES),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
            models=ANTHROPIC.models,
        )

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID."""
        return is_session_id(text)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what no model can be asked."""
        yield from rules.blank_prompt(request)
        yield from rules.native_mode(settings.permissions, (WHOLE_FILES,))

    async def work(self, turn: Turn) -> None:
        """Have the conversation.

        Raises:
            FailureError: it came to no good end.
        """
        job = turn.job
        provider = access.provider_of(job, turn.env)
        if not is_installed(provider):
            message = f"The Python package {provider.name} is not installed. {INSTALL_HINT}"
            raise FailureError(FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, message, code="extra_missing"))
        model = access.model_of(provider, job, turn.env)
        transcripts = Transcripts(state_directory(turn.env))
        messages = _conversation(turn, transcripts)
        tools = offered(whole_files_only=_whole_files_only(turn))
        turn.report.provider, turn.report.model = provider.name, model
        session = pb.Session(native_id=turn.report.session_id, model=model, agent_version=sdk_version(provider))
        session.tools.extend(tool.name for tool in tools)
        turn.run.emit(pb.AgentEvent(session=session))
        try:
            async with Service(provider, access.access_to(provider, job, turn.env)) as service:
                await Loop(turn, provider, service, model, tools, messages).go()
        finally:
            if turn.run.cancel_wish.is_asked or (turn.report.terminal and turn.report.terminal.succeeded):
                _keep(turn, transcripts, messages)

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """See whether the vendor's SDK and a key are there. Asks nobody."""
        provider = access.provider_named(as_string(config.get("provider"), ""), "", env)
        key = next((name for name in provider.key_variables if env.get(name)), "")
        found = adapter_pb2.Detection(
            available=is_installed(provider),
            version=sdk_version(provider),
            capabilities=self.describe().capabilities,
            confidence=adapter_pb2.DETECTION_CONFIDENCE_CONFIDENT,
        )
        if not found.available:
            found.confidence = adapter_pb2.DETECTION_CONFIDENCE_ABSENT
            found.message, found.hint = f"The Python package {provider.name} is not installed.", INSTALL_HINT
        elif key:
            found.auth, found.auth_method = adapter_pb2.AUTH_STATE_OK, key
            found.message = f"The Python package {provider.name} is installed, and there is a key."
        elif provider is OPENAI and env.get(provider.url_variable):
            found.auth = adapter_pb2.AUTH_STATE_UNKNOWN
            found.message = f"The Python package {provider.name} is installed; there is an address and no key."
        else:
            found.auth = adapter_pb2.AUTH_STATE_MISSING
            found.message = f"The Python package {provider.name} is installed, but there is no key."
            found.hint = self.login_hint
        return found

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the service's models if there is a key, within a bounded time; else those that are known."""
        listed = await access.listed_models(request)
        if not listed:
            return await super().list_models(request)
        response = adapter_pb2.ListModelsResponse(source=adapter_pb2.MODEL_SOURCE_SERVICE)
        response.listed_at.GetCurrentTime()
        for model in listed:
            is_default = model.id == ANTHROPIC.default_model
            response.models.add(id=model.id, label=model.label, is_default=is_default)
        return response


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING),
        *(pb.FEATURE_TOOL_START, pb.FEATURE_FILE_CHANGES, pb.FEATURE_SURGICAL_EDIT),
        *(pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PER_MODEL_USAGE, pb.FEATURE_PERMISSION_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK, pb.FEATURE_SKILLS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_MAX_TURNS),
        resume=pb.RESUME_STYLE_CAPTURE,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_SKILLS: "put into the system prompt; scripts of a skill cannot be run",
            pb.FEATURE_THINKING: "if config.thinking asks for it, or the service sends it anyway",
        },
    )


def _conversation(turn: Turn, transcripts: Transcripts) -> list[Message]:
    """Return the conversation so far with the prompt at its end, and note its session.

    Raises:
        FailureError: the session to go on with is gone.
    """
    session = turn.job.session
    before: list[Message] = []
    if session.resumes:
        kept = transcripts.load(session.native_id)
        if kept is None:
            message = f"No conversation is kept under the session {session.native_id}."
            info = FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="session_unknown", errors=(message,))
            raise FailureError(info)
        before = kept
    goes_on = session.disposition == pb.SESSION_DISPOSITION_RESUME
    turn.report.session_id = session.native_id if goes_on else turn.job.new_session_id
    return [*before, {"role": "user", "content": [{"type": "text", "text": turn.job.prompt}]}]


def _whole_files_only(turn: Turn) -> bool:
    return turn.job.permissions.native_mode == WHOLE_FILES or as_bool(turn.job.config.get("wholeFilesOnly"), False)


def _keep(turn: Turn, transcripts: Transcripts, messages: list[Message]) -> None:
    try:
        transcripts.save(turn.report.session_id, settled(messages), turn.run.redactor.text)
    except OSError as error:
        turn.report.session_id = ""
        message = f"The conversation could not be kept ({error.strerror}); it cannot be gone on with."
        turn.run.notice(pb.SEVERITY_WARNING, "session_not_kept", message)
