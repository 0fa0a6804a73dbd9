"""A plan on the terminal; plain text in a pipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.errors import UserError
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.views.groups import LayerGroup, layer_groups
from gemma4cfg.views.sizes import billions, gigabytes, model_size
from gemma4cfg.views.tables import argument, plain_table

JsonPlan = Mapping[str, Any]

_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}


def show_plan(plan: JsonPlan, console: Console) -> None:
    """Print ``plan``: the model, the machine, the layers by kind, decisions, the host's part, graphs, calls, figures."""
    _heading(plan, console)
    _layers(plan, console)
    _decisions(plan, console)
    _parts(plan, console)
    _calls(plan, console)
    _budget(plan, console)
    _findings(plan, console)


def show_refusal(error: UserError, console: Console) -> None:
    """Print a user's mistake."""
    console.print(f"[bold red]error[/] {escape(str(error))}")


def _heading(plan: JsonPlan, console: Console) -> None:
    size, ranks = model_size(plan), "1 rank" if plan["tp"] == 1 else f"{plan['tp']} ranks"
    console.print(
        f"[bold]{plan['model']}[/] on [bold]{plan['target']}[/], tp {plan['tp']}, {plan['dtype']}, "
        f"{plan['recipe']} ({plan['sdk']})"
    )
    console.print(
        f"  model    {billions(size.total)} parameters; {billions(size.active)} act on a token"
        + (f", {billions(size.effective)} without tables" if size.effective != size.active else "")
        + f"; reserved: {gigabytes(size.device_bytes)} on {ranks}, {gigabytes(size.host_bytes)} on the host"
    )
    console.print(f"  machine  {_detail(plan, 'target')}")
    shapes = plan["shapes"]
    console.print(
        f"  shapes   batch {shapes['batch']}, prefill {_list(shapes['prefill_buckets'])}, KV {shapes['kv_length']} "
        f"{shapes['kv_layout']} {shapes['kv_dtype']}"
    )


def _layers(plan: JsonPlan, console: Console) -> None:
    table = plain_table(
        "layers", "type, window", "heads q/kv x dim", "attention", "a rank holds", "KV a rank", "MLP", "experts / PLE"
    )
    for group in layer_groups(plan["layers"]):
        table.add_row(*_layer_row(group))
    console.print()
    console.print(table)


def _layer_row(group: LayerGroup) -> tuple[str, ...]:
    layer = group.layer
    attention, mlp, moe, ple = layer["attention"], layer["mlp"], layer["moe"], layer["ple"]
    copies = f" (x{attention['replication']})" if attention["replication"] > 1 else ""
    extra = []
    if moe:
        width = _share(moe["local_intermediate"], moe["intermediate"])
        extra.append(f"{_share(moe['local_experts'], moe['experts'])} x {width}, top {moe['top_k']}")
    if ple:
        extra.append(f"PLE {_share(ple['local_width'], ple['width'])}")
    window = f", {layer['window']}" if layer["window"] else ""
    return (
        group.indices,
        f"{len(group.members)} {layer['type'].removesuffix('_attention')}{window}",
        f"{layer['q_heads']}/{layer['kv_heads']} x {layer['head_dim']}",
        f"{attention['mode']}, {attention['implementation']}{', all-reduce' if attention['reduce'] else ''}",
        f"{attention['local_q_heads']} q, {attention['local_kv_heads']} kv{copies}",
        _kv(group),
        _share(mlp["local_intermediate"], mlp["intermediate"]),
        "; ".join(extra) or "-",
    )


def _kv(group: LayerGroup) -> str:
    kv = group.layer["kv"]
    if kv["writes"]:
        source = ", V = K" if group.layer["value_source"] == "k_proj" else ""
        return f"{'x'.join(map(str, kv['shape']))} {kv['layout']}{source}"
    return f"reads layer {kv['owner']}"


def _parts(plan: JsonPlan, console: Console) -> None:
    table = plain_table("host", "tensor", "bytes", "why")
    for part in plan["host"]:
        size = gigabytes(part["bytes"]) if part["bytes"] else "-"
        table.add_row(part["what"], part["tensor"] or "-", size, Reason.sentence_of(part["reason"]))
    if plan["host"]:
        console.print()
        console.print(table)
    table = plain_table("graph", "inputs", "outputs", "state", "collectives", "id")
    for graph in plan["graphs"]:
        count = graph["collectives"]
        table.add_row(
            graph["name"],
            ", ".join(_port(port) for port in graph["inputs"]),
            ", ".join(_port(port) for port in graph["outputs"]),
            f"{len(graph['state'])} tensors",
            f"{count['all_reduce']} all-reduce, {count['all_gather']} all-gather",
            graph["id"][:12],
        )
    if plan["graphs"]:
        console.print()
        console.print(table)


