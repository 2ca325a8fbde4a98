"""The service: puts all ranks side by side on the step, merges them, and finds the rank that went wrong."""
