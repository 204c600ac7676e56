ALTER TABLE sessions DROP COLUMN agent_name;
DROP TABLE active_agents;
