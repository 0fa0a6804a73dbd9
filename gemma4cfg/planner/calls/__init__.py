"""The plan's ``calls``: the exact API calls, in order, that turn its graphs into programs and load them.

An argument is spelled as the API spells it. Beside the API's own names three stand in ``args``: ``self`` (the object
whose method is called), ``within`` (the context manager that is open around the call) and ``per`` (the call is made
anew for every ``prompt`` or ``chunk``). Values are plain, or one of these:

- ``{"ref": "graphs/decode/inputs"}``: that part of the plan, a graph by its name; ``{"ref": "calls/3"}``: what the
  fourth call returned, with ``attribute`` what is reached from it. For an argument that takes tensors, a list of
  ports means one tensor per port, in the ports' order; for one that takes named tensors, the ports' names are the
  keys.
- ``{"module": {"ref": "layers"}, "graph": …, "state": …}``: the rank-local module that the plan's layers describe,
  for that graph, its KV held as parameters or as buffers.
- ``{"rank_files": […], "directory": …, "names": …}``: the state dict of every rank, read from its file; it holds the
  names that an earlier call returned, ``without`` those of the KV.
- ``{"tensor": […], "dtype": …}``: a tensor by value;
  ``{"prompt": "input_ids"}``: the prompt's token ids, [batch, tokens].

Paths are relative, so that a plan's identity does not depend on where anything lies: rank files are in the directory
named by the placement's id, the rest is below the output directory. Nothing else lies in a ``compiler_workdir``: one
of the APIs empties it first.
"""

from __future__ import annotations

from collections.abc import Callable

from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.records import Call
from gemma4cfg.planner.calls import model_builder_v1, model_builder_v2, tp_alias, trace, vllm
from gemma4cfg.planner.calls.parts import CallInputs

__all__ = ["CallInputs", "api_key", "build_calls", "compiler_flags"]

_CALLS: dict[str, Callable[[CallInputs, tuple[str, ...]], tuple[Call, ...]]] = {
    "trace": trace.calls,
    "parallel_model_trace": tp_alias.calls,
    "model_builder_v1": model_builder_v1.calls,
    "model_builder_v2": model_builder_v2.calls,
    "vllm": vllm.calls,
}


def build_calls(inputs: CallInputs) -> tuple[Call, ...]:
    """The calls of ``inputs.recipe``."""
    return _CALLS[api_key(inputs.recipe)](inputs, compiler_flags(inputs.recipe, inputs.sdk, inputs.target))


def api_key(recipe: Recipe) -> str:
    """The key of ``Stack.apis`` that the recipe stands on."""
    if recipe.name == "model_builder":
        return f"model_builder_{recipe.api}"
    return "parallel_model_trace" if recipe.name == "tp_alias" else recipe.name


def compiler_flags(recipe: Recipe, sdk: Sdk, target: Target) -> tuple[str, ...]:
    """The release's flags for the recipe's API, one string per flag.

    ``--lnc`` is added where several physical cores act as one: compiler and runtime must agree on it, and families
    with one core per logical core refuse any other value.
    """
    flags = sdk.stack.apis[api_key(recipe)].compiler_flags
    lnc = target.cores_per_logical_core
    return (*flags, f"--lnc={lnc}") if lnc > 1 else flags
