"""Element types of the stored text decoder: what can be sharded, what is packed, what is not as declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gemma4cfg.architecture.stored import StoredTensor
from gemma4cfg.architecture.wording import counted, some
from gemma4cfg.findings import Finding

SHARDABLE = ("bfloat16", "float16", "float32")
_SMALL_FLOATS = ("float8_", "float6_", "float4_")

_PACKED_NAMES = frozenset(
    {
        "weight_packed",
        "weight_scale",
        "weight_scale_inv",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "qweight",
        "qzeros",
        "g_idx",
        "scales",
        "biases",
        "absmax",
        "quant_map",
        "nested_absmax",
        "nested_quant_map",
        "quant_state",
        "SCB",
    }
)
"""Steps of tensor names that GPTQ, AWQ, compressed-tensors, bitsandbytes and MLX put beside packed weights."""


def packed(text: Mapping[str, StoredTensor]) -> list[Finding]:
    """One error where any text tensor is packed, scaled or of a type that is never sharded."""
    wrong = [name for name, tensor in text.items() if tensor.dtype not in SHARDABLE or _is_packed_name(name)]
    if not wrong:
        return []
    types = Counter(text[name].dtype for name in wrong)
    shown = ", ".join(f"{counted(number, 'tensor')} of {dtype}" for dtype, number in sorted(types.items()))
    small = [dtype for dtype in types if dtype.startswith(_SMALL_FLOATS)]
    if small:
        kind = f"quantised to {some(small)}"
    elif set(types) <= {"float64", "complex64"}:
        kind = f"stored in {some(types)}"
    else:
        kind = "packed int4/int8"
    return [
        Finding(
            "error",
            "packed_checkpoint",
            None,
            f"{kind}: this planner shards bf16, fp16 and fp32 only; the header has {shown} ({some(wrong)})",
            "use the unquantised checkpoint of the same model",
        )
    ]


def undeclared(tensors: Iterable[StoredTensor], declared: str) -> list[Finding]:
    """A warning where shardable tensors are of several types, or of one that the configuration does not declare."""
    types = Counter(tensor.dtype for tensor in tensors if tensor.dtype in SHARDABLE)
    if not types or set(types) == {declared}:
        return []
    if len(types) > 1:
        shown = ", ".join(f"{counted(number, 'tensor')} of {dtype}" for dtype, number in types.most_common())
        message = f"mixed dtypes in the text decoder: {shown}; the config says {declared}"
        code = "dtype_mixed"
    else:
        message = f"the text decoder is stored in {next(iter(types))}, the config says {declared}"
        code = "dtype_undeclared"
    return [
        Finding("warning", code, None, message, "rank files are written in the plan's dtype: set dtype= to choose it")
    ]


def _is_packed_name(name: str) -> bool:
    return not _PACKED_NAMES.isdisjoint(name.split("."))
