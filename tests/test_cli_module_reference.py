"""`module:name` finds a module of the current folder, as `python -m` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TEXT = """
import treeproof

@treeproof.register("mine", stages={"commit"})
def commit(x, accepted, k_cache, v_cache):
    raise RuntimeError("reached")
"""


def test_a_module_of_the_current_folder_is_found_and_run(tmp_path: Path) -> None:
    (tmp_path / "my_kernels.py").write_text(TEXT)
    program = "import sys; from treeproof.cli import main; sys.exit(main())"
    done = subprocess.run(
        # -P: the folder is not put on the path by Python, as it is not for a console script
        [sys.executable, "-P", "-c", program, "check", "my_kernels:mine", "--examples", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "commit raised RuntimeError: reached" in done.stdout
