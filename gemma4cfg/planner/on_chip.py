"""On-chip working sets, per kind of layer and graph: bytes of one partition of SBUF, or of a GPU block's shared memory.

This is arithmetic on the planned shapes. What is published to have failed decides (``planner.failures``); where the two
disagree, a finding says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gemma4cfg.architecture.inventory import LM_HEAD
from gemma4cfg.config.speeds import AttentionKernel
from gemma4cfg.findings import Finding
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import WorkingSet
from gemma4cfg.planner.device_memory import DeviceInputs
from gemma4cfg.planner.implementation import fused_row_bytes
from gemma4cfg.planner.kinds import LayerKind

PSUM_BANK_BYTES = 2048
"""512 fp32 of a partition: the most columns that one matrix product leaves there."""

TILE_ROWS = 512
"""Rows of a matrix product that fill one bank."""

PUBLISHED = {
    "fused attention": ("fused_attention_window_1024", "fused attention", "attention.implementation=sdpa"),
    "softcap, every row": ("softcap_prefill_all_rows", "softcap, last row", "offload.softcap=device"),
}
"""By working set: the published failure that decides beside the arithmetic, what our own graphs would have of it (of the cap
they take the last rows only), and what overrides the failure."""


def working_sets(given: DeviceInputs, failing: Mapping[str, Collection[int]]) -> tuple[WorkingSet, ...]:
    """Of every graph on a Neuron core, or of the attention kernel on a GPU. ``failing``: the layers of each published failure
    that holds."""
    chip = given.target.chip
    if chip.shared_memory_bytes is not None:
        return tuple(_shared_memory(given, chip.shared_memory_bytes, failing))
    assert chip.sbuf is not None
    return tuple(_sbuf(given, chip.sbuf.partitions, chip.sbuf.bytes_per_partition, failing))


def _sbuf(
    given: DeviceInputs, partitions: int, limit: int, failing: Mapping[str, Collection[int]]
) -> Iterator[WorkingSet]:
    shapes, item = given.shapes, ITEM_BYTES[given.division.dtype]
    names = {} if given.recipe.prefill == "host" else {f"prefill_{n}": n for n in shapes.prefill_buckets}
    for graph, length in {**names, "decode": 1}.items():

        def row(layers: str, what: str, size: int, banks: int, layer: int = 0, graph: str = graph) -> WorkingSet:
            name = PUBLISHED[what][0] if what in PUBLISHED else ""
            published = name if layer in failing.get(name, ()) else None
            return WorkingSet(graph, layers, what, size, limit, size <= limit, banks, published)

        rows = min(shapes.batch * length, TILE_ROWS)
        for kind in given.kinds:
            layer, where = kind.layer, f"{kind.layer.type}, mlp {kind.layer.mlp.local_intermediate}"
            keys, banks = keys_of(kind, shapes.kv_length, length), 1 + -(-layer.head_dim * 4 // PSUM_BANK_BYTES)
            yield row(where, "eager attention", keys * 4, banks)
            yield row(where, "fused attention", fused_row_bytes(keys, layer.head_dim, item), banks, layer.index)
            tile = mlp_tile(given, layer.mlp.local_intermediate, rows, partitions, item)
            yield row(where, "mlp tile", tile, 2 * -(-rows * 4 // PSUM_BANK_BYTES))
        vocabulary = given.architecture.vocab_size
        yield row("head", "logits, a row a partition", _head_rows(given) * item, 1)
        if given.architecture.final_logit_softcap is not None:
            yield row("head", "softcap, last row", -(-shapes.batch * vocabulary * 4 // partitions), 0)
            every = -(-shapes.batch * length * vocabulary * 4 // partitions)
            yield row("head", "softcap, every row", every, 0)


def keys_of(kind: LayerKind, kv_length: int, length: int) -> int:
    """Keys that a query is scored against: the slot's rows, and in a ring the chunk's own beside them. Eager attention needs
    their scores alone on the chip, for every step goes through memory."""
    rows = kind.kv_rows(kv_length)
    return rows if kind.slot.layout == "linear" else rows + length


def mlp_tile(given: DeviceInputs, local_intermediate: int, rows: int, partitions: int, item: int) -> int:
    """The rows of a tile with the hidden size over the partitions, gate and up likewise, and two strips of 128 columns of a
    weight, one in use and one on its way."""
    hidden, intermediate = (-(-size // partitions) for size in (given.architecture.hidden_size, local_intermediate))
    return (hidden * rows + 2 * intermediate * rows + 2 * hidden * 128) * item


def _head_rows(given: DeviceInputs) -> int:
    """Rows of the head on a rank."""
    head = given.division.placed[LM_HEAD]
    return head.local_elements // given.architecture.hidden_size or given.architecture.vocab_size


def _shared_memory(given: DeviceInputs, limit: int, failing: Mapping[str, Collection[int]]) -> Iterator[WorkingSet]:
    serving, item = given.sdk.stack.estimates.serving, ITEM_BYTES[given.division.dtype]
    assert serving is not None
    kernel = serving.attention
    for kind in {kind.layer.head_dim: kind for kind in given.kinds}.values():
        head_dim = kind.layer.head_dim
        fits = tile_that_fits(kernel, head_dim, item)
        for tile in dict.fromkeys((kernel.tile, fits)):
            size, what = kernel.tiles_held * tile * head_dim * item, f"attention kernel, head {head_dim}, tile {tile}"
            name = "shared_memory_head_512"
            published = name if tile == kernel.tile and kind.layer.index in failing.get(name, ()) else None
            yield WorkingSet("serve", kind.layer.type, what, size, limit, size <= limit, None, published)


def tile_that_fits(kernel: AttentionKernel, head_dim: int, item: int) -> int:
    """The kernel's own tile, halved until it is within the patch's budget or no smaller one exists."""
    tile = kernel.tile
    while tile > kernel.smallest_tile and kernel.tiles_held * tile * head_dim * item > kernel.budget_bytes:
        tile //= 2
    return tile


def on_chip_findings(sets: Sequence[WorkingSet], implementation: str, softcap_home: str) -> tuple[Finding, ...]:
    """Where arithmetic and what was published part: a failure that decides on a working set that would fit; and, of what the
    plan's own graphs compute, whatever does not fit."""
    own = {"mlp tile", "fused attention" if implementation == "sdpa" else "eager attention"}
    if softcap_home == "device":
        own.add("softcap, last row")
    return (*_disagreements(sets, own), *_overflows(sets, own))


