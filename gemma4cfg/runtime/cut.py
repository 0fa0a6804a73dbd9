"""A checkpoint cut into the rank files that a plan asks for. Needs no torch."""

from __future__ import annotations

from gemma4cfg.plan.records import Plan
from sharding.records import ProgressCallback, ReshardResult
from sharding.run import reshard


def write_rank_files(
    plan: Plan,
    checkpoint: str,
    destination: str,
    *,
    mirror: str | None = None,
    digests: bool = False,
    progress: ProgressCallback | None = None,
) -> ReshardResult:
    """``checkpoint`` to ``destination``, each a directory or fsspec URL; what is there already is checked and kept.

    Raises ShardingError where the checkpoint is unsound or ``destination`` is another plan's, OSError.
    """
    plain = plan.to_json()
    return reshard(
        {"tensors": plain["tensors"], "rank_tensors": plain["rank_tensors"]},
        plan.tp,
        checkpoint,
        destination,
        plan.dtype,
        names=plan.provenance["checkpoint_names"],
        placement_id=plan.placement_id,
        mirror=mirror,
        digests=digests,
        progress=progress,
    )
