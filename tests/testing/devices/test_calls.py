"""Calls to a device: wrong bytes show, what should be refused is asked for, a fault comes out of `exec`."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.testing import Compute, DeviceCall, Drop, Look, Malloc, Mixing, Put, Unmanaged, Wrong, live_program, perform


def seen(calls: list[DeviceCall], device: Unmanaged) -> list[bytes]:
    return [found.tobytes() for found in perform(calls, device)]


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_byte_anywhere_shows(seed: int) -> None:
    calls = [call for call in live_program(seed).calls if not isinstance(call, Look)]
    looks = live_program(seed).calls[-3:]

    class Forgetful(Unmanaged):
        """Loses a bit of what an op writes, once."""

        left = 20

        def exec(self, op, reads=(), writes=(), *, call=None, duration=0):  # type: ignore[no-untyped-def]
            super().exec(op, reads, writes, call=call, duration=duration)
            self.left -= any(self.blocks[block].size for block in writes)
            if self.left == 0 and "update" in op:
                self.blocks[writes[0]][-1] ^= 1
            self.left += self.left == 0 and "update" not in op

    right = seen([*calls, *looks], Unmanaged())
    assert right == seen([*calls, *looks], Unmanaged()) != seen([*calls, *looks], Forgetful())


@pytest.mark.parametrize("call", ["free", "read", "write", "exec"])
def test_what_should_be_refused_is_asked_for(call: str) -> None:
    calls = [Malloc(0, 4), Drop(0), Wrong(call, 0)]
    assert perform(calls, Unmanaged()) == []

    class Patient(Unmanaged):
        def _live(self, block: int) -> np.ndarray:
            return self.blocks.setdefault(block, np.zeros(4, np.uint8))

    with pytest.raises(AssertionError, match=f"Wrong.*{call}.*no ValueError came of it"):
        perform(calls, Patient())


def test_a_fault_comes_out_of_exec() -> None:
    calls = [Malloc(0, 4), Put(0, 1), Compute("op", (0,), (0,), fails="before"), Look(0)]
    after = [*calls[:2], Compute("op", (0,), (0,), fails="after"), Look(0)]
    works = [*calls[:2], Compute("op", (0,), (0,)), Look(0)]
    untouched, changed, right = (seen(some, Unmanaged()) for some in (calls, after, works))
    assert untouched != changed == right

    class Silent(Unmanaged):
        def exec(self, *arguments, **options):  # type: ignore[no-untyped-def]
            return None

    with pytest.raises(AssertionError, match="no Fault came of it"):
        perform(calls, Silent())


def test_the_order_of_what_is_read_counts() -> None:
    x, y = (np.arange(4, dtype=np.uint8) + k for k in range(2))
    outs = []
    for arrays in ((x, y), (y, x)):
        out = np.zeros(4, np.uint8)
        Mixing()([0, 1], [2])(None, *arrays, out)
        outs.append(out.tolist())
    assert outs[0] != outs[1]
