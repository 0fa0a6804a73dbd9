"""What a person would have to call for the short 12B, seven streams, an 18-token KV and one bucket of 12; by recipe.

Written by hand from the APIs and the model's sizes; ``told`` says how a value is spelled. A line ends where no ``\\`` does.
"""

from __future__ import annotations

_RESHARD = """\
sharding.reshard(placements={tensors: 86 entries, rank_tensors: {}}, \
tp=TP, source=CHECKPOINT, destination=RANKS, dtype=float32, names={}, placement_id=PLACEMENT)"""
"""Six layers of 14 tensors, the full one of 13, for it has no v_proj; the table on the host, the head, the last norm."""

_FLAGS = "[--model-type=transformer, --auto-cast=none]"
_BUILDER_FLAGS = "--enable-saturate-infinity --auto-cast=none --model-type=transformer -O1"
_ALIASES = """\
{key_0: 1, value_0: 2, key_1: 3, value_1: 4, key_2: 5, value_2: 6, \
key_3: 7, value_3: 8, key_4: 9, value_4: 10, key_5: 11, value_5: 12}"""


def trace(decode_core: int) -> str:
    """One rank holds all eight KV heads of a sliding layer and the one of a full layer."""
    return f"""\
#0 torch_neuronx.trace(\
func=parameters(10 x float32[7, 8, 18, 8], 2 x float32[7, 1, 18, 16]), \
example_inputs=(float32[7, 12, 32], int32[7, 12], int32[7]), \
input_output_aliases={{states 0-11: 1-12}}, \
compiler_workdir=compiler_workdir/prefill_12, compiler_args={_FLAGS}, inline_weights_to_neff=False)
#1 torch.jit.save(m=#0, f=prefill_12.pt)
#2 torch_neuronx.trace(\
func=parameters(10 x float32[7, 8, 18, 8], 2 x float32[7, 1, 18, 16]), \
example_inputs=(float32[7, 1, 32], int32[7, 1], int32[7]), \
input_output_aliases={{states 0-11: 1-12}}, \
compiler_workdir=compiler_workdir/decode, compiler_args={_FLAGS}, inline_weights_to_neff=False)
#3 torch.jit.save(m=#2, f=decode.pt)
#4 {_RESHARD.replace("TP", "1", 1)}
#5 torch.jit.load(f=prefill_12.pt)
#6 torch_neuronx.replace_weights(neuron_model=#5, weights=<tp0>)
#7 torch_neuronx.move_trace_to_device(trace=#5, device_id=0)
#8 torch.jit.load(f=decode.pt)
#9 torch_neuronx.replace_weights(neuron_model=#8, weights=<tp0>)
#10 torch_neuronx.move_trace_to_device(trace=#8, device_id={decode_core})"""


TP_ALIAS_DEVICE = f"""\
#0 {_RESHARD.replace("TP", "2", 1)}
#1 neuronx_distributed.trace.parallel_model_trace(\
func=[(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp0>), {{states 0-11: 1-12}}), \
(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp1>), {{states 0-11: 1-12}})], \
example_inputs=(float32[7, 12, 32], int32[7, 12], int32[7]), \
compiler_workdir=compiler_workdir/prefill_12, compiler_args={_FLAGS}, inline_weights_to_neff=False, \
tp_degree=2, max_parallel_compilations=2, spmd_mode=False)
#2 neuronx_distributed.trace.parallel_model_save(model=#1, save_dir=prefill_12)
#3 neuronx_distributed.trace.parallel_model_trace(\
func=[(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp0>), {{states 0-11: 1-12}}), \
(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp1>), {{states 0-11: 1-12}})], \
example_inputs=(float32[7, 1, 32], int32[7, 1], int32[7]), \
compiler_workdir=compiler_workdir/decode, compiler_args={_FLAGS}, inline_weights_to_neff=False, \
tp_degree=2, max_parallel_compilations=2, spmd_mode=False)
#4 neuronx_distributed.trace.parallel_model_save(model=#3, save_dir=decode)
#5 neuronx_distributed.trace.parallel_model_load(model_dir=prefill_12)
#6 neuronx_distributed.trace.trace.TensorParallelNeuronModel.forward(\
self=#5, tensors=(float32[7, 12, 32], int32[7, 12], int32[7]))
#7 neuronx_distributed.trace.parallel_model_load(model_dir=decode)
#8 neuronx_distributed.trace.trace.TensorParallelNeuronModel.forward(\
self=#7, tensors=(float32[7, 1, 32], int32[7, 1], int32[7]))"""

