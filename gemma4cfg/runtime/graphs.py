"""The modules that are traced: one forward pass of a plan's graph, named tensors in, static shapes, tensors out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.cache import SlotCache
from gemma4cfg.runtime.host.sampling import device_softcap, samples_on_device
from gemma4cfg.runtime.kv import BufferState, KvState, TensorState, empty
from gemma4cfg.runtime.local_model import local_model
from gemma4cfg.runtime.reference_model import cache_keyword
from gemma4cfg.runtime.steps import Step, sees, step
from sharding.collectives.protocol import Collectives


class RankModule(nn.Module):
    """Any rank of a plan. Parameters' names are the rank files' keys (``model.…``, ``lm_head.weight``)."""

    cache_class: type[SlotCache] = SlotCache

    def __init__(self, plan: Plan, collectives: Collectives) -> None:
        super().__init__()
        self.model, self.lm_head = local_model(plan, collectives)
        self._plan = plan
        self._cache_keyword = cache_keyword(self.model)
        self.softcap = device_softcap(plan)
        self._samples = samples_on_device(plan)

    def run(self, inputs: Mapping[str, Tensor], state: KvState) -> Tensor:
        """``inputs`` by the names of the graph's ports. Returns the graph's output: ``logits``, or token ids [batch] where the
        device samples."""
        return self.choose(self.logits(inputs, state))

    def logits(self, inputs: Mapping[str, Tensor], state: KvState) -> Tensor:
        """Of each stream's last valid row, [batch, vocab_size]; softcapped where the plan leaves that to the device."""
        position_ids, valid_length = inputs["position_ids"], inputs["valid_length"]
        embeds, per_layer = self._embedded(inputs)
        steps = self._steps(position_ids, valid_length, embeds.dtype)
        hidden = self.model(
            inputs_embeds=embeds,
            **({} if per_layer is None else {"per_layer_inputs": per_layer}),
            position_ids=position_ids,
            attention_mask={kind: one.mask for kind, one in steps.items()},
            use_cache=False,
            **{self._cache_keyword: self.cache_class(self._plan.layers, steps, state)},
        ).last_hidden_state
        return self._head(_last_valid(hidden, valid_length))

    def choose(self, logits: Tensor) -> Tensor:
        """What the graph returns of its logits."""
        return logits.argmax(dim=-1).to(torch.int32) if self._samples else logits

    def _embedded(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        text: Any = self.model
        per_layer = inputs.get("per_layer_inputs")
        if "input_ids" not in inputs:
            return inputs["inputs_embeds"], per_layer
        if per_layer is None and self._plan.numerics.ple:
            per_layer = text.get_per_layer_inputs(inputs["input_ids"], None)
        return text.embed_tokens(inputs["input_ids"]), per_layer

    def _steps(self, position_ids: Tensor, valid_length: Tensor, dtype: torch.dtype) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for layer in self._plan.layers:
            if layer.type not in steps and layer.kv.shape is not None and layer.kv.layout is not None:
                seen = sees(layer.kv.layout, position_ids.shape[1], self._plan.shapes.prompt_chunking)
                steps[layer.type] = step(position_ids, valid_length, layer.kv.shape[2], layer.window, seen, dtype)
        return steps

    def _head(self, hidden: Tensor) -> Tensor:
        text: Any = self.model
        logits = functional.linear(hidden, text.embed_tokens.weight) if self.lm_head is None else self.lm_head(hidden)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class BufferGraphs(RankModule):
    """All graphs of a plan, their KV in buffers that every call assigns anew.

    One signature serves them all: inputs by name, absent ones None, no ``*args`` (ModelBuilder's second version).
    """

    def __init__(self, plan: Plan, collectives: Collectives) -> None:
        super().__init__(plan, collectives)
        self._state = BufferState(self, plan.graphs[-1].state)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        per_layer_inputs: Tensor | None = None,
        position_ids: Tensor | None = None,
        valid_length: Tensor | None = None,
    ) -> Tensor:
        given = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "per_layer_inputs": per_layer_inputs,
            "position_ids": position_ids,
            "valid_length": valid_length,
        }
        return self.run({name: tensor for name, tensor in given.items() if tensor is not None}, self._state)


class ParameterGraph(RankModule):
    """One graph, its KV in Parameters ``states.N``; inputs in the ports' order. Returns (output, *new KV) to be aliased."""

    def __init__(self, plan: Plan, graph: Graph, collectives: Collectives) -> None:
        super().__init__(plan, collectives)
        self._names = tuple(port.name for port in graph.inputs)
        self.states = nn.ParameterList(nn.Parameter(empty(port), requires_grad=False) for port in graph.state)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        state = TensorState(list(self.states))
        output = self.run(dict(zip(self._names, inputs, strict=True)), state)
        return output, *state.outputs()


class PortGraph(RankModule):
    """One graph whose KV are inputs after its own, and outputs after its own."""

    def __init__(self, plan: Plan, graph: Graph, collectives: Collectives) -> None:
        super().__init__(plan, collectives)
        self._names = tuple(port.name for port in graph.inputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, state = tensors[: len(self._names)], TensorState(tensors[len(self._names) :])
        output = self.run(dict(zip(self._names, inputs, strict=True)), state)
        return output, *state.outputs()


def _last_valid(hidden: Tensor, valid_length: Tensor) -> Tensor:
    """[batch, rows, hidden] to [batch, hidden]: the last valid row of each stream (of a stream that sits out, its first)."""
    if hidden.shape[1] == 1:
        return hidden.squeeze(1)
    last = (valid_length - 1).clamp(min=0).unsqueeze(1)
    chosen = last == torch.arange(hidden.shape[1], device=hidden.device)
    return torch.where(chosen.unsqueeze(2), hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device)).sum(1)
