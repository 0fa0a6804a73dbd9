"""``vllm serve``: a GPU machine needs no graphs of ours, one command serves the model.

- ``--dtype`` is always said: a checkpoint in bfloat16 meets cards without it (T4G);
- ``--max-model-len`` and ``--max-num-seqs`` bound the KV: the model's own maximum of positions does not fit;
- no attention backend is chosen: two head sizes in one model leave vLLM a single one (Triton), which it takes by
  itself, and the environment variable once meant for it is ignored;
- ``requires``: releases below the pin read ``head_dim`` as one number and stop.

A model without a name on the hub is served from its checkpoint.
"""

from __future__ import annotations

from gemma4cfg.plan.records import Call
from gemma4cfg.planner.calls.parts import CallInputs, Script, ref


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    """``flags`` are the release's further words of the command."""
    script = Script()
    options = {
        "--dtype": inputs.dtype,
        "--max-model-len": inputs.shapes.kv_length,
        "--max-num-seqs": inputs.shapes.batch,
        "--tensor-parallel-size": inputs.tp,
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    script.call(
        "vllm serve",
        command=["vllm", "serve", inputs.model.hugging_face_id or ref("provenance/checkpoint"), *words, *flags],
        env={},
        requires={"vllm": f">={inputs.sdk.pins['vllm']}"},
    )
    return script.calls
