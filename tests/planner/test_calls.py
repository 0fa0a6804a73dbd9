"""Each recipe's calls as a literal transcript: the scripts that published ports wrote by hand, one line a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.catalog import decode_choice, read_choice
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Api, Build, HealthCheck, Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.decode import decode
from gemma4cfg.plan.records import Collectives, Graph, Port, Shapes
from gemma4cfg.planner.calls import CallInputs, api_key, build_calls, compiler_flags

TRACE = Recipe("trace", placement="one_core")
V1 = Recipe("model_builder", api="v1")
V2 = Recipe("model_builder", api="v2")

Transcript = list[tuple[str, dict[str, Any]]]

FLAGS = ["--model-type=transformer", "--auto-cast=none"]
FLAGS_V2 = "--enable-saturate-infinity --auto-cast=none --model-type=transformer -O1"


def graph(name: str, tokens: int, slots: int = 1) -> Graph:
    state = tuple(
        Port(f"{kind}_{slot}", (1, 1, 8, 4), "bfloat16") for slot in range(slots) for kind in ("key", "value")
    )
    return Graph(
        id="0" * 64,
        name=name,
        kind="decode" if tokens == 1 else "prefill",
        inputs=(Port("inputs_embeds", (1, tokens, 16), "bfloat16"), Port("position_ids", (1, tokens), "int64")),
        outputs=(Port("logits", (1, 32), "float32"),),
        state=state,
        collectives=Collectives(0, 0),
    )


BUILD = Build(
    why="",
    repository="https://host/vllm",
    environment={"ARCH": "7.5"},
    before=("python prepare.py",),
    command=("pip", "install", "."),
    needs={"nvcc": "a toolkit"},
    host_memory_gib=32,
    patch="attention.py",
    source="",
)
HEALTH = HealthCheck("/v1/chat/completions", "1 + 1?", "2", "")


def sdk() -> Sdk:
    """A release whose flags and pin are this page's own."""
    flags = {
        "trace": FLAGS,
        "parallel_model_trace": FLAGS,
        "model_builder_v1": FLAGS_V2.split(),
        "model_builder_v2": FLAGS_V2.split(),
        "vllm": ["--kv-cache-dtype", "auto"],
    }
    apis = {key: Api({"inf2": "supported"}, tuple(words), "") for key, words in flags.items()}
    neuron, vllm = (decode_choice(Sdk, "sdk", read_choice("sdk", name)) for name in ("neuron-2.28", "vllm-0.27.2rc0"))
    serving = replace(neuron.stack.estimates, serving=vllm.stack.estimates.serving)
    stack = replace(neuron.stack, apis=apis, estimates=serving, build=BUILD, health=HEALTH)
    return replace(neuron, stack=stack, pins={"vllm": "0.27.2rc0"})


def target(lnc: int = 1) -> Target:
    return replace(decode_choice(Target, "target", read_choice("target", "inf2.8xlarge")), cores_per_logical_core=lnc)


def model() -> Architecture:
    return decode(Architecture, read_choice("model", "e2b"))


def inputs(recipe: Recipe, tp: int = 1, graphs: tuple[Graph, ...] | None = None, **changed: Any) -> CallInputs:
    made = CallInputs(
        recipe=recipe,
        tp=tp,
        dtype="bfloat16",
        graphs=(graph("prefill_4", 4), graph("decode", 1)) if graphs is None else graphs,
        shapes=Shapes(1, (4,), 8, "linear", "bfloat16", False),
        target=target(),
        sdk=sdk(),
        model=model(),
        kv_slots=1,
        host=(),
    )
    return replace(made, **changed)


def ref(path: str, **more: Any) -> dict[str, Any]:
    return {"ref": path, **more}


def module(name: str) -> dict[str, Any]:
    return {"module": ref("layers"), "graph": ref(f"graphs/{name}"), "state": "parameter"}


def buffers(*graphs: str) -> dict[str, Any]:
    return {"module": ref("layers"), "graphs": [ref(f"graphs/{name}") for name in graphs], "state": "buffer"}


def files(tp: int, names: int | None = None) -> dict[str, Any]:
    """``names``: the call that returned what every file must hold."""
    found = {
        "rank_files": [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(tp)],
        "directory": ref("placement_id"),
    }
    return found if names is None else {**found, "names": ref(f"calls/{names}", without=ref("graphs/decode/state"))}


