"""A plan's calls as a script that a person can read and step through: ``compile.py`` beside ``plan.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemma4cfg.plan.records import Call, Graph, Plan

_INDENT = "    "

_PATHS = frozenset({"f", "path_to_save", "path_to_model", "save_dir", "model_dir", "compiler_workdir"})


def render(plan: Plan) -> str:
    """The script. It performs the plan's calls and no others; those that every prompt asks for are functions."""
    once = [index for index, call in enumerate(plan.calls) if "per" not in call.args]
    packages = sorted({"torch", *(package for index in once if (package := _package(plan.calls[index])))})
    kept = [index for index in once if _returns(plan.calls[index]) and _kept(plan, index)]
    lines = [
        f'"""{plan.model}, tp {plan.tp}, {plan.dtype}, {plan.recipe} on {plan.target} with {plan.sdk}: the calls of plan',
        f"{plan.plan_id[:12]}, in order. It imports the SDK; run it on a machine that task=doctor passes.",
        "",
        "    python compile.py --checkpoint DIR --output DIR",
        '"""',
        "",
        "from gemma4cfg.compile.script_parts import Parts",
        "",
        "",
        "def main():",
        f"{_INDENT}parts = Parts.of(__file__)  # makes the process fit for the SDK, so it comes before the imports",
        *(f"{_INDENT}import {package}" for package in packages),
        "",
    ]
    depth: list[int] = []
    for index in once:
        call = plan.calls[index]
        depth, opened = _entered(plan, call, depth)
        lines += [
            f"{_INDENT * (len(depth) - len(opened) + 1 + level)}with call_{number}:"
            for level, number in enumerate(opened)
        ]
        lines += [f"{_INDENT * (len(depth) + 1)}{line}" for line in _statement(plan, index, call)]
    lines.append(f"{_INDENT}return parts, {{{', '.join(f'{index}: call_{index}' for index in kept)}}}")
    lines += _per_prompt(plan)
    lines += ["", "", 'if __name__ == "__main__":', f"{_INDENT}main()"]
    if plan.recipe == "tp_alias":
        lines += ["else:  # a rank's process, which parallel_model_trace spawns", f"{_INDENT}Parts.prepare_spawned()"]
    lines.append("")
    return "\n".join(lines)


def _entered(plan: Plan, call: Call, depth: list[int]) -> tuple[list[int], list[int]]:
    """The contexts that are open around the call, and those of them that were not around the one before."""
    wanted: list[int] = []
    within = call.args.get("within")
    while within is not None:
        number = int(within["ref"].split("/")[1])
        wanted.insert(0, number)
        within = plan.calls[number].args.get("within")
    kept = 0
    while kept < min(len(wanted), len(depth)) and wanted[kept] == depth[kept]:
        kept += 1
    return wanted, wanted[kept:]


def _statement(plan: Plan, index: int, call: Call) -> Iterator[str]:
    """The lines of one call."""
    args = {name: value for name, value in call.args.items() if name not in ("self", "within", "per")}
    name = f"call_{index} = " if _returns(call) else ""
    if call.api == "torch_neuronx.trace":
        yield f"module_{index} = {_value(plan, 'func', args['func'])}"
        outputs = _outputs(plan, args["func"], args["input_output_aliases"])
        given = {
            **{key: _value(plan, key, value) for key, value in args.items()},
            "func": f"module_{index}",
            "input_output_aliases": f"parts.aliases(module_{index}, {outputs})",
        }
        yield from _called(f"{name}{call.api}", given)
    elif call.api.endswith(".BaseModelInstance"):
        graph = _graph(args["module_cls"])
        outputs = _outputs(plan, args["module_cls"], args["input_output_aliases"])
        yield f"{name}parts.instance({graph!r}, {outputs})"
    elif call.api == "torch.nn.Module.state_dict":
        yield f"{name}parts.names({_value(plan, 'self', call.args['self'])})"
    elif call.api.endswith(".TensorParallelNeuronModel.forward"):
        yield f"{_value(plan, 'self', call.args['self'])}(*{_value(plan, 'example_inputs', args['tensors'])})"
    else:
        if "self" in call.args:
            function = f"{_value(plan, 'self', call.args['self'])}.{call.api.rpartition('.')[2]}"
        else:
            function = call.api
        yield from _called(f"{name}{function}", {key: _value(plan, key, value) for key, value in args.items()})


def _called(function: str, given: Mapping[str, str]) -> Iterator[str]:
    words = [f"{key}={value}" for key, value in given.items()]
    whole = f"{function}({', '.join(words)})"
    if len(whole) <= 100:
        yield whole
        return
    yield f"{function}("
    for word in words:
        yield from (f"{_INDENT}{line}" for line in f"{word},".splitlines())
    yield ")"


