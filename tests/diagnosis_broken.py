"""One small broken kernel or more for each cause: `BROKEN` maps a name to (class, situation) pairs.

Written from the words that describe a cause, not from the hypothesis of that name: what a kernel
does wrong here is one overridden step of `Plain`.
"""

import math
from dataclasses import replace

import torch
from backend_scene import CHAIN, DEEP, STAR, Situation
from diagnosis_backends import Plain, depth_of

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


def broken(base=Plain, **methods):
    return type("Broken", (base,), methods)


def P(x, b):
    return int(x.seq_lens[b])


def N(x, b):
    return Plain.nodes(None, x, b)


def rows_read(rows, base=Plain):
    """A kernel whose rows read these rows: `rows(self, x, b, row)`."""
    return broken(base, path=rows)


def prefix_read(slots):
    return broken(prefix_slots=slots)


def true_prefix(self, x, b, row=0):
    return Plain.prefix_slots(self, x, b, row)


def up(x, b, row):
    return Plain.path(None, x, b, row)


def merged(merge, base=Plain):
    """A kernel of two passes, whose log-sum-exps are put together by `merge`."""

    def combine(self, x, a, b):
        lses = [
            part[0].logsumexp(0) if len(part[0]) else torch.tensor(-math.inf).double()
            for part in (a, b)
        ]
        means = [
            part[0].softmax(0) @ part[1] if len(part[0]) else part[1].sum(0) for part in (a, b)
        ]
        wa, wb, lse = merge(*lses)
        return wa * means[0] + wb * means[1], lse

    return broken(base, combine=combine)


def soft(a, b):
    total = torch.logaddexp(a, b)
    return (a - total).exp(), (b - total).exp(), total


def only_in(scope, wrong, name):
    """The fault in some requests, rows or heads."""

    def method(self, x, b, row, *rest):
        kernel = wrong if scope(x, b, row, *rest) else Plain
        return getattr(kernel, name)(self, x, b, row, *rest)

    return method


def links_made(change):
    def links(self, trees, rows, starts):
        down, right, above, index = Plain.links(self, trees, rows, starts)
        for b, tree in enumerate(trees):
            change(b, tree, down[b], right[b], above[b], index[b], (down, right, trees, starts))
        return down, right, above, index

    return broken(links=links)


def each(function):
    """A change of links that is made row by row."""

    def change(b, tree, down, right, above, index, rest):
        for row in range(len(tree)):
            function(b, tree, row, down, right, above, index, rest)

    return change


def shift_links(b, tree, down, right, above, index, rest):
    for table in (down, right):
        table[:] = [cell + 1 if cell >= 0 else cell for cell in table]


def link_last(b, tree, down, right, above, index, rest):
    for row in range(1, len(tree)):
        if right[row] == -1:
            right[row] = tree[row]


def lose_last(b, tree, down, right, above, index, rest):
    for row in range(1, len(tree)):
        if right[row] >= 0 and right[right[row]] == -1:
            right[row] = -1
            break_at = [r for r in range(1, len(tree)) if right[r] >= 0 and right[right[r]] == -1]
            if not break_at:
                return


def lose_siblings(b, tree, down, right, above, index, rest):
    right[:] = [-1] * len(right)


def leaves_to_nowhere(b, tree, down, right, above, index, rest):
    for row in range(len(tree)):
        if down[row] == -1:
            down[row] = len(tree)


def neighbours_links(self, trees, rows, starts):
    down, right, above, index = Plain.links(self, trees, rows, starts)
    return (
        down[::-1] if len(down) == 2 else [*down[1:], down[0]],
        right[::-1] if len(right) == 2 else [*right[1:], right[0]],
        above,
        index,
    )


def sent_to(slot_of, read=True):
    """A kernel that writes each row to `slot_of(self, x, b, row)`; `read`: and reads it there."""

    def write(self, x, k, v, k_cache, v_cache):
        for b, (lo, hi) in enumerate(
            zip(x.qo_indptr.tolist(), x.qo_indptr.tolist()[1:], strict=False)
        ):
            for row in range(hi - lo):
                if row < self.nodes(x, b):
                    k_cache[slot_of(self, x, b, row)] = k[lo + row]
                    v_cache[slot_of(self, x, b, row)] = v[lo + row]

    methods = {"write": write}
    if read:
        methods["own_slot"] = slot_of
    return broken(**methods)


