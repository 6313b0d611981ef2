"""What is checked: trees, cases and their numbers, each from a seed alone."""
