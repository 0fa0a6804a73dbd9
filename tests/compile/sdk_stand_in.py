# ruff: noqa: ARG001, ARG002, ARG004 -- signatures are the SDK's
"""A recording stand-in for the SDK's public surface: it compiles nothing, runs a module once where the SDK would trace it,
and raises where the named API is documented, or was seen, to raise. It says of itself that it is one.

What the real one loses without a word it loses here too; our own checks have to find that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

VERSION = "2.stand-in"


class Recorder:
    """``calls``: (API, arguments, what was returned), in order. ``parallel``: ranks of the parallel state that is up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], Any]] = []
        self.parallel: int | None = None
        self.saved: dict[str, Any] = {}

    def note(self, api: str, arguments: Mapping[str, Any], result: Any) -> Any:
        self.calls.append((api, dict(arguments), result))
        return result

    @contextmanager
    def state(self, ranks: int) -> Iterator[None]:
        before, self.parallel = self.parallel, ranks
        try:
            yield
        finally:
            self.parallel = before


def modules(recorder: Recorder) -> dict[str, ModuleType]:
    """The stand-in's modules by import path."""
    nxd = "neuronx_distributed"
    found = {
        "torch_neuronx": _torch_neuronx(recorder),
        nxd: _version_two(recorder),
        f"{nxd}.utils": ModuleType(f"{nxd}.utils"),
        f"{nxd}.utils.model_utils": _model_utils(recorder),
        f"{nxd}.trace": _trace_package(recorder),
        f"{nxd}.trace.trace": _parallel_models(recorder),
        f"{nxd}.trace.model_builder": _version_one(recorder),
        f"{nxd}.trace.spmd": _spmd(recorder),
        f"{nxd}.parallel_layers": ModuleType(f"{nxd}.parallel_layers"),
        f"{nxd}.parallel_layers.mappings": _mappings(recorder),
        f"{nxd}.parallel_layers.parallel_state": _parallel_state(recorder),
    }
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        if parent and not hasattr(found[parent], name):
            setattr(found[parent], name, module)
    return found


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    return module


class Program(nn.Module):
    """What a stand-in hands out for a compiled program; ``states`` are the KV of one rank."""

    def __init__(self, states: Mapping[str, Tensor], inline: bool) -> None:
        super().__init__()
        self.states = nn.ParameterDict()
        self.states._parameters.update({name: nn.Parameter(value, False) for name, value in states.items()})  # type: ignore[arg-type]
        self.inline = inline

    def forward(self, *tensors: Tensor) -> Tensor:
        """Computes nothing and leaves its KV as it is."""
        return torch.zeros(())


def _kv(module: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in module.named_parameters() if name.startswith("states.")}


# --- torch_neuronx: single-core traces ---


def _torch_neuronx(recorder: Recorder) -> ModuleType:
    def trace(
        func: Any,
        example_inputs: Any,
        *_: Any,
        input_output_aliases: Any = None,
        compiler_workdir: Any = None,
        compiler_args: Any = None,
        partitioner_config: Any = None,
        inline_weights_to_neff: bool = True,
        cpu_backend: bool = False,
    ) -> Any:
        assert not _, "everything after example_inputs goes by keyword"
        if not isinstance(example_inputs, (tuple, Tensor)):
            raise ValueError("example_inputs: a tensor or a tuple of them")
        _check_aliases(func, example_inputs, input_output_aliases)
        given = {
            "func": func,
            "example_inputs": example_inputs,
            "input_output_aliases": input_output_aliases,
            "compiler_workdir": compiler_workdir,
            "compiler_args": compiler_args,
            "inline_weights_to_neff": inline_weights_to_neff,
        }
        return recorder.note("torch_neuronx.trace", given, Program(_kv(func), inline_weights_to_neff))

    def replace_weights(neuron_model: Program, weights: Any) -> None:
        if neuron_model.inline:
            raise RuntimeError("the weights of this program are inside it")
        given = {"neuron_model": neuron_model, "weights": weights}
        recorder.note("torch_neuronx.replace_weights", given, None)

    def move_trace_to_device(trace: Program, device_id: int) -> None:
        given = {"trace": trace, "device_id": device_id}
        recorder.note("torch_neuronx.move_trace_to_device", given, None)

    return _module(
        "torch_neuronx",
        __version__=VERSION,
        trace=trace,
        replace_weights=replace_weights,
        move_trace_to_device=move_trace_to_device,
    )


