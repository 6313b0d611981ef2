"""The harness scored against planted faults: what kills each, how fast, on how small a case."""
