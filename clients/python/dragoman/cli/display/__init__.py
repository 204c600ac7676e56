"""What is shown: events as styled text, tables, the last line of a run."""
