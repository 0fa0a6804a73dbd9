"""The reference's own run, as a program: ``python reference.py JOB.json``.

It loads a Hugging Face directory as transformers does and runs each prompt alone, in float32; where another type is asked
for, the same tokens are run once more in that. It is run by its path in a process of its own and imports the standard
library, torch, transformers and safetensors, nothing else: what it says owes nothing to the code that it is compared with.
The job's keys are the fields of ``reference_process.ReferenceJob``; the answer is ``output``/reference.safetensors and
``output``/reference.json.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Run by path, Python looks beside this file first, where a module of the project could stand for one of theirs.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

KNOWN_BAD = dict.fromkeys(
    ("5.5.0", "5.5.1"),
    "with use_cache=False, layers that borrow K/V compute their own (huggingface/transformers#45242, mended by #45312)",
)
"""Versions whose Gemma 4 disagrees with itself."""

LIMIT = 1e-4
"""Cached against uncached, relative to the largest logit."""

CHECKED_STEPS = 24
"""Of the longest prompt, fed one by one alone: past a twin's window three times."""

MARGIN_OVER_NOISE = 20
"""A drawn prompt's smallest top-2 margin, in units of its own noise: below, greedy tokens would say nothing."""

ROUTING_MARGIN = 1e-5
"""How much likelier, relatively, the last expert that is taken has to be than the first that is not. Below, rounding may
take the other one, which no limit on an error allows for. Measured: at 1.8e-7 runs that round otherwise took different
ones, from 1.2e-4 on none did."""

DRAWN_AT_ONCE = 2
"""Prompts of each length in a batch: of most, one of them serves."""

DISTINCT_TOKENS = 8
"""In a drawn prompt's answer, or half of its tokens."""


@dataclass(frozen=True)
class Run:
    """One prompt of n tokens, alone: one pass without a cache over it and ``tokens[:-1]``, n + steps rows.

    Row k of ``logits`` [steps + 1, vocabulary] is that of the prompt's last token (k = 0) or of ``tokens[k - 1]``, and its
    largest is ``tokens[k]``: so ``tokens`` are the prompt's greedy answer, whoever proposed them (but where a margin is
    below the noise; and in a type narrower than float32 they are float32's answer). ``hidden`` [layers, n + steps, hidden
    size]: what each decoder layer gave. ``routing`` [n + steps]: the smallest lead of the last expert taken in any layer,
    infinite without experts. ``noise``: the largest difference between the logits of such a pass and those of the same
    tokens fed one by one through a cache (``routed_rows`` of them); in a narrower type, between its logits and float32's.
    """

    prompt: list[int]
    tokens: list[int]
    logits: torch.Tensor
    hidden: torch.Tensor
    routing: torch.Tensor
    noise: float

    @property
    def fed(self) -> list[int]:
        return [*self.prompt, *self.tokens[:-1]]

    @property
    def margins(self) -> torch.Tensor:
        """How far the largest logit of each row is above the next."""
        top = self.logits.topk(2).values
        return top[:, 0] - top[:, 1]

    @property
    def relative_noise(self) -> float:
        return self.noise / float(self.logits.abs().max())

    @property
    def routed_positions(self) -> int:
        """Before the first whose experts rounding could change: that one and all after it may differ."""
        close = (self.routing < ROUTING_MARGIN).nonzero()
        return int(close[0]) if len(close) else len(self.routing)

    @property
    def routed_rows(self) -> int:
        """Of ``logits``, at ``routed_positions``."""
        return max(self.routed_positions - len(self.prompt) + 1, 0)

    def difference(self, logits: torch.Tensor) -> float:
        """The largest, of the first rows made in another way."""
        apart = (logits - self.logits[: len(logits)])[: self.routed_rows].abs()
        return float(apart.max()) if len(apart) else 0.0

    @property
    def decided(self) -> bool:
        return self.routed_rows == len(self.tokens) and float(self.margins.min()) > MARGIN_OVER_NOISE * self.noise


