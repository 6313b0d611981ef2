"""One file a command of the command line, and what commands share: options, what was asked for, exit codes."""
