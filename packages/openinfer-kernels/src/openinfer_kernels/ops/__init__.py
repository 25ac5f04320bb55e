"""The ops of this package, one folder each. `openinfer_kernels.dispatch` lists these folders."""