def _check_aliases(func: Any, inputs: tuple[Tensor, ...], aliases: Any) -> None:
    """Keys are tensors of the module; each output that is named exists. A wrong one is not noticed by the real tracer
    before the program runs."""
    outputs = func(*inputs)
    held = {id(one) for one in func.parameters()}
    for parameter, index in (aliases or {}).items():
        assert id(parameter) in held, "an alias of a tensor that is not the module's"
        assert outputs[index].shape == parameter.shape


# --- parallel_model_trace ---


def _parallel_models(recorder: Recorder) -> ModuleType:
    class TensorParallelNeuronModel(nn.Module):
        def __init__(self, models: list[Program]) -> None:
            super().__init__()
            self.models = models

        def forward(self, *tensors: Tensor) -> Tensor:
            given = {"self": self, "tensors": tensors}
            recorder.note("neuronx_distributed.trace.trace.TensorParallelNeuronModel.forward", given, None)
            found: Tensor = self.models[0](*tensors)
            return found

    return _module("neuronx_distributed.trace.trace", TensorParallelNeuronModel=TensorParallelNeuronModel)


def _trace_package(recorder: Recorder) -> ModuleType:
    package = ModuleType("neuronx_distributed.trace")

    def parallel_model_trace(
        func: Any,
        example_inputs: Any,
        states: Any = None,
        compiler_workdir: Any = None,
        compiler_args: Any = None,
        inline_weights_to_neff: bool = True,
        bucket_config: Any = None,
        tp_degree: int = 1,
        max_parallel_compilations: int | None = None,
        spmd_mode: bool = False,
        checkpoint_loader_callable: Any = None,
        force_custom_init_on_device: bool = False,
        serialization_path: Any = None,
    ) -> Any:
        if bucket_config is not None and inline_weights_to_neff:
            raise ValueError("buckets need weights apart")
        if spmd_mode and inline_weights_to_neff:
            raise ValueError("SPMD mode needs weights apart")
        if spmd_mode and checkpoint_loader_callable is None:
            raise ValueError("SPMD mode needs a checkpoint_loader_callable")
        if serialization_path is not None and not spmd_mode:
            raise ValueError("serialization_path needs SPMD mode")
        made = []
        for rank in range(tp_degree):
            with recorder.state(tp_degree):
                import_module("neuronx_distributed.parallel_layers.parallel_state").rank = rank  # type: ignore[attr-defined]
                model, aliases = func()
                assert isinstance(model, nn.Module)
                if rank == 0:
                    _check_aliases(model, example_inputs, aliases)
                made.append((model, aliases))
        given = {
            "func": made,
            "example_inputs": example_inputs,
            "compiler_workdir": compiler_workdir,
            "compiler_args": compiler_args,
            "inline_weights_to_neff": inline_weights_to_neff,
            "tp_degree": tp_degree,
            "max_parallel_compilations": max_parallel_compilations,
            "spmd_mode": spmd_mode,
        }
        programs = [Program(_kv(model), inline_weights_to_neff) for model, _ in made]
        result = package.trace.TensorParallelNeuronModel(programs)  # type: ignore[attr-defined]
        return recorder.note("neuronx_distributed.trace.parallel_model_trace", given, result)

    def parallel_model_save(model: Any, save_dir: str) -> None:
        Path(save_dir).mkdir(parents=True)
        for rank in range(len(model.models)):
            (Path(save_dir) / f"tp_{rank}.pt").write_text(VERSION)
        recorder.saved[Path(save_dir).name] = model
        given = {"model": model, "save_dir": save_dir}
        recorder.note("neuronx_distributed.trace.parallel_model_save", given, None)

    def parallel_model_load(model_dir: str) -> Any:
        assert (Path(model_dir) / "tp_0.pt").read_text() == VERSION
        kept = recorder.saved[Path(model_dir).name]
        loaded = package.trace.TensorParallelNeuronModel(list(kept.models))  # type: ignore[attr-defined]
        return recorder.note("neuronx_distributed.trace.parallel_model_load", {"model_dir": model_dir}, loaded)

    package.__dict__.update(
        parallel_model_trace=parallel_model_trace,
        parallel_model_save=parallel_model_save,
        parallel_model_load=parallel_model_load,
    )
    return package


