"""What follows the logits on the host: the softcap where the graph left it out, and the choice of a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.plan.records import Plan


def softcap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap), every step in the dtype of the logits."""
    return torch.tanh(logits / cap) * cap


def samples_on_device(plan: Plan) -> bool:
    """Whether the graphs give token ids instead of logits."""
    return all(part.what != "sampling" for part in plan.host)


def host_softcap(plan: Plan) -> float | None:
    """What the host caps logits with; null where the graph does, or nothing."""
    return plan.numerics.final_logit_softcap if any(part.what == "softcap" for part in plan.host) else None


def device_softcap(plan: Plan) -> float | None:
    """What the graphs cap logits with; null where the host does, or nothing."""
    return plan.numerics.final_logit_softcap if host_softcap(plan) is None else None


def finish_logits(plan: Plan, output: Tensor) -> Tensor:
    """A graph's output, [streams, vocabulary] or token ids [streams], with the softcap if that is the host's to do. Ids
    stay as they are: the softcap is monotonic."""
    cap = host_softcap(plan)
    return output if cap is None or samples_on_device(plan) else softcap(output, cap)


def keep_likely(scores: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Scores [vocabulary] with -inf for what top-k, then top-p (the fewest tokens that together have that probability),
    drop. Scores equal to the k-th all stay."""
    if top_k is not None:
        least = torch.topk(scores, min(top_k, scores.shape[-1])).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None:
        ordered, order = torch.sort(scores, descending=True, stable=True)
        probabilities = torch.softmax(ordered.double(), dim=-1)
        likelier = probabilities.cumsum(-1) - probabilities
        # The first has nothing likelier: it stays whatever the rounding.
        dropped = order[1:][likelier[1:] >= top_p]
        scores = scores.index_fill(-1, dropped, -torch.inf)
    return scores


@dataclass(slots=True)
class Sampler:
    """Greedy at temperature 0, else a draw from softmax(logits / temperature) after top-k and top-p.

    A draw is decided by ``seed``, the stream and how often that stream has drawn, never by the rest of the batch.
    Raises ConfigError for a value out of range, or one that greedy choice would not read.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    _drawn: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"generate.temperature={self.temperature}: 0 (greedy) or above; e.g. generate.temperature=1.0"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(
                f"generate.top_k={self.top_k}: 1 or above, or null for every token; e.g. generate.top_k=64"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(
                f"generate.top_p={self.top_p}: above 0 and at most 1, or null for every token; e.g. generate.top_p=0.95"
            )
        if self.seed < 0:
            raise ConfigError(f"generate.seed={self.seed}: 0 or above; e.g. generate.seed=0")
        for key, unset in (("top_k", "null"), ("top_p", "null"), ("seed", 0)):
            if self.greedy and getattr(self, key):
                raise ConfigError(
                    f"generate.{key}={getattr(self, key)} is not read with generate.temperature=0, which is greedy; "
                    f"set generate.temperature=1.0, or generate.{key}={unset}"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def choose(self, logits: Tensor, streams: Sequence[int] | None = None) -> Tensor:
        """Token ids [batch] from logits [batch, vocabulary]. ``streams`` says whose each row is (default: row i stream i).

        Raises UserError for logits that are no numbers.
        """
        streams = range(len(logits)) if streams is None else streams
        for stream, row in zip(streams, logits, strict=True):
            if torch.isnan(row).any():
                raise UserError(
                    f"stream {stream}: its logits hold NaN; task=verify tells a wrong plan from a wrong run"
                )
        if self.greedy:
            return logits.argmax(-1)
        # A row at a time: the same arithmetic, whatever the batch.
        return torch.tensor([self._draw(row, stream) for stream, row in zip(streams, logits, strict=True)])

    def _draw(self, logits: Tensor, stream: int) -> int:
        # From the likeliest down: however small the temperature, nothing overflows but what is never drawn.
        below = logits.double() - logits.double().max()
        scores = keep_likely(below / self.temperature, self.top_k, self.top_p)
        kept = torch.nonzero(scores > -torch.inf).squeeze(-1)
        cumulative = torch.softmax(scores[kept], dim=-1).cumsum(-1)
        drawn = self._drawn.get(stream, 0)
        self._drawn[stream] = drawn + 1
        point = float(np.random.default_rng((self.seed, stream, drawn)).random()) * float(cumulative[-1])
        index = int(torch.searchsorted(cumulative, torch.tensor(point, dtype=torch.float64), right=True))
        return int(kept[min(index, len(kept) - 1)])
