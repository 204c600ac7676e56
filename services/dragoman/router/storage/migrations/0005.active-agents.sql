-- The active agents of tasks, and the stored agents of sessions.
-- depends: 0004.spending

CREATE TABLE active_agents (
    company_id  text NOT NULL,
    task_key    text NOT NULL,
    agent_name  text NOT NULL REFERENCES agents (name) ON DELETE CASCADE,
    used_at     double precision NOT NULL,    -- seconds since the epoch
    PRIMARY KEY (company_id, task_key)
);
CREATE INDEX active_agents_by_agent ON active_agents (agent_name);
CREATE INDEX active_agents_by_time ON active_agents (used_at);

ALTER TABLE sessions ADD COLUMN agent_name text NOT NULL DEFAULT '';
