"""Integrations with schedulers. Each module imports its framework; import the one that you use."""
