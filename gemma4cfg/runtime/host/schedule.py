"""Which graph runs when, with how many rows of each stream. Nothing is ever clipped: what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Graph, Plan

DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Step:
    """One call. ``rows`` [batch]: how many of each stream's next tokens it takes; 0, the stream sits out."""

    graph: str
    rows: tuple[int, ...]


def graph_rows(graph: Graph) -> int:
    """Rows of each stream in one call of the graph: the bucket, or 1."""
    return next(port.shape[1] for port in graph.inputs if port.name == "position_ids")


def prompt_steps(plan: Plan, held: Sequence[int], prompts: Mapping[int, int], new_tokens: int = 0) -> tuple[Step, ...]:
    """The calls that feed prompts of ``prompts[stream]`` tokens to streams that hold ``held[stream]`` [batch] already.

    Every chunk of a prompt but its last fills the largest bucket; the last takes the smallest that holds it. Streams share
    a call where they want the same bucket, and the larger ones go first: that is as few calls as these chunks allow. A plan
    without prefill graphs takes prompts through decode, a token a call.

    Raises ConfigError for a stream that is none, and as ``check_prompt``, before any call is made.
    """
    _check_streams(plan, prompts)
    for stream, tokens in prompts.items():
        check_prompt(plan, held[stream], tokens, new_tokens, f"stream {stream}")
    names = _buckets(plan) or {1: DECODE}
    chunks = {stream: _chunks(tokens, tuple(names)) for stream, tokens in prompts.items()}
    steps = []
    for bucket in sorted(names, reverse=True):
        wanted = {stream: [rows for size, rows in cut if size == bucket] for stream, cut in chunks.items()}
        for turn in range(max(map(len, wanted.values()), default=0)):
            rows = {stream: sizes[turn] for stream, sizes in wanted.items() if turn < len(sizes)}
            steps.append(Step(names[bucket], _rows(plan, rows)))
    return tuple(steps)


def decode_step(plan: Plan, held: Sequence[int], streams: Iterable[int]) -> Step:
    """One more token for each of ``streams``. Raises ConfigError for a stream that is none or full."""
    streams = tuple(streams)
    _check_streams(plan, streams)
    length = plan.shapes.kv_length
    for stream in streams:
        if held[stream] >= length:
            raise ConfigError(
                f"stream {stream} is full: it holds {held[stream]} tokens, shapes.kv_length={length}; "
                f"e.g. shapes.kv_length={2 * length}"
            )
    return Step(DECODE, _rows(plan, dict.fromkeys(streams, 1)))


def check_prompt(plan: Plan, held: int, tokens: int, new_tokens: int, where: str) -> None:
    """Whether ``tokens`` after ``held`` ones, and ``new_tokens`` after those, fit. ``where`` names the prompt in messages.

    Raises ConfigError for an empty prompt, one that needs chunks where the plan has none, and too long a whole.
    """
    if tokens < 1:
        raise ConfigError(f"{where}: an empty prompt; a prompt is at least one token, e.g. <bos>")
    shapes, buckets = plan.shapes, _buckets(plan)
    total = held + tokens + new_tokens
    if total > shapes.kv_length:
        parts = [f"{held} held"] * (held > 0) + [f"{tokens} of the prompt"] + [f"{new_tokens} new"] * (new_tokens > 0)
        room = shapes.kv_length - held - tokens
        fewer = f"generate.max_new_tokens={room}, or " if new_tokens and room > 0 else ""
        raise ConfigError(
            f"{where}: {' + '.join(parts)} = {total} tokens, shapes.kv_length={shapes.kv_length}: refused, not clipped; "
            f"set {fewer}shapes.kv_length={total}"
        )
    if shapes.prompt_chunking or not buckets:
        return
    if tokens > max(buckets):
        larger = [*buckets, tokens]
        raise ConfigError(
            f"{where}: a prompt of {tokens} tokens, the largest prefill bucket is {max(buckets)} and "
            f"shapes.prompt_chunking=false: refused, not clipped; set shapes.prompt_chunking=true, or "
            f"shapes.prefill_buckets=[{','.join(map(str, larger))}]"
        )
    if held:
        raise ConfigError(
            f"{where}: it holds {held} tokens, and with shapes.prompt_chunking=false a prompt starts at position 0; "
            "reset the stream and give the whole prompt, or set shapes.prompt_chunking=true"
        )


def _buckets(plan: Plan) -> dict[int, str]:
    """Rows to graph, of the prefill graphs, fewest first."""
    return {graph_rows(graph): graph.name for graph in plan.graphs if graph.kind == "prefill"}


def _chunks(tokens: int, buckets: Sequence[int]) -> list[tuple[int, int]]:
    """Bucket and rows of each chunk, in order."""
    largest = max(buckets)
    full = (tokens - 1) // largest
    last = tokens - full * largest
    return [(largest, largest)] * full + [(min(size for size in buckets if size >= last), last)]


def _check_streams(plan: Plan, streams: Iterable[int]) -> None:
    batch = plan.shapes.batch
    for stream in streams:
        if not 0 <= stream < batch:
            raise ConfigError(f"stream {stream}: shapes.batch={batch} has streams 0 to {batch - 1}")


def _rows(plan: Plan, rows: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(rows.get(stream, 0) for stream in range(plan.shapes.batch))
