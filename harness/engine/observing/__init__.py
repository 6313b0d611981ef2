"""What one stage of a backend does on a case, as evidence: a stage a file."""
