"""The crossrank command."""
