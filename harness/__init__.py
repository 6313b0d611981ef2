"""treeproof: is your tree attention right? This module is the whole public surface.

Importing it imports neither torch nor Hypothesis; names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeproof.backends.reference.store import store_kv as store_kv
    from treeproof.contract.backend import BackendUnavailable as BackendUnavailable
    from treeproof.contract.capabilities import Capabilities as Capabilities
    from treeproof.contract.capabilities import Numerics as Numerics
    from treeproof.contract.case import AttentionShape as AttentionShape
    from treeproof.contract.case import Full as Full
    from treeproof.contract.case import KVLayout as KVLayout
    from treeproof.contract.case import MaskLayout as MaskLayout
    from treeproof.contract.case import MaskMode as MaskMode
    from treeproof.contract.case import Request as Request
    from treeproof.contract.case import VerifyCase as VerifyCase
    from treeproof.contract.case import Window as Window
    from treeproof.contract.constraints import Constraints as Constraints
    from treeproof.contract.drafting import Drafted as Drafted
    from treeproof.contract.drafting import DraftStep as DraftStep
    from treeproof.contract.drafting import Extended as Extended
    from treeproof.contract.inputs import Accepted as Accepted
    from treeproof.contract.inputs import Attended as Attended
    from treeproof.contract.inputs import Candidates as Candidates
    from treeproof.contract.inputs import Committed as Committed
    from treeproof.contract.inputs import DraftPool as DraftPool
    from treeproof.contract.inputs import Selected as Selected
    from treeproof.contract.inputs import VerifyInput as VerifyInput
    from treeproof.contract.registry import register as register
    from treeproof.contract.sampling import Sampling as Sampling
    from treeproof.contract.stopping import Finished as Finished
    from treeproof.contract.stopping import StopRules as StopRules
    from treeproof.contract.tree import CandidateTree as CandidateTree
    from treeproof.engine.summary import Run as Run
    from treeproof.plugin.made_tests import make_tests as make_tests
    from treeproof.testing.assertion import assert_tree_attention as assert_tree_attention
    from treeproof.testing.check import check as check
    from treeproof.testing.step import check_step as check_step
    from treeproof.testing.violated import TreeAttentionError as TreeAttentionError

__version__ = "0.1.0"

_HOME = {
    "Accepted": "treeproof.contract.inputs",
    "Attended": "treeproof.contract.inputs",
    "BackendUnavailable": "treeproof.contract.backend",
    "AttentionShape": "treeproof.contract.case",
    "Candidates": "treeproof.contract.inputs",
    "CandidateTree": "treeproof.contract.tree",
    "Capabilities": "treeproof.contract.capabilities",
    "Committed": "treeproof.contract.inputs",
    "Constraints": "treeproof.contract.constraints",
    "DraftPool": "treeproof.contract.inputs",
    "DraftStep": "treeproof.contract.drafting",
    "Drafted": "treeproof.contract.drafting",
    "Extended": "treeproof.contract.drafting",
    "Finished": "treeproof.contract.stopping",
    "Full": "treeproof.contract.case",
    "KVLayout": "treeproof.contract.case",
    "MaskLayout": "treeproof.contract.case",
    "MaskMode": "treeproof.contract.case",
    "Numerics": "treeproof.contract.capabilities",
    "Request": "treeproof.contract.case",
    "Run": "treeproof.engine.summary",
    "Sampling": "treeproof.contract.sampling",
    "Selected": "treeproof.contract.inputs",
    "StopRules": "treeproof.contract.stopping",
    "TreeAttentionError": "treeproof.testing.violated",
    "VerifyCase": "treeproof.contract.case",
    "VerifyInput": "treeproof.contract.inputs",
    "Window": "treeproof.contract.case",
    "assert_tree_attention": "treeproof.testing.assertion",
    "check": "treeproof.testing.check",
    "check_step": "treeproof.testing.step",
    "make_tests": "treeproof.plugin.made_tests",
    "register": "treeproof.contract.registry",
    "store_kv": "treeproof.backends.reference.store",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'treeproof' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