def stride_of_rows(self, x, accepted, k_cache, v_cache):
    """Reads accept_index as if it had a line of verify rows a request."""
    flat = accepted.accept_index.flatten().tolist()
    wide = x.retrieve_index.shape[1]
    slots = x.out_cache_loc.tolist()
    moves, ends, roots = [], [], []
    for b, length in enumerate(accepted.accept_len.tolist()):
        start = int(x.qo_indptr[b])
        for j in range(length):
            row = flat[b * wide + j] if b * wide + j < len(flat) else -1
            if row >= 0:
                moves.append((slots[row], slots[start + j]))
        ends.append(P(x, b) + length)
        roots.append(int(accepted.tokens[b, length - 1]))
    self.move(moves, k_cache, v_cache)
    from treeproof.contract.inputs import Committed

    return Committed(seq_lens=torch.tensor(ends), next_root=torch.tensor(roots))


def move_in_place(self, moves, k_cache, v_cache):
    for source, target in reversed(moves):
        k_cache[target] = k_cache[source]
        v_cache[target] = v_cache[source]


def move_out_of_step(self, moves, k_cache, v_cache):
    """Behind each path the targets have padding, and the sources have none."""
    sources = [source for source, _ in moves if source is not None]
    targets = [target for _, target in moves]
    Plain.move(self, list(zip(sources, targets, strict=False)), k_cache, v_cache)


def moves_and_padding(self, x, b, sources, targets):
    padding = [(None, x.kv.pad_slot)] * (x.spec_steps + 1 - len(sources))
    return [*zip(sources, targets, strict=True), *padding]


