"""GPUs: their families and sizes, and the kernels that they and the installed Triton can run.

The modules are imported one by one, since some need Triton and others must not.
"""
