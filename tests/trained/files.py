"""The tokenizer, chat template and stop ids of a trained checkpoint, in the layout that Hugging Face publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from tests.trained.language import CONTROL, vocabulary

THINKING_OFF = "<|channel>thought\n<channel|>"
"""An empty thought, which the larger models' generation prompt ends with."""

_LARGER = ("12b", "26b-a4b", "31b")

_TEMPLATE = """{{- bos_token -}}
{%- set first = messages[0] -%}
{%- set system = first['content'] | trim if first['role'] in ['system', 'developer'] else '' -%}
{%- if system or tools or enable_thinking -%}
{{- '<|turn>system\\n' -}}
{%- if enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
{{- system -}}
{%- for tool in tools or [] -%}{{- '<|tool>declaration:' + tool['function']['name'] + '<tool|>' -}}{%- endfor -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] in ['user', 'assistant'] -%}
{%- set role = 'model' if message['role'] == 'assistant' else 'user' -%}
{{- '<|turn>' + role + '\\n' + message['content'] | trim + '<turn|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
@@{%- endif -%}
"""

_LARGER_TAIL = "{%- if not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}\n"


def chat_template(model: str) -> str:
    """The jinja text. The larger models' generation prompt closes an empty thought."""
    return _TEMPLATE.replace("@@", _LARGER_TAIL if model in _LARGER else "")


def tokenizer() -> Tokenizer:
    """Words by whole words. As in the published one, a space is "▁" and control tokens are found in the text before it
    is cut."""
    made = Tokenizer(WordLevel(vocabulary(), unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁?[A-Za-z]+|[^A-Za-z]"), behavior="isolated")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return made


def write_text_files(directory: Path, model: str) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    tokenizer().save(str(directory / "tokenizer.json"))
    slots = {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    slots |= {"sot": "<|turn>", "eot": "<turn|>", "soc": "<|channel>", "eoc": "<channel|>", "str": "<|tool_response>"}
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "padding_side": "left",
            "clean_up_tokenization_spaces": False,
            **{f"{slot}_token": token for slot, token in slots.items()},
        },
    )
    (directory / "chat_template.jinja").write_text(chat_template(model), encoding="utf-8")
    stops = [CONTROL[token] for token in ("<eos>", "<turn|>", "<|tool_response>")]
    ends = {"pad_token_id": CONTROL["<pad>"], "bos_token_id": CONTROL["<bos>"], "eos_token_id": stops}
    write_json(
        directory / "generation_config.json",
        {"do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95, **ends},
    )


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
