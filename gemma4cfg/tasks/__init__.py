"""One thin module per task; ``job`` runs the one that is asked for and records how it ended."""
