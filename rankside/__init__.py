"""The side of crossrank that lives inside a training process."""
