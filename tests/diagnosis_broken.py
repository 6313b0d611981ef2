"""One small broken kernel or more for each cause: `BROKEN` maps a name to (class, situation) pairs.

Written from the words that describe a cause, not from the hypothesis of that name: what a kernel
does wrong here is one overridden step of `Plain`.
"""

import math
from dataclasses import replace

import torch
from diagnosis_backends import Plain, depth_of
from diagnosis_defects import (
    CountsAsBefore,
    KnowsLayers,
    MovesPagesBeside,
    N,
    P,
    ReadsWhatItBrings,
    WritesLate,
    askew,
    at,
    bf16_query,
    broken,
    clipped_lines,
    columns_on,
    cut_by_columns,
    depth_of_row,
    fail,
    first_cell,
    gathered_from_start,
    gone,
    half_written,
    in_one_line,
    in_prefix,
    keys_from,
    last,
    later_column,
    leaves_to_nowhere,
    link_last,
    links_made,
    lose_last,
    lose_siblings,
    mask_read,
    merged,
    move_half_of_the_lanes,
    move_in_place,
    move_out_of_step,
    move_pages,
    moves_and_padding,
    mutate,
    neighbours_links,
    only_in,
    other_heads,
    padding_names_the_root,
    page_slot,
    path_in_lines,
    prefix_read,
    refuse,
    rows_read,
    sent_to,
    shift_links,
    soft,
    stride_of_rows,
    summed_in_half,
    too_short,
    true_prefix,
    up,
    values_stay,
    window_cut,
)
from diagnosis_situations import (
    ALIBI,
    BATCH,
    CAPPED,
    CODES,
    COMB,
    EMPTY,
    EVICTED,
    LARGE,
    MANY_HEADS,
    ONE,
    ONE_MASK,
    PADDED,
    PAGED,
    SINKS,
    SMALL_FIRST,
    TWIG,
    TWINS,
    TWO,
    TWO_MASKS,
    WINDOW,
    WINDOWED_MASK,
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
