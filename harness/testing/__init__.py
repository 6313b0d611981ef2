"""treeproof inside one's own tests and scripts: `check`, `assert_tree_attention`, `check_step`."""
