"""Files around the pipeline."""