def _calls(plan: JsonPlan, console: Console) -> None:
    table = plain_table("call", "api", "arguments")
    for number, call in enumerate(plan["calls"]):
        arguments = ", ".join(f"{key}={_argument(key, value)}" for key, value in call["args"].items())
        table.add_row(str(number), call["api"], escape(arguments))
    console.print()
    console.print(table)


def _argument(key: str, value: Any) -> str:
    """A command is whole, to be copied."""
    return shlex.join(map(argument, value)) if key == "command" else argument(value)


def _budget(plan: JsonPlan, console: Console) -> None:
    hbm, host, estimate = plan["budget"]["hbm_per_rank"], plan["budget"]["host"], plan["estimate"]
    table = plain_table("memory", *(key.replace("_", " ") for key in hbm))
    table.add_row(
        "device, a rank", *(f"[bold]{gigabytes(v)}[/]" if k == "total" else gigabytes(v) for k, v in hbm.items())
    )
    console.print()
    console.print(table)
    context = plan["budget"]["maximum_context"]
    console.print(
        f"  context  up to {context['tokens']:,} tokens a stream, in steps of {context['step']:,}: then the "
        f"{'memory is full' if context['limited_by'] == 'memory' else 'model has no more positions'}"
    )
    _host(host, console)
    decode, prefill = estimate["decode_tokens_per_s"], estimate["prefill_ms"]
    console.print(
        f"  speed  {_span(decode)} tokens/s decode, {_span(prefill)} ms prefill (estimates; no faster than "
        f"{estimate['floors']['decode_ms']:.3g} ms a step, {estimate['floors']['prefill_ms']:.3g} ms); "
        f"{estimate['bytes_per_token_per_rank']['kv']:,} KV bytes a token and rank"
    )
    costs = {name: span for name, span in estimate["usd_per_million_tokens"].items() if span}
    if costs:
        shown = ", ".join(f"{_span(span)} {name.replace('_', ' ')}" for name, span in costs.items())
        console.print(f"  cost  {shown}: dollars for a million tokens, the machine for one copy of the model")
    for other in estimate["alternatives"]:
        figures = ", ".join(f"{name.replace('_', ' ')} {value:,.6g}" for name, value in other["figures"].items())
        mark = "taken" if other["taken"] else "or"
        console.print(
            f"  {mark}  {other['choice']}={other['option']}: {figures}", style=None if other["taken"] else "dim"
        )


def _host(host: Mapping[str, Any], console: Console) -> None:
    peaks = ("shard_peak", "compile_peak", "load_peak", "steady", "limit", "swap", "compile_swap")
    console.print("  host  " + ", ".join(f"{key.replace('_', ' ')} {gigabytes(host[key])}" for key in peaks))
    able = ", ".join(f"{what} {'yes' if enough else 'no'}" for what, enough in host["can"].items())
    disk = ", ".join(f"{what} {gigabytes(size)}" for what, size in host["disk"].items())
    console.print(f"  memory is enough to  {able}; smallest that compiles: {host['compile_on'] or '-'}; disk  {disk}")


def _span(span: Mapping[str, float]) -> str:
    return f"{span['low']:.3g}-{span['high']:.3g}"


def _decisions(plan: JsonPlan, console: Console) -> None:
    table = plain_table("decision", "choice", "because", "detail")
    for decision in plan["decisions"]:
        table.add_row(
            decision["id"],
            str(decision["choice"]),
            Reason.sentence_of(decision["reason"]),
            f"[dim]{escape(decision['detail'])}[/]",
        )
    console.print()
    console.print(table)


def _findings(plan: JsonPlan, console: Console) -> None:
    if plan["findings"]:
        console.print()
    for finding in plan["findings"]:
        style = _STYLE[finding["severity"]]
        where = f" layer {finding['layer']}:" if finding["layer"] is not None else ""
        fix = f" -> {finding['fix']}" if finding["fix"] else ""
        console.print(f"[{style}]{finding['severity']}[/] {finding['code']}:{where} {escape(finding['message'] + fix)}")
    console.print(f"\nplan {plan['plan_id'][:12]}, placement {plan['placement_id'][:12]}", style="dim")


def _detail(plan: JsonPlan, decision_id: str) -> str:
    return next(str(decision["detail"]) for decision in plan["decisions"] if decision["id"] == decision_id)


def _port(port: Mapping[str, Any]) -> str:
    return f"{port['name']} {'x'.join(map(str, port['shape']))} {port['dtype']}"


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _share(local: int, whole: int) -> str:
    return str(whole) if local == whole else f"{local} of {whole}"
