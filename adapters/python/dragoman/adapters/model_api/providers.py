"""The vendors' own Python SDKs: their clients, and their streams as plain JSON.

The SDKs are imported when first needed and not on the event loop: that takes a second or two.
"""

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Literal, Self

from dragoman.adapters.model_api import anthropic_messages, openai_chat
from dragoman.adapters.model_api.failures import ServiceError
from dragoman.adapters.model_api.reply import Reader, Reply
from dragoman.sdk import Model
from dragoman.sdk.fields import Fields, compact
from msgspec import Struct

Name = Literal["anthropic", "openai"]

CONNECT_LIMIT_S: Final = 30.0
SILENCE_LIMIT_S: Final = 600.0
"""Seconds without a byte after which a connection is closed, if the run has no idle limit of its own."""


class Provider(Struct, frozen=True):
    """A vendor, or another service with its wire format."""

    name: Name
    key_variables: tuple[str, ...]
    """Variables with a key, best first."""
    url_variable: str
    model_variable: str
    """The variable with the model, if the request has none."""
    default_model: str
    """Empty: the request must name one."""
    models: tuple[Model, ...]
    arguments: Callable[..., dict[str, Any]]
    reader: Callable[[Reply], Reader]


ANTHROPIC: Final = Provider(
    name="anthropic",
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    url_variable="ANTHROPIC_BASE_URL",
    model_variable="ANTHROPIC_MODEL",
    default_model="claude-sonnet-5-5",
    models=(
        Model("claude-sonnet-5-5", "Claude Sonnet 5.5", is_default=True),
        Model("claude-opus-5-5", "Claude Opus 5.5"),
        Model("claude-haiku-5-5", "Claude Haiku 5.5"),
    ),
    arguments=anthropic_messages.arguments,
    reader=anthropic_messages.AnthropicReader,
)
OPENAI: Final = Provider(
    name="openai",
    key_variables=("OPENAI_API_KEY",),
    url_variable="OPENAI_BASE_URL",
    model_variable="OPENAI_MODEL",
    default_model="",
    models=(),
    arguments=openai_chat.arguments,
    reader=openai_chat.OpenAIReader,
)
PROVIDERS: Final[Mapping[str, Provider]] = {"anthropic": ANTHROPIC, "openai": OPENAI}


def is_installed(provider: Provider) -> bool:
    """Return whether the vendor's SDK can be imported."""
    return importlib.util.find_spec(provider.name) is not None


def sdk_version(provider: Provider) -> str:
    """Return the version of the vendor's SDK; empty if it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(provider.name)
    return ""


class Access(Struct, frozen=True):
    """Where the service is, and with which key."""

    key: str
    key_variable: str
    url: str
    """Empty: the vendor's own."""
    organization: str = ""
    project: str = ""


class Service:
    """A vendor's service. Close it.

    Args:
        provider: whose.
        access: where, and with which key.

    Raises:
        ImportError: the vendor's SDK is not installed.
    """

    def __init__(self, provider: Provider, access: Access) -> None:
        self._provider = provider
        self._access = access
        self._client: Any = None
        self._errors: Any = None

    async def __aenter__(self) -> Self:
        make = _anthropic if self._provider is ANTHROPIC else _openai
        self._errors, self._client = await asyncio.to_thread(make, self._access)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def events(self, arguments: Mapping[str, Any]) -> AsyncGenerator[Fields, None]:
        """Request the next answer, and yield the events of its stream. Left early, the connection is closed.

        Raises:
            ServiceError: the request or the stream failed.
        """
        create = self._client.messages.create if self._provider is ANTHROPIC else self._client.chat.completions.create
        with self._service_errors():
            stream = await create(**arguments)
            try:
                async for event in stream:
                    # No warnings about what does not fit the SDK's types: the readers check each value.
                    yield event if isinstance(event, dict) else event.to_dict(mode="json", warnings=False)
            finally:
                await stream.close()

    async def models(self) -> Sequence[Model]:
        """Return the models that the service lists.

        Raises:
            ServiceError: the request failed.
        """
        found = []
        with self._service_errors():
            async for item in self._client.models.list():
                found.append(Model(str(item.id), str(getattr(item, "display_name", "") or "")))
        return found

    @contextlib.contextmanager
    def _service_errors(self) -> Any:
        try:
            yield
        except self._errors.APIConnectionError as error:
            cause = error.__cause__
            reason = f"{error.message} ({type(cause).__name__})" if cause is not None else error.message
            raise ServiceError(_sentence(reason), trouble="network") from error
        except self._errors.APIError as error:
            raise _service_error(error) from error
        except ValueError as error:
            raise ServiceError("The answer is not JSON.", trouble="garbage") from error
        except _transport_error() as error:
            raise ServiceError(f"The connection broke ({type(error).__name__}).", trouble="network") from error


def _service_error(error: Any) -> ServiceError:
    body = error.body if isinstance(error.body, str) else compact(error.body) if error.body is not None else ""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if isinstance(error.body, dict) and "error" not in error.body:
        body = compact({"error": error.body})  # one of the SDKs unpacks it
    return ServiceError(
        str(error.message)[:2000],
        # A stream that began without an error has status 200; the error is in its message.
        status=status if isinstance(status, int) and status >= 300 else None,
        headers=dict(response.headers) if response is not None else {},
        body=body[:16_384],
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _transport_error() -> type[Exception]:
    import httpx2  # noqa: PLC0415 - slow to import

    return httpx2.TransportError


def _anthropic(access: Access) -> tuple[Any, Any]:
    import anthropic  # noqa: PLC0415 - slow to import

    is_token = access.key_variable == "ANTHROPIC_AUTH_TOKEN"
    own = {"authorization": f"Bearer {access.key}"}  # the SDK sends keys this way, too
    client = anthropic.AsyncAnthropic(
        api_key=None if is_token else access.key,
        auth_token=access.key if is_token else None,
        base_url=access.url or "https://api.anthropic.com",
        max_retries=0,
        timeout=_limits(),
        default_headers=_nothing_ambient("ANTHROPIC_CUSTOM_HEADERS", anthropic.Omit(), own),
        open_telemetry=False,
        http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False),
    )
    return anthropic, client


def _openai(access: Access) -> tuple[Any, Any]:
    import openai  # noqa: PLC0415 - slow to import

    key = access.key or "none"  # local servers need none; the SDK does
    own = {"authorization": f"Bearer {key}"}
    omit: Any = openai.Omit()
    client = openai.AsyncOpenAI(
        api_key=key,
        admin_api_key="",
        base_url=access.url or "https://api.openai.com/v1",
        max_retries=0,
        timeout=_limits(),
        default_headers={
            **_nothing_ambient("OPENAI_CUSTOM_HEADERS", omit, own),
            "OpenAI-Organization": access.organization or omit,
            "OpenAI-Project": access.project or omit,
        },
        http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
    )
    return openai, client


def _limits() -> Any:
    import httpx2  # noqa: PLC0415 - slow to import

    return httpx2.Timeout(SILENCE_LIMIT_S, connect=CONNECT_LIMIT_S)


def _nothing_ambient(variable: str, omit: Any, own: Mapping[str, str]) -> dict[str, Any]:
    """Remove the headers that an SDK takes from the adapter's environment: they may be secrets.

    Args:
        variable: the variable with the headers.
        omit: the SDK's value for "leave it out".
        own: headers that are needed nevertheless, by lower-case name.
    """
    lines = os.environ.get(variable, "").split("\n")
    names = [line.partition(":")[0].strip() for line in lines if ":" in line]
    return {name: own.get(name.lower(), omit) for name in names}
