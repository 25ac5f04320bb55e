"""What a GPU and the installed Triton can run."""
