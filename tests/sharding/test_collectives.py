"""What every transport must do, and what happens when a rank does not come."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gemma4cfg.runtime.processes import RankError, RankProcesses
from sharding.collectives import CollectiveError, Collectives
from sharding.collectives.alone import Alone
from sharding.collectives.distributed import Distributed, fake_group
from sharding.collectives.shared_memory import SharedMemoryGroup

CAPACITY = 4096
"""Bytes: small, so that tests reach several rounds."""

INTEGERS = (torch.uint8, torch.int32, torch.int64)
SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, *INTEGERS)
SHAPES = ((), (1,), (0, 3), (7,), (2, 3, 5), (1, 1, 1024), (CAPACITY // 4 + 1,), (3, 5, 1000))
REDUCED = (
    *((shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.bfloat16)),
    *(((2, 1500), dtype) for dtype in SUMMED),
)
GATHERED = (
    ((), 0, torch.float32),
    *((shape, dim, torch.float32) for shape in SHAPES if shape for dim in (*range(len(shape)), -1)),
    *(((2, 1500), 1, dtype) for dtype in (*SUMMED, torch.bool)),
)


def part(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """What ``rank`` brings: the same in every process."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    if dtype in (*INTEGERS, torch.bool):
        return torch.randint(0, 2 if dtype == torch.bool else 20, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def same(left: Tensor, right: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return bool(torch.equal(one, other))


def in_rank_order(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    return total


class Worker:
    """One rank under test. It knows its rank, as no model does."""

    def __init__(self, rank: int, collectives: Collectives) -> None:
        self.rank, self.collectives = rank, collectives

    def reduce(self, shape: tuple[int, ...], dtype: torch.dtype, strided: bool = False) -> Tensor:
        own = part(self.rank, shape, dtype)
        given = own.mT.contiguous().mT if strided else own
        result = self.collectives.all_reduce(given)
        assert same(given, own), "the tensor given was written to"
        assert result.is_contiguous() or self.collectives.size == 1
        return result

    def gather(self, shape: tuple[int, ...], dtype: torch.dtype, dim: int, strided: bool = False) -> Tensor:
        own = part(self.rank, shape, dtype)
        given = own.mT.contiguous().mT if strided else own
        result = self.collectives.all_gather(given, dim)
        assert same(given, own), "the tensor given was written to"
        assert result.is_contiguous() or self.collectives.size == 1
        return result

    def many(self, count: int, seed: int) -> list[str]:
        """Mixed collectives in a row, with pauses that differ by rank. Returns what was wrong."""
        chance, pause = random.Random(seed), random.Random(self.rank)
        wrong, kept = [], []
        for number in range(count):
            shape = (chance.choice((1, 3, 100, 1024, 1025, 3000)), chance.choice((1, 2)))
            dtype = chance.choice((torch.float32, torch.bfloat16, torch.int64))
            gathers = chance.random() < 0.5
            if pause.random() < 0.1:
                time.sleep(0.001)
            parts = [part(rank, shape, dtype, number) for rank in range(self.collectives.size)]
            own = parts[self.rank]
            result = self.collectives.all_gather(own, 0) if gathers else self.collectives.all_reduce(own)
            kept.append((result, torch.cat(parts) if gathers else in_rank_order(parts), number, shape, dtype))
        for result, expected, number, shape, dtype in kept:
            if not (same(result, expected) or (isinstance(self.collectives, Distributed) and close(result, expected))):
                wrong.append(f"{number}: {shape} {dtype}")
        return wrong

    def gradients(self) -> bool:
        leaf = torch.ones(3, requires_grad=True)
        total, joined = self.collectives.all_reduce(leaf * 2), self.collectives.all_gather(leaf * 2, 0)
        return total.requires_grad or joined.requires_grad

    def absent(self, absent: dict[int, str], collectives_before: int = 2) -> None:
        for _ in range(collectives_before):
            self.collectives.all_reduce(torch.ones(2))
        what = absent.get(self.rank)
        if what == "raises":
            raise KeyError("planted")
        if what == "sleeps":
            time.sleep(60)
        if what == "leaves":
            return
        if what == "differs":
            self.collectives.all_gather(torch.ones(3), 0)
        self.collectives.all_reduce(torch.ones(2))


def close(left: Tensor, right: Tensor) -> bool:
    tolerance = {torch.bfloat16: 0.1, torch.float16: 0.01}.get(left.dtype, 1e-5)
    return left.dtype == right.dtype and torch.allclose(left, right, rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Transport:
    """``ordered``: sums in the order of ranks, so that they are known bit for bit."""

    size: int
    ordered: bool
    processes: RankProcesses

    def parts(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        return [part(rank, shape, dtype) for rank in range(self.size)]

    def results(self, method: str, *arguments: Any) -> Tensor:
        """Rank 0's result, equal to all others."""
        first, *others = self.processes.call(method, *arguments)
        assert all(same(first, other) for other in others), "ranks differ"
        return first


@pytest.fixture(
    scope="module", params=["alone", "shared memory 2", "shared memory 3", "shared memory 8", "gloo 2", "gloo 4"]
)
def transport(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transport]:
    kind, _, size = request.param.rpartition(" ") if request.param != "alone" else ("alone", "", 1)
    meeting = tmp_path_factory.mktemp("gloo") / "meeting"

    def make(rank: int, collectives: Collectives) -> Worker:
        if kind == "gloo":
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=int(size))
            collectives = Distributed()
        return Worker(rank, collectives)

    with RankProcesses(make, int(size), capacity_bytes=CAPACITY) as processes:
        yield Transport(int(size), kind != "gloo", processes)


def names(value: Any) -> str:
    return "x".join(map(str, value)) or "scalar" if isinstance(value, tuple) else str(value).removeprefix("torch.")


@pytest.mark.parametrize(("shape", "dtype"), REDUCED, ids=names)
def test_all_reduce(transport: Transport, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    result = transport.results("reduce", shape, dtype)
    expected = in_rank_order(transport.parts(shape, dtype))
    if transport.ordered or not dtype.is_floating_point:
        assert same(result, expected)
    else:
        assert result.shape == expected.shape
        assert close(result, expected)


@pytest.mark.parametrize(("shape", "dim", "dtype"), GATHERED, ids=names)
def test_all_gather(transport: Transport, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    parts = transport.parts(shape, dtype)
    expected = torch.cat([one.reshape(shape or (1,)) for one in parts], dim)
    assert same(transport.results("gather", shape, dtype, dim), expected)


@pytest.mark.parametrize("shape", [(4, 6), (2, 50, 60)], ids=names)
def test_tensors_that_are_not_contiguous(transport: Transport, shape: tuple[int, ...]) -> None:
    parts = transport.parts(shape, torch.float32)
    assert close(transport.results("reduce", shape, torch.float32, True), in_rank_order(parts))
    assert same(transport.results("gather", shape, torch.float32, -1, True), torch.cat(parts, -1))


def test_many_in_a_row(transport: Transport) -> None:
    """A rank that runs ahead writes over nothing that another still has to read, and results stay as they were."""
    assert transport.processes.call("many", 200, 5) == [[]] * transport.size


@pytest.mark.parametrize("transport", ["shared memory 2"], indirect=True)
def test_shared_memory_carries_no_gradients(transport: Transport) -> None:
    assert transport.processes.call("gradients") == [False, False]


def test_alone_gives_back_what_it_is_given() -> None:
    tensor = torch.ones(2, 3)
    assert Alone().all_reduce(tensor) is tensor
    assert Alone().all_gather(tensor, 1) is tensor
    assert isinstance(SharedMemoryGroup(1).member(0), Alone)


# -- a rank that does not come ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("absent", "error"),
    [
        pytest.param({2: "raises"}, r"(?s)^rank 2 failed: Traceback.*KeyError: 'planted'", id="raises"),
        pytest.param(
            {1: "sleeps"}, "^rank 1 failed: rank 1 did not come to barrier 3 within 0.5 s", id="never-arrives"
        ),
        pytest.param(
            {0: "sleeps", 2: "sleeps"}, "^rank 0 failed: ranks 0, 2 did not come to barrier 3 within 0.5 s", id="two"
        ),
        pytest.param(
            {2: "differs"},
            r"(?s)^rank 2 failed: .* called all_gather of float32 \[3\] along 0 where rank 0 called all_reduce of .* \[2\]",
            id="differs",
        ),
    ],
)
def test_absence_is_named(absent: dict[int, str], error: str) -> None:
    began = time.monotonic()
    with RankProcesses(Worker, 3, timeout_seconds=0.5) as processes, pytest.raises(RankError, match=error):
        processes.call("absent", absent)
    assert time.monotonic() - began < 10


def test_a_rank_that_leaves_early_is_named_without_the_timeout() -> None:
    with (
        RankProcesses(Worker, 3, timeout_seconds=20) as processes,
        pytest.raises(RankError, match=r"^rank 1 failed: ended the call after 2"),
    ):
        processes.call("absent", {1: "leaves"})


def test_every_later_call_says_who_was_missing() -> None:
    group = SharedMemoryGroup(3)
    assert group.absent() is None
    assert group.abort([1, 2], "left") is True
    assert group.abort([0], "came second") is False
    for _ in range(2):
        with pytest.raises(CollectiveError, match=r"^ranks 1, 2 left$") as caught:
            group.member(0).all_reduce(torch.ones(1))
        assert caught.value.ranks == (1, 2)


def test_a_lock_that_a_dead_rank_holds_ends_at_the_timeout() -> None:
    group = SharedMemoryGroup(2, timeout_seconds=0.3)
    group.lock.acquire()
    with pytest.raises(CollectiveError, match=r"^rank 1 did not come to barrier 1"):
        group.member(0).all_reduce(torch.ones(1))


@pytest.mark.parametrize("reason", ["x" * 5000, "\U0001f980" * 5000], ids=["long", "wide"])
def test_any_reason_fits(reason: str) -> None:
    group = SharedMemoryGroup(256)
    group.abort(range(256), reason)
    absent = group.absent()
    assert absent is not None
    assert absent.ranks == tuple(range(256))
    assert reason.startswith(absent.reason)
    assert len(absent.reason) >= 100


# -- graphs -------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self.collectives = collectives
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, hidden: Tensor) -> Tensor:
        total = self.collectives.all_reduce(hidden @ self.weight)
        return self.collectives.all_gather(total, -1)


def exported(rank: int) -> str:
    with fake_group(8, rank) as collectives:
        return str(torch.export.export(Layer(collectives), (torch.ones(2, 4),), strict=False).graph_module.code)


def test_an_exported_graph_shows_collectives_and_no_rank() -> None:
    code = exported(0)
    assert code.count("_c10d_functional.all_reduce.default(") == 1
    assert code.count("_c10d_functional.all_gather_into_tensor.default(") == 1
    assert code.count("_c10d_functional.wait_tensor.default(") == 2
    assert exported(5) == code
    assert not dist.is_initialized()


def test_the_fake_group_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError, match="planted"), fake_group(4) as collectives:
        assert collectives.size == 4
        raise KeyError("planted")
    assert not dist.is_initialized()


def test_a_group_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="init_process_group comes first"):
        Distributed()


def test_collectives_import_torch_only_with_a_transport() -> None:
    code = "import sys, sharding, sharding.collectives; sys.exit('torch' in sys.modules)"
    root = str(Path(__file__).parents[2])
    assert (
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False).returncode
        == 0
    )
