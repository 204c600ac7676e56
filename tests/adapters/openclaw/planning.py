"""Jobs for the OpenClaw adapter, without a run."""

from functools import partial

from dragoman.adapters.openclaw import adapter
from dragoman.sdk._request.sessions import SessionPlan
from dragoman.v1 import event_pb2 as pb

from tests.adapters import jobs

ADAPTER = adapter()
NEW_ID, OLD_ID = jobs.NEW_ID, jobs.OLD_ID
RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=OLD_ID)
COPIED = SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id=OLD_ID)
request = partial(jobs.request_of, "/")
job_of = partial(jobs.job_of, ADAPTER, executable="/opt/openclaw", version="2026.9.6")
