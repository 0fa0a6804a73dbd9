"""What has to hold of a run, one function a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from gemma4cfg.plan.records import Plan
from gemma4cfg.runs import index_runs
from gemma4cfg.verify.compare import NOISE_FACTOR, RELATIVE_LIMIT, ROUNDING_FACTOR, growth_starts, rounding
from gemma4cfg.verify.observe import Observed
from gemma4cfg.verify.records import Check, StreamResult
from gemma4cfg.verify.reference_process import ReferenceResult


def proof_checks(
    plan: Plan,
    reference: ReferenceResult,
    streams: Sequence[StreamResult],
    layers: Sequence[float],
    observed: Sequence[Observed],
    wrong_on_host: Sequence[str],
    kinds: Mapping[str, Sequence[str]],
) -> tuple[Check, ...]:
    """Every check of a run; ``layers`` are errors by layer, ``observed`` by rank, ``wrong_on_host`` sentences about constants,
    ``kinds`` of placement to local names."""
    limit = error_limit(plan.dtype, max(run.relative_noise for run in reference.runs))
    return (
        reference_agrees(reference),
        logits_equal("prefill_logits", [stream.prefill_relative for stream in streams], limit),
        logits_equal("decode_logits", [stream.decode_relative for stream in streams], limit),
        tokens_equal(streams, plan.dtype),
        layers_equal(layers, limit),
        ranks_agree(observed),
        graphs_exercised(plan, observed),
        slots_written(plan, observed),
        placements_exercised(kinds, observed),
        collectives_as_planned(plan, observed),
        weights_loaded(observed),
        constants_as_planned(observed, wrong_on_host),
    )


def error_limit(dtype: str, noise: float) -> float:
    """The most that an error may be, relative to the largest logit: so many times the reference's own noise, and in float32
    no more than 1e-4."""
    noise = max(noise, rounding(dtype))
    return min(NOISE_FACTOR * noise, RELATIVE_LIMIT) if dtype == "float32" else ROUNDING_FACTOR * noise


def reference_agrees(reference: ReferenceResult) -> Check:
    """A reference that disagrees with itself is nothing to compare with."""
    own = reference.self_check
    figure = max(own.cached_relative, own.use_cache_false_relative)
    version = f"transformers {reference.versions['transformers']}"
    if own.passed:
        detail = f"{version}: with a cache, without one and token by token agree"
    else:
        why = own.known_bad or "with a cache, without one and token by token differ"
        detail = f"this reference disagrees with itself and is not to be trusted: {version}: {why}; use another release"
    return Check("reference", own.passed, figure, own.limit, detail)


def logits_equal(name: str, errors: Sequence[float | None], limit: float) -> Check:
    """``errors`` by stream, null where nothing of one is compared; of some, something has to be."""
    compared = {stream: error for stream, error in enumerate(errors) if error is not None}
    if not compared:
        return Check(name, False, None, limit, "nothing is compared: every choice of experts is too near a tie")
    worst = max(compared, key=lambda stream: (compared[stream] != compared[stream], compared[stream]))
    passed = all(error <= limit for error in compared.values())
    what = "relative to the largest logit" if isfinite(compared[worst]) else "logits that are no numbers"
    return Check(name, passed, compared[worst], limit, f"{what}; worst in stream {worst}")


def tokens_equal(streams: Sequence[StreamResult], dtype: str) -> Check:
    """Greedy tokens, where the reference's own choice is beyond its noise; in float32 some have to be."""
    wrong = {n: stream.first_differing_token for n, stream in enumerate(streams)}
    wrong = {n: step for n, step in wrong.items() if step is not None}
    compared = sum(stream.decided_tokens for stream in streams)
    undecided = sum(stream.undecided_tokens for stream in streams)
    left_out = sum(stream.left_out for stream in streams)
    detail = f"{compared} greedy tokens" if compared else "no token is decided, so none is compared"
    detail += f", {undecided} left out: too near a tie" if undecided else ""
    detail += f", {left_out} left out: after a choice of experts too near a tie" if left_out else ""
    if wrong:
        detail += "; first to differ: " + ", ".join(f"stream {n} step {step}" for n, step in wrong.items())
    return Check("tokens", not wrong and (compared > 0 or dtype != "float32"), None, None, detail)


