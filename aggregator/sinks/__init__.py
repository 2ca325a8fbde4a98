"""Sinks: where closed steps go."""
