"""Cases by hand that show a cause: few requests of small trees, each with what one kind of defect needs."""

from backend_scene import CHAIN, DEEP, STAR, Situation

from treeproof.contract.case import MaskMode

COMB = ((-1, 0, 0, 2, 2, 3, 5, 3), (0, 2, 1, 4, 3, 6, 5, 7))
TWIG = ((-1, 0, 1, 1, 0), (0, 1, 2, 3, 4))
SMALL = {"heads": (2, 1), "dims": (16, 16)}
FILLED = {"mode": MaskMode.FULL_MASK, "fill_prefix": True}

TWO = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), **SMALL)
ONE = Situation(trees=(COMB,), prefixes=(5,), pads=(0,), **SMALL)
PAGED = Situation(trees=(COMB, TWIG), prefixes=(10, 7), pads=(0, 0), page=4, **SMALL)
WINDOW = Situation(trees=(COMB, DEEP), prefixes=(9, 6), pads=(0, 0), window=4, **SMALL)
TWINS = Situation(trees=(TWIG, ((-1, 0, 1, 0, 3), TWIG[1])), prefixes=(6, 4), pads=(0, 0), **SMALL)
SMALL_FIRST = Situation(trees=(TWIG, COMB), prefixes=(2, 3), pads=(0, 0), **FILLED, **SMALL)
ONE_MASK = Situation(trees=(COMB,), prefixes=(5,), pads=(0,), **FILLED, **SMALL)
TWO_MASKS = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), **FILLED, **SMALL)
EVICTED = Situation(
    trees=(COMB,), prefixes=(23,), pads=(0,), window=4, page=4, evicted=True, table_pad=1, **SMALL
)
PADDED = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(2, 1), **SMALL)
HOMELESS = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(2, 1), pad_slot=-1, **SMALL)
EMPTY = Situation(trees=(TWIG, COMB), prefixes=(0, 6), pads=(0, 0), **SMALL)
HALF = Situation(trees=(COMB,), prefixes=(6,), pads=(0,), dtype="float16", **SMALL)
MANY_HEADS = Situation(trees=(TWIG,), prefixes=(4,), pads=(0,), heads=(4, 2), dims=(16, 16))
WINDOWED_MASK = Situation(
    trees=(COMB, TWIG), prefixes=(9, 6), pads=(0, 0), window=4, **FILLED, **SMALL
)
FULL_MASK = Situation(
    trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), mode=MaskMode.FULL_MASK, **SMALL
)
BATCH = Situation(trees=(CHAIN, COMB, STAR), prefixes=(3, 6, 4), pads=(0, 0, 0), **SMALL)
CAPPED = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), softcap=2.0, **SMALL)
SINKS = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), sinks=True, **SMALL)
ALIBI = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), alibi=True, **SMALL)
CODES = Situation(
    trees=(COMB,), prefixes=(6,), pads=(0,), kv_dtype="int8", heads=(4, 2), dims=(16, 16)
)
LARGE = Situation(
    trees=(((-1, 0, 0, *range(1, 9)), tuple(range(11))),), prefixes=(3,), pads=(0,), **SMALL
)
