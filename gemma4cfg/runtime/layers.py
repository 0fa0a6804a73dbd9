"""The modules that stand in for the reference's where a rank holds a part. None of them knows its rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sharding.collectives.protocol import Collectives


class ReducedLinear(nn.Module):
    """A linear layer whose input features are cut over ranks: ``[…, local_in]`` to ``[…, out]``, summed over the ranks."""

    def __init__(self, weight: nn.Parameter, collectives: Collectives) -> None:
        super().__init__()
        self.weight = weight
        self._collectives = collectives

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self._collectives.all_reduce(functional.linear(hidden_states, self.weight))


class GatheredHead(nn.Module):
    """The head cut over its vocabulary: ``[batch, hidden]`` to ``[batch, vocab_size]``, the last ranks' padding dropped."""

    def __init__(self, weight: nn.Parameter, vocab_size: int, collectives: Collectives) -> None:
        super().__init__()
        self.weight = weight
        self._vocab_size = vocab_size
        self._collectives = collectives

    def forward(self, hidden_states: Tensor) -> Tensor:
        logits = functional.linear(hidden_states, self.weight)
        return self._collectives.all_gather(logits, dim=-1)[..., : self._vocab_size]


class StaticExperts(nn.Module):
    """All local experts on every token, weighted by a mask over the router's choice: nothing depends on data but values.

    ``gate_up_proj`` [local_experts, 2 x local_intermediate, hidden], ``down_proj`` [local_experts, hidden,
    local_intermediate]. ``expert_ids`` [local_experts] says which of the router's experts they are; it is loaded like a
    weight, so that ranks differ in data alone. Null: they are all of them, in order.
    """

    def __init__(
        self,
        gate_up_proj: nn.Parameter,
        down_proj: nn.Parameter,
        expert_ids: nn.Parameter | None,
        activation: Callable[[Tensor], Tensor],
        collectives: Collectives | None,
    ) -> None:
        super().__init__()
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self.expert_ids = expert_ids
        self._activation = activation
        self._collectives = collectives

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """``hidden_states`` [tokens, hidden], ``top_k_index`` and ``top_k_weights`` [tokens, top_k]."""
        every = torch.arange(self.gate_up_proj.shape[0], device=hidden_states.device)
        ids = every if self.expert_ids is None else self.expert_ids
        chosen = torch.eq(top_k_index.unsqueeze(-1), ids).to(top_k_weights.dtype)
        weights = (top_k_weights.unsqueeze(-1) * chosen).sum(1)  # [tokens, local_experts]
        gate, up = torch.einsum("th,eih->tei", hidden_states, self.gate_up_proj).chunk(2, dim=-1)
        weighted = (self._activation(gate) * up * weights.unsqueeze(-1)).to(hidden_states.dtype)
        output = torch.einsum("tei,ehi->th", weighted, self.down_proj)
        return output if self._collectives is None else self._collectives.all_reduce(output)


def parameter(shape: Sequence[int], dtype: torch.dtype) -> nn.Parameter:
    """One without memory or gradient, to be loaded."""
    return nn.Parameter(torch.empty(tuple(shape), dtype=dtype, device="meta"), requires_grad=False)
