"""Defects of attend: of what is read, with which weight, and of what is left behind."""

from __future__ import annotations

from treeproof.faults.fault import Fault
from treeproof.faults.further_edits import defect
from treeproof.faults.smallest import CHAIN, FORK, case, request

_ONE_KEY = request(prefix=1)
_PAIR = request((-1, 0), 1)


def _lengths_are(said: str) -> tuple[str, str]:
    """How many keys the passes of cascade share, `lengths` being how many they should."""
    read = "    bounds, sizes = x.qo_indptr.tolist()"
    return read, f"    lengths = {said}\n{read}"


_READS: tuple[Fault, ...] = (
    defect(
        "mask-turned",
        "attend",
        ("visibility", "measured"),
        cause="mask-transposed",
        says="rows and columns of the mask are exchanged, so a row reads its descendants",
        smallest=case(request((-1, 0))),
        edits={
            "direct-mask": (
                (
                    "visible = torch.cat([inside, tree], dim=2)",
                    "turned = tree.mT.gather(1, row[:, :, None].expand_as(tree))\n"
                    "            listed = every[above:] < count\n"
                    "            visible = torch.cat([inside, turned & listed[:, None]], dim=2)",
                ),
            ),
        },
    ),
    defect(
        "mask-line-of-first-request",
        "attend",
        ("visibility", "measured"),
        says="lines of every request's mask are taken to be as long as the first request's",
        # With one prefix key less the lines come out as the columns of the right mask.
        smallest=case(request(), request((-1, 0), 2)),
        edits={"direct-mask": (("= prefix_lens[b] if", "= prefix_lens[0] if"),)},
    ),
    defect(
        "table-row-of-batch-index",
        "attend",
        ("visibility", "measured"),
        says="prefix slots are looked up by the request's place in the batch, not by its table row",
        smallest=case(_ONE_KEY),
        edits={
            "direct-mask": (("stride, table_rows[b], start", "stride, b, start"),),
            "topology": (("table_rows[b] * x.req_to_token", "b * x.req_to_token"),),
        },
    ),
    defect(
        "whole-pages-only",
        "attend",
        ("visibility", "measured"),
        cause="partial-page-dropped",
        says="the last page of the prefix is not read unless it is full",
        # Neither the last key alone nor the whole prefix.
        smallest=case(request(prefix=5), page_size=3),
        edits={
            "cascade": (_lengths_are("lengths // page * page"),),
        },
    ),
    defect(
        "last-page-to-its-end",
        "attend",
        ("visibility", "measured"),
        says="the last page of the prefix is read to its end, rows of the tree and free slots too",
        # Free slots as well, so that this is not a length that counts the root.
        smallest=case(_ONE_KEY, page_size=4),
        edits={
            "cascade": (_lengths_are("-(-lengths // page) * page"),),
        },
    ),
    defect(
        "longest-is-the-root",
        "attend",
        ("visibility", "measured"),
        cause="list-cut-short",
        says="no line of a request is read further than the root's",
        # Not the row's own key alone.
        smallest=case(request(CHAIN)),
        edits={
            "page-table": (
                (
                    "listed = step < reach[:, None]",
                    "root = reach[x.qo_indptr[:-1]].repeat_interleave(x.qo_indptr.diff())\n"
                    "        listed = step < torch.minimum(reach, root)[:, None]",
                ),
            ),
        },
    ),
    defect(
        "values-head-first",
        "attend",
        ("visibility", "measured"),
        cause="keys-not-values",
        says="values are fetched as if their cache held one head after the other",
        smallest=case(request(), heads=(2, 2)),
        edits={
            "page-table": (("v_cache.flatten(0, 1)", "v_cache.transpose(0, 1).flatten(0, 1)"),),
        },
    ),
    defect(
        "filler-counted-once",
        "attend",
        ("visibility", "measured"),
        says="one of the cells that fill up a short list keeps its weight, so a row reads itself twice",
        smallest=case(_PAIR),
        edits={
            "topology": (
                ("alike), filler]", "alike), filler & (step > length[some][:, :, None])]"),
            ),
        },
    ),
    defect(
        "columns-as-reached",
        "attend",
        ("visibility", "measured"),
        says="slots come in the order in which rows are reached, and are indexed by row",
        smallest=case(request(CHAIN, rows=(0, 2, 1))),
        edits={
            "topology": (
                (
                    "slots = torch.cat([x.out_cache_loc, x",
                    "own = torch.arange(len(x.out_cache_loc))\n"
                    "    for tree in trees:\n"
                    "        own[sorted(tree.rows)] = torch.tensor(tree.rows)\n"
                    "    slots = torch.cat([x.out_cache_loc[own], x",
                ),
            ),
        },
    ),
)