def move_half_of_the_lanes(self, moves, k_cache, v_cache):
    halves = [cache[..., : cache.shape[2] // 2] for cache in (k_cache, v_cache)]
    Plain.move(self, moves, *halves)


class WritesLate(Plain):
    """Rows are written when attention is over."""

    def write(self, x, k, v, k_cache, v_cache):
        pass

    def attend(self, x, q, k, v, k_cache, v_cache):
        done = Plain.attend(self, x, q, k, v, k_cache, v_cache)
        Plain.write(self, x, k, v, k_cache, v_cache)
        return done


class ReadsWhatItBrings(Plain):
    """Attention has the rows at hand, and leaves those past each root out of the cache."""

    def attend(self, x, q, k, v, k_cache, v_cache):
        before = k_cache.clone(), v_cache.clone()
        done = Plain.attend(self, x, q, k, v, k_cache, v_cache)
        roots = x.qo_indptr.tolist()
        for row, slot in enumerate(x.out_cache_loc.tolist()):
            if row not in roots:
                k_cache[slot], v_cache[slot] = before[0][slot], before[1][slot]
        return done


def padding_names_the_root(self, trees, rows, starts):
    down, right, up, index = Plain.links(self, trees, rows, starts)
    for b, tree in enumerate(trees):
        down[b][len(tree) : rows[b]] = [0] * (rows[b] - len(tree))
    return down, right, up, index


def move_pages(self, x, b, sources, targets):
    page = x.kv.page_size
    return [
        (s // page * page + i, t // page * page + i)
        for s, t in zip(sources, targets, strict=True)
        for i in range(page)
    ]


def is_of_a_layer(x, cache):
    return cache.shape[1:] == (x.shape.num_kv_heads, x.shape.head_dim)


class KnowsLayers(Plain):
    """A commit that knows the caches of layers; `beside` is what it does to others."""

    def commit(self, x, accepted, k_cache, v_cache):
        if is_of_a_layer(x, k_cache):
            self.lengths = getattr(self, "now", accepted.accept_len)
            self.now = accepted.accept_len.clone()
            return super().commit(x, accepted, k_cache, v_cache)
        done = super().commit(x, accepted, k_cache.clone(), v_cache.clone())
        self.beside(x, accepted, k_cache, v_cache)
        return done

    def beside(self, x, accepted, k_cache, v_cache):
        pass


class MovesPagesBeside(KnowsLayers):
    def beside(self, x, accepted, k_cache, v_cache):
        broken(moves=move_pages)().commit(x, accepted, k_cache, v_cache)


class CountsAsBefore(KnowsLayers):
    def beside(self, x, accepted, k_cache, v_cache):
        length = torch.minimum(self.lengths, accepted.accept_len)
        Plain().commit(x, replace(accepted, accept_len=length), k_cache, v_cache)


def values_stay(self, moves, k_cache, v_cache):
    held = [k_cache[source].clone() for source, _ in moves]
    for (_, target), content in zip(moves, held, strict=True):
        k_cache[target] = content


def window_cut(keep):
    """`keep(self, x, b, row, index, slot, column)` of each key; column of a row's key is P + row."""

    def cut(self, x, b, row, prefix, path):
        columns = [i for i, *_ in prefix], [P(x, b) + r for r in self.path(x, b, row)]
        return tuple(
            [
                (k, v)
                for (i, k, v), c in zip(keys, cols, strict=True)
                if keep(self, x, b, row, i, v, c)
            ]
            for keys, cols in zip((prefix, path), columns, strict=True)
        )

    return broken(cut=cut)


def at(x, b, row):
    return P(x, b) + len(up(x, b, row)) - 1


def gathered_from_start(self, x, b, row, prefix, path):
    kept_prefix, kept_path = Plain.cut(self, x, b, row, prefix, path)
    first = [(k, v) for _, k, v in prefix][: len(kept_prefix)]
    return first, kept_path


def other_heads(right_heads, name, wrong):
    def keys(self, x, b, row, head):
        kernel = Plain() if head in right_heads else wrong()
        return kernel.keys(x, b, row, head)

    return broken(keys=keys)


def bf16_query(self, x, q):
    return (q * x.shape.score_scale).to(torch.float16).double()


def refuse(self, x, *rest):
    if x.retrieve_index.shape[1] > 3:
        raise NotImplementedError("trees of more than 3 rows")
    return Plain.attend(self, x, *rest)


def fail(self, x, *rest):
    raise IndexError("table has 2 pages")


def mutate(self, x, *rest):
    done = Plain.accept(self, x, *rest)
    x.positions.add_(1)
    return done


def half_written(self, *arguments):
    done = Plain.attend(self, *arguments)
    done.out[-1] = torch.nan
    return done


def too_short(self, *arguments):
    done = Plain.attend(self, *arguments)
    from treeproof.contract.inputs import Attended

    return Attended(out=done.out[:-1], lse=done.lse)


def summed_in_half(self, x, a, b):
    scores, values = torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])
    weights = scores.softmax(0)
    total = values.new_zeros(values.shape[1]).to(torch.bfloat16)
    for weight, value in zip(weights, values, strict=True):
        total = (total.float() + (weight * value).float()).to(torch.bfloat16)
    return total.double(), scores.logsumexp(0)


def in_prefix(change):
    """`change(self, x, b, row, keys)`: the (index, slot) list of the prefix, changed."""
    return prefix_read(
        lambda self, x, b, row: change(self, x, b, row, true_prefix(self, x, b, row))
    )


def later_column(self, x, b, row):
    return self.column(x, b, P(x, b) + row + 1)


def last(x, b):
    return (b - 1) % len(x.seq_lens)


def gone(x, b):
    """Columns whose pages were given back, of pages of 4."""
    return max(0, P(x, b) - x.shape.window + 1) // 4 * 4


def page_slot(self, x, b, c):
    page = x.kv.page_size
    return self.column(x, b, c // page * page) // page * page + c % page


def path_in_lines(self, x, b, row, head):
    """K of a path one place on, in lines as wide as the longest path, filled up with the root."""
    prefix, path = Plain.keys(self, x, b, row, head)
    longest = max(len(up(x, c, r)) for c in range(len(x.seq_lens)) for r in range(N(x, c)))
    line = [v for *_, v in path] + [path[0][2]] * (longest - len(path))
    return prefix, [(i, line[(n + 1) % longest], v) for n, (i, _, v) in enumerate(path)]


def columns_on(self, x, b, row, head):
    """V of each column is the next one's, all columns of the request in one line."""
    prefix, path = Plain.keys(self, x, b, row, head)
    rows = range(int(x.qo_indptr[b + 1] - x.qo_indptr[b]))
    line = [v for *_, v in prefix]
    line += [self.own_slot(x, b, r if r < N(x, b) else 0) for r in rows]
    after = dict(zip(line[::-1], [line[0], *line[:0:-1]], strict=True))
    return tuple([(i, k, after[v]) for i, k, v in keys] for keys in (prefix, path))


def keys_from(slot):
    """K of each key from elsewhere: `slot(list of slots, i)`."""

    def keys(self, x, b, row, head):
        prefix, path = Plain.keys(self, x, b, row, head)
        return [
            (i, slot([s for _, _, s in prefix], n), v) for n, (i, _, v) in enumerate(prefix)
        ], path

    return keys


def askew(wide):
    """A square mask that is read with lines of another width: `wide(x)` cells."""

    def path(self, x, b, row):
        widths = [int(n) for n in (x.qo_indptr[1:] - x.qo_indptr[:-1]).tolist()]
        cells, starts = [], []
        for c, count in enumerate(widths):
            starts.append(len(cells))
            for r in range(count):
                seen = up(x, c, r) if r < N(x, c) else [0]
                cells += [column in seen for column in range(count)]
        first = starts[b] + row * wide(x)
        return [r for r in range(N(x, b)) if first + r < len(cells) and cells[first + r]]

    return rows_read(path)


def mask_read(lay, look):
    """A kernel that lays out the mask of prefix and tree, one cell after another, and heeds all of it.

    `lay(lines)`: the cells, from a list of lines for each request. `look(x, b, row)`: first cell of
    its line, and the place of the tree's columns in it.
    """

    def cells(x):
        return lay(
            [
                [
                    [True] * P(x, b) + [r in up(x, b, row) for r in range(N(x, b))]
                    for row in range(N(x, b))
                ]
                for b in range(len(x.seq_lens))
            ]
        )

    def prefix_slots(self, x, b, row):
        first, _ = look(x, b, row)
        return [
            key for key, let in zip(true_prefix(self, x, b), cells(x)[first:], strict=False) if let
        ]

    def path(self, x, b, row):
        first, tree = look(x, b, row)
        return [r for r in range(N(x, b)) if cells(x)[first + tree + r]]

    return broken(prefix_slots=prefix_slots, path=path)


def clipped_lines(**steps):
    """A mask of all the prefix, read in lines as long as the W - 1 keys that are listed, and the tree."""

    def kept(x, b):
        return min(P(x, b), x.shape.window - 1)

    def line(x, b, row):
        whole = [True] * P(x, b)
        cells = [
            cell
            for r in range(N(x, b))
            for cell in [*whole, *(c in up(x, b, r) for c in range(N(x, b)))]
        ]
        return cells[row * (kept(x, b) + N(x, b)) :]

    def prefix_slots(self, x, b, row):
        listed = true_prefix(self, x, b)[P(x, b) - kept(x, b) :]
        return [key for key, let in zip(listed, line(x, b, row), strict=False) if let]

    def path(self, x, b, row):
        tree = line(x, b, row)[kept(x, b) :]
        return [r for r in range(N(x, b)) if tree[r]]

    return broken(prefix_slots=prefix_slots, path=path, **steps)


def cut_by_columns(self, x, b, row, prefix, path):
    """Queries count by their row, and so do keys of the tree."""
    first = P(x, b) + row - x.shape.window + 1
    columns = [i for i, *_ in prefix], [P(x, b) + r for r in self.path(x, b, row)]
    return tuple(
        [(k, v) for (_, k, v), c in zip(keys, cols, strict=True) if c >= first]
        for keys, cols in zip((prefix, path), columns, strict=True)
    )


def in_one_line(requests):
    return [cell for lines in requests for line in lines for cell in line]


def first_cell(x, b, row, size=lambda x, b: N(x, b) * (P(x, b) + N(x, b))):
    """Of a line as it should be, behind requests of `size` cells."""
    return sum(size(x, c) for c in range(b)) + row * (P(x, b) + N(x, b))


RIGHT_MASK = mask_read(in_one_line, lambda x, b, row: (first_cell(x, b, row), P(x, b)))

CAPPED = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), softcap=2.0, **SMALL)
SINKS = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), sinks=True, **SMALL)
ALIBI = Situation(trees=(COMB, TWIG), prefixes=(6, 4), pads=(0, 0), alibi=True, **SMALL)
CODES = Situation(
    trees=(COMB,), prefixes=(6,), pads=(0,), kv_dtype="int8", heads=(4, 2), dims=(16, 16)
)
LARGE = Situation(
    trees=(((-1, 0, 0, *range(1, 9)), tuple(range(11))),), prefixes=(3,), pads=(0,), **SMALL
)

