"""What the host does instead of the device, and why."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4cfg.architecture.inventory import EMBEDDING, PLE_PROJECTION, PLE_PROJECTION_NORM, PLE_TABLE
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import OffloadChoice
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, HostPart, TurnedDown
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.tensors import PlacedTensor, device_bytes, stored_bytes

ALL_ON_DEVICE = OffloadChoice(*("device",) * 5)
"""A stack that serves by itself leaves nothing to a host program of ours."""

_TABLES = {
    "token_embedding": (EMBEDDING,),
    "per_layer_embedding": (PLE_TABLE,),
    "per_layer_projection": (PLE_PROJECTION, PLE_PROJECTION_NORM),
}


def check_offload(offload: OffloadChoice, architecture: Architecture) -> None:
    """Raises ConfigError for a table on the device without the ids that index it, and for a projection on the host without
    what it projects and what it is added to."""
    if not architecture.ple:
        return
    beside = [key for key in ("token_embedding", "per_layer_embedding") if getattr(offload, key) == "device"]
    if offload.per_layer_projection == "host" and beside:
        found, wanted = (" and ".join(f"offload.{key}={home}" for key in beside) for home in ("device", "host"))
        raise ConfigError(
            f"offload.per_layer_projection=host with {found}: the host projects token embeddings and adds them to the "
            f"table's rows; set {wanted} too, or offload.per_layer_projection=device"
        )
    if offload.per_layer_embedding == "device" and offload.token_embedding == "host":
        raise ConfigError(
            "offload.per_layer_embedding=device with offload.token_embedding=host: the table is indexed by token ids, and "
            "the graph would only see embeddings; set offload.token_embedding=device too, or per_layer_embedding=host"
        )


def host_parts(
    offload: OffloadChoice,
    architecture: Architecture,
    placed: Mapping[str, PlacedTensor],
    dtypes: Mapping[str, str],
    failure_note: str,
) -> tuple[HostPart, ...]:
    """The host's tables (bytes as stored) and its two steps after the logits."""
    parts = [
        HostPart(what, name, stored_bytes(placed[name], dtypes[name]), _reason(what, failure_note).value)  # type: ignore[arg-type]
        for what, names in _TABLES.items()
        for name in names
        if name in placed and placed[name].home == "host"
    ]
    if architecture.final_logit_softcap is not None and offload.softcap == "host":
        parts.append(HostPart("softcap", None, 0, _reason("softcap", failure_note).value))
    if offload.sampling == "host":
        parts.append(HostPart("sampling", None, 0, _reason("sampling", failure_note).value))
    return tuple(parts)


def offload_decisions(
    division: Division, architecture: Architecture, dtypes: Mapping[str, str], failure_note: str
) -> tuple[Decision, ...]:
    """One decision for each thing that could be on either side, with the bytes it moves."""
    offload, placed, dtype = division.offload, division.placed, division.dtype
    decisions = []
    for what, names in _TABLES.items():
        names = tuple(name for name in names if name in placed)
        if names:
            stored = sum(stored_bytes(placed[name], dtypes[name]) for name in names)
            held = sum(device_bytes(placed[name], dtype) for name in names)
            crossing = _bytes_per_token(what, architecture, dtype)
            detail = f"{stored:,} bytes as stored; on the host {crossing:,} bytes a token cross instead"
            detail += f"; {held:,} bytes on every rank" if held else ""
            decisions.append(_decision(what, getattr(offload, what), detail, _reason(what, failure_note)))
    if architecture.final_logit_softcap is not None:
        note = failure_note or f"{architecture.final_logit_softcap} * tanh(x / {architecture.final_logit_softcap})"
        decisions.append(_decision("softcap", offload.softcap, note, _reason("softcap", failure_note)))
    detail = "greedy, temperature, top-k and top-p on the host" if offload.sampling == "host" else "greedy only"
    decisions.append(_decision("sampling", offload.sampling, detail, Reason.DEFAULT))
    return tuple(decisions)


def _decision(what: str, home: str, detail: str, reason: Reason) -> Decision:
    other = "device" if home == "host" else "host"
    if home == "device":
        reason = Reason.DEFAULT if what == "per_layer_projection" else Reason.REQUESTED
    turned_down = Reason.DEVICE_WORK if home == "host" else Reason.NOT_REQUESTED
    return Decision(f"offload.{what}", home, (TurnedDown(other, turned_down, ""),), reason, detail)


def _reason(what: str, failure_note: str) -> Reason:
    if what == "softcap":
        return Reason.PUBLISHED_FAILURE if failure_note else Reason.MONOTONIC
    if what == "sampling":
        return Reason.DEFAULT
    return Reason.REQUESTED if what == "per_layer_projection" else Reason.GATHER_TABLE


def crossing_bytes(architecture: Architecture, dtype: str) -> int:
    """Bytes a token that go from the host's tables to the device."""
    return sum(_bytes_per_token(what, architecture, dtype) for what in ("token_embedding", "per_layer_embedding"))


def _bytes_per_token(what: str, architecture: Architecture, dtype: str) -> int:
    if what == "token_embedding":
        return architecture.hidden_size * ITEM_BYTES[dtype]
    return architecture.layers * architecture.ple.width * ITEM_BYTES[dtype] if architecture.ple else 0
