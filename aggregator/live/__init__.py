"""Sockets and threads around the pipeline."""
