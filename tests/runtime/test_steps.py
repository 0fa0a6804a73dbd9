"""What each call writes and sees, against a cache kept as a dictionary of positions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cfg.runtime.steps import Step, sees, step

LENGTHS = (1, 2, 3, 5, 8)


@dataclass
class Buffer:
    """A KV buffer whose rows hold the positions themselves, -1 where nothing is."""

    rows: torch.Tensor
    window: int | None

    def call(self, starts: list[int], valid: list[int], rows: int, chunked: bool, layout: str) -> list[list[set[int]]]:
        """One call of a graph: stream and row to the positions that the row sees. Pad rows carry position + 1000."""
        positions = torch.tensor(starts)[:, None] + torch.arange(rows)
        seen = sees(layout, rows, chunked)
        made = step(positions, torch.tensor(valid), self.rows.shape[2], self.window, seen, torch.float32)
        pads = torch.arange(rows)[None] >= torch.tensor(valid)[:, None]
        new = torch.where(pads, positions + 1000, positions).float()[:, None, :, None]
        keys = self._keys(made, new)
        self.rows = made.write(self.rows, new)
        visible = made.mask[:, 0] == 0
        return [
            [
                {int(key) for key, shown in zip(keys[stream, 0, :, 0], row, strict=True) if shown}
                for row in visible[stream]
            ]
            for stream in range(len(starts))
        ]

    def _keys(self, made: Step, new: torch.Tensor) -> torch.Tensor:
        if made.sees == "chunk":
            return new
        if made.sees == "buffer":
            return made.write(self.rows, new)
        return torch.cat((self.rows, new), dim=2)


def expected(position: int, window: int | None) -> set[int]:
    return set(range(max(0, position - window + 1) if window else 0, position + 1))


def run(length: int, window: int | None, layout: str, bucket: int, prompts: list[int], decoded: int) -> None:
    """Prompts in chunks of ``bucket``, then tokens one by one, streams side by side; every valid row sees what it must."""
    buffer = Buffer(torch.full((len(prompts), 1, length, 1), -1.0), window)
    held = [0] * len(prompts)

    def call(valid: list[int], rows: int) -> None:
        seen = buffer.call(held, valid, rows, True, layout)
        for stream, count in enumerate(valid):
            for row in range(count):
                assert seen[stream][row] == expected(held[stream] + row, window), (stream, held[stream] + row)
            held[stream] += count

    while any(held[stream] < prompt for stream, prompt in enumerate(prompts)):
        call([min(bucket, prompt - held[stream]) for stream, prompt in enumerate(prompts)], bucket)
    for number in range(decoded):
        call([int((stream + number) % 3 != 2) for stream in range(len(prompts))], 1)


@pytest.mark.parametrize("bucket", (2, 5, 8, 16))
@pytest.mark.parametrize("window", (1, 4, 8))
@pytest.mark.parametrize("layout", ("linear", "ring"))
def test_every_row_sees_its_window_and_no_more(layout: str, window: int, bucket: int) -> None:
    length = window if layout == "ring" else 64
    run(length, window, layout, bucket, [1, window - 1 or 1, window, window + 1, 2 * window, bucket, bucket + 1], 20)


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(["linear", "ring"]),
    window=st.integers(1, 9),
    bucket=st.integers(2, 12),
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_any_prompts_in_any_chunks(layout: str, window: int, bucket: int, prompts: list[int]) -> None:
    run(window if layout == "ring" else 48, window, layout, bucket, prompts, 15)


def test_a_full_layer_sees_everything_before() -> None:
    run(64, None, "linear", 8, [1, 7, 8, 9, 30], 20)


@pytest.mark.parametrize("window", (None, 4))
def test_a_whole_prompt_sees_its_own_rows_alone(window: int | None) -> None:
    buffer = Buffer(torch.full((2, 1, 4 if window else 32, 1), 500.0), window)
    seen = buffer.call([0, 0], [9, 3], 12, False, "ring" if window else "linear")
    assert [seen[0][row] for row in range(9)] == [expected(row, window) for row in range(9)]
    assert [seen[1][row] for row in range(3)] == [expected(row, window) for row in range(3)]


@pytest.mark.parametrize(("layout", "length"), (("linear", 31), ("ring", 8)))
def test_pad_rows_are_written_nowhere(layout: str, length: int) -> None:
    """Also where the last valid row is the buffer's last: a scatter clamped to it would let a pad overwrite it."""
    buffer = Buffer(torch.full((1, 1, length, 1), -1.0), 8 if layout == "ring" else None)
    buffer.call([0], [16], 16, True, layout)
    buffer.call([16], [15], 16, True, layout)
    held = {int(value) for value in buffer.rows.flatten()}
    assert held == set(range(31 - length, 31))


def test_a_stream_that_sits_out_keeps_its_rows() -> None:
    buffer = Buffer(torch.full((2, 1, 8, 1), -1.0), 8)
    buffer.call([0, 0], [5, 5], 5, True, "ring")
    before = buffer.rows[1].clone()
    buffer.call([5, 5], [4, 0], 4, True, "ring")
    assert torch.equal(buffer.rows[1], before)
    assert not torch.equal(buffer.rows[0], before)


def test_streams_never_meet() -> None:
    buffer = Buffer(torch.full((2, 1, 16, 1), -1.0), None)
    buffer.rows[1] = 700
    seen = buffer.call([0, 0], [3, 0], 4, True, "linear")
    assert all(position < 700 for row in seen[0] for position in row)


def test_the_mask_is_finite_where_a_pad_row_sees_nothing() -> None:
    made = step(torch.arange(40, 48)[None], torch.tensor([1]), 4, 4, "buffer", torch.bfloat16)
    assert torch.isfinite(made.mask).all()
    assert (made.mask[0, 0, -1] == torch.finfo(torch.bfloat16).min).all()


@pytest.mark.parametrize(
    ("layout", "rows", "chunked", "result"),
    (
        ("linear", 1, True, "buffer"),
        ("ring", 1, True, "buffer"),
        ("linear", 8, True, "buffer"),
        ("ring", 8, True, "buffer_and_chunk"),
        ("linear", 8, False, "chunk"),
        ("ring", 8, False, "chunk"),
        ("ring", 1, False, "buffer"),
    ),
)
def test_what_queries_attend_to(layout: str, rows: int, chunked: bool, result: str) -> None:
    assert sees(layout, rows, chunked) == result
