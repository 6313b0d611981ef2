"""What a kernel does wrong, as one overridden step of `Plain`: the parts of `diagnosis_broken.BROKEN`."""

import math
from dataclasses import replace

import torch
from diagnosis_backends import Plain


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


def depth_of_row(x, b, row):
    return len(up(x, b, row)) - 1