BROKEN = {
    # position
    "position-is-row": [
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b]) + row), TWO),
    ],
    "position-off-by-one": [
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b]) + depth_of(trees[b], row) + 1), TWO),
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b]) + depth_of(trees[b], row) - 1), ONE),
    ],
    "position-without-prefix": [
        (broken(position=lambda self, c, trees, b, row: depth_of(trees[b], row)), TWO),
    ],
    "position-of-neighbour": [
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b - 1]) + depth_of(trees[b], row)), TWO),
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[0]) + depth_of(trees[b], row)), BATCH),
    ],
    "position-of-wrong-parent": [
        (
            broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b]) + (1 + depth_of(trees[b], row - 1) if row else 0)),
            ONE,
        ),
    ],
    "position-not-expanded": [
        (broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b])), TWO),
        (broken(build=lambda self, c: {**Plain.build(self, c), "positions": c.seq_lens.clone()}), TWO),
    ],
    "padding-position": [
        (broken(pad_position=lambda self, c, b, row: int(c.seq_lens[b]) + row), PADDED),
    ],
    # visibility
    "causal-mask": [
        (rows_read(lambda self, x, b, row: list(range(row + 1))), TWO),
        (rows_read(only_in(lambda x, b, row: b == 1, rows_read(lambda self, x, b, row: list(range(row + 1))), "path")), TWO),
        (rows_read(lambda self, x, b, row: list(range(row + 1))), WINDOW),
    ],
    "no-mask": [
        (rows_read(lambda self, x, b, row: list(range(N(x, b)))), TWO),
    ],
    "sibling-visible": [
        (
            rows_read(lambda self, x, b, row: sorted({*up(x, b, row), *(r for r in range(1, N(x, b)) if row and up(x, b, r)[-2] == up(x, b, row)[-2])})),
            TWO,
        ),
    ],
    "self-hidden": [(rows_read(lambda self, x, b, row: up(x, b, row)[:-1]), TWO)],
    "root-hidden": [(rows_read(lambda self, x, b, row: up(x, b, row)[1:] if row else [0]), TWO)],
    "parent-hidden": [(rows_read(lambda self, x, b, row: [r for r in up(x, b, row) if row == 0 or r != up(x, b, row)[-2]]), TWO)],
    "ancestor-hidden": [
        (rows_read(lambda self, x, b, row: up(x, b, row)[:-3] + up(x, b, row)[-2:]), TWO),
    ],
    "mask-transposed": [
        (rows_read(lambda self, x, b, row: [r for r in range(N(x, b)) if row in up(x, b, r)]), TWO),
        (
            mask_read(
                lambda requests: in_one_line([list(zip(*lines, strict=True)) for lines in requests]),
                lambda x, b, row: (first_cell(x, b, row), P(x, b)),
            ),
            TWO_MASKS,
        ),
    ],
    "diagonal-top-left": [
        (
            broken(keys=lambda self, x, b, row, head: (lambda p, t: (p[: row + 1], t[: max(0, row + 1 - len(p))]))(
                Plain.keys(self, x, b, row, head)[0],
                [(P(x, b) + depth_of_row(x, b, r), self.own_slot(x, b, r), self.own_slot(x, b, r)) for r in range(N(x, b))],
            )),
            TWO,
        ),
    ],
    "mask-column-shift": [
        (rows_read(lambda self, x, b, row: [r + 1 for r in up(x, b, row) if r + 1 < N(x, b)]), TWO),
        (broken(path=mask_read(in_one_line, lambda x, b, row: (first_cell(x, b, row), 0)).path), TWO_MASKS),
    ],
    "mask-of-neighbour": [
        (
            rows_read(lambda self, x, b, row: [r for r in up(x, last(x, b), row) if r < N(x, b)] if row < N(x, last(x, b)) else up(x, b, row)),
            TWO,
        ),
        (rows_read(lambda self, x, b, row: up(x, last(x, b) if N(x, b) == N(x, last(x, b)) else b, row)), TWINS),
        (mask_read(in_one_line, lambda x, b, row: (first_cell(x, b, row, lambda x, c: N(x, c) ** 2), P(x, b))), TWO_MASKS),
        (mask_read(in_one_line, lambda x, b, row: (row * (P(x, b) + N(x, b)), P(x, b))), SMALL_FIRST),
    ],
    "mask-word-overflow": [
        (rows_read(lambda self, x, b, row: [r for r in up(x, b, row) if r < 8]), LARGE),
    ],
    "mask-rows-of-buffer-width": [
        (askew(lambda x: x.retrieve_index.shape[1]), TWO),
        (
            mask_read(
                lambda requests: in_one_line([[*lines, lines[-1]] for lines in requests]),
                lambda x, b, row: (first_cell(x, b, row), P(x, b)),
            ),
            TWO_MASKS,
        ),
        (
            mask_read(
                lambda requests: [
                    cell for lines in requests for line in lines for cell in [*line, False]
                ],
                lambda x, b, row: (first_cell(x, b, row), P(x, b)),
            ),
            ONE_MASK,
        ),
        (mask_read(in_one_line, lambda x, b, row: (first_cell(x, b, row) - row, P(x, b))), ONE_MASK),
    ],
    "tile-skipped": [
        (rows_read(lambda self, x, b, row: [*range(row // 4 * 4), *(r for r in up(x, b, row) if r >= row // 4 * 4)]), ONE),
    ],
    "one-head-only": [
        (other_heads({0}, "keys", rows_read(lambda self, x, b, row: list(range(row + 1)))), MANY_HEADS),
        (other_heads({0, 1}, "keys", in_prefix(lambda self, x, b, row, keys: keys[:-1])), MANY_HEADS),
    ],
    # windows
    "window-dropped": [(window_cut(lambda self, x, b, row, i, v, c: True), WINDOW)],
    "window-by-row": [
        (broken(query_index=lambda self, x, b, row: P(x, b) + row), WINDOW),
        (
            window_cut(
                lambda self, x, b, row, i, v, c: (
                    P(x, b) + row - x.shape.window < i or v == self.own_slot(x, b, row)
                )
            ),
            WINDOW,
        ),
    ],
    "mask-lines-clipped": [
        (clipped_lines(cut=cut_by_columns), WINDOWED_MASK),
        (clipped_lines(), WINDOWED_MASK),
    ],
    "window-off-by-one": [
        (window_cut(lambda self, x, b, row, i, v, c: at(x, b, row) - x.shape.window <= i), WINDOW),
        (window_cut(lambda self, x, b, row, i, v, c: at(x, b, row) - x.shape.window + 1 < i), WINDOW),
    ],
    "window-by-slot": [
        (window_cut(lambda self, x, b, row, i, v, c: at(x, b, row) - x.shape.window < v), WINDOW),
    ],
    "gather-from-start": [(broken(cut=gathered_from_start), WINDOW)],
    # keys
    "neighbour-request": [
        (prefix_read(lambda self, x, b, row: [(c, self.column(x, last(x, b), c)) for c in range(P(x, b))]), TWO),
        (prefix_read(lambda self, x, b, row: true_prefix(self, x, last(x, b))), BATCH),
    ],
    "prefix-dropped": [(prefix_read(lambda self, x, b, row: []), TWO)],
    "prefix-last-key-missing": [(in_prefix(lambda self, x, b, row, keys: keys[:-1]), TWO)],
    "prefix-first-key-missing": [(in_prefix(lambda self, x, b, row, keys: keys[1:]), TWO)],
    "root-inside-prefix": [
        (in_prefix(lambda self, x, b, row, keys: [*keys, (P(x, b), self.column(x, b, P(x, b)))]), TWO),
        (broken(prefix_slots=lambda self, x, b, row: [(c, self.column(x, b, c)) for c in range(P(x, b) + 1)], own_slot=later_column), TWO),
        (broken(length=lambda self, prefix, b: prefix[b] + 1), ONE),
    ],
    "prefix-twice": [(in_prefix(lambda self, x, b, row, keys: keys * 2), TWO)],
    "partial-page-dropped": [
        (in_prefix(lambda self, x, b, row, keys: keys[: P(x, b) // x.kv.page_size * x.kv.page_size]), PAGED),
    ],
    "page-units": [
        (in_prefix(lambda self, x, b, row, keys: [(c, s // x.kv.page_size) for c, s in keys]), PAGED),
    ],
    "page-off-by-one": [
        (prefix_read(lambda self, x, b, row: [(c, page_slot(self, x, b, c + x.kv.page_size)) for c in range(P(x, b))]), PAGED),
    ],
    "contiguous-range": [
        (prefix_read(lambda self, x, b, row: [(c, self.column(x, b, 0) + c) for c in range(P(x, b))]), ONE),
    ],
    "list-cut-short": [
        (in_prefix(lambda self, x, b, row, keys: keys[: int(x.seq_lens.min())]), TWO),
    ],
    "evicted-page-read": [
        (window_cut(lambda self, x, b, row, i, v, c: i < (P(x, b) - x.shape.window + 1) // 4 * 4 or at(x, b, row) - x.shape.window < i), EVICTED),
        (window_cut(lambda self, x, b, row, i, v, c: gone(x, b) > 0 or at(x, b, row) - x.shape.window < i), EVICTED),
        (
            broken(
                window_cut(lambda self, x, b, row, i, v, c: gone(x, b) > 0 or at(x, b, row) - x.shape.window < i),
                prefix_slots=lambda self, x, b, row: [(c, Plain.own_slot(self, x, (b + 1) % len(x.seq_lens), 0) if c < gone(x, b) else s) for c, s in true_prefix(self, x, b)],
            ),
            replace(EVICTED, trees=(COMB, TWIG), prefixes=(23, 14), pads=(0, 0)),
        ),
    ],
    "past-the-end": [
        (in_prefix(lambda self, x, b, row, keys: [*keys, *((c, page_slot(self, x, b, c)) for c in range(P(x, b), -(-P(x, b) // 4) * 4))]), PAGED),
        (in_prefix(lambda self, x, b, row, keys: [*keys, (P(x, b) + N(x, b), page_slot(self, x, b, P(x, b) + N(x, b)))]), PAGED),
    ],
    "row-as-request": [
        (
            prefix_read(lambda self, x, b, row: [(c, self.column(x, min(int(x.qo_indptr[b]) + row, len(x.seq_lens) - 1), c)) for c in range(P(x, b))]),
            TWO,
        ),
    ],
    "keys-not-values": [
        (broken(keys=keys_from(lambda slots, i: slots[(i + 1) % len(slots)])), ONE),
        (broken(keys=path_in_lines), TWO),
        (broken(keys=columns_on), PADDED),
    ],
    # numbers
    "base-2-lse": [
        (merged(lambda a, b: soft(a / math.log(2), b / math.log(2))), TWO),
        (merged(lambda a, b: (*soft(a / math.log(2), b)[:2], torch.logaddexp(a, b))), ONE),
    ],
    "lse-base-2-returned": [(broken(returned=lambda self, lse: lse / math.log(2)), TWO)],
    "merge-unweighted": [(merged(lambda a, b: (0.5, 0.5, torch.logaddexp(a, b))), ONE)],
    "empty-part-counted": [
        (merged(lambda a, b: soft(torch.where(a.isinf(), 0.0, a), b)), EMPTY),
    ],
    "scale-missing": [(broken(query=lambda self, x, q: q), TWO)],
    "scale-twice": [(broken(query=lambda self, x, q: q * x.shape.score_scale**2), TWO)],
    "query-rounded": [(broken(query=bf16_query), ONE)],
    "low-precision-accumulator": [(broken(combine=summed_in_half), ONE)],
    "softcap-missing": [(broken(capped=lambda self, x, scores: scores), CAPPED)],
    "sinks-missing": [(broken(beside_sink=lambda self, x, head, lse: 1.0), SINKS)],
    "alibi-missing": [(broken(slope=lambda self, x, head: 0.0), ALIBI)],
    "alibi-by-row": [
        (broken(back=lambda self, x, b, row, index, slot: float(P(x, b) + row - index)), ALIBI),
    ],
    "kv-scale-missing": [(broken(scales=lambda self, x, kv_head: (1.0, 1.0)), CODES)],
    "kv-scale-of-other": [
        (broken(scales=lambda self, x, kv_head: (float(x.k_scale[kv_head]), float(x.k_scale[kv_head]))), CODES),
        (broken(scales=lambda self, x, kv_head: (float(x.k_scale[0]), float(x.v_scale[0]))), CODES),
    ],
    # candidate
    "tokens-shifted": [
        (broken(token=lambda self, c, b, row: Plain.token(self, c, b, (row + 1) % int(c.num_nodes[b]))), TWO),
        (broken(emit=lambda self, x, b, rows, predicted, drafted: [drafted[j + 1] for j in range(len(rows) - 1)] + [predicted[rows[-1]]]), TWO),
    ],
    "tokens-of-neighbour": [
        (broken(token=lambda self, c, b, row: Plain.token(self, c, b - 1, row % int(c.num_nodes[b - 1]))), TWO),
    ],
    "draft-vocabulary": [
        (broken(token=lambda self, c, b, row: Plain.token(self, c, b, row) * (2 if row else 1)), TWO),
    ],
    "block-period": [(broken(token=lambda self, c, b, row: Plain.token(self, c, b, row % 4)), ONE)],
    "root-not-bonus": [(broken(token=lambda self, c, b, row: Plain.token(self, c, b, row or 1)), TWO)],
    # traversal
    "links-off-by-one": [(links_made(shift_links), TWO)],
    "last-sibling-linked": [(links_made(link_last), ONE)],
    "sibling-lost": [(links_made(lose_siblings), TWO), (links_made(lose_last), ONE)],
    "links-of-neighbour": [(broken(links=neighbours_links), TWO)],
    "link-to-unselected": [(links_made(leaves_to_nowhere), TWO)],
    "walk-first-child-only": [
        (
            broken(step=lambda self, x, b, rows, predicted, drafted: next((r for r in self.children(x, b, rows[-1])[:1] if drafted[r] == predicted[rows[-1]]), None)),
            TWO,
        ),
    ],
    "first-draft-unchecked": [
        (
            broken(step=lambda self, x, b, rows, predicted, drafted: next((r for r in self.children(x, b, rows[-1]) if len(rows) == 1 or drafted[r] == predicted[rows[-1]]), None)),
            TWO,
        ),
    ],
    "walk-stops-early": [(broken(walk=lambda self, *a: Plain.walk(self, *a)[:2]), ONE)],
    "walk-compares-parent": [
        (
            broken(step=lambda self, x, b, rows, predicted, drafted: next((r for r in self.children(x, b, rows[-1]) if drafted[r] == predicted[rows[max(0, len(rows) - 2)]]), None)),
            TWO,
        ),
    ],
    "bonus-from-parent": [
        (broken(emit=lambda self, x, b, rows, predicted, drafted: [predicted[r] for r in rows[:-1]] + [predicted[rows[max(0, len(rows) - 2)]]]), TWO),
    ],
    "bonus-from-row": [
        (broken(emit=lambda self, x, b, rows, predicted, drafted: [predicted[r] for r in rows[:-1]] + [predicted[len(rows) - 1]]), TWO),
    ],
    "padding-accepted": [
        (
            broken(children=lambda self, x, b, row: [*Plain.children(self, x, b, row), *(range(N(x, b), int(x.qo_indptr[b + 1] - x.qo_indptr[b])) if row < N(x, b) else [])]),
            PADDED,
        ),
        (broken(links=padding_names_the_root), PADDED),
    ],
    "accept-len-off-by-one": [(broken(accept_len=lambda self, rows: len(rows) - 1), TWO)],
    # kv
    "slot-is-position": [
        (broken(slot=lambda self, c, trees, b, row: int(c.seq_lens[b]) + depth_of(trees[b], row)), TWO),
        (broken(slot=lambda self, c, trees, b, row: self.column(c, b, int(c.seq_lens[b]) // 2 + row)), TWO),
        (broken(slot=lambda self, c, trees, b, row: self.column(c, b, int(c.seq_lens.min()) + row)), TWO),
    ],
    "slot-of-neighbour": [
        (broken(slot=lambda self, c, trees, b, row: self.column(c, b - 1, int(c.seq_lens[b - 1]) + row)), TWO),
    ],
    "slot-off-by-one": [
        (broken(slot=lambda self, c, trees, b, row: self.column(c, b, int(c.seq_lens[b]) + row + 1)), TWO),
        (sent_to(lambda self, x, b, row: Plain.own_slot(self, x, b, row) + 1), TWO),
    ],
    "padding-written": [
        (broken(pad_target=lambda self, c, b, row: self.column(c, b, int(c.seq_lens[b]) - 1)), PADDED),
    ],
    "write-skipped": [
        (broken(write=lambda self, x, k, v, kc, vc: [(kc.__setitem__(s, k[r]), vc.__setitem__(s, v[r])) for r, s in enumerate(x.out_cache_loc.tolist()) if r not in x.qo_indptr.tolist()]), TWO),
        (WritesLate, TWO),
        (ReadsWhatItBrings, TWO),
    ],
    "not-compacted": [(broken(moves=lambda self, x, b, sources, targets: []), TWO)],
    "companion-left-behind": [(KnowsLayers, TWO)],
    "companion-by-page": [(MovesPagesBeside, PAGED)],
    "companion-by-old-lengths": [(CountsAsBefore, TWO)],
    "moved-in-place": [(broken(move=move_in_place), ONE)],
    "page-moved-for-token": [(broken(moves=move_pages), PAGED)],
    "half-moved": [
        (broken(moves=lambda self, x, b, sources, targets: list(zip(sources, targets, strict=True))[:-1]), TWO),
        (broken(move=move_half_of_the_lanes), TWO),
    ],
    "boundary-off-by-one": [(broken(boundary=lambda self, x, b, length: P(x, b) + length - 1), TWO)],
    "boundary-optimistic": [(broken(boundary=lambda self, x, b, length: P(x, b) + N(x, b)), TWO)],
    "over-read": [(broken(commit=stride_of_rows), TWO)],
    "lists-out-of-step": [(broken(moves=moves_and_padding, move=move_out_of_step), TWO)],
    "one-cache-only": [
        (broken(move=values_stay), TWO),
        (broken(write=lambda self, x, k, v, kc, vc: [kc.__setitem__(s, k[r]) for r, s in enumerate(x.out_cache_loc.tolist())]), TWO),
    ],
    "next-root-not-bonus": [
        (broken(roots=lambda self, x, accepted, roots: [int(t) for t in accepted.tokens[:, 0]]), TWO),
    ],
    # contract
    "raises": [(broken(attend=fail), ONE)],
    "refuses-valid": [(broken(attend=refuse), ONE)],
    "mutates-input": [(broken(accept=mutate), TWO)],
    "unwritten-output": [(broken(attend=half_written), ONE)],
    "wrong-shape": [(broken(attend=too_short), ONE)],
}  # fmt: skip


def depth_of_row(x, b, row):
    return len(up(x, b, row)) - 1
