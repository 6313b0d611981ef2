"""What Triton's compiler itself says of kernels that do not compile. No GPU is needed.

These run where Triton is installed (pip install triton). Elsewhere they are skipped, saying so,
unless TREEPROOF_REQUIRE_OPTIONAL=1 makes that an error.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1",
    reason="not installed: triton (pip install triton)",
)

COMPILE = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treeproof.engine.checks.unable import unable
from treeproof.properties.violation import raised

@triton.jit
def to_fp8(x):
    return x.to(tl.float8e4nv)

@triton.jit
def narrow(q, out):
    tl.store(out, to_fp8(tl.load(q)))

@triton.jit
def misspelt(q, out):
    tl.store(out, tl.foo(q))

for kernel in (narrow, misspelt):
    try:
        source = ASTSource(kernel, {"q": "*fp32", "out": "*fp32"}, {})
        triton.compile(source, target=GPUTarget("cuda", 80, 32))
    except Exception as error:
        print(unable("attend", error) or raised("attend", error))
"""


def test_a_type_that_the_device_lacks_and_a_slip_in_a_kernel_are_told_apart(tmp_path: Path) -> None:
    # Compiled kernels come from files, and not in a process whose Triton interprets.
    script = tmp_path / "compile.py"
    script.write_text(COMPILE)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lacking, slip = done.stdout.splitlines()
    assert lacking.startswith(
        "attend: CompilationError in kernel to_fp8, line 2 of it (return x.to(tl.float8e4nv)): "
        "type fp8e4nv not supported in this architecture."
    )
    assert slip.startswith(
        "attend raised CompilationError in kernel misspelt, line 2 of it (tl.store(out, "
        "tl.foo(q))): AttributeError("
    )
    assert slip.endswith("(compile.py, line 25, in <module>)")
