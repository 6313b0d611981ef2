"""Serving a script: several rounds of several requests, with a small model and any backend."""
