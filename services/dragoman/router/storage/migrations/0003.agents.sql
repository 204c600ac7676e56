-- Stored agents, which requests name.
-- depends: 0002.no-reserved

CREATE TABLE agents (
    name        text PRIMARY KEY,
    created_at  bigint NOT NULL,              -- nanoseconds since the epoch
    version     bigint NOT NULL,              -- counts its changes, from 1
    state       blob NOT NULL                 -- a StoredAgent
);