# --- ModelBuilder, first version ---


def _version_one(recorder: Recorder) -> ModuleType:
    path = "neuronx_distributed.trace.model_builder"

    class BaseModelInstance:
        def __init__(self, module_cls: Any, input_output_aliases: Any) -> None:
            self.module_cls = module_cls
            self.module: Any = None
            self.input_output_aliases = [input_output_aliases]
            given = {"module_cls": module_cls, "input_output_aliases": input_output_aliases}
            recorder.note(f"{path}.BaseModelInstance", given, self)

        def load_module(self) -> None:
            self.module = self.module_cls()

        def get(self, bucket_rank: int | None, **kwargs: Any) -> Any:
            return self.module, self.input_output_aliases[0]

    class ModelBuilder:
        def __init__(
            self,
            router: Any,
            tp_degree: int,
            checkpoint_loader: Any,
            start_rank_id: int = 0,
            pp_degree: int = 1,
            ep_degree: int = 1,
            local_ranks_size: int | None = None,
            world_size: int | None = None,
            compiler_workdir: Any = None,
            master_proc_env_vars: Any = None,
            debug: Any = False,
            num_cores_per_group: int = 1,
            init_custom_process_group_fn: Any = None,
            logical_nc_config: int = 1,
            weights_to_skip_layout_optimization: Any = frozenset(),
            compiler_flag_hook: Any = None,
        ) -> None:
            if world_size is not None and local_ranks_size is None:
                raise ValueError("world_size without local_ranks_size")
            self.tp_degree, self.compiler_workdir = tp_degree, compiler_workdir
            self.containers: dict[str, Any] = {}
            given = {
                "router": router,
                "tp_degree": tp_degree,
                "checkpoint_loader": checkpoint_loader,
                "compiler_workdir": compiler_workdir,
                "logical_nc_config": logical_nc_config,
            }
            recorder.note(f"{path}.ModelBuilder", given, self)

        def add(
            self,
            key: str,
            model_instance: BaseModelInstance,
            example_inputs: list[tuple[Tensor, ...]],
            compiler_args: str | None = None,
            bucket_config: Any = None,
            priority_model_idx: int | None = None,
        ) -> Any:
            if compiler_args is not None and "--auto-cast=none" not in compiler_args.lower():  # a list has no lower()
                raise AssertionError("the flags are one string")
            self.containers[key] = (model_instance, example_inputs)
            given = {
                "self": self,
                "key": key,
                "model_instance": model_instance,
                "example_inputs": example_inputs,
                "compiler_args": compiler_args,
                "priority_model_idx": priority_model_idx,
            }
            return recorder.note(f"{path}.ModelBuilder.add", given, self)

        def trace(
            self, initialize_model_weights: bool = True, dry_run: bool = False, disable_fail_fast: bool = False
        ) -> Any:
            workdir = Path(self.compiler_workdir)
            if workdir.exists():
                import shutil

                shutil.rmtree(workdir)
            states: dict[str, Tensor] = {}
            with recorder.state(self.tp_degree):
                for instance, examples in self.containers.values():
                    instance.load_module()
                    for number, example in enumerate(examples):
                        model, aliases = instance.get(number)
                        _check_aliases(model, example, aliases)
                        states = states or _kv(model)
            given = {"self": self, "initialize_model_weights": initialize_model_weights}
            executor = Program(states, inline=False)
            return recorder.note(f"{path}.ModelBuilder.trace", given, executor)

    return _module(path, ModelBuilder=ModelBuilder, BaseModelInstance=BaseModelInstance)


