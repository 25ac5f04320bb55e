"""Client behaviour as data: traces, generators of workloads, readers of published formats."""
