"""A plan's graphs driven from the host: every stream's length, the inputs of each call, and generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan, Port
from gemma4cfg.runtime.host.sampling import Sampler, finish_logits, samples_on_device
from gemma4cfg.runtime.host.schedule import check_prompt, decode_step, graph_rows, prompt_steps
from gemma4cfg.runtime.host.tables import HostTables


class Runner(Protocol):
    """Whatever holds the weights and the KV state and runs a plan's graphs: CPU ranks, or a compiled artifact."""

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """One call of the graph of that name.

        - ``inputs`` are the plan's ports of the graph: names, order, shapes and dtypes.
        - The result is its one output: logits [batch, vocabulary] of each stream's last valid row, or token ids [batch].
        - A stream whose ``valid_length`` is 0 leaves its state as it was; its row of the output means nothing.
        """


class Session:
    """Streams 0 to batch - 1 of one runner. A result is logits [vocabulary], softcapped, or a token id where the device
    samples.

    Raises ConfigError for a plan whose stack makes its own graphs.
    """

    def __init__(self, plan: Plan, tables: HostTables, runner: Runner) -> None:
        check_graphs(plan)
        self.plan = plan
        self.tables = tables
        self._runner = runner
        self._graphs = {graph.name: graph for graph in plan.graphs}
        self._held = [0] * plan.shapes.batch

    @property
    def held(self) -> tuple[int, ...]:
        """Tokens that each stream's KV holds, [batch]."""
        return tuple(self._held)

    def reset(self, stream: int) -> None:
        """The stream starts again at position 0. Its old KV needs no clearing: no position of it is visible any more."""
        self._held[stream] = 0

    def prefill(self, prompts: Mapping[int, Sequence[int]], new_tokens: int = 0) -> dict[int, Tensor | int]:
        """Stream to its result after the prompt (token ids), which continues what the stream holds. ``new_tokens`` must
        find room after it.

        Raises ConfigError as ``prompt_steps``, UserError for an id outside the vocabulary; then nothing has run.
        """
        steps = prompt_steps(self.plan, self._held, {stream: len(ids) for stream, ids in prompts.items()}, new_tokens)
        for ids in prompts.values():
            self.tables.check(torch.tensor(ids))
        results: dict[int, Tensor | int] = {}
        fed = dict.fromkeys(prompts, 0)
        for step in steps:
            chunks = {
                stream: prompts[stream][fed[stream] : fed[stream] + rows]
                for stream, rows in enumerate(step.rows)
                if rows
            }
            # A stream's last chunk overwrites the results of its earlier ones.
            results |= self._call(step.graph, chunks)
            for stream, ids in chunks.items():
                fed[stream] += len(ids)
        return {stream: results[stream] for stream in prompts}

    def decode(self, tokens: Mapping[int, int]) -> dict[int, Tensor | int]:
        """Stream to its result after one more token. Raises ConfigError as ``decode_step``, UserError as ``prefill``."""
        step = decode_step(self.plan, self._held, tokens)
        return self._call(step.graph, {stream: (token,) for stream, token in tokens.items()})

    def _call(self, name: str, tokens: Mapping[int, Sequence[int]]) -> dict[int, Tensor | int]:
        graph = self._graphs[name]
        rows = graph_rows(graph)
        ids = torch.zeros(self.plan.shapes.batch, rows, dtype=torch.int64)
        valid = torch.zeros(self.plan.shapes.batch, dtype=torch.int32)
        for stream, chunk in tokens.items():
            ids[stream, : len(chunk)] = torch.tensor(chunk)
            valid[stream] = len(chunk)
        starts = torch.tensor(self._held, dtype=torch.int32)
        positions = starts[:, None] + torch.arange(rows, dtype=torch.int32)
        inputs = {**self.tables.inputs(ids), "position_ids": positions, "valid_length": valid}
        _check_ports(name, graph.inputs, inputs)
        output = self._runner.run(name, inputs)
        _check_ports(name, graph.outputs, {graph.outputs[0].name: output})
        for stream, chunk in tokens.items():
            self._held[stream] += len(chunk)
        # Indexing copies: the runner may use its buffer again.
        finished = finish_logits(self.plan, output[list(tokens)])
        if samples_on_device(self.plan):
            return dict(zip(tokens, finished.tolist(), strict=True))
        return dict(zip(tokens, finished, strict=True))