def _disagreements(sets: Sequence[WorkingSet], own: Collection[str]) -> Iterator[Finding]:
    for what, (name, in_our_graphs, override) in PUBLISHED.items():
        rows = [row for row in sets if row.what == what and row.published == name]
        if not rows or in_our_graphs in own:  # not published here, or overridden already
            continue
        ours = rows if in_our_graphs == what else [row for row in sets if row.what == in_our_graphs]
        most, limit = max(row.bytes for row in ours), rows[0].limit
        if most <= limit:
            message = (
                f"{what}: {max(row.bytes for row in rows):,} of {limit:,} bytes a partition by arithmetic, {most:,} in this "
                f"plan's graphs, so it should fit; the published failure decides"
            )
            yield Finding("info", f"{name}_disagrees", None, message, f"{override} to try")


def _overflows(sets: Sequence[WorkingSet], own: Collection[str]) -> Iterator[Finding]:
    widest: dict[str, WorkingSet] = {}
    for row in sets:
        if row.what in own and not row.fits and (row.what not in widest or row.bytes > widest[row.what].bytes):
            widest[row.what] = row
    if widest:
        shown = "; ".join(f"{what}: {row.bytes:,} of {row.limit:,} in {row.graph}" for what, row in widest.items())
        message = f"bytes a partition by arithmetic, {shown}; the compiler may tile otherwise"
        fix = "; ".join(_SMALLER[what] for what in widest)
        yield Finding("info", "working_set_overflows", None, message, fix)


_SMALLER = {
    "mlp tile": "a higher tp, or smaller prefill buckets",
    "fused attention": "attention.implementation=eager",
    "eager attention": "a smaller shapes.kv_length",
    "softcap, last row": "offload.softcap=host, or a smaller shapes.batch",
}