TP_ALIAS_HOST = f"""\
#0 {_RESHARD.replace("TP", "2", 1)}
#1 neuronx_distributed.trace.parallel_model_trace(\
func=[(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp0>), {{states 0-11: 1-12}}), \
(parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]; <tp1>), {{states 0-11: 1-12}})], \
example_inputs=(float32[7, 1, 32], int32[7, 1], int32[7]), \
compiler_workdir=compiler_workdir/decode, compiler_args={_FLAGS}, inline_weights_to_neff=False, \
tp_degree=2, max_parallel_compilations=2, spmd_mode=False)
#2 neuronx_distributed.trace.parallel_model_save(model=#1, save_dir=decode)
#3 neuronx_distributed.trace.parallel_model_load(model_dir=decode)
#4 neuronx_distributed.trace.trace.TensorParallelNeuronModel.forward(\
self=#3, tensors=(float32[7, 1, 32], int32[7, 1], int32[7]))
#5 transformers.Gemma4UnifiedForConditionalGeneration.from_pretrained(\
pretrained_model_name_or_path=CHECKPOINT, dtype=float32)"""

_BUILDER_V1 = "neuronx_distributed.trace.model_builder"
MODEL_BUILDER_V1 = f"""\
#0 {_BUILDER_V1}.ModelBuilder(\
router=None, tp_degree=2, checkpoint_loader=None, compiler_workdir=compiler_workdir, logical_nc_config=1)
#1 {_BUILDER_V1}.BaseModelInstance(\
module_cls=() -> parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]), input_output_aliases={_ALIASES})
#2 {_BUILDER_V1}.ModelBuilder.add(self=#0, key=prefill_12, model_instance=#1, \
example_inputs=[(float32[7, 12, 32], int32[7, 12], int32[7])], \
compiler_args={_BUILDER_FLAGS}, priority_model_idx=None)
#3 {_BUILDER_V1}.BaseModelInstance(\
module_cls=() -> parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]), input_output_aliases={_ALIASES})
#4 {_BUILDER_V1}.ModelBuilder.add(self=#0, key=decode, model_instance=#3, \
example_inputs=[(float32[7, 1, 32], int32[7, 1], int32[7])], \
compiler_args={_BUILDER_FLAGS}, priority_model_idx=0)
#5 {_BUILDER_V1}.ModelBuilder.trace(self=#0, initialize_model_weights=False)
#6 torch.jit.save(m=#5, f=model_builder.pt)
#7 neuronx_distributed.utils.model_utils.init_on_device(device=meta, force_custom_init_on_device=True)
#8 torch.nn.Module.state_dict(self=parameters(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]))
#9 {_RESHARD.replace("TP", "2", 1)}
#10 torch.jit.load(f=model_builder.pt)
#11 neuronx_distributed.trace.spmd.NxDModel.initialize(\
self=#10.nxd_model, checkpoint=[<tp0>, <tp1>], start_rank_tensor=int32 [0])"""

MODEL_BUILDER_V2 = f"""\
#0 neuronx_distributed.NxDParallelState(world_size=2, tensor_model_parallel_size=2)
#1 neuronx_distributed.ModelBuilder(model=buffers(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]))
#2 neuronx_distributed.ModelBuilder.trace(self=#1, \
kwargs={{inputs_embeds: float32[7, 12, 32], position_ids: int32[7, 12], valid_length: int32[7]}}, tag=prefill_12)
#3 neuronx_distributed.ModelBuilder.trace(self=#1, \
kwargs={{inputs_embeds: float32[7, 1, 32], position_ids: int32[7, 1], valid_length: int32[7]}}, tag=decode)
#4 neuronx_distributed.ModelBuilder.compile(self=#1, priority_model_key=decode, compiler_workdir=compiler_workdir, \
compiler_args={{prefill_12: {_BUILDER_FLAGS}, decode: {_BUILDER_FLAGS}}})
#5 neuronx_distributed.NxDModel.save(self=#4, path_to_save=model_builder.pt, save_weights=False)
#6 neuronx_distributed.utils.model_utils.init_on_device(device=meta, force_custom_init_on_device=True)
#7 torch.nn.Module.state_dict(self=buffers(10 x float32[7, 4, 18, 8], 2 x float32[7, 1, 18, 16]))
#8 {_RESHARD.replace("TP", "2", 1)}
#9 neuronx_distributed.NxDModel.load(path_to_model=model_builder.pt)
#10 neuronx_distributed.NxDModel.set_weights(self=#9, sharded_checkpoint=[<tp0>, <tp1>])
#11 neuronx_distributed.NxDModel.to_neuron(self=#9)"""

TRANSCRIPTS = {
    "trace": (1, trace(decode_core=0)),
    "trace_core_each": (1, trace(decode_core=1)),
    "tp_alias_device": (2, TP_ALIAS_DEVICE),
    "tp_alias_host": (2, TP_ALIAS_HOST),
    "model_builder_v1": (2, MODEL_BUILDER_V1),
    "model_builder_v2": (2, MODEL_BUILDER_V2),
}
"""Recipe to TP degree and transcript. The ``export`` backend has none: it makes no call of a plan's."""