_NUMBERS: tuple[Fault, ...] = (
    defect(
        "scale-of-the-value-dim",
        "attend",
        ("output", "measured"),
        says="scores are scaled by the head dim of values, not of keys",
        smallest=case(_ONE_KEY, head_dims=(8, 16)),
        edits={
            "direct-mask": (("q.float() * x.shape.score_scale", "q.float() * v_dim**-0.5"),),
            "topology": (("dim=2) * x.shape.score_scale", "dim=2) * v_dim**-0.5"),),
        },
    ),
    defect(
        "query-scaled-in-its-dtype",
        "attend",
        ("output", "measured"),
        cause="query-rounded",
        says="queries are scaled before they are widened, which rounds them once more",
        smallest=case(_ONE_KEY, dtype="bfloat16"),
        edits={
            "direct-mask": (
                ("q.float() * x.shape.score_scale", "(q * x.shape.score_scale).float()"),
            ),
            "swa-window": (
                ("queries = q.reshape(", "queries = (q * x.shape.score_scale).reshape("),
                ("keys.transpose(1, 2)) * x.shape.score_scale", "keys.transpose(1, 2))"),
            ),
        },
    ),
    defect(
        "query-heads-dealt-out",
        "attend",
        ("output", "measured"),
        says="query heads are dealt out to the KV heads in turn, not group after group",
        smallest=case(_ONE_KEY, heads=(4, 2)),
        edits={
            "cascade": (
                (
                    "reshape(len(q), k.shape[1], -1, q.shape[2])",
                    "reshape(len(q), -1, k.shape[1], q.shape[2]).transpose(1, 2)",
                ),
            ),
            "topology": (
                (
                    "view(n, rows, kv_heads, group, dim).transpose(1, 2)",
                    "view(n, rows, group, kv_heads, dim).permute(0, 3, 1, 2, 4)",
                ),
            ),
        },
    ),
    defect(
        "no-prefix-weighs-one",
        "attend",
        ("output", "measured"),
        cause="empty-part-counted",
        says="a prefix of no key is merged with weight 1",
        smallest=case(request()),
        edits={
            "cascade": (
                (
                    'lse = q.new_full(q.shape[:3], float("-inf"))',
                    "lse = q.new_zeros(q.shape[:3])",
                ),
            ),
        },
    ),
    defect(
        "lse-with-the-sink",
        "attend",
        ("output", "measured"),
        says="the log-sum-exp counts the sink, and is said to be that of the keys alone",
        smallest=case(request(), sinks=True),
        edits={
            "cascade": (("out, _ = merge(out, lse,", "out, lse = merge(out, lse,"),),
            "swa-window": (
                (
                    "    lse = (top + total.log()).view(rows, heads)\n"
                    "    if x.sinks is not None:\n"
                    "        total = total + (x.sinks[:, None] - top).exp()\n",
                    "    if x.sinks is not None:\n"
                    "        total = total + (x.sinks[:, None] - top).exp()\n"
                    "    lse = (top + total.log()).view(rows, heads)\n",
                ),
            ),
        },
    ),
    defect(
        "alibi-from-the-front",
        "attend",
        ("output", "measured"),
        says="ALiBi counts from the first key of a list, and not back from the row",
        smallest=case(_ONE_KEY, alibi=True),
        edits={"swa-window": (("device=q.device)).flip(1)", "device=q.device))"),)},
    ),
    defect(
        "alibi-between-rows",
        "attend",
        ("output", "measured"),
        cause="alibi-by-row",
        says="ALiBi takes the distance of two rows for that of their logical indices",
        smallest=case(request(FORK), alibi=True),
        edits={
            "direct-mask": (
                (
                    "distance = _distance(tree, column)",
                    "row = torch.arange(rows, device=q.device)\n"
                    "        own = row * tree.diagonal(dim1=1, dim2=2)\n"
                    "        distance = own[:, :, None] - torch.cat([column, row])",
                ),
            ),
            "topology": (
                (
                    "[prefix + len(path) - 1 for path in paths.values()]",
                    "[prefix + row for row in paths]",
                ),
            ),
        },
    ),
    defect(
        "values-by-the-scale-of-keys",
        "attend",
        ("output", "measured"),
        cause="kv-scale-of-other",
        says="codes of values are multiplied by the scale of the keys",
        smallest=case(request(), kv_dtype="int8"),
        edits={
            "swa-window": (
                ("_lines(v_cache, lines, x.v_scale)", "_lines(v_cache, lines, x.k_scale)"),
            ),
            "topology": (
                ("_read(v_cache, common, x.v_scale)", "_read(v_cache, common, x.k_scale)"),
                ("_read(v_cache, seen, x.v_scale)", "_read(v_cache, seen, x.k_scale)"),
            ),
        },
    ),
)

_LEFT_BEHIND: tuple[Fault, ...] = (
    defect(
        "query-scaled-in-place",
        "attend",
        ("contract", "measured"),
        cause="mutates-input",
        says="queries that need no widening are multiplied by the scale of the keys in place",
        smallest=case(request(), kv_dtype="int8"),
        edits={
            "cascade": (
                (
                    "grouped = grouped * x.k_scale[:, None, None]",
                    "grouped *= x.k_scale[:, None, None]",
                ),
            ),
        },
    ),
    defect(
        "trees-kept-by-row-count",
        "attend",
        ("contract", "measured"),
        cause="mask-stale",
        says="masks are decoded again only where the rows of the requests are other in number",
        smallest=case(request(FORK)),
        edits={
            "direct-mask": (
                (
                    "row, tree = _trees(x, every[above:], count, cell, stride)\n",
                    "kept = self.__dict__\n"
                    "            counts = str([request[:2] for request in chunk])\n"
                    "            if counts not in kept:\n"
                    "                kept[counts] = _trees(x, every[above:], count, cell, stride)\n"
                    "            row, tree = kept[counts]\n",
                ),
            ),
        },
    ),
    defect(
        "lengths-kept-by-row-count",
        "attend",
        ("contract", "measured"),
        cause="stale-plan",
        says="lengths of lists are planned again only where the batch has another number of rows",
        smallest=case(request(FORK)),
        edits={
            "swa-window": (
                (
                    "        kept, order = (indptr.diff() - start).sort()\n",
                    '        if len(getattr(self, "planned", ())) != len(q):\n'
                    "            self.planned = indptr.diff() - start\n"
                    "        kept, order = self.planned.sort()\n",
                ),
            ),
        },
    ),
)

DEFECTS: tuple[Fault, ...] = (*_READS, *_NUMBERS, *_LEFT_BEHIND)
