"""ModelBuilder, second version (``neuronx_distributed.ModelBuilder``): one rank is compiled, all run it.

What the arguments avoid:

- ``NxDParallelState`` is open while the module is built, traced and compiled: the builder reads the world size when
  it is made, and outside it builds for one rank. ``lnc_size`` is otherwise guessed from the building machine;
- one module for all graphs: their inputs have the same names in the same order, without ``*args``, ``**kwargs`` or
  defaults other than None. ``kwargs`` by name, since a list of ``args`` is refused;
- no alias argument exists: the KV is a *buffer* of the rank's shape that the forward pass assigns anew, out of place,
  to the same name. A Parameter or an in-place write is not taken up. Whatever comes from the checkpoint is a
  Parameter: a buffer that is not assigned anew becomes a constant;
- ``compiler_args`` for every tag, as one string each: the priority graph's own defaults lack ``-O1`` and
  ``--enable-saturate-infinity``, so it would be built with other numerics than the rest. A list is refused;
- ``priority_model_key``: decode's weight layout is taken by the prefill buckets. Null where a logical core is
  several: the program that lays out the weights is always compiled for ``--lnc=1``, and runtime and compiler must
  agree;
- ``compile`` once: a second call on the same builder fails;
- saved before anything is loaded, without weights: compiling takes long, needs no device, and must not be lost to a
  load that fails. What is loaded is the saved program, the one that will serve.

For tracing the module has real tensors, as in the SDK's own examples; on the meta device it is built once more, only
for the names that the rank files must hold. ``set_weights`` goes before ``to_neuron``
(``replace_weights`` would zero the KV); ``NxDModel.load`` gives back the bare ScriptModule where it cannot restore,
with the same methods.
"""

from __future__ import annotations

from gemma4cfg.plan.records import Call
from gemma4cfg.planner.calls.parts import (
    CallInputs,
    Script,
    expected_names,
    graph_ref,
    rank_files,
    ref,
    require_one_state,
    reshard,
)


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    require_one_state(inputs)
    script = Script()
    lnc = inputs.target.cores_per_logical_core
    state = script.call(
        "neuronx_distributed.NxDParallelState",
        world_size=inputs.tp,
        tensor_model_parallel_size=inputs.tp,
        **({"lnc_size": lnc} if lnc > 1 else {}),
    )
    graphs = inputs.prefill_first
    module = {"module": ref("layers"), "graphs": [graph_ref(graph) for graph in graphs], "state": "buffer"}
    builder = script.call(
        "neuronx_distributed.ModelBuilder",
        model=module,
        within=state,
    )
    for graph in graphs:
        script.call(
            "neuronx_distributed.ModelBuilder.trace",
            self=builder,
            kwargs=graph_ref(graph, "inputs"),
            tag=graph.name,
            within=state,
        )
    compiled = script.call(
        "neuronx_distributed.ModelBuilder.compile",
        self=builder,
        priority_model_key=inputs.decode.name if lnc == 1 else None,
        compiler_workdir="compiler_workdir",
        compiler_args={graph.name: " ".join(flags) for graph in graphs},
        within=state,
    )
    script.call("neuronx_distributed.NxDModel.save", self=compiled, path_to_save="model_builder.pt", save_weights=False)
    names = expected_names(script, inputs, module, within=state)
    reshard(script, inputs)
    loaded = script.call("neuronx_distributed.NxDModel.load", path_to_model="model_builder.pt")
    script.call(
        "neuronx_distributed.NxDModel.set_weights", self=loaded, sharded_checkpoint=rank_files(inputs.tp, names)
    )
    script.call("neuronx_distributed.NxDModel.to_neuron", self=loaded)
    return script.calls
