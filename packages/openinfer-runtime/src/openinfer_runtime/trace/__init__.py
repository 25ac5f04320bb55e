"""Times of steps and kernels on the device, for traces."""