def load(job: Mapping[str, Any], dtype: str = "float32") -> Any:
    """The class that config.json names, from the directory as it is. ``layers``: only the first so many are run.

    Exits where a weight is missing or of another shape: transformers would draw it at random.
    """
    directory = job["directory"]
    named = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    kind = getattr(transformers, named)
    config = kind.config_class.from_pretrained(directory, local_files_only=True)
    if job["layers"] is not None:
        text = config.get_text_config()
        text.layer_types = text.layer_types[: job["layers"]]
        text.num_hidden_layers = job["layers"]
    model, found = kind.from_pretrained(
        directory,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=job["attention_implementation"],
        experts_implementation="eager",  # grouped kernels ask for sizes that are multiples of 16 bytes
        local_files_only=True,
        output_loading_info=True,
    )
    wrong = {
        key: sorted(map(str, found[key])) for key in ("missing_keys", "mismatched_keys", "error_msgs") if found[key]
    }
    if wrong:
        raise SystemExit(f"{directory}: {named} does not load: {json.dumps(wrong)[:2000]}")
    return model.eval()


def text_model(model: Any) -> Any:
    return getattr(model.model, "language_model", model.model)


def given(model: Any, prompts: Sequence[Sequence[int]], steps: int) -> list[Run]:
    """Every prompt alone. The answers are proposed by all of them in one batch, since a step costs the same for many;
    one that its prompt's own pass does not confirm is made again, token by token, alone."""
    proposed = zip(prompts, *greedy(model, prompts, steps), strict=True)
    return [_confirmed(model, prompt, tokens, cached) for prompt, tokens, cached in proposed]


def drawn(model: Any, job: Mapping[str, Any]) -> tuple[list[Run], list[int]]:
    """A run for each of ``prompt_lengths``, and the prompts drawn for it: the first that serves, of ``max_draws`` (where
    none does, the last). Several are proposed at once."""
    lengths, steps, most = job["prompt_lengths"], job["steps"], job["max_draws"]
    done: list[Run | None] = [None] * len(lengths)
    draws = [0] * len(lengths)
    while missing := [i for i in range(len(lengths)) if draws[i] < most and not _serves(done[i])]:
        asked = [
            (i, _prompt(model, job["seed"], i, draw, lengths[i]))
            for i in missing
            for draw in range(draws[i], min(draws[i] + DRAWN_AT_ONCE, most))
        ]
        proposed = zip(asked, *greedy(model, [prompt for _, prompt in asked], steps), strict=True)
        for (i, prompt), tokens, cached in proposed:
            if not _serves(done[i]):
                done[i] = _confirmed(model, prompt, tokens, cached)
                draws[i] += 1
    return [result for result in done if result is not None], draws


def _confirmed(model: Any, prompt: Sequence[int], tokens: list[int], cached: torch.Tensor) -> Run:
    def passed(noise: float) -> Run:
        run = Run(list(prompt), tokens, *whole(model, [*prompt, *tokens[:-1]], len(prompt) - 1, use_cache=False), 0.0)
        return replace(run, noise=max(noise, run.difference(cached)))

    run = passed(0.0)
    if run.logits.argmax(-1).tolist() != tokens:
        (tokens,), (cached,) = greedy(model, [prompt], len(tokens) - 1)
        run = passed(run.noise)
    return run


def rounded(model: Any, exact: Run) -> Run:
    """A float32 run's tokens through the same model in a narrower type."""
    logits, hidden, routing = whole(model, exact.fed, len(exact.prompt) - 1, use_cache=False)
    noise = float((logits - exact.logits).abs().max())
    return replace(exact, logits=logits, hidden=hidden, routing=routing, noise=noise)


