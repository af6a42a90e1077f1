"""Does `gpumem.testing.check_allocator` find each bug that is put into `gpumem.pool.allocators.streams`?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpumem.pool.allocators._blocks import FreeRanges
from gpumem.pool.allocators.streams import MultiStream
from gpumem.testing import ContractError, Witness, allocator_machine, check_allocator
from tests.requests import KIB


class Arena(MultiStream):
    """Right, in 2 KiB."""

    def __init__(self) -> None:
        super().__init__(capacity=2 * KIB, allow_growth=False)


class NoSync(Arena):
    """Marks and merges, but lets nobody wait."""

    def sync_and_coalesce(self) -> None:
        self._waited()


class SyncsTooLate(Arena):
    """Lets them wait at the sync after the one that needs it."""

    late = False

    def sync_and_coalesce(self) -> None:
        if self.late:
            self.synchronize()
        self.late = True
        self._waited()


class AllocatingStream(Arena):
    """The paper's rule: back to the stream that allocated it."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        offset = super().allocate(size, stream=stream)
        self.made = {**getattr(self, "made", {}), offset: stream}
        return offset

    def free(self, offset: int, *, stream: int = 0) -> None:
        self._live[offset]
        super().free(offset, stream=self.made[offset])


class UsersForgotten(Arena):
    def use(self, offset: int, *, stream: int = 0) -> None:
        pass


class LastUserForgotten(Arena):
    """One told of by `use` hides the stream that `free` names."""

    def _freed_by(self, users: set[int]) -> FreeRanges:
        return super()._freed_by({min(users)})


class UsersForgottenAtAFree(Arena):
    """Of all chunks, where one is freed."""

    def free(self, offset: int, *, stream: int = 0) -> None:
        super().free(offset, stream=stream)
        self._users.clear()


class OthersWithoutASync(Arena):
    """Before it syncs it looks at what other streams have."""

    def _find(self, size: int, stream: int) -> tuple[FreeRanges, int] | None:
        others = (super(OthersWithoutASync, self)._find(size, other) for other in (stream, *self._unsynced))
        return next((found for found in others if found), None)


class CoalescesEarly(Arena):
    """What is freed beside a synchronised chunk joins it."""

    def free(self, offset: int, *, stream: int = 0) -> None:
        size = self._live[offset].size
        super().free(offset, stream=stream)
        if self._free.at(offset + size):
            for free in (*self._unsynced.values(), self._nobodys):
                if free.at(offset) == size:
                    free.take(offset, size)
                    self._free.put(offset, size)


class ListedTwice(Arena):
    """A chunk of two streams is in the list of each."""

    def free(self, offset: int, *, stream: int = 0) -> None:
        size, users = self._live[offset].size, self._users.pop(offset, set()) - {stream}
        super().free(offset, stream=stream)
        for user in users:
            self._freed_by({user}).put(offset, size)


class NotClearedAfterASync(Arena):
    """Chunks are synchronised, and stay with their stream too."""

    def _waited(self) -> None:
        kept = [(free, free.ranges()) for free in self._unsynced.values()]
        super()._waited()
        for free, ranges in kept:
            for start, size in ranges:
                free.put(start, size)


class SyncOfOneStream(Arena):
    """Everybody waits, but only what one stream freed is marked."""

    def _waited(self) -> None:
        kept = {stream: free for stream, free in self._unsynced.items() if stream}
        self._unsynced = {stream: free for stream, free in self._unsynced.items() if not stream}
        super()._waited()
        self._unsynced.update(kept)


class NobodysForGood(Arena):
    """A sync forgets the chunks of several streams."""

    def _waited(self) -> None:
        nobodys, self._nobodys = self._nobodys, self._none()
        super()._waited()
        self._nobodys = nobodys


class NothingMerges(Arena):
    """Chunks that a sync marks stay as they are."""

    def _waited(self) -> None:
        self._free._by_end.clear()
        super()._waited()


class Rests(FreeRanges):
    """What is left of a chunk goes to `rest`."""

    rest: Callable[[int, int], object]

    def take(self, start: int, size: int) -> None:
        left = self.at(start) - size
        super().take(start, size + left)
        if left:
            self.rest(start + size, left)


class RestOfAChunk(Arena):
    """What is left of a stream's chunk goes to `rest` instead of staying."""

    def _none(self) -> FreeRanges:
        free = Rests()
        free.segments, free.rest = self._free.segments, self.rest
        return free

    def rest(self, start: int, size: int) -> object:
        return None


class RestTakenForSynchronised(RestOfAChunk):
    def rest(self, start: int, size: int) -> object:
        return self._free.put(start, size)


class CutTooShort(RestOfAChunk):
    """The chunk keeps 256 bytes that are handed out."""

    def rest(self, start: int, size: int) -> object:
        return self._free.put(start - 256, size + 256)


BUGS: dict[Callable[[], MultiStream], set[str]] = {
    NoSync: {"stream"},
    SyncsTooLate: {"stream"},
    AllocatingStream: {"stream"},
    UsersForgotten: {"stream"},
    LastUserForgotten: {"stream"},
    UsersForgottenAtAFree: {"stream"},
    OthersWithoutASync: {"stream"},
    CoalescesEarly: {"stream"},
    ListedTwice: {"overlap", "stream", "recovery", "error"},
    NotClearedAfterASync: {"overlap", "stream", "error"},
    SyncOfOneStream: {"recovery"},
    NobodysForGood: {"recovery"},
    NothingMerges: {"recovery", "error"},
    RestOfAChunk: {"recovery"},
    RestTakenForSynchronised: {"stream"},
    CutTooShort: {"overlap", "error"},
}


@pytest.mark.parametrize("bug", BUGS)
def test_every_seeded_bug_is_found(bug: Callable[[], MultiStream]) -> None:
    for seed in (0, 1):
        with pytest.raises(ContractError) as found:
            check_allocator(bug, seed=seed, streams=3)
        assert found.value.rule in BUGS[bug], found.value


def test_the_right_one_passes() -> None:
    check_allocator(Arena, streams=4, examples=56)


def test_the_papers_rule_hands_out_what_another_stream_still_reads() -> None:
    """A job's group made a feature map on stream 0, its next one reads it on stream 1, where the other job was."""
    pool = Witness(AllocatingStream())
    feature = pool.allocate(256, stream=0)
    pool.sync_and_coalesce()
    pool.free(feature, stream=1)  # launched to the device, not run
    with pytest.raises(ContractError, match=r"stream 0 got bytes .*, used on stream 1 and not synchronised"):
        pool.allocate(256, stream=0)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [2, 3, 4])
def test_ten_thousand_random_runs(streams: int) -> None:
    for make in (Arena, MultiStream):
        machine = allocator_machine(make, streams=streams, skip=() if make is Arena else ["growth"])
        often = settings(
            max_examples=1700,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(machine, settings=often)
