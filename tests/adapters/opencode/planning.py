"""Jobs for the opencode adapter, without a run."""

from functools import partial

from dragoman.adapters.opencode import adapter

from tests.adapters import jobs

NEW_ID = jobs.NEW_ID
request = jobs.request_of
job_of = partial(jobs.job_of, adapter(), executable="/opt/opencode", version="1.18.33")