def on_meta(call: int, module: dict[str, Any], **within: Any) -> Transcript:
    return [
        (
            "neuronx_distributed.utils.model_utils.init_on_device",
            {"device": "meta", "force_custom_init_on_device": True, **within},
        ),
        ("torch.nn.Module.state_dict", {"self": module, "within": ref(f"calls/{call}")}),
    ]


def reshard(tp: int) -> tuple[str, dict[str, Any]]:
    return (
        "sharding.reshard",
        {
            "placements": {"tensors": ref("tensors"), "rank_tensors": ref("rank_tensors")},
            "tp": tp,
            "source": ref("provenance/checkpoint"),
            "destination": ref("placement_id"),
            "dtype": "bfloat16",
            "names": ref("provenance/checkpoint_names"),
            "placement_id": ref("placement_id"),
        },
    )


def traced(name: str) -> tuple[str, dict[str, Any]]:
    return (
        "torch_neuronx.trace",
        {
            "func": module(name),
            "example_inputs": ref(f"graphs/{name}/inputs"),
            "input_output_aliases": {"key_0": 1, "value_0": 2},
            "compiler_workdir": f"compiler_workdir/{name}",
            "compiler_args": FLAGS,
            "inline_weights_to_neff": False,
        },
    )


def parallel_traced(name: str) -> tuple[str, dict[str, Any]]:
    return (
        "neuronx_distributed.trace.parallel_model_trace",
        {
            "func": {"returns": [{**module(name), "weights": files(2)}, {"key_0": 1, "value_0": 2}]},
            "example_inputs": ref(f"graphs/{name}/inputs"),
            "compiler_workdir": f"compiler_workdir/{name}",
            "compiler_args": FLAGS,
            "inline_weights_to_neff": False,
            "tp_degree": 2,
            "max_parallel_compilations": 2,
            "spmd_mode": False,
        },
    )


def state(call: int, name: str, rank: int | None = None) -> dict[str, Any]:
    prefix = "" if rank is None else f"models[{rank}]."
    return ref(f"calls/{call}", attribute=f"{prefix}states._parameters", ports=ref(f"graphs/{name}/state"))


def trace_transcript(decode_core: int) -> Transcript:
    return [
        traced("prefill_4"),
        ("torch.jit.save", {"m": ref("calls/0"), "f": "prefill_4.pt"}),
        traced("decode"),
        ("torch.jit.save", {"m": ref("calls/2"), "f": "decode.pt"}),
        reshard(1),
        ("torch.jit.load", {"f": "prefill_4.pt"}),
        ("torch_neuronx.replace_weights", {"neuron_model": ref("calls/5"), "weights": files(1)}),
        ("torch_neuronx.move_trace_to_device", {"trace": ref("calls/5"), "device_id": 0}),
        ("torch.jit.load", {"f": "decode.pt"}),
        ("torch_neuronx.replace_weights", {"neuron_model": ref("calls/8"), "weights": files(1)}),
        ("torch_neuronx.move_trace_to_device", {"trace": ref("calls/8"), "device_id": decode_core}),
        ("torch.Tensor.copy_", {"self": state(8, "decode"), "src": state(5, "prefill_4"), "per": "prompt"}),
    ]


TP_ALIAS = "neuronx_distributed.trace"
TP_MODEL = "neuronx_distributed.trace.trace.TensorParallelNeuronModel"

TP_ALIAS_HOST: Transcript = [
    reshard(2),
    parallel_traced("decode"),
    (f"{TP_ALIAS}.parallel_model_save", {"model": ref("calls/1"), "save_dir": "decode"}),
    (f"{TP_ALIAS}.parallel_model_load", {"model_dir": "decode"}),
    (f"{TP_MODEL}.forward", {"self": ref("calls/3"), "tensors": ref("graphs/decode/inputs")}),
    (
        "transformers.Gemma4ForConditionalGeneration.from_pretrained",
        {"pretrained_model_name_or_path": ref("provenance/checkpoint"), "dtype": "float32"},
    ),
    ("transformers.DynamicCache", {"per": "prompt"}),
    (
        "transformers.Gemma4ForConditionalGeneration.forward",
        {
            "self": ref("calls/5"),
            "input_ids": {"prompt": "input_ids"},
            "past_key_values": ref("calls/6"),
            "use_cache": True,
            "per": "prompt",
        },
    ),
    *(
        (
            "torch.Tensor.copy_",
            {
                "self": state(3, "decode", rank),
                "src": ref("calls/6", attribute="layers", slots=1, heads=ref("layers"), rank=rank),
                "per": "prompt",
            },
        )
        for rank in (0, 1)
    ),
]