def _value(plan: Plan, name: str, value: Any) -> str:
    """An argument as Python."""
    if name in _PATHS:
        return f"parts.path({value!r})"
    if name == "destination":
        return "parts.rank_directory"
    if isinstance(value, list):
        return f"[{', '.join(_value(plan, name, item) for item in value)}]"
    if name == "device":
        return f"torch.device({value!r})"
    if not isinstance(value, Mapping):
        return repr(value)
    if "returns" in value:
        module, aliases = value["returns"]
        outputs = _outputs(plan, module, aliases)
        return f"parts.rank_function({_graph(module)!r}, {outputs}, {module['weights']['rank_files']!r})"
    if "module" in value:
        return f"parts.module({_graph(value)!r})" if value["state"] == "parameter" else "parts.module()"
    if "rank_files" in value:
        names = f"call_{_number(value['names'])}" if "names" in value else ""
        return f"parts.rank_files({names})" + ("[0]" if plan.recipe == "trace" else "")
    if "tensor" in value:
        return f"torch.tensor({value['tensor']!r}, dtype=torch.{value['dtype']})"
    if "ref" in value:
        return _referred(name, value)
    entries = [f"{key!r}: {_value(plan, key, item)}" for key, item in value.items()]
    whole = f"{{{', '.join(entries)}}}"
    return whole if len(whole) <= 80 else "\n".join(("{", *(f"{_INDENT}{entry}," for entry in entries), "}"))


def _referred(name: str, value: Mapping[str, Any]) -> str:
    head, *rest = value["ref"].split("/")
    if head == "calls":
        return ".".join(filter(None, (f"call_{rest[0]}", value.get("attribute", ""))))
    if head == "graphs":
        return f"parts.{'named_inputs' if name == 'kwargs' else 'inputs'}({rest[0]!r})"
    if value["ref"] == "provenance/checkpoint":
        return "parts.checkpoint"
    return f"parts.plan_part({value['ref']!r})"


def _per_prompt(plan: Plan) -> Iterator[str]:
    """Functions for what is done after each prompt or chunk, given what ``main`` returned."""
    for per in ("chunk", "prompt"):
        calls = [(index, call) for index, call in enumerate(plan.calls) if call.args.get("per") == per]
        if not calls:
            continue
        takes = ", input_ids" if any("input_ids" in call.args for _, call in calls) else ""
        yield from ("", "", f"def after_{per}(parts, calls{takes}):")
        if takes:
            yield f"{_INDENT}import transformers"
            yield ""
        for index, call in calls:
            yield f"{_INDENT}{_repeated(index, call)}"


def _outputs(plan: Plan, module: Mapping[str, Any], aliases: Mapping[str, int]) -> str:
    """Aliases in words where they are the graph's state in its order, behind its outputs; else as they are."""
    graph = next(graph for graph in plan.graphs if graph.name == _graph(module))
    if dict(aliases) == state_outputs(graph):
        return f"parts.outputs({graph.name!r})"
    return repr(dict(aliases))


def state_outputs(graph: Graph) -> dict[str, int]:
    """State port to output index: the state follows the graph's outputs, in its order."""
    return {port.name: len(graph.outputs) + number for number, port in enumerate(graph.state)}


def _repeated(index: int, call: Call) -> str:
    if call.api.endswith(".DynamicCache"):
        return f"call_{index} = {call.api}()"
    if call.api.endswith(".forward"):
        cache = _number(call.args["past_key_values"])
        model = f"calls[{_number(call.args['self'])}]"
        return f"{model}(input_ids=input_ids, past_key_values=call_{cache}, use_cache=True)"
    source, destination = call.args["src"], call.args["self"]
    if "slots" in source:
        return f"parts.seed_state(call_{_number(source)}, calls[{_number(destination)}], rank={source['rank']})"
    rank = destination["attribute"].partition("models[")[2].partition("]")[0]
    ranks = f", rank={rank}" if rank else ""
    what = f"  # {_port_graph(source)} to {_port_graph(destination)}"
    return f"parts.copy_state(calls[{_number(source)}], calls[{_number(destination)}]{ranks}){what}"


def _returns(call: Call) -> bool:
    """Whether a later call, or a person, has use for what it returns."""
    return not call.api.endswith(
        (".save", "_save", ".add", ".to_neuron", ".forward", "copy_", "replace_weights", "reshard")
    )


def _kept(plan: Plan, index: int) -> bool:
    """Whether a call of every prompt refers to what this one returned, or it is what serves."""
    text = " ".join(str(dict(call.args)) for call in plan.calls if "per" in call.args)
    return f"'calls/{index}'" in text or index == _served(plan)


def _served(plan: Plan) -> int:
    loads = ("torch.jit.load", "neuronx_distributed.NxDModel.load", "neuronx_distributed.trace.parallel_model_load")
    return max(index for index, call in enumerate(plan.calls) if call.api in loads)


def _package(call: Call) -> str | None:
    """The module that the call's API is reached through."""
    if call.api == "torch.nn.Module.state_dict" or call.api.endswith(".BaseModelInstance"):
        return None
    if "self" in call.args:
        return None
    parts = call.api.split(".")
    return ".".join(part for part in parts[:-1] if part[:1].islower())


def _graph(spelled: Mapping[str, Any]) -> str:
    graph: str = spelled["graph"]["ref"].split("/")[1]
    return graph


def _port_graph(value: Mapping[str, Any]) -> str:
    graph: str = value["ports"]["ref"].split("/")[1]
    return graph


def _number(value: Mapping[str, Any]) -> str:
    number: str = value["ref"].split("/")[1]
    return number
