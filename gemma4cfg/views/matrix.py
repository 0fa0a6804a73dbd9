"""``docs/proof.md``: every case of a matrix, from the JSON forms of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4cfg.views.markdown import markdown

HEAD = """# Proof

Every plan of the five models' tiny twins that TP degrees 1, 2, 4, 8 and 12, attention policies, MoE partitions, KV layouts
and one-shot or chunked prefill make, each run on its CPU ranks and compared with transformers' own model. Made by

```bash
python -m gemma4cfg -m model=e2b,e4b,12b,26b-a4b,31b task=verify verify.matrix=full hydra.sweep.dir=outputs/matrix
python -m gemma4cfg.verify outputs/matrix/*/verify.json > docs/proof.md
```

Errors are of logits, the largest over all streams and steps, relative to the reference's largest logit; the limit is ten times
the reference's own noise, and at most 1e-4. *Decoded*: steps after each prompt (`verify.steps`; the window is 8). *Tokens*:
greedy ones of all prompts beyond that noise, all equal where a case holds. Twins have the real layer pattern, as many layers as
fit a machine at that degree.

"""

ERRORS = ("prefill_relative", "decode_relative")


def matrix_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """``runs``: one ``verify.json`` of ``verify.matrix`` for each model. Raises ValueError for one that is not finished."""
    for run in runs:
        if len(run["cases"]) != run["of"]:
            raise ValueError(f"{len(run['cases'])} of {run['of']} cases of {_model(run['cases'][0])}: not finished")
    cases = [case for run in runs for case in run["cases"]]
    held = sum(case["holds"] for case in cases)
    worst = max((case[key] / case["limit"] for case in cases for key in ERRORS if case[key] is not None), default=0.0)
    tokens = sum(case["tokens"] for case in cases)
    versions = ", ".join(f"{name} {version}" for name, version in cases[0]["versions"].items())
    total = (
        f"**{held} of {len(cases)} hold**, {tokens:,} tokens compared; the largest error is {worst:.2f} of its limit. "
        f"With {versions}.\n"
    )
    return "\n".join([HEAD + total, *(f"## {_model(run['cases'][0])}\n\n{_table(run['cases'])}" for run in runs)])


def _model(case: Mapping[str, Any]) -> str:
    return next(str(value) for axis, value in case["features"] if axis == "model")


def _table(cases: Sequence[Mapping[str, Any]]) -> str:
    axes = list(dict.fromkeys(axis for case in cases for axis, _ in case["features"] if axis != "model"))
    titles = ("layers", *axes, "prefill error", "decode error", "limit", "decoded", "tokens", "")
    rows = [
        (
            str(case["layers"]),
            *(", ".join(value for name, value in case["features"] if name == axis) for axis in axes),
            *("-" if case[key] is None else f"{case[key]:.1e}" for key in (*ERRORS, "limit")),
            str(case["steps"]),
            str(case["tokens"]),
            "holds" if case["holds"] else f"**fails**: {', '.join(case['failed'])}",
        )
        for case in cases
    ]
    return markdown(titles, rows)