TP_ALIAS_DEVICE: Transcript = [
    reshard(2),
    parallel_traced("prefill_4"),
    (f"{TP_ALIAS}.parallel_model_save", {"model": ref("calls/1"), "save_dir": "prefill_4"}),
    parallel_traced("decode"),
    (f"{TP_ALIAS}.parallel_model_save", {"model": ref("calls/3"), "save_dir": "decode"}),
    (f"{TP_ALIAS}.parallel_model_load", {"model_dir": "prefill_4"}),
    (f"{TP_MODEL}.forward", {"self": ref("calls/5"), "tensors": ref("graphs/prefill_4/inputs")}),
    (f"{TP_ALIAS}.parallel_model_load", {"model_dir": "decode"}),
    (f"{TP_MODEL}.forward", {"self": ref("calls/7"), "tensors": ref("graphs/decode/inputs")}),
    ("torch.Tensor.copy_", {"self": state(7, "decode", 0), "src": state(5, "prefill_4", 0), "per": "prompt"}),
    ("torch.Tensor.copy_", {"self": state(7, "decode", 1), "src": state(5, "prefill_4", 1), "per": "prompt"}),
]

BUILDER_V1 = "neuronx_distributed.trace.model_builder"


def added(instance: int, name: str, priority: int | None) -> Transcript:
    return [
        (
            f"{BUILDER_V1}.BaseModelInstance",
            {
                "module_cls": module(name),
                "input_output_aliases": {"key_0": 1, "value_0": 2, "key_1": 3, "value_1": 4},
            },
        ),
        (
            f"{BUILDER_V1}.ModelBuilder.add",
            {
                "self": ref("calls/0"),
                "key": name,
                "model_instance": ref(f"calls/{instance}"),
                "example_inputs": [ref(f"graphs/{name}/inputs")],
                "compiler_args": FLAGS_V2,
                "priority_model_idx": priority,
            },
        ),
    ]


MODEL_BUILDER_V1: Transcript = [
    (
        f"{BUILDER_V1}.ModelBuilder",
        {
            "router": None,
            "tp_degree": 2,
            "checkpoint_loader": None,
            "compiler_workdir": "compiler_workdir",
            "logical_nc_config": 1,
        },
    ),
    *added(1, "prefill_4", None),
    *added(3, "decode", 0),
    (f"{BUILDER_V1}.ModelBuilder.trace", {"self": ref("calls/0"), "initialize_model_weights": False}),
    ("torch.jit.save", {"m": ref("calls/5"), "f": "model_builder.pt"}),
    *on_meta(7, module("decode")),
    reshard(2),
    ("torch.jit.load", {"f": "model_builder.pt"}),
    (
        "neuronx_distributed.trace.spmd.NxDModel.initialize",
        {
            "self": ref("calls/10", attribute="nxd_model"),
            "checkpoint": files(2, names=8),
            "start_rank_tensor": {"tensor": [0], "dtype": "int32"},
        },
    ),
]

NXD = "neuronx_distributed"
MODEL_BUILDER_V2: Transcript = [
    (f"{NXD}.NxDParallelState", {"world_size": 8, "tensor_model_parallel_size": 8}),
    (
        f"{NXD}.ModelBuilder",
        {
            "model": buffers("prefill_4", "prefill_6", "decode"),
            "within": ref("calls/0"),
        },
    ),
    *(
        (
            f"{NXD}.ModelBuilder.trace",
            {
                "self": ref("calls/1"),
                "kwargs": ref(f"graphs/{name}/inputs"),
                "tag": name,
                "within": ref("calls/0"),
            },
        )
        for name in ("prefill_4", "prefill_6", "decode")
    ),
    (
        f"{NXD}.ModelBuilder.compile",
        {
            "self": ref("calls/1"),
            "priority_model_key": "decode",
            "compiler_workdir": "compiler_workdir",
            "compiler_args": {"prefill_4": FLAGS_V2, "prefill_6": FLAGS_V2, "decode": FLAGS_V2},
            "within": ref("calls/0"),
        },
    ),
    (f"{NXD}.NxDModel.save", {"self": ref("calls/5"), "path_to_save": "model_builder.pt", "save_weights": False}),
    *on_meta(7, buffers("prefill_4", "prefill_6", "decode"), within=ref("calls/0")),
    reshard(8),
    (f"{NXD}.NxDModel.load", {"path_to_model": "model_builder.pt"}),
    (f"{NXD}.NxDModel.set_weights", {"self": ref("calls/10"), "sharded_checkpoint": files(8, names=8)}),
    (f"{NXD}.NxDModel.to_neuron", {"self": ref("calls/10")}),
]

