"""ModelBuilder, first version (``neuronx_distributed.trace.model_builder``): one rank is compiled, all run it.

What the arguments avoid:

- one ``BaseModelInstance`` per graph, subclassed so that ``load_module`` builds the module (the parallel state it
  needs exists only then) and ``get`` makes the alias map anew (its keys are the current Parameter objects). The
  module returns a flat tuple;
- ``router`` has to be given and is never read; ``checkpoint_loader`` likewise is never called, as the rank files
  exist and ``initialize_model_weights`` is false, so the saved program carries no weights (with them 108 GB at 31B);
- a ``compiler_workdir`` of its own: ``trace`` deletes it first, and the default is shared by every build on the
  machine;
- ``compiler_args`` is one string: a list breaks the defaults' text search;
- ``priority_model_idx`` on decode: its weight layout is taken by the prefill buckets;
- ``logical_nc_config`` also decides how the program that lays out the weights is compiled;
- ``torch.jit.save``, since the result's own ``save`` is TorchScript's.

A program is found by the exact shapes of its inputs, so no prefill bucket may have one token. ``torch.jit.load``
needs ``neuronx_distributed`` imported (it registers ``neuron.SPMDModel``), and loading initialises nothing:
``initialize`` takes the rank files and zeroes the KV, which all graphs share.
"""

from __future__ import annotations

from gemma4cfg.plan.records import Call
from gemma4cfg.planner.calls.parts import (
    CallInputs,
    Script,
    aliases,
    expected_names,
    graph_ref,
    rank_files,
    rank_local_module,
    require_one_state,
    reshard,
)

_MODULE = "neuronx_distributed.trace.model_builder"


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    require_one_state(inputs)
    script = Script()
    builder = script.call(
        f"{_MODULE}.ModelBuilder",
        router=None,
        tp_degree=inputs.tp,
        checkpoint_loader=None,
        compiler_workdir="compiler_workdir",
        logical_nc_config=inputs.target.cores_per_logical_core,
    )
    for graph in inputs.prefill_first:
        instance = script.call(
            f"{_MODULE}.BaseModelInstance",
            module_cls=rank_local_module(graph),
            input_output_aliases=aliases(graph),
        )
        script.call(
            f"{_MODULE}.ModelBuilder.add",
            self=builder,
            key=graph.name,
            model_instance=instance,
            example_inputs=[graph_ref(graph, "inputs")],
            compiler_args=" ".join(flags),
            priority_model_idx=0 if graph.kind == "decode" else None,
        )
    executor = script.call(f"{_MODULE}.ModelBuilder.trace", self=builder, initialize_model_weights=False)
    script.call("torch.jit.save", m=executor, f="model_builder.pt")
    names = expected_names(script, inputs, rank_local_module(inputs.decode))
    reshard(script, inputs)
    loaded = script.call("torch.jit.load", f="model_builder.pt")
    script.call(
        "neuronx_distributed.trace.spmd.NxDModel.initialize",
        self={**loaded, "attribute": "nxd_model"},
        checkpoint=rank_files(inputs.tp, names),
        start_rank_tensor={"tensor": [0], "dtype": "int32"},
    )
    return script.calls
