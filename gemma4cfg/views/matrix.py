"""``docs/proof.md``: every case of a matrix, and runs in other types, from the JSON forms of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4cfg.views.markdown import markdown

HEAD = """# Proof

Every plan of the five models' tiny twins that TP degrees 1, 2, 4, 8 and 12, attention policies, MoE partitions, KV layouts
and one-shot or chunked prefill make, each run on its CPU ranks and compared with transformers' own model. Made by

```bash
python -m gemma4cfg -m model=e2b,e4b,12b,26b-a4b,31b task=verify verify.matrix=full hydra.sweep.dir=outputs/matrix
python -m gemma4cfg -m model=e2b,e4b,12b,26b-a4b,31b tp=8 task=verify verify.dtype=bfloat16 hydra.sweep.dir=outputs/bfloat16
python -m gemma4cfg.verify outputs/matrix/*/verify.json outputs/bfloat16/*/verify.json > docs/proof.md
```

Errors are of logits, the largest over all streams and steps, relative to the reference's largest logit; the limit is ten times
the reference's own noise, and at most 1e-4. *Decoded*: steps after each prompt (`verify.steps`; the window is 8). *Tokens*:
greedy ones of all prompts beyond that noise, all equal where a case holds. Twins have the real layer pattern, as many layers as
fit a machine at that degree.

"""

SINGLE = """## Single runs

In bfloat16 the limit is four times what rounding makes of the reference: the difference between its runs in bfloat16 and in
float32. A twin's weights are drawn so that every tensor matters, which makes that large, and hides the lead of most tokens.

"""

ERRORS = ("prefill_relative", "decode_relative")


def proof_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """``runs``: a finished ``verify.json`` of ``verify.matrix`` for each model, and any of single plans."""
    matrices = [run for run in runs if "cases" in run]
    single = [run for run in runs if "cases" not in run]
    cases = [case for run in matrices for case in run["cases"]]
    held = sum(case["holds"] for case in cases)
    worst = max((case[key] / case["limit"] for case in cases for key in ERRORS if case[key] is not None), default=0.0)
    tokens = sum(case["tokens"] for case in cases)
    versions = ", ".join(f"{name} {version}" for name, version in _versions(runs[0]).items())
    total = (
        f"**{held} of {len(cases)} hold**, {tokens:,} tokens compared; the largest error is {worst:.2f} of its limit. "
        f"With {versions}.\n"
    )
    sections = [f"## {_model(run['cases'][0])}\n\n{_table(run['cases'])}" for run in matrices]
    if single:
        sections.append(SINGLE + _single(single))
    return "\n".join([HEAD + total, *sections])


def _versions(run: Mapping[str, Any]) -> Mapping[str, str]:
    versions: Mapping[str, str] = (run["cases"][0] if "cases" in run else run["reference"])["versions"]
    return versions


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


def _single(runs: Sequence[Mapping[str, Any]]) -> str:
    titles = ("what", "tp", "type", "prefill error", "decode error", "limit", "decoded", "tokens", "")
    rows = []
    for run in runs:
        checks = {check["name"]: check for check in run["checks"]}
        errors = (checks["prefill_logits"]["figure"], checks["decode_logits"]["figure"])
        failed = [name for name, check in checks.items() if not check["passed"]]
        rows.append(
            (
                run["subject"],
                str(run["tp"]),
                run["dtype"],
                *("-" if error is None else f"{error:.1e}" for error in errors),
                f"{checks['decode_logits']['limit']:.1e}",
                str(max(stream["steps"] for stream in run["streams"])),
                str(sum(stream["decided_tokens"] for stream in run["streams"])),
                f"**fails**: {', '.join(failed)}" if failed else "holds",
            )
        )
    return markdown(titles, rows)