def check_graphs(plan: Plan) -> None:
    """Raises ConfigError for a plan whose stack makes its own graphs."""
    if not plan.graphs:
        raise ConfigError(
            f"recipe={plan.recipe} makes its own graphs: there is none here to run; e.g. recipe=auto with target=inf2.8xlarge"
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """``token_ids`` without the stop id that ended them; ``length`` is the limit that was asked for."""

    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"]


OnToken = Callable[[int, int], None]
"""Called with the prompt's index and each new token, as soon as it is known; never with a stop id."""


def check_generation(plan: Plan, lengths: Sequence[int], sampler: Sampler, max_new_tokens: int) -> None:
    """Whether prompts of these ``lengths`` can be answered. Needs nothing but the plan.

    Raises ConfigError for a plan without graphs, a prompt that does not fit with its new tokens, a limit below 1, and
    sampling where the graph is greedy.
    """
    check_graphs(plan)
    if max_new_tokens < 1:
        raise ConfigError(f"generate.max_new_tokens={max_new_tokens}: 1 or above; e.g. generate.max_new_tokens=64")
    if samples_on_device(plan) and not sampler.greedy:
        raise ConfigError(
            f"generate.temperature={sampler.temperature} with offload.sampling=device: the graph is greedy; "
            "set generate.temperature=0, or offload.sampling=host"
        )
    for index, tokens in enumerate(lengths):
        check_prompt(plan, 0, tokens, max_new_tokens, f"prompt {index}")


def generate(
    session: Session,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    stops: Collection[int],
    max_new_tokens: int,
    on_token: OnToken | None = None,
) -> list[Generation]:
    """What follows each prompt (token ids), in order; as many at a time as the plan's batch, on streams that start anew.

    Raises as ``check_generation``, and UserError for ids outside the vocabulary. Every prompt is checked before the first is
    run.
    """
    plan = session.plan
    check_generation(plan, [len(prompt) for prompt in prompts], sampler, max_new_tokens)
    for prompt in prompts:
        session.tables.check(torch.tensor(prompt))
    texts: list[list[int]] = [[] for _ in prompts]
    reasons: dict[int, Literal["stop", "length"]] = {}
    batch = plan.shapes.batch
    for first in range(0, len(prompts), batch):
        group = range(first, min(first + batch, len(prompts)))
        for stream in range(len(group)):
            session.reset(stream)
        results = session.prefill({index - first: prompts[index] for index in group}, max_new_tokens)
        while results:
            running = {}
            for stream, token in _choices(results, sampler, [first + stream for stream in results]):
                index = first + stream
                if token in stops:
                    reasons[index] = "stop"
                    continue
                texts[index].append(token)
                if on_token is not None:
                    on_token(index, token)
                if len(texts[index]) == max_new_tokens:
                    reasons[index] = "length"
                else:
                    running[stream] = token
            results = session.decode(running) if running else {}
    return [Generation(tuple(text), reasons[index]) for index, text in enumerate(texts)]


def _choices(
    results: Mapping[int, Tensor | int], sampler: Sampler, indices: Sequence[int]
) -> Iterable[tuple[int, int]]:
    """Stream and token. Draws go by the prompt's index, so that they do not depend on the batch."""
    logits = [result for result in results.values() if isinstance(result, Tensor)]
    if logits:
        return zip(results, sampler.choose(torch.stack(logits), indices).tolist(), strict=True)
    return [(stream, int(token)) for stream, token in results.items()]


def _check_ports(graph: str, ports: Sequence[Port], tensors: Mapping[str, Tensor]) -> None:
    """What goes over a graph's edge is what the plan says; a compiled graph would read anything else as garbage."""
    expected = [(port.name, port.shape, port.dtype) for port in ports]
    found = [(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()]
    assert found == expected, f"graph {graph}: {found} where the plan says {expected}"
