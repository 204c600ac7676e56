"""Describe and Detect of several adapters in one process."""

from unittest.mock import Mock

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._serving.detecting import DetectionServicer
from dragoman.v1 import adapter_pb2 as pb


async def test_adapters_are_loaded_when_they_are_asked() -> None:
    servicer = DetectionServicer({"process": "dragoman.adapters.process:adapter", "broken": "no.such.module:x"})
    described = await servicer.Describe(pb.DescribeRequest(adapter="process"), Mock())
    assert described.adapter == "process"
    (found,) = (await servicer.Detect(pb.DetectRequest(adapter="process"), Mock())).detections
    assert (found.adapter, found.label, found.available) == ("process", described.label, True)
    with pytest.raises(ModuleNotFoundError):
        await servicer.Describe(pb.DescribeRequest(adapter="broken"), Mock())


@pytest.mark.parametrize("name", ["", "acp"])
async def test_others_are_not_found(name: str) -> None:
    servicer = DetectionServicer({"process": "dragoman.adapters.process:adapter"})
    with pytest.raises(DragomanError, match="not detected here") as refused:
        await servicer.Detect(pb.DetectRequest(adapter=name), Mock())
    assert refused.value.reason is Reason.ADAPTER_NOT_FOUND