def _serves(result: Run | None) -> bool:
    """Whether a drawn prompt is kept: its greedy answer is beyond doubt, and no mere repetition."""
    return (
        result is not None
        and result.decided
        and len(set(result.tokens)) >= min(DISTINCT_TOKENS, len(result.tokens) // 2)
    )


def greedy(model: Any, prompts: Sequence[Sequence[int]], steps: int) -> tuple[list[list[int]], torch.Tensor]:
    """Each prompt and ``steps`` tokens of its answer, fed one by one through a cache, shorter prompts padded on the left:
    ``steps + 1`` tokens a prompt and the logits [prompts, steps + 1, vocabulary] that chose them."""
    longest = max(map(len, prompts))
    feed = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache: dict[str, Any] = {}
    tokens, rows = [], []
    for _ in range(steps + 1):
        answer = model(feed, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **cache)
        rows.append(answer.logits[:, -1].float())
        feed = rows[-1].argmax(-1, keepdim=True)
        tokens.append(feed)
        name = "cache" if "cache" in answer else "past_key_values"  # what it is called as an argument too
        cache = {name: answer[name]}
        mask = torch.cat([mask, torch.ones_like(feed)], dim=-1)
        positions = positions[:, -1:] + 1
    return torch.cat(tokens, dim=-1).tolist(), torch.stack(rows, dim=1)


def whole(
    model: Any, fed: Sequence[int], first: int, use_cache: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one pass: logits of row ``first`` and on; the hidden states of every row after every layer; every row's lead of the
    last expert taken, the smallest of all layers."""
    states: list[torch.Tensor] = []
    leads = [torch.full((len(fed),), torch.inf)]
    hooks = []
    for layer in text_model(model).layers:
        hooks.append(layer.register_forward_hook(lambda _layer, _given, out: states.append(out[0].float())))
        router = getattr(layer, "router", None)
        if router is not None and router.scale.dtype == torch.float32:  # else the noise has other choices in it
            hooks.append(router.register_forward_hook(lambda _router, _given, out: leads.append(_lead(*out))))
    rows = torch.arange(first, len(fed))  # as a tensor: for a number, newer versions run only those rows of some layers
    answer = model(torch.tensor([list(fed)]), use_cache=use_cache, logits_to_keep=rows)
    for hook in hooks:
        hook.remove()
    return answer.logits[0].float(), torch.stack(states), torch.stack(leads).amin(dim=0)


def _lead(probabilities: torch.Tensor, _weights: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
    """[rows]: how much likelier the last expert taken is than the first that is not, relatively."""
    most = probabilities.topk(taken.shape[-1] + 1, dim=-1).values
    return 1 - most[:, -1] / most[:, -2]


def _prompt(model: Any, seed: int, number: int, draw: int, length: int) -> list[int]:
    """Random ids, none of which stands for an image, a video or a sound."""
    special = {getattr(model.config, f"{what}_token_id", None) for what in ("image", "video", "audio")}
    size = model.config.get_text_config().vocab_size
    source = random.Random(f"{seed} {number} {draw}")
    prompt: list[int] = []
    while len(prompt) < length:
        token = int(source.random() * size)
        prompt += [token] if token not in special else []
    return prompt


def self_check(model: Any, done: Sequence[Run]) -> dict[str, Any]:
    """Does the reference agree with itself? Fed one by one through a cache against in one pass (every prompt in the batch,
    and the longest alone), and that pass with a cache against without."""
    longest = max(done, key=lambda result: len(result.prompt))
    largest = float(longest.logits.abs().max())
    _, (alone,) = greedy(model, [longest.prompt], min(len(longest.tokens) - 1, CHECKED_STEPS))
    with_cache, _, _ = whole(model, longest.fed, len(longest.prompt) - 1, use_cache=True)
    cached = [*(result.relative_noise for result in done), longest.difference(alone) / largest]
    use_cache_false = longest.difference(with_cache) / largest
    known_bad = KNOWN_BAD.get(transformers.__version__)
    return {
        "cached_relative": max(cached),
        "use_cache_false_relative": use_cache_false,
        "limit": LIMIT,
        "known_bad": known_bad,
        "passed": all(value <= LIMIT for value in (*cached, use_cache_false)) and known_bad is None,
    }


@torch.inference_mode()
def main(path: str) -> None:
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    started = time.perf_counter()
    model = load(job)
    loaded = time.perf_counter()
    if job["prompts"] is None:
        results, draws = drawn(model, job)
    else:
        results, draws = given(model, job["prompts"], job["steps"]), [0] * len(job["prompts"])
    class_name, check = type(model).__name__, self_check(model, results)
    if job["dtype"] != "float32":
        del model
        model = load(job, job["dtype"])
        results = [rounded(model, exact) for exact in results]
    report = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "class_name": class_name,
        "self_check": check,
        "seconds": {"load": loaded - started, "run": time.perf_counter() - loaded},
        "prompts": [
            {
                "prompt": result.prompt,
                "tokens": result.tokens,
                "noise": result.noise,
                "relative_noise": result.relative_noise,
                "routed_positions": result.routed_positions,
                "decided": result.decided,
                "draws": count,
            }
            for result, count in zip(results, draws, strict=True)
        ],
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    tensors = {
        f"{number}.{name}": getattr(result, name).contiguous()
        for number, result in enumerate(results)
        for name in ("logits", "hidden", "margins")
    }
    output = Path(job["output"])
    save_file(tensors, output / "reference.safetensors")
    (output / "reference.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