def _spmd(recorder: Recorder) -> ModuleType:
    class NxDModel(nn.Module):
        def initialize(self, checkpoint: list[dict[str, Tensor]], start_rank_tensor: Tensor) -> None:
            given = {"self": self, "checkpoint": checkpoint, "start_rank_tensor": start_rank_tensor}
            recorder.note("neuronx_distributed.trace.spmd.NxDModel.initialize", given, None)

    return _module("neuronx_distributed.trace.spmd", NxDModel=NxDModel)


# --- ModelBuilder, second version ---


def _version_two(recorder: Recorder) -> ModuleType:
    class NxDParallelState:
        def __init__(
            self,
            world_size: int = 1,
            rank: int = 0,
            tensor_model_parallel_size: int = 1,
            pipeline_model_parallel_size: int = 1,
            context_parallel_size: int = 1,
            expert_model_parallel_size: int = 1,
            lnc_size: int | None = None,
        ) -> None:
            self.world_size = world_size
            given = {"world_size": world_size, "tensor_model_parallel_size": tensor_model_parallel_size}
            if lnc_size is not None:
                given["lnc_size"] = lnc_size
            recorder.note("neuronx_distributed.NxDParallelState", given, self)

        def __enter__(self) -> Any:
            self._state = recorder.state(self.world_size)
            self._state.__enter__()
            return self

        def __exit__(self, *_: Any) -> None:
            self._state.__exit__(None, None, None)

    class NxDModel:
        def __init__(self) -> None:
            self.weights: Any = None
            self.loaded = False

        def save(self, path_to_save: str, save_weights: bool = False) -> None:
            Path(path_to_save).write_text(VERSION)
            given = {"self": self, "path_to_save": path_to_save, "save_weights": save_weights}
            recorder.note("neuronx_distributed.NxDModel.save", given, None)

        @staticmethod
        def load(path_to_model: str, start_rank: Any = None, local_ranks_size: Any = None) -> Any:
            if Path(path_to_model).read_text() != VERSION:
                raise ValueError("not written by save")
            return recorder.note("neuronx_distributed.NxDModel.load", {"path_to_model": path_to_model}, NxDModel())

        def set_weights(self, sharded_checkpoint: list[dict[str, Tensor]]) -> None:
            if self.loaded:
                raise ValueError("already loaded")
            self.weights = sharded_checkpoint
            given = {"self": self, "sharded_checkpoint": sharded_checkpoint}
            recorder.note("neuronx_distributed.NxDModel.set_weights", given, None)

        def to_neuron(self) -> None:
            self.loaded = True
            recorder.note("neuronx_distributed.NxDModel.to_neuron", {"self": self}, None)

    class ModelBuilder:
        def __init__(self, model: nn.Module, weights_to_skip_layout_optimization: Any = None) -> None:
            self.model, self.world_size = model, recorder.parallel or 1
            self.tags: dict[str, dict[str, Tensor]] = {}
            self.compiled = False
            recorder.note("neuronx_distributed.ModelBuilder", {"model": model}, self)

        def trace(self, args: Any = None, kwargs: Any = None, tag: str | None = None, spmd: bool = True) -> Any:
            _refuse_arguments(self.model, args, kwargs, spmd)
            self.model(**kwargs)
            assert tag is not None
            self.tags[tag] = kwargs
            given = {"self": self, "kwargs": kwargs, "tag": tag}
            return recorder.note("neuronx_distributed.ModelBuilder.trace", given, self)

        def compile(
            self,
            priority_model_key: str | None = None,
            compiler_workdir: Any = None,
            compiler_args: Any = None,
            max_workers: int | None = None,
        ) -> Any:
            if not self.tags:
                raise ValueError("nothing was traced")
            if priority_model_key is not None and priority_model_key not in self.tags:
                raise ValueError(f"unknown key {priority_model_key}")
            if isinstance(compiler_args, dict) and (missing := self.tags.keys() - compiler_args.keys()):
                raise ValueError(f"no flags for {sorted(missing)}")
            flags = compiler_args.values() if isinstance(compiler_args, dict) else [compiler_args]
            if not all(one is None or isinstance(one, str) for one in flags):
                raise RuntimeError("Compilation process failed") from TypeError("flags are a string")
            if self.compiled:
                raise RuntimeError("Expected flattener layout type to be tuple but found <class 'list'>")
            self.compiled = True
            given = {
                "self": self,
                "priority_model_key": priority_model_key,
                "compiler_workdir": compiler_workdir,
                "compiler_args": compiler_args,
            }
            return recorder.note("neuronx_distributed.ModelBuilder.compile", given, NxDModel())

    return _module(
        "neuronx_distributed", NxDParallelState=NxDParallelState, ModelBuilder=ModelBuilder, NxDModel=NxDModel
    )


