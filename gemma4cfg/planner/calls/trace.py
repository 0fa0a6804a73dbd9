"""``torch_neuronx.trace``: one core runs the model whole, each graph a program of its own.

What the arguments avoid:

- everything after ``example_inputs`` goes by keyword: positional use is on its way to being an error;
- ``input_output_aliases`` keeps the KV on the device; as graph inputs and outputs it crossed to the host every
  token, which brought a port from 44 tokens/s at 512 positions to 25 at 2048;
- ``inline_weights_to_neff=False``: weights in the NEFF cannot be replaced, and every other graph brings its own.
  Weights apart are on the host until ``move_trace_to_device``, and would move at *every* call without it.
  ``torch.jit.load`` takes no device: left alone it goes round the cores;
- a ``compiler_workdir`` per graph: file names in it are the same for all.

Traces share nothing, weights and KV included, so ``replace_weights`` is called once for each, while the weights are on
the host. After a prompt its KV goes from the prefill graph's state to the decode graph's: ``copy_`` once per port, port
N being the Nth key, ``states.N``, by number (as text ``states.10`` sorts before ``states.2``). The attribute is read
anew each time, since a tensor kept from before may have been swapped for another.
"""

from __future__ import annotations

from gemma4cfg.plan.records import Call, Graph
from gemma4cfg.planner.calls.parts import (
    CallInputs,
    Script,
    Value,
    aliases,
    graph_ref,
    hand_overs,
    rank_files,
    rank_local_module,
    reshard,
)


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    script = Script()
    for graph in inputs.prefill_first:
        traced = script.call(
            "torch_neuronx.trace",
            func=rank_local_module(graph),
            example_inputs=graph_ref(graph, "inputs"),
            input_output_aliases=aliases(graph),
            compiler_workdir=f"compiler_workdir/{graph.name}",
            compiler_args=list(flags),
            inline_weights_to_neff=False,
        )
        script.call("torch.jit.save", m=traced, f=f"{graph.name}.pt")
    reshard(script, inputs)
    loaded: dict[str, Value] = {}
    for graph in inputs.prefill_first:
        loaded[graph.name] = script.call("torch.jit.load", f=f"{graph.name}.pt")
        script.call("torch_neuronx.replace_weights", neuron_model=loaded[graph.name], weights=rank_files(inputs.tp))
        core = 1 if inputs.recipe.placement == "core_each" and graph.kind == "decode" else 0
        script.call("torch_neuronx.move_trace_to_device", trace=loaded[graph.name], device_id=core)
    for source, destination, per in hand_overs(inputs):
        script.call(
            "torch.Tensor.copy_",
            self=_state(loaded[destination.name], destination),
            src=_state(loaded[source.name], source),
            per=per,
        )
    return script.calls


def _state(model: Value, graph: Graph) -> Value:
    return {**model, "attribute": "states._parameters", "ports": graph_ref(graph, "state")}
