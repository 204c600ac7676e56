"""The calls of AdapterService that are about the adapter and its agent, not about runs."""

import json
import os
from collections.abc import Sequence
from typing import Final

from dragoman.protocol import REVISION
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import new_instance_id
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.server import Context
from dragoman.sdk._serving.described import described_schema
from dragoman.sdk.adapter import Adapter
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_MOST_WINDOWS: Final = 64


class QueryServicer:
    """Describes an adapter, and looks for its agent, models and skills.

    Args:
        adapter: the adapter.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.info = adapter.describe()
        self.instance_id = new_instance_id()

    async def Describe(self, request: pb.DescribeRequest, _context: Context) -> pb.DescribeResponse:  # noqa: N802
        """Return what the adapter is."""
        check_name(self.info, request.adapter)
        info = self.info
        response = pb.DescribeResponse(
            adapter=info.type,
            aliases=info.aliases,
            label=info.label,
            version=info.version,
            revision=REVISION,
            instance_id=self.instance_id,
            capabilities=info.capabilities,
            config_schema_json=json.dumps(described_schema(info)),
            configuration_doc=info.configuration_doc,
            pid=os.getpid(),
            batching=True,
            duties=self._adapter.duties,
        )
        for model in info.models:
            response.models.add(id=model.id, label=model.label, is_default=model.is_default)
        return response

    async def Detect(self, request: pb.DetectRequest, _context: Context) -> pb.DetectResponse:  # noqa: N802
        """Look for the agent."""
        check_name(self.info, request.adapter)
        found = await self._adapter.detect(request)
        found.adapter, found.label = self.info.type, self.info.label
        found.detected_at.GetCurrentTime()
        return pb.DetectResponse(detections=[found])

    async def TestEnvironment(  # noqa: N802
        self, request: pb.TestEnvironmentRequest, _context: Context
    ) -> pb.TestEnvironmentResponse:
        """Check a set-up."""
        check_name(self.info, request.adapter)
        if request.mode == pb.TEST_MODE_UNSPECIFIED:
            request.mode = pb.TEST_MODE_QUICK
        checks = await self._adapter.test_environment(request)
        response = pb.TestEnvironmentResponse(adapter=self.info.type, mode=request.mode, checks=checks)
        response.status = status_of(checks)
        response.tested_at.GetCurrentTime()
        return response

    async def ListModels(self, request: pb.ListModelsRequest, _context: Context) -> pb.ListModelsResponse:  # noqa: N802
        """List models."""
        check_name(self.info, request.adapter)
        return await self._adapter.list_models(request)

    async def GetQuota(self, request: pb.GetQuotaRequest, _context: Context) -> pb.GetQuotaResponse:  # noqa: N802
        """Return how much of the account's rate limits is used."""
        check_name(self.info, request.adapter)
        if not self.info.has(event_pb2.FEATURE_QUOTA):
            raise DragomanError(Reason.NOT_IMPLEMENTED, f"{self.info.type} does not report its account's rate limits")
        response = await self._adapter.get_quota(request)
        del response.windows[_MOST_WINDOWS:]
        if response.HasField("failure"):
            secrets = Redactor(request_secrets(pb.ExecuteRequest(env=request.env, config=request.config)))
            response.failure.message = secrets.text(response.failure.message)
        else:
            response.read_at.GetCurrentTime()
        return response

    async def ListSkills(self, request: pb.ListSkillsRequest, _context: Context) -> pb.ListSkillsResponse:  # noqa: N802
        """List skills."""
        check_name(self.info, request.adapter)
        return await self._adapter.list_skills(request)

    async def SyncSkills(self, request: pb.SyncSkillsRequest, _context: Context) -> pb.SyncSkillsResponse:  # noqa: N802
        """Place skills."""
        check_name(self.info, request.adapter)
        return await self._adapter.sync_skills(request)


def check_name(info: AdapterInfo, name: str) -> None:
    """Refuse a name that is not the adapter's.

    Raises:
        DragomanError: ADAPTER_NOT_FOUND.
    """
    known = (info.type, *info.aliases)
    if name and name not in known:
        raise DragomanError(
            Reason.ADAPTER_NOT_FOUND,
            f"this sidecar serves {info.type}, not {name!r}",
            {"adapter": name, "did_you_mean": info.type},
        )


def status_of(checks: Sequence[pb.EnvironmentCheck]) -> pb.TestStatus.ValueType:
    """Sum up checks: FAIL if any is an error, else WARN if any is a warning, else PASS."""
    levels = {check.level for check in checks}
    if event_pb2.SEVERITY_ERROR in levels:
        return pb.TEST_STATUS_FAIL
    return pb.TEST_STATUS_WARN if event_pb2.SEVERITY_WARNING in levels else pb.TEST_STATUS_PASS
