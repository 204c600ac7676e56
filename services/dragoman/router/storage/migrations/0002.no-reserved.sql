-- How far a router publishes ahead of what is in events is a constant.
-- depends: 0001.runs

ALTER TABLE runs DROP COLUMN reserved;
