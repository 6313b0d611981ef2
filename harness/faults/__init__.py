"""Planted faults: what real reports describe, planted where it happened. Backends hold no switches."""
