"""Forked ranks: what goes in and out, and that none is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor

from gemma4cfg.runtime.processes import RankError, RankProcesses
from sharding.collectives import Collectives

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64)


class Worker:
    def __init__(self, rank: int, collectives: Collectives) -> None:
        self.rank, self.collectives = rank, collectives

    def pid(self) -> int:
        return os.getpid()

    def give(self, *values: Any, **named: Any) -> Any:
        return self.rank, values, named

    def threads(self) -> int:
        return torch.get_num_threads()

    def collect(self) -> float:
        return float(self.collectives.all_reduce(torch.tensor(float(self.rank))))

    def fail(self, rank: int, how: str) -> Any:
        if rank == self.rank:
            if how == "raise":
                raise LookupError("planted")
            if how == "end of file":
                raise EOFError("planted")
            if how == "exit":
                sys.exit(7)
            if how == "unpicklable":
                return lambda: None
            if how == "leave":
                os._exit(7)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.wait()

    def wait(self) -> None:
        """For a rank that will not come, or that will."""
        self.collectives.all_reduce(torch.ones(1))
        time.sleep(60)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def all_gone(pids: list[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not all(map(gone, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_each_rank_is_a_process_of_its_own_until_the_context_is_left() -> None:
    with RankProcesses(Worker, 3) as processes:
        pids = processes.call("pid")
        assert len({*pids, os.getpid()}) == 4
        assert processes.call("pid") == pids
        assert processes.call("collect") == [3.0] * 3
        assert processes.call("threads") == [1] * 3
    assert all(map(gone, pids))
    with pytest.raises(RuntimeError, match="have ended"):
        processes.call("pid")


def test_an_interrupt_is_the_parents_to_act_upon() -> None:
    with RankProcesses(Worker, 2) as processes:
        pids = processes.call("pid")
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert processes.call("pid") == pids


def test_the_parent_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with RankProcesses(Worker, 1):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_arguments_and_results() -> None:
    with RankProcesses(Worker, 2) as processes:
        assert processes.call("give", 1, "a", key=[2]) == [(rank, (1, "a"), {"key": [2]}) for rank in range(2)]
        big = torch.arange(1 << 20, dtype=torch.int64)
        assert torch.equal(processes.call("give", big)[1][1][0], big)


@pytest.mark.parametrize("wanted", [(), (1,), [0, 2], {0, 1, 2}], ids=str)
def test_only_the_results_asked_for(wanted: Any) -> None:
    with RankProcesses(Worker, 3) as processes:
        results = processes.call("give", results_of=wanted)
    assert results == [(rank, (), {}) if rank in wanted else None for rank in range(3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_tensors_of_any_dtype(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.5, -2.25, 0.0], [3.0, 0.5, -1.0]]).to(dtype)
    given: list[Tensor] = [values, values.T, values[1], values[0, 0], values[:0], torch.nn.Parameter(values, False)]
    with RankProcesses(Worker, 1) as processes:
        ((_, returned, _),) = processes.call("give", *given)
    for before, after in zip(given, returned, strict=True):
        assert type(after) is Tensor
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert after.contiguous().reshape(-1).view(torch.uint8).tolist() == (
            before.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        )
        after.zero_()  # a result can be written to


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", r"(?s)^Traceback.*in fail\n.*LookupError: planted"),
        ("end of file", "(?s)^Traceback.*EOFError: planted"),
        ("exit", "(?s)^Traceback.*SystemExit: 7"),
        ("unpicklable", "(?s)^Traceback.*lambda"),
        ("leave", "^the process ended with exit code 7$"),
        ("kill", "^killed by SIGKILL$"),
    ],
)
def test_a_rank_that_fails_ends_all(rank: int, how: str, text: str) -> None:
    """The others sit in a collective, with a timeout of minutes."""
    with RankProcesses(Worker, 3) as processes:
        pids = processes.call("pid")
        began = time.monotonic()
        with pytest.raises(RankError) as caught:
            processes.call("fail", rank, how)
        assert time.monotonic() - began < 5
        assert all(map(gone, pids)), "ended with the error, before the context is left"
    assert caught.value.rank == rank
    assert re.search(text, caught.value.text), caught.value.text


def test_a_rank_killed_between_calls() -> None:
    with RankProcesses(Worker, 3) as processes:
        pids = processes.call("pid")
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RankError, match=r"^rank 1 failed: killed by SIGKILL"):
            processes.call("collect")
        assert all(map(gone, pids))


def test_a_rank_that_cannot_be_made() -> None:
    pids = []

    def make(rank: int, collectives: Collectives) -> Worker:
        if rank == 1:
            raise LookupError("planted")
        collectives.all_reduce(torch.ones(1))
        return Worker(rank, collectives)

    context = RankProcesses(make, 3)
    with pytest.raises(RankError, match=r"(?s)^rank 1 failed: Traceback.*planted"), context:
        pids.append(0)
    assert pids == [], "the context was not entered"
    assert active_children() == []


def test_an_error_in_the_context_ends_busy_ranks() -> None:
    with RankProcesses(Worker, 2) as processes:
        pids = processes.call("pid")
        with pytest.raises(AttributeError, match="no-such"):
            processes.call("give", Unsendable())
        assert processes.call("collect") == [1.0, 1.0], "an argument that cannot be sent harms no rank"
    with pytest.raises(KeyError), RankProcesses(Worker, 2) as processes:
        pids += processes.call("pid")
        raise KeyError
    assert all(map(gone, pids))


class Unsendable:
    def __reduce__(self) -> str:
        raise AttributeError("no-such")


def program(connection: Connection) -> None:
    """A program with ranks, interrupted from outside."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with RankProcesses(Worker, 3) as processes:
            connection.send(processes.call("pid"))
            processes.call("wait")
    except KeyboardInterrupt:
        connection.send("interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_or_killed_parent_leaves_no_rank(number: signal.Signals) -> None:
    """Ctrl-C goes to all processes of the group, the kill to the parent alone; the ranks are in the midst of a call."""
    context = get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=program, args=(theirs,))
    parent.start()
    assert parent.pid is not None
    pids = ours.recv()
    time.sleep(0.3)
    if number is signal.SIGINT:
        os.killpg(parent.pid, number)
        assert ours.poll(5)
        assert ours.recv() == "interrupted"
    else:
        os.kill(parent.pid, number)
    parent.join(5)
    assert parent.exitcode is not None
    assert all_gone(pids)
