"""Compiling Triton kernels before a step needs them."""
