"""What the model API adapter is: an agent for a machine without agents."""

from collections.abc import Mapping
from typing import Final

from dragoman.adapters.model_api import access
from dragoman.adapters.model_api.loop import Loop
from dragoman.adapters.model_api.providers import ANTHROPIC, OPENAI, Service, is_installed, sdk_version
from dragoman.adapters.model_api.reply import Message
from dragoman.adapters.model_api.tools import offered
from dragoman.adapters.model_api.transcripts import Transcripts, image_block, settled, state_directory
from dragoman.sdk import FailureError, FailureInfo, InProcessAdapter, Turn
from dragoman.sdk.detection import Billing
from dragoman.sdk.fields import JsonValue, as_bool, as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

WHOLE_FILES: Final = "wholeFiles"
"""The native mode in which files may only be written as a whole."""


class ModelApiAdapter(InProcessAdapter):
    """Calls a model itself, and lets it read and write files."""

    spec = agent_spec(__package__)

    async def work(self, turn: Turn) -> None:
        """Run the agent loop.

        Raises:
            FailureError: it failed.
        """
        job = turn.job
        provider = access.provider_of(job, turn.env)
        if not is_installed(provider):
            message = f"The Python package {provider.name} is not installed. {self.spec.install_hint}"
            raise FailureError(FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, message, code="package_missing"))
        model = access.model_of(provider, job, turn.env)
        transcripts = Transcripts(state_directory(turn.env))
        messages = _conversation(turn, transcripts)
        tools = offered(whole_files_only=_whole_files_only(turn))
        turn.report.provider, turn.report.model = provider.name, model
        session = pb.Session(native_id=turn.report.session_id, model=model, agent_version=sdk_version(provider))
        session.tools.extend(tool.name for tool in tools)
        turn.run.emit(pb.AgentEvent(session=session))
        try:
            reached = access.access_to(provider, job, turn.env)
            if reached.key:
                biller = "" if reached.url else provider.name  # the owner of another address is unknown
                turn.report.billing = Billing(pb.BILLING_TYPE_API, biller)
            async with Service(provider, reached) as service:
                await Loop(turn, provider, service, model, tools, messages).go()
        finally:
            if turn.run.cancellation.is_requested or (turn.report.terminal and turn.report.terminal.succeeded):
                _store(turn, transcripts, messages)

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Detect the vendor's SDK and a key, without network traffic."""
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
            found.message = f"The Python package {provider.name} is not installed."
            found.hint = self.spec.install_hint
        elif key:
            found.auth, found.auth_method = adapter_pb2.AUTH_STATE_OK, key
            found.message = f"The Python package {provider.name} is installed, and there is a key."
        elif provider is OPENAI and env.get(provider.url_variable):
            found.auth = adapter_pb2.AUTH_STATE_UNKNOWN
            found.message = f"The Python package {provider.name} is installed; there is an address and no key."
        else:
            found.auth = adapter_pb2.AUTH_STATE_MISSING
            found.message = f"The Python package {provider.name} is installed, but there is no key."
            found.hint = self.spec.login_hint
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


def _conversation(turn: Turn, transcripts: Transcripts) -> list[Message]:
    """Return the conversation so far with the prompt at its end, and note its session.

    Raises:
        FailureError: the session to resume is lost.
    """
    session = turn.job.session
    before: list[Message] = []
    if session.resumes:
        stored = transcripts.load(session.native_id)
        if stored is None:
            message = f"No conversation is stored for the session {session.native_id}."
            info = FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="session_unknown", errors=(message,))
            raise FailureError(info)
        before = stored
    is_same = session.disposition == pb.SESSION_DISPOSITION_RESUME
    turn.report.session_id = session.native_id if is_same else turn.job.new_session_id
    images: list[JsonValue] = [image_block(image.media_type, image.base64) for image in turn.job.images]
    return [*before, {"role": "user", "content": [*images, {"type": "text", "text": turn.job.prompt}]}]


def _whole_files_only(turn: Turn) -> bool:
    return turn.job.permissions.native_mode == WHOLE_FILES or as_bool(turn.job.config.get("wholeFilesOnly"), False)


def _store(turn: Turn, transcripts: Transcripts, messages: list[Message]) -> None:
    try:
        transcripts.save(turn.report.session_id, settled(messages), turn.run.redactor.text)
    except OSError as error:
        turn.report.session_id = ""
        message = f"The conversation could not be stored ({error.strerror}); it cannot be resumed."
        turn.run.notice(pb.SEVERITY_WARNING, "session_not_kept", message)
