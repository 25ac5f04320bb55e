"""The real loop and scheduler over a modelled executor, on a virtual clock or in real time."""
