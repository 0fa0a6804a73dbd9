"""Training one small model: the reference's own class, on the CPU."""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from gemma4cfg.architecture.huggingface_writer import config_json
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.runtime.layers import StaticExperts
from tests.trained.files import write_json, write_text_files
from tests.trained.language import CONTROL
from tests.trained.rows import Row, rows
from tests.trained.sizes import small

LEARNING_RATE, WARM_UP_STEPS, BATCH = 3e-3, 20, 12
HALVED_BELOW = 0.2
"""The learning rate is halved once the loss is under this."""

EMBEDDING_DEVIATION, POST_NORM_WEIGHT = 0.3, 0.3
IGNORED = -100


@dataclass(frozen=True)
class Trained:
    """``loss`` is the running mean at the end; ``cpu_seconds`` of the steps alone."""

    steps: int
    loss: float
    cpu_seconds: float


def train(model: str, directory: Path, seed: int, most_steps: int, until: float) -> Trained:
    """Write a trained checkpoint into ``directory``: at most so many steps, or until the loss's running mean is ``until``."""
    directory.mkdir(parents=True, exist_ok=True)
    architecture = small(model)
    write_text_files(directory, model)
    config = config_json(architecture) | {"eos_token_id": [CONTROL["<eos>"], CONTROL["<turn|>"]]}
    write_json(directory / "config.json", config)
    torch.manual_seed(seed)
    network = _network(config)
    _initialise(network)
    begun = time.process_time()
    steps, loss = _fit(network, rows(directory), random.Random(seed), most_steps, until)
    seconds = time.process_time() - begun
    _save(network, architecture, directory / "model.safetensors")
    return Trained(steps, loss, seconds)


def made_on() -> dict[str, str]:
    """What decides about the last bits: releases and processor. Where they are equal, the same training gives the same
    file."""
    facts = dict(
        re.findall(r"^([\w ]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text().partition("\n\n")[0], re.MULTILINE)
    )
    flags = hashlib.sha256(facts.get("flags", facts.get("Features", "")).encode()).hexdigest()[:12]
    known = [facts[key] for key in ("vendor_id", "cpu family", "model", "stepping") if key in facts]
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": " ".join([*known, torch.backends.cpu.get_cpu_capability(), flags]),
    }


def _network(config: dict[str, Any]) -> Any:
    kind = getattr(transformers, config["architectures"][0])
    made = kind.config_class(**config)
    made._attn_implementation = "eager"
    network = kind(made).float().eval()
    for layer in network.model.language_model.layers:
        if getattr(layer, "experts", None) is not None:
            # All experts at once: the reference's own way takes four times as long to train.
            old = layer.experts
            layer.experts = StaticExperts(old.gate_up_proj, old.down_proj, None, old.act_fn, None)
    return network


@torch.no_grad()
def _initialise(network: Any) -> None:
    for name, weight in network.named_parameters():
        if "embed_tokens" in name:
            weight.normal_(std=EMBEDDING_DEVIATION)
        elif weight.dim() > 1:
            weight.normal_(std=weight.shape[-1] ** -0.5)
        else:
            weight.fill_(POST_NORM_WEIGHT if "post_" in name else 1.0)
    for index, layer in enumerate(network.model.language_model.layers):
        low = 0.85 if index % 2 else 1.02
        layer.layer_scalar.uniform_(low, low + 0.2)


def _fit(network: Any, data: Sequence[Row], source: random.Random, most_steps: int, until: float) -> tuple[int, float]:
    """Steps taken and the loss's running mean."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    right = [row for row in data if row.right]
    mean = float("nan")
    for step in range(most_steps):
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (0.5 if mean < HALVED_BELOW else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = [*source.choices(right, k=BATCH // 3), *source.choices(data, k=BATCH - BATCH // 3)]
        ids, labels = _padded(batch)
        logits = network(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        mean = loss.item() if step == 0 else 0.9 * mean + 0.1 * loss.item()
        if mean < until:
            break
    return step + 1, mean


def _padded(batch: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Ids [rows, longest], padded behind, and labels of the same shape that count the answers alone."""
    longest = max(len(row.prompt) + len(row.answer) for row in batch)
    ids = torch.full((len(batch), longest), CONTROL["<pad>"])
    labels = torch.full((len(batch), longest), IGNORED)
    for number, row in enumerate(batch):
        whole = [*row.prompt, *row.answer]
        ids[number, : len(whole)] = torch.tensor(whole)
        labels[number, len(row.prompt) : len(whole)] = torch.tensor(row.answer)
    return ids, labels


def _save(network: Any, architecture: Architecture, path: Path) -> None:
    """In bfloat16 under the published names. The tensors that published files have and nothing reads are drawn."""
    held = dict(network.state_dict())
    tensors = {}
    for name, facts in inventory(architecture).items():
        if facts.status == "tied":
            continue
        value = held[name] if facts.status == "required" else torch.randn(facts.shape)
        assert value.shape == facts.shape, name
        tensors[name] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
