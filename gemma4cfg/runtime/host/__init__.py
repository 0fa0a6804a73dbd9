"""The host's part of a run: tables, scheduling, sampling, stop ids, and the session that ties them to the graphs."""
