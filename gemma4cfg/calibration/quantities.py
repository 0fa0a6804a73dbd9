"""What can be measured of a run, and what a plan's draft says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gemma4cfg.architecture.inventory import LM_HEAD
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Span
from gemma4cfg.planner.draft import Draft
from gemma4cfg.planner.estimate import compile_seconds, compile_span, decode_span, prefill_span
from gemma4cfg.planner.host_memory import text_elements
from gemma4cfg.planner.traffic import Edges

BYTES_EITHER_WAY = 0.05
"""Half the width of a range of bytes: what published figures, rounded to two digits, can tell apart."""

Kind = Literal["speed", "time", "bytes"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """``predict`` gives nothing where the plan has no such figure. ``widest``: the largest ratio of a range's ends that may be
    predicted, 25 % either way for speeds of decode, a factor of two for times and what has a prompt's in it, 5 % either
    way for bytes."""

    unit: str
    kind: Kind
    predict: Callable[[Draft, Edges], Span | None]

    @property
    def widest(self) -> float:
        return {"speed": 1.25 / 0.75, "time": 2.0, "bytes": 1.05 / 0.95}[self.kind]


def _decode(draft: Draft, edges: Edges) -> Span:
    return decode_span(draft.speed, edges)


def _prefill(draft: Draft, edges: Edges) -> Span:
    return prefill_span(draft.speed, draft.division.shapes.prefill_buckets[-1], edges)


def _compile(draft: Draft, _: Edges) -> Span | None:
    return compile_span(draft.speed)


def _compile_prefill(draft: Draft, _: Edges) -> Span | None:
    if draft.speed.speeds.compile is None or draft.recipe.prefill == "host":
        return None
    return compile_seconds(draft.speed, draft.division.shapes.prefill_buckets[-1:])


def _bytes(count: Callable[[Draft], float], unit: str = "bytes") -> Quantity:
    """``count`` is 0 where there is nothing of it."""

    def predict(draft: Draft, _: Edges) -> Span | None:
        value = count(draft)
        return Span(value * (1 - BYTES_EITHER_WAY), value * (1 + BYTES_EITHER_WAY)) if value else None

    return Quantity(unit, "bytes", predict)


def _host(what: str) -> Callable[[Draft], float]:
    return lambda draft: sum(part.bytes for part in draft.host if part.what == what)


def _compile_peak(name: str) -> Callable[[Draft], float]:
    return lambda draft: float(getattr(draft.budget.host.compile, name, 0))


def _tensors(holds: Callable[[str], bool]) -> Callable[[Draft], float]:
    def count(draft: Draft) -> float:
        placed = draft.division.placed
        elements = sum(tensor.local_elements for name, tensor in placed.items() if holds(name))
        return elements * ITEM_BYTES[draft.division.dtype]

    return count


def _reference(draft: Draft) -> float:
    return 4 * text_elements(draft.speed.architecture)[0]


def _serving(count: Callable[[Draft], float], unit: str = "bytes") -> Quantity:
    return _bytes(lambda draft: count(draft) if draft.sdk.stack.estimates.serving else 0, unit)


def _requests(draft: Draft, edges: Edges) -> Span | None:
    """Answers over whole requests: every stream's prompt, then what it decodes until it holds ``held``."""
    shapes = draft.division.shapes
    prompt, held = edges.prompt or shapes.prefill_buckets[-1], edges.held or shapes.kv_length
    if not draft.sdk.stack.estimates.serving or held <= prompt:
        return None
    tokens, prefill, decode = shapes.batch * (held - prompt), _prefill(draft, edges), _decode(draft, edges)
    return Span(
        tokens / (prefill.high / 1e3 + tokens / decode.low),
        tokens / (prefill.low / 1e3 + tokens / decode.high),
    )


def _used(draft: Draft) -> float:
    """All of a serving stack's share of the card, and the runtime."""
    return draft.budget.hbm_per_rank.limit - _line(draft, "left free")


def _pool(draft: Draft) -> float:
    """What is left of that share for KV."""
    hbm = draft.budget.hbm_per_rank
    return hbm.limit - hbm.total + _stream(draft)


def _streams(draft: Draft) -> float:
    """Streams at full length that the pool holds."""
    return _pool(draft) / _stream(draft) * draft.division.shapes.batch


def _stream(draft: Draft) -> float:
    return draft.budget.hbm_per_rank.kv + _line(draft, "pages of")


def _line(draft: Draft, start: str) -> float:
    (line,) = (line for line in draft.budget.lines if line.what.startswith(start))
    return line.bytes


QUANTITIES: Mapping[str, Quantity] = {
    "decode_tokens_per_s": Quantity("tokens/s", "speed", _decode),
    "prefill_ms": Quantity("ms", "time", _prefill),
    "compile_s": Quantity("s", "time", _compile),
    "compile_prefill_s": Quantity("s", "time", _compile_prefill),
    "shards": _bytes(lambda draft: draft.division.weights * draft.speed.tp),
    "device_total": _bytes(lambda draft: draft.budget.hbm_per_rank.total),
    "kv": _bytes(lambda draft: draft.budget.hbm_per_rank.kv),
    "kv_per_token": _bytes(lambda draft: draft.division.kv_per_token),
    "head": _bytes(_tensors(lambda name: name == LM_HEAD)),
    "experts": _bytes(_tensors(lambda name: ".experts." in name)),
    "host_token_embedding": _bytes(_host("token_embedding")),
    "host_per_layer_embedding": _bytes(_host("per_layer_embedding")),
    "reference_float32": _bytes(_reference),
    "compile_one_rank_streamed": _bytes(_compile_peak("one_rank_streamed")),
    "compile_one_rank_bfloat16": _bytes(_compile_peak("one_rank_bfloat16")),
    "compile_one_rank_float32": _bytes(_compile_peak("one_rank_float32")),
    "compile_all_ranks_bfloat16": _bytes(_compile_peak("all_ranks_bfloat16")),
    "compile_all_ranks_float32": _bytes(_compile_peak("all_ranks_float32")),
    "load_peak": _bytes(lambda draft: draft.budget.host.load_peak),
    "steady": _bytes(lambda draft: draft.budget.host.steady),
    "checkpoint": _bytes(lambda draft: draft.budget.host.disk.checkpoint),
    "serving_requests": Quantity("tokens/s", "time", _requests),
    "serving_used": _serving(_used),
    "serving_pool": _serving(_pool),
    "serving_streams": _serving(_streams, "streams"),
    "serving_tokens": _serving(lambda draft: _streams(draft) * draft.division.shapes.kv_length, "tokens"),
}
"""By the name that a row gives; what ``serving_`` and ``compile_`` ones say holds of stacks that serve, or compile."""
