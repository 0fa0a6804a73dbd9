"""From a plan to programs: a backend for each API, graph checks before any of them, artifacts that survive a kill."""