MODEL_BUILDER_V2_TRN2: Transcript = [
    (f"{NXD}.NxDParallelState", {"world_size": 4, "tensor_model_parallel_size": 4, "lnc_size": 2}),
    (
        f"{NXD}.ModelBuilder",
        {
            "model": buffers("prefill_4", "decode"),
            "within": ref("calls/0"),
        },
    ),
    *(
        (
            f"{NXD}.ModelBuilder.trace",
            {
                "self": ref("calls/1"),
                "kwargs": ref(f"graphs/{name}/inputs"),
                "tag": name,
                "within": ref("calls/0"),
            },
        )
        for name in ("prefill_4", "decode")
    ),
    (
        f"{NXD}.ModelBuilder.compile",
        {
            "self": ref("calls/1"),
            "priority_model_key": None,
            "compiler_workdir": "compiler_workdir",
            "compiler_args": {"prefill_4": f"{FLAGS_V2} --lnc=2", "decode": f"{FLAGS_V2} --lnc=2"},
            "within": ref("calls/0"),
        },
    ),
    (f"{NXD}.NxDModel.save", {"self": ref("calls/4"), "path_to_save": "model_builder.pt", "save_weights": False}),
    *on_meta(6, buffers("prefill_4", "decode"), within=ref("calls/0")),
    reshard(4),
    (f"{NXD}.NxDModel.load", {"path_to_model": "model_builder.pt"}),
    (f"{NXD}.NxDModel.set_weights", {"self": ref("calls/9"), "sharded_checkpoint": files(4, names=7)}),
    (f"{NXD}.NxDModel.to_neuron", {"self": ref("calls/9")}),
]

