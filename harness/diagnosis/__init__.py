"""Causes: what statement, were it true, would show exactly the evidence that was seen.

A hypothesis states, from the case alone, what every stage would do if it were so. It is named as
the cause only where that reproduces all evidence, wrong and right, on every case tried.
"""
