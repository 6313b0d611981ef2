"""What the command line is made of: its options, what was asked for by name, the doctor."""
