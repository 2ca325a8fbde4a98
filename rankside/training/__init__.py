"""What knows MindSpore and mindformers: the only folder that imports them."""
