"""What is run to prove a plan: a tiny twin of it, or the plan itself over real weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gemma4cfg.architecture.huggingface_writer import config_json
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.verify.twin import TWIN_WINDOW, check_twin, twin_config
from gemma4cfg.verify.weights import write_checkpoint

TWIN_BUCKET, TWIN_WHOLE_BUCKET = 12, 20
"""Rows of a twin's smallest prefill bucket: no multiple of its window of 8; the second holds two windows at once."""


_LONGEST = 10**9


@dataclass(frozen=True, slots=True)
class Subject:
    """``plan`` is run over ``checkpoint``, a Hugging Face directory, or over weights drawn for ``twin`` where that is null.
    ``layers``: of the checkpoint, only the first so many. ``lengths`` of prompts, in tokens."""

    name: str
    plan: Plan
    lengths: tuple[int, ...]
    checkpoint: Path | None = None
    twin: Architecture | None = None
    layers: int | None = None

    def weights(self, seed: int, work: Path) -> Path:
        """The checkpoint; a twin's is written into ``work``."""
        if self.checkpoint is not None:
            return self.checkpoint
        assert self.twin is not None
        directory = work / "checkpoint"
        write_checkpoint(directory, self.twin, seed)
        return directory


def subject_of(config: Config) -> Subject:
    """What proves the plan of ``config``. Raises UserError where there is no plan, or nothing to run it on."""
    choice, plan = config.settings.verify, build_plan(config)
    if config.checkpoint is not None:
        return checkpoint_subject(config, plan, choice.layers, choice.steps)
    if choice.layers is not None:
        raise ConfigError(
            "verify.layers is never read: a tiny twin has all layers; give checkpoint=DIR, or leave it out"
        )
    return twin_subject(config, plan, choice.steps)


def twin_subject(config: Config, plan: Plan, steps: int) -> Subject:
    """A twin of ``plan``. All prompts are rows of one batch.

    Raises ConfigError for a plan that has no graphs, TwinError where the twin is none.
    """
    smallest = TWIN_BUCKET if plan.shapes.prompt_chunking else TWIN_WHOLE_BUCKET
    buckets = tuple(smallest * (number + 1) for number in range(len(plan.shapes.prefill_buckets)))
    lengths = prompt_lengths(TWIN_WINDOW, buckets, _LONGEST if plan.shapes.prompt_chunking else buckets[-1])
    twin = twin_config(config, plan, batch=len(lengths), prefill_buckets=buckets, kv_length=max(lengths) + steps)
    twin_plan = build_plan(twin)
    check_twin(plan, twin_plan)
    return Subject(f"a tiny twin of {plan.model}", twin_plan, lengths, twin=twin.model)


def checkpoint_subject(config: Config, plan: Plan, layers: int | None, steps: int) -> Subject:
    """The plan itself over its checkpoint, or its first ``layers``.

    Raises ConfigError for a checkpoint that is not on this machine, for layers that cannot be cut off, and for a context
    too short for a prompt and ``steps`` tokens.
    """
    assert config.checkpoint is not None
    directory = Path(config.checkpoint.location)
    if not directory.is_dir():
        raise ConfigError(
            f"checkpoint={config.checkpoint.location}: task=verify runs the reference, which needs a local directory; "
            "copy it here first"
        )
    if layers is not None:
        plan = _first_layers(config, plan, layers)
    shapes = plan.shapes
    longest = shapes.kv_length - steps
    if not shapes.prompt_chunking:
        longest = min(longest, shapes.prefill_buckets[-1])
    if longest < 1:
        raise ConfigError(
            f"verify.steps={steps} leaves no room for a prompt in shapes.kv_length={shapes.kv_length}; "
            f"e.g. verify.steps={max(1, shapes.kv_length // 4)}"
        )
    window = next((layer.window for layer in plan.layers if layer.window), 1)
    lengths = prompt_lengths(window, shapes.prefill_buckets, longest)
    return Subject(str(directory), plan, lengths, checkpoint=directory, layers=layers)


def prompt_lengths(window: int, buckets: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """In tokens: where a window or a bucket begins and ends, up to ``longest``, shortest first."""
    edges = {1, window - 1, window, window + 1, 2 * window}
    edges |= {length for bucket in buckets for length in (bucket, bucket + 1)}
    return tuple(sorted(length for length in edges if 1 <= length <= longest))


def _first_layers(config: Config, plan: Plan, layers: int) -> Plan:
    """The plan of the model's first layers; the tensors' stored names stay those of the whole checkpoint."""
    model = config.model
    if model.ple:
        raise ConfigError(
            f"verify.layers={layers}: {model.name} packs every layer's embeddings into one table, so layers cannot be cut "
            "off; leave verify.layers out, or verify a tiny twin with checkpoint=null"
        )
    if layers > model.layers:
        raise ConfigError(f"verify.layers={layers}: {model.name} has {model.layers} layers")
    types = tuple(layer.type for layer in plan.layers[:layers])
    shorter = replace(model, layers=layers, layer_pattern=types, name="custom")
    if types[-1] != "full_attention":
        whole = [layer.index + 1 for layer in plan.layers if layer.type == "full_attention"]
        raise ConfigError(
            f"verify.layers={layers}: transformers makes the last layer a full one, so it has to be; e.g. "
            f"verify.layers={min(whole, key=lambda count: (abs(count - layers), count))}"
        )
    config_json(shorter)
    short = build_plan(replace(config, model=shorter, checkpoint=None, overrides=()))
    names = {name: stored for name, stored in plan.provenance["checkpoint_names"].items() if name in short.tensors}
    return replace(short, provenance={**short.provenance, "checkpoint_names": names})
