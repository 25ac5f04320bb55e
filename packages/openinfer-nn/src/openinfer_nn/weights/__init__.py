"""Checkpoints: safetensors headers, the map from names to parameters, the loader."""
