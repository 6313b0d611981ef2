"""A batch in two, where one launch of all of it does not fit into memory."""

from __future__ import annotations

import msgspec

from treeproof.contract.case import VerifyCase, pages_needed


def halves(case: VerifyCase) -> tuple[VerifyCase, ...]:
    """The first half of the requests and the rest, each in a cache no larger than it needs; none of a
    single request, nor of a script, whose steps are about all of them."""
    count = len(case.requests)
    if count < 2 or case.script:
        return ()
    middle = count // 2
    parts = case.requests[:middle], case.requests[middle:]
    return tuple(
        msgspec.structs.replace(
            case,
            requests=part,
            layout=msgspec.structs.replace(
                case.layout,
                num_slots=pages_needed(part, case.layout) * case.layout.page_size,
                page_table_pad=min(case.layout.page_table_pad, 0),
            ),
        )
        for part in parts
    )
