"""The five identities, one file each, and the probes that measure what a kernel did.

Recovery functions take evidence only: no case and no tree. Judging compares what was recovered
with the drawn tree.
"""
