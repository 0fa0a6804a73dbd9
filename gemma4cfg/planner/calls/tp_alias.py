"""``parallel_model_trace``: every rank is traced and compiled, in a process of its own, its KV aliased.

What the arguments avoid:

- ``func`` takes no argument and returns the module *with its rank's weights* and the aliases, so the rank files are
  written first. It runs in spawned processes: the script needs a main guard;
- ``max_parallel_compilations`` of all ranks: a 31B build that compiled one at a time ended in a deadlock;
- ``spmd_mode=False``: it builds the other ranks from a checkpoint, and aliased KV is in none;
- a ``save_dir`` per graph: ``parallel_model_load`` takes every file in it for a rank's;
- the forward call after loading: only the first one puts a rank's weights and state on its core, and tensors of the
  state taken before it are orphans.

Then the KV of each prompt goes to every rank's decode state: from the rank's own prefill state, or, with the prompt
on the host, from the reference's cache: slot N is the cache's layer N, cut to the KV heads of the rank, zero past the
prompt; a ring takes the last rows, each at its position modulo the ring's length. ``copy_`` is called once per port,
port N being the Nth key, ``states.N``, by number; the attribute is read anew each time. The host's cache is made
without a config: with one it cuts sliding layers itself.
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
    ref,
    reshard,
)

_MODEL = "neuronx_distributed.trace.trace.TensorParallelNeuronModel"


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    script = Script()
    reshard(script, inputs)
    for graph in inputs.prefill_first:
        traced = script.call(
            "neuronx_distributed.trace.parallel_model_trace",
            func={"returns": [{**rank_local_module(graph), "weights": rank_files(inputs.tp)}, aliases(graph)]},
            example_inputs=graph_ref(graph, "inputs"),
            compiler_workdir=f"compiler_workdir/{graph.name}",
            compiler_args=list(flags),
            inline_weights_to_neff=False,
            tp_degree=inputs.tp,
            max_parallel_compilations=inputs.tp,
            spmd_mode=False,
        )
        script.call("neuronx_distributed.trace.parallel_model_save", model=traced, save_dir=graph.name)
    loaded: dict[str, Value] = {}
    for graph in inputs.prefill_first:
        loaded[graph.name] = script.call("neuronx_distributed.trace.parallel_model_load", model_dir=graph.name)
        script.call(f"{_MODEL}.forward", self=loaded[graph.name], tensors=graph_ref(graph, "inputs"))
    if inputs.recipe.prefill == "host":
        _seed_from_host(script, inputs, loaded[inputs.decode.name])
        return script.calls
    for source, destination, per in hand_overs(inputs):
        for rank in range(inputs.tp):
            script.call(
                "torch.Tensor.copy_",
                self=_state(loaded[destination.name], destination, rank),
                src=_state(loaded[source.name], source, rank),
                per=per,
            )
    return script.calls


def _seed_from_host(script: Script, inputs: CallInputs, decode: Value) -> None:
    reference = f"transformers.{inputs.model.class_name}"
    model = script.call(
        f"{reference}.from_pretrained",
        pretrained_model_name_or_path=ref("provenance/checkpoint"),
        dtype="float32",
    )
    cache = script.call("transformers.DynamicCache", per="prompt")
    script.call(
        f"{reference}.forward",
        self=model,
        input_ids={"prompt": "input_ids"},
        past_key_values=cache,
        use_cache=True,
        per="prompt",
    )
    for rank in range(inputs.tp):
        script.call(
            "torch.Tensor.copy_",
            self=_state(decode, inputs.decode, rank),
            src={**cache, "attribute": "layers", "slots": inputs.kv_slots, "heads": ref("layers"), "rank": rank},
            per="prompt",
        )


def _state(model: Value, graph: Graph, rank: int) -> Value:
    return {**model, "attribute": f"models[{rank}].states._parameters", "ports": graph_ref(graph, "state")}
