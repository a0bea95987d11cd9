"""Writes the results of an attention analysis to files."""

import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from bertjax.attention_analysis.corpus_pass import Findings
from bertjax.attention_analysis.heads import head_rows
from bertjax.attention_analysis.page import attention_page
from bertjax.attention_analysis.relations import best_heads_accuracy
from bertjax.attention_analysis.shown_texts import to_safetensors
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.files.paths import SYSTEM_FILES
from bertjax.inference.attention import Attention
from bertjax.inference.input import STANDARD_INPUT

PAGE, HEADS, RELATIONS, CHANGES = 'attention.html', 'heads.json', 'relations.json', 'changes.json'
WEIGHTS = 'weights.safetensors'
_OUTPUTS = (PAGE, HEADS, RELATIONS, CHANGES, WEIGHTS)


def check_replaceable(folder: pathlib.Path, path: str) -> None:
    """Raises a UserError if the folder contains the input file `path` or a file that run=attention does not write.

    Hidden files of the system, such as .DS_Store, do not count.
    """
    if not folder.is_dir():
        return
    names = {*os.listdir(folder)} - {*_OUTPUTS}
    other_files = sorted(name for name in names if not re.fullmatch(SYSTEM_FILES, name))
    is_file = path not in ('', STANDARD_INPUT)
    if is_file and pathlib.Path(path).expanduser().resolve().parent == folder.resolve():
        other_files = [pathlib.Path(path).name]
    if other_files:
        found = f'{other_files[0]}, which would be lost when the folder is replaced'
        expected, fix = 'only files that run=attention wrote', 'move the file, or give another --workdir'
        raise UserError(str(folder), found, expected, fix)


def write_findings(folder: pathlib.Path, results: Findings, shown_texts: Sequence[Attention], title: str) -> None:
    """Writes the JSON files, the weights and the page into a new folder, which replaces `folder`."""
    counts = {'unit': results.unit, 'texts': results.texts, 'positions': results.positions}
    counts |= {'cut': results.cut, 'left_out': results.left_out}
    files: dict[str, Any] = {HEADS: {**counts, 'heads': head_rows(results.means)}}
    if results.relations:
        files[RELATIONS] = {
            'sentences': results.texts,
            'left_out': results.left_out,
            'each_by_its_best_head': round(best_heads_accuracy(results.relations), 6),
            'relations': results.relations,
        }
    if results.changes:
        files[CHANGES] = {**counts, 'layers': results.changes}
    page = attention_page(title, describe_findings(results), results, shown_texts)
    with atomic_directory(folder) as target:
        for name, value in files.items():
            text = json.dumps(value, ensure_ascii=False, indent=1) + '\n'
            pathlib.Path(target, name).write_text(text, encoding='utf-8')
        pathlib.Path(target, PAGE).write_text(page, encoding='utf-8')
        if shown_texts:
            pathlib.Path(target, WEIGHTS).write_bytes(to_safetensors(shown_texts))


def describe_findings(results: Findings) -> str:
    """Returns a sentence about the numbers of heads, texts and positions."""
    layers, heads = results.means['entropy'].shape
    text = f'{layers} layers of {heads} heads, measured on {_texts(results.texts)}'
    text += f' ({results.positions:,} {"words and special tokens" if results.unit == "word" else "pieces"})'
    text += f'; {_texts(results.cut)} truncated' if results.cut else ''
    return text + (f'; {_texts(results.left_out)} skipped as too long' if results.left_out else '') + '.'


def _texts(count: int) -> str:
    return f'{count:,} text{"s" if count != 1 else ""}'
