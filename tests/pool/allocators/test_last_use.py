"""Who used freed bytes last, against a list that looks at each byte."""

from __future__ import annotations

from hypothesis import example, given

from gpumem.pool.allocators._last_use import LastUse
from tests.pool.allocators.spans import EVENTS, run


@example([(0, 4, 0), (0, 3, 0), (3, 1, 1)])  # the last byte is left over
@example([(0, 4, 0), (1, 3, 0), (0, 1, 1)])  # the first one
@given(EVENTS)
def test_it_waits_exactly_where_bytes_change_streams(events: list[tuple[int, int, int]]) -> None:
    waited: list[None] = []
    use = LastUse(lambda: waited.append(None))
    last: list[int | None] = [None] * 16  # by byte: who used it last, since the last wait; taken bytes are None too
    taken = [True] * 16
    expected = 0
    for start, size, stream in events:
        span = run(taken, start, size)
        if taken[start]:
            use.freed(start, len(span), stream)
            last[start : span.stop] = [stream] * len(span)
        else:
            use.claim(start, len(span), stream)
            if any(last[i] not in (None, stream) for i in span):
                expected += 1
                last = [None] * 16
            last[start : span.stop] = [None] * len(span)
        taken[start : span.stop] = [not taken[start]] * len(span)
        assert len(waited) == expected