VLLM_WORDS = ["--dtype", "float16", "--max-model-len", "8", "--max-num-seqs", "1"]
VLLM_WORDS += ["--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "auto"]


def vllm_transcript(served: Any) -> Transcript:
    """Built for the chip alone with the tile clamped, served, and asked something whose answer is known."""
    patch = {"file": "attention.py", "num_stages": 1, "at_most_bytes": 60_000}
    build = {
        "before": ["git clone --branch v0.27.2rc0 https://host/vllm vllm", "cd vllm", "python prepare.py"],
        "command": ["pip", "install", "."],
        "env": {"ARCH": "7.5"},
        "needs": {"nvcc": "a toolkit", "memory": "32 GiB with swap, as the machine on which it was built"},
        "patch": {**patch, "tile_of_head_dim": VLLM_TILES},
        "requires": {"vllm": ">=0.27.2rc0"},
    }
    command = ["vllm", "serve", served, *VLLM_WORDS]
    message = {"model": served, "messages": [{"role": "user", "content": "1 + 1?"}], "temperature": 0, "max_tokens": 32}
    return [
        ("pip install", build),
        ("vllm serve", {"command": command, "env": {}, "requires": {"vllm": ">=0.27.2rc0"}}),
        ("http.post", {"path": "/v1/chat/completions", "json": message, "answer_holds": "2"}),
    ]


VLLM_TILES = {"256": 32, "512": 16}
"""3 x 32 x 512 x 2 bytes are 98,304 of 65,536; a tile of 16 is within the clamp's 60,000."""


BUCKETS = (graph("prefill_4", 4), graph("prefill_6", 6), graph("decode", 1))

CASES: dict[str, tuple[CallInputs, Transcript]] = {
    "trace_one_core": (inputs(TRACE), trace_transcript(decode_core=0)),
    "trace_core_each": (inputs(Recipe("trace", placement="core_each")), trace_transcript(decode_core=1)),
    "tp_alias_host_prefill": (inputs(Recipe("tp_alias", prefill="host"), 2, (graph("decode", 1),)), TP_ALIAS_HOST),
    "tp_alias_device_prefill": (inputs(Recipe("tp_alias", prefill="device"), 2), TP_ALIAS_DEVICE),
    "model_builder_v1": (inputs(V1, 2, (graph("prefill_4", 4, 2), graph("decode", 1, 2))), MODEL_BUILDER_V1),
    "model_builder_v2": (inputs(V2, 8, BUCKETS), MODEL_BUILDER_V2),
    "model_builder_v2_lnc2": (inputs(V2, 4, target=target(lnc=2)), MODEL_BUILDER_V2_TRN2),
    "vllm": (inputs(Recipe("vllm"), 2, (), dtype="float16"), vllm_transcript("google/gemma-4-E2B-it")),
    "vllm_unnamed_model": (
        inputs(Recipe("vllm"), 2, (), dtype="float16", model=replace(model(), hugging_face_id=None)),
        vllm_transcript(ref("provenance/checkpoint")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_transcript(name: str) -> None:
    given, expected = CASES[name]
    assert [(call.api, call.args) for call in build_calls(given)] == expected


def plan_like(given: CallInputs) -> dict[str, Any]:
    return {
        "placement_id": "1" * 64,
        "provenance": {"checkpoint": None, "checkpoint_names": {}, "output": None},
        "layers": [{"index": 0}],
        "tensors": {"model.language_model.norm.weight": {}},
        "rank_tensors": {"layers.0.experts.ids": {"dtype": "int32", "values": [[r] for r in range(given.tp)]}},
        "graphs": [
            {"name": graph.name, "inputs": list(graph.inputs), "state": list(graph.state)} for graph in given.graphs
        ],
    }


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "ref" in value:
            yield value["ref"]
        for item in value.values():
            yield from refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from refs(item)


@pytest.mark.parametrize("name", CASES)
def test_every_ref_resolves_and_calls_refer_to_earlier_ones(name: str) -> None:
    given, _ = CASES[name]
    plan = plan_like(given)
    for index, call in enumerate(build_calls(given)):
        for path in refs(dict(call.args)):
            head, *rest = path.split("/")
            if head == "calls":
                assert int(rest[0]) < index
                continue
            node: Any = plan[head]
            for part in rest:
                node = next(item for item in node if item["name"] == part) if isinstance(node, list) else node[part]


def test_chunks_of_a_prompt_carry_their_state_between_traces() -> None:
    """The largest bucket runs all chunks but the last, whatever the buckets' order."""
    shapes = Shapes(1, (6, 4), 8, "linear", "bfloat16", True)
    graphs = (graph("prefill_6", 6), graph("prefill_4", 4), graph("decode", 1))
    copies = [call.args for call in build_calls(inputs(TRACE, 1, graphs, shapes=shapes)) if call.api.endswith("copy_")]
    assert [(args["src"]["ports"]["ref"], args["self"]["ports"]["ref"], args["per"]) for args in copies] == [
        ("graphs/prefill_6/state", "graphs/prefill_4/state", "chunk"),
        ("graphs/prefill_6/state", "graphs/decode/state", "prompt"),
        ("graphs/prefill_4/state", "graphs/decode/state", "prompt"),
    ]


@pytest.mark.parametrize("recipe", [V1, V2], ids=["v1", "v2"])
def test_graphs_that_share_state_must_agree_on_it(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="prefill_4 and decode"):
        build_calls(inputs(recipe, 2, (graph("prefill_4", 4, 1), graph("decode", 1, 2))))


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        (TRACE, "trace"),
        (Recipe("tp_alias", prefill="host"), "parallel_model_trace"),
        (V1, "model_builder_v1"),
        (V2, "model_builder_v2"),
        (Recipe("vllm"), "vllm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_api_key(recipe: Recipe, key: str) -> None:
    assert api_key(recipe) == key


@pytest.mark.parametrize(("lnc", "added"), [(1, ()), (2, ("--lnc=2",))], ids=["lnc1", "lnc2"])
def test_compiler_flags_state_the_logical_core(lnc: int, added: tuple[str, ...]) -> None:
    assert compiler_flags(TRACE, sdk(), target(lnc)) == (*FLAGS, *added)
