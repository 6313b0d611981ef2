"""The parts of one check: what is declared, what launches show, what a round accepts and commits."""
