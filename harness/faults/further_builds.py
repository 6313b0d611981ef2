"""Defects of a build: of what it tells the rows, where it homes them and how it links them."""

from __future__ import annotations

from treeproof.faults.fault import Fault
from treeproof.faults.further_edits import defect
from treeproof.faults.smallest import FORK, case, request

DEFECTS: tuple[Fault, ...] = (
    defect(
        "chase-one-step-short",
        "build",
        ("position", "declared"),
        says="the search for ancestors stops one step early, so the deepest rows count one too few",
        smallest=case(request((-1, 0, 1, 2))),
        edits={
            "direct-mask": (
                ("range(c.spec_steps.bit_length())", "range(c.spec_steps.bit_length() - 1)"),
            ),
            "page-table": (("in range(spec_steps):", "in range(spec_steps - 1):"),),
        },
    ),
    defect(
        "padding-linked-as-sibling",
        "build",
        ("traversal", "declared"),
        says="rows without a parent count as siblings, so the root is linked to the padded rows",
        smallest=case(request(pad_rows=1)),
        edits={
            "direct-mask": (("& linked & (row > row[:, None])", "& (row > row[:, None])"),),
            "page-table": ((" & (ranked[:, 1:] >= 0)", ""),),
        },
    ),
    defect(
        "position-by-first-prefix",
        "build",
        ("position", "declared"),
        cause="position-of-neighbour",
        says="positions of all requests are counted from the prefix of the first",
        # Neither the depth alone nor one beside the true position.
        smallest=case(request(prefix=2), request()),
        edits={
            "direct-mask": (("c.seq_lens[:, None] + depth", "c.seq_lens[:1, None] + depth"),),
        },
    ),
    defect(
        "padding-given-a-position",
        "build",
        ("position", "declared"),
        cause="padding-position",
        says="padded rows are given a position of the request",
        smallest=case(request(prefix=1, pad_rows=1)),
        edits={
            "direct-mask": (
                (
                    "torch.where(real, c.seq_lens[:, None] + depth, 0)[launched]",
                    "(c.seq_lens[:, None] + depth.clamp(min=0))[launched]",
                ),
            ),
            "page-table": (
                ("torch.where(real, lengths - 1, 0)[launched]", "(lengths - 1)[launched]"),
            ),
        },
    ),
    defect(
        "shared-pages-rounded-down",
        "build",
        ("visibility", "declared"),
        says="the page in which a window begins is shared whole, with the keys before the window",
        # Neither one key more nor the whole prefix.
        smallest=case(request(prefix=5), window=1, page_size=3),
        edits={
            "cascade": (("-(-max(first_key) // page) * page", "max(first_key) // page * page"),),
        },
    ),
    defect(
        "shared-pages-from-the-first",
        "build",
        ("visibility", "declared"),
        cause="gather-from-start",
        says="the page table has the length of what a window leaves, and begins at the first page",
        smallest=case(request(prefix=2), window=2),
        edits={
            "cascade": (("shared_from[:, None] + page * torch", "page * torch"),),
        },
    ),
    defect(
        "prefix-listed-and-paged",
        "build",
        ("visibility", "declared"),
        cause="prefix-twice",
        says="the lists name prefix keys that the shared pages cover as well",
        smallest=case(request(prefix=1)),
        edits={"cascade": (("low:shared_from].tolist()", "low:prefix].tolist()"),)},
    ),
    defect(
        "elder-not-moved-on",
        "build",
        ("traversal", "declared"),
        cause="sibling-lost",
        says="every younger sibling is linked behind the first child, over the one before it",
        smallest=case(request((-1, 0, 0, 0))),
        edits={
            "cascade": (
                (
                    "            youngest[parent] = row\n",
                    "                youngest[parent] = row\n",
                ),
            ),
        },
    ),
    defect(
        "home-by-depth",
        "build",
        ("kv", "declared"),
        cause="slot-is-position",
        says="a row's keys go to the slot of column P + depth, which siblings share",
        smallest=case(request(FORK)),
        edits={
            "page-table": (
                (
                    "torch.where(real, c.seq_lens[:, None] + row, 0)",
                    "torch.where(real, c.seq_lens[:, None] + depth, 0)",
                ),
            ),
            "topology": (
                (
                    "[*range(prefix, prefix + real)]",
                    "[prefix + len(paths[row]) - 1 for row in range(real)]",
                ),
            ),
        },
    ),
    defect(
        "padding-homed-past-the-tree",
        "build",
        ("kv", "declared"),
        cause="padding-written",
        says="padded rows are homed in the columns after the tree, whatever the table holds there",
        smallest=case(request(pad_rows=1), layout={"pad_slot": -1}),
        edits={
            "swa-window": (
                (
                    "out_cache_loc=homes",
                    "out_cache_loc=torch.cat(\n"
                    "                [slots[b, n : n + rows[b]] for b, n in enumerate(prefix_lens)]\n"
                    "            )",
                ),
            ),
            "topology": (
                (
                    "[*range(prefix, prefix + real)] + [-1] * (count - real)",
                    "[*range(prefix, prefix + count)]",
                ),
            ),
        },
    ),
    defect(
        "stack-keeps-a-sibling",
        "build",
        ("visibility", "declared"),
        says="the depth-first stack is cut one entry too high, so a row hangs below its sibling",
        smallest=case(request(FORK)),
        edits={"swa-window": (("del stack[depth:]", "del stack[depth + 1 :]"),)},
    ),
    defect(
        "no-window-as-long-as-the-root",
        "build",
        ("visibility", "declared"),
        says="without a window lists are cut to the length of the root's, at the expense of the "
        "first prefix keys",
        smallest=case(request((-1, 0), 1)),
        edits={"swa-window": (("c.shape.window or max(lengths)", "c.shape.window or lengths[0]"),)},
    ),
    defect(
        "positions-as-reached",
        "build",
        ("position", "declared"),
        says="positions come in the order in which rows are reached, not in the order of rows",
        # Rows and depths differ, so that this is not position = row.
        smallest=case(request((-1, 0, 0, 1), rows=(0, 2, 3, 1))),
        edits={
            "topology": (
                (
                    "len(paths[row]) - 1 for row in range(real)]",
                    "len(paths[row]) - 1 for row in paths]",
                ),
            ),
        },
    ),
    defect(
        "padding-missed-among-paths",
        "build",
        ("contract", "measured"),
        cause="refuses-valid",
        says="a request with padded rows is refused, because no path leads to those",
        smallest=case(request(pad_rows=1)),
        edits={"topology": (("if len(paths) < real:", "if len(paths) < count:"),)},
    ),
)