def _refuse_arguments(model: nn.Module, args: Any, kwargs: Any, spmd: bool) -> None:
    """The rules of the second version's trace."""
    if not spmd:
        raise NotImplementedError("spmd=False")
    parameters = inspect.signature(model.forward).parameters
    if not parameters:
        raise ValueError("forward takes nothing")
    for one in parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise NotImplementedError(f"forward has {one}")
        if one.default not in (one.empty, None):
            raise ValueError(f"{one.name}: a default that is not None")
    if args is not None and not isinstance(args, (Tensor, tuple)):
        raise ValueError("args: a tensor or a tuple of them")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ValueError("kwargs: a dictionary")
    positional = (args,) if isinstance(args, Tensor) else args or ()
    if len(positional) > len(parameters):
        raise ValueError("too many arguments")
    given = dict(zip(parameters, positional, strict=False))
    for name, value in (kwargs or {}).items():
        if name not in parameters:
            raise ValueError(f"unexpected {name}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = value
    if not given:
        raise ValueError("nothing is given")
    if not all(isinstance(value, Tensor) for value in given.values()):
        raise ValueError("a value is no tensor")
    for name, one in parameters.items():
        if name not in given and one.default is one.empty:
            raise ValueError(f"{name} is missing")


def _model_utils(recorder: Recorder) -> ModuleType:
    def init_on_device(
        device: torch.device, include_buffers: bool = False, force_custom_init_on_device: bool = False
    ) -> Any:
        given = {"device": device, "force_custom_init_on_device": force_custom_init_on_device}
        context = device if not include_buffers else torch.device("meta")
        return recorder.note("neuronx_distributed.utils.model_utils.init_on_device", given, _Once(context))

    return _module("neuronx_distributed.utils.model_utils", init_on_device=init_on_device)


class _Once:
    """A context manager that can be entered once, as one made of a generator."""

    def __init__(self, device: torch.device) -> None:
        self._device: torch.device | None = device

    def __enter__(self) -> None:
        assert self._device is not None, "entered before"
        self._device = None

    def __exit__(self, *_: Any) -> None:
        return None


# --- collectives ---


def _mappings(recorder: Recorder) -> ModuleType:
    def size() -> int:
        assert recorder.parallel is not None, "the parallel state is not initialized"
        return recorder.parallel

    def reduce_from_tensor_model_parallel_region(input_: Tensor, process_group: Any = None) -> Tensor:
        return input_ if size() == 1 else input_.clone()

    def gather_from_tensor_model_parallel_region(input_: Tensor, process_group: Any = None) -> Tensor:
        return torch.cat([input_] * size(), dim=-1)

    return _module(
        "neuronx_distributed.parallel_layers.mappings",
        reduce_from_tensor_model_parallel_region=reduce_from_tensor_model_parallel_region,
        gather_from_tensor_model_parallel_region=gather_from_tensor_model_parallel_region,
    )


class _Group:
    """A mocked process group: it says that it is rank 0, whoever asks."""

    def rank(self) -> int:
        return 0


def _parallel_state(recorder: Recorder) -> ModuleType:
    module = ModuleType("neuronx_distributed.parallel_layers.parallel_state")
    group = _Group()
    members: dict[str, Callable[[], Any] | int] = {
        "rank": 0,
        "get_tensor_model_parallel_rank": lambda: module.rank,  # type: ignore[attr-defined]
        "get_tensor_model_parallel_group": lambda: group,
        "model_parallel_is_initialized": lambda: recorder.parallel is not None,
    }
    module.__dict__.update(members)
    return module
