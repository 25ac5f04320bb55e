"""Steps captured as CUDA graphs and replayed."""
