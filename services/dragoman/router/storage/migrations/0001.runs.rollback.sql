DROP TABLE settings;
DROP TABLE sessions;
DROP TABLE events;
DROP TABLE runs;
