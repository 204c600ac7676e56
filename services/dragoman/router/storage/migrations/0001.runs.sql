-- Runs, their events and sessions. Read by SQLite and PostgreSQL alike: the latter is given the type blob first.

CREATE TABLE runs (
    run_id        text PRIMARY KEY,
    accepted_at   double precision NOT NULL,  -- seconds since the epoch
    finished_at   double precision,           -- null while it lives
    adapter       text NOT NULL,
    agent_id      text NOT NULL,
    company_id    text NOT NULL,
    task_key      text NOT NULL,
    outcome       integer NOT NULL,           -- 0 while it lives
    digest        blob,                       -- of the request, keyed; null for one found by Attach
    state         blob NOT NULL,              -- a GetRunResponse
    reserved      bigint NOT NULL,            -- no sequence above this was ever told to anybody
    logged        bigint NOT NULL,            -- the last sequence that is in events
    bytes         bigint NOT NULL,            -- of its events
    owner         text NOT NULL,              -- the router that follows it
    lease_until   double precision NOT NULL,  -- seconds since the epoch; after this another may take it
    place         text NOT NULL,              -- where its adapter's process is, as JSON
    orphan_after  double precision NOT NULL   -- seconds
);
CREATE INDEX runs_by_time ON runs (accepted_at, run_id);
CREATE INDEX runs_by_task ON runs (task_key, accepted_at, run_id);
CREATE INDEX runs_live ON runs (owner, lease_until) WHERE finished_at IS NULL;
CREATE INDEX runs_live_by_time ON runs (accepted_at, run_id) WHERE finished_at IS NULL;
CREATE INDEX runs_live_by_task ON runs (company_id, agent_id, task_key) WHERE finished_at IS NULL;
CREATE INDEX runs_finished ON runs (finished_at, run_id, bytes) WHERE finished_at IS NOT NULL;

-- Some events in a row, as the bytes that passed, each behind its length as a varint. Null: they were not kept.
CREATE TABLE events (
    run_id   text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    first    bigint NOT NULL,
    last     bigint NOT NULL,
    data     blob,
    PRIMARY KEY (run_id, first)
);

CREATE TABLE sessions (
    company_id   text NOT NULL,
    agent_id     text NOT NULL,
    adapter      text NOT NULL,
    task_key     text NOT NULL,
    used_at      double precision NOT NULL,   -- seconds since the epoch
    state        blob NOT NULL,               -- a StoredSession
    PRIMARY KEY (company_id, agent_id, adapter, task_key)
);
CREATE INDEX sessions_by_time ON sessions (used_at);

CREATE TABLE settings (
    name    text PRIMARY KEY,
    value   blob NOT NULL
);
