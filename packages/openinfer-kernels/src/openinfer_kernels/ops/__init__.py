"""The ops of this package, one folder each; `openinfer_kernels.dispatch` finds them by listing."""
