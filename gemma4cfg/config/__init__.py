"""The user's surface: YAML and overrides in, one checked ``Config`` out."""
