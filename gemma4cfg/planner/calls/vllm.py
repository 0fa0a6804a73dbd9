"""``vllm serve``: a GPU machine needs no graphs of ours, one command serves the model.

- it is built first where the stack's own packages leave the chip out, with the architecture list of this chip alone, and
  with the attention kernel's tile clamped where its shared memory is too small for the wider heads;
- ``--dtype`` is always said: a checkpoint in bfloat16 meets cards without it (T4G);
- ``--max-model-len`` and ``--max-num-seqs`` bound the KV: the model's own maximum of positions may not fit, and
  ``--gpu-memory-utilization`` is the share of the card that the budget counts with;
- no attention backend is chosen: two head sizes in one model leave vLLM a single one (Triton), which it takes by
  itself, and the environment variable once meant for it is ignored;
- the release's own version is checked out, and ``requires`` is no other: releases below the pin read ``head_dim`` as one
  number and stop;
- at last a chat completion whose text is looked at: status 200 alone shows nothing.

A model without a name on the hub is served from its checkpoint.
"""

from __future__ import annotations

from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Call
from gemma4cfg.planner.calls.parts import CallInputs, Script, Value, ref
from gemma4cfg.planner.on_chip import tile_that_fits


def calls(inputs: CallInputs, flags: tuple[str, ...]) -> tuple[Call, ...]:
    """``flags`` are the release's further words of the command."""
    script = Script()
    serving, build, health = inputs.sdk.stack.estimates.serving, inputs.sdk.stack.build, inputs.sdk.stack.health
    assert serving is not None and build is not None and health is not None, "a stack that serves says how"
    version = inputs.sdk.pins["vllm"]
    requires = {"vllm": f">={version}"}
    script.call(
        "pip install",
        before=[f"git clone --branch v{version} {build.repository} vllm", "cd vllm", *build.before],
        command=list(build.command),
        env=dict(build.environment),
        needs={**build.needs, "memory": f"{build.host_memory_gib} GiB with swap, as the machine on which it was built"},
        patch=_patch(inputs),
        requires=requires,
    )
    model = inputs.model.hugging_face_id or ref("provenance/checkpoint")
    options = {
        "--dtype": inputs.dtype,
        "--max-model-len": inputs.shapes.kv_length,
        "--max-num-seqs": inputs.shapes.batch,
        "--tensor-parallel-size": inputs.tp,
        "--gpu-memory-utilization": serving.memory_share,
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    script.call("vllm serve", command=["vllm", "serve", model, *words, *flags], env={}, requires=requires)
    script.call(
        "http.post",
        path=health.path,
        json={
            "model": model,
            "messages": [{"role": "user", "content": health.prompt}],
            "temperature": 0,
            "max_tokens": 32,
        },
        answer_holds=health.answer_holds,
    )
    return script.calls


def _patch(inputs: CallInputs) -> Value:
    """The attention kernel's tile by head width, and the file that sets it."""
    serving, build = inputs.sdk.stack.estimates.serving, inputs.sdk.stack.build
    assert serving is not None and build is not None
    kernel, item, types = serving.attention, ITEM_BYTES[inputs.dtype], inputs.model.attention
    heads = sorted({types.sliding_attention.head_dim, types.full_attention.head_dim})
    return {
        "file": build.patch,
        "tile_of_head_dim": {str(head): tile_that_fits(kernel, head, item) for head in heads},
        "num_stages": 1,
        "at_most_bytes": kernel.budget_bytes,
    }
