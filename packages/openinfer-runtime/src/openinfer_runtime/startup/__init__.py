"""From a launch spec to a ready executor: memory plan, dry run, kernels, first steps."""