def layers_equal(layers: Sequence[float], limit: float) -> Check:
    """Hidden states after every layer; where the error starts tells a fault of shards from one of numerics."""
    start = growth_starts(layers, limit)
    passed = start is None and bool(layers)
    detail = "largest error of any layer's output" if passed else f"over the limit from layer {start} on"
    return Check("layers", passed, max(layers, default=None), limit, detail)


def ranks_agree(observed: Sequence[Observed]) -> Check:
    """Every rank gathers the same logits: they are equal bit for bit."""
    apart = [rank for rank, one in enumerate(observed) if one.digest != observed[0].digest]
    detail = (
        f"rank {index_runs(apart)} differ from rank 0" if apart else f"{len(observed)} ranks, outputs equal bit for bit"
    )
    return Check("ranks", not apart, None, None, detail)


def graphs_exercised(plan: Plan, observed: Sequence[Observed]) -> Check:
    missing = [graph.name for graph in plan.graphs if not observed[0].graph_calls.get(graph.name)]
    calls = ", ".join(f"{name} {count}" for name, count in observed[0].graph_calls.items())
    return Check(
        "graphs", not missing, None, None, f"never called: {', '.join(missing)}" if missing else f"calls: {calls}"
    )


def slots_written(plan: Plan, observed: Sequence[Observed]) -> Check:
    """Each slot once in each call, on each rank, and none that the plan does not have."""
    slots = {layer.kv.slot for layer in plan.layers if layer.kv.slot is not None}
    wrong = {
        slot
        for one in observed
        for slot in slots | set(one.slot_writes)
        if slot not in slots or one.slot_writes.get(slot, 0) != sum(one.graph_calls.values())
    }
    detail = (
        f"slots {index_runs(sorted(wrong))}: not one write a call" if wrong else f"{len(slots)} slots, one write a call"
    )
    return Check("slots", not wrong, None, None, detail)


def placements_exercised(kinds: Mapping[str, Sequence[str]], observed: Sequence[Observed]) -> Check:
    """Every tensor of a rank file is read by the forward pass, so every kind of placement is."""
    unread = sorted({name for one in observed for name in one.unread})
    if unread:
        affected = [kind for kind, names in kinds.items() if set(names) & set(unread)]
        detail = f"never read: {', '.join(unread[:5])}{' …' if len(unread) > 5 else ''} ({', '.join(affected)})"
    else:
        detail = ", ".join(f"{kind} {len(names)}" for kind, names in kinds.items())
    return Check("placements", not unread, None, None, detail)


def collectives_as_planned(plan: Plan, observed: Sequence[Observed]) -> Check:
    """A replicated layer that is summed over ranks shows in no logits: a norm removes the factor."""
    wrong = [
        f"{graph.name}: {counts} on rank {rank}, planned {(graph.collectives.all_reduce, graph.collectives.all_gather)}"
        for rank, one in enumerate(observed)
        for graph in plan.graphs
        for counts in one.collectives.get(graph.name, ())
        if counts != (graph.collectives.all_reduce, graph.collectives.all_gather)
    ]
    made = plan.graphs[-1].collectives
    detail = (
        "; ".join(wrong[:3]) if wrong else f"{made.all_reduce} all-reduces and {made.all_gather} all-gathers a call"
    )
    return Check("collectives", not wrong, None, None, detail)


def weights_loaded(observed: Sequence[Observed]) -> Check:
    """A weight that a loader passed over keeps the value it was made with; the last layer's scalar shows in no logits."""
    return _nothing_in(
        "weights", [one.not_of_file for one in observed], "not what the rank file has", "as in the rank files"
    )


def constants_as_planned(observed: Sequence[Observed], on_host: Sequence[str]) -> Check:
    """Of every rank, and of the host."""
    if on_host:
        return Check("constants", False, None, None, "; ".join(on_host))
    wrong = [one.wrong_constants for one in observed]
    return _nothing_in("constants", wrong, "", "scales, norms, frequencies and the router are the plan's")


def _nothing_in(name: str, by_rank: Sequence[Sequence[str]], what: str, otherwise: str) -> Check:
    wrong = [(rank, found) for rank, one in enumerate(by_rank) for found in one]
    shown = "; ".join(f"{found} on rank {rank}" for rank, found in wrong[:3])
    detail = f"{what}: {shown}{' …' if len(wrong) > 3 else ''}".removeprefix(": ") if wrong else otherwise
    return Check(name, not wrong, None, None, detail)
