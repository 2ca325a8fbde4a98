"""The demo: a real msrun training on CPU, and the script that it runs."""
