"""Chosen data and what they show: each probe fills the cache, launches, and reads the outputs."""
