"""`python -m treeproof` is `treeproof`."""

from treeproof.cli import main

if __name__ == "__main__":
    main()
