"""What a pass over a corpus found, and the files that hold it."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.attention_analysis.changes import change_means, change_rows, parameter_changes
from bertjax.attention_analysis.heads import head_means, head_rows
from bertjax.attention_analysis.measuring import Totals
from bertjax.attention_analysis.page import attention_page
from bertjax.attention_analysis.relations import relation_table, together
from bertjax.attention_analysis.shown import ShownText, as_file
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.loading.load_model import LoadedModel

PAGE, HEADS, RELATIONS, CHANGES = 'attention.html', 'heads.json', 'relations.json', 'changes.json'
WEIGHTS = 'weights.safetensors'
_OURS = (PAGE, HEADS, RELATIONS, CHANGES, WEIGHTS)


@dataclasses.dataclass(frozen=True)
class Findings:
    """Figures of a model's heads on a corpus.

    Attributes:
      unit: 'piece' or 'word'.
      texts, positions: how many were measured; positions are of that unit, special tokens among them.
      cut, left_out: see measuring.py:Totals.
      means: {a name of heads.py:MEASURES: float64 [L, H]}.
      relations: rows of `relation_table`; empty for texts.
      changes: rows of `change_rows`; empty without a model to compare with.
    """

    unit: str
    texts: int
    positions: int
    cut: int
    left_out: int
    means: dict[str, np.ndarray]
    relations: list[dict[str, Any]]
    changes: list[dict[str, Any]]


def findings(
    totals: Totals, unit: str, relations: Sequence[str], model: LoadedModel, before: LoadedModel | None
) -> Findings:
    """The figures of a pass; see `measuring.measure` for the arguments."""
    sums, changes = totals.sums, []
    if before is not None:
        changes = change_rows(parameter_changes(before.params, model.params), change_means(sums['changes']))
    return Findings(
        unit=unit,
        texts=int(sums['heads']['texts']),
        positions=int(sums['heads']['positions']),
        cut=totals.cut,
        left_out=totals.left_out,
        means=head_means(sums['heads']),
        relations=relation_table(sums['relations'], relations, totals.offsets) if relations else [],
        changes=changes,
    )


def check_replaceable(folder: pathlib.Path, path: str) -> None:
    """Refuses a folder whose replacement would lose what we have not written.

    Args:
      folder: WORKDIR/attention.
      path: of the input.

    Raises:
      UserError: it has other files, or the input.
    """
    others = sorted(file.name for file in folder.iterdir() if file.name not in _OURS) if folder.is_dir() else []
    if folder.is_dir() and path and pathlib.Path(path).expanduser().resolve().parent == folder.resolve():
        others = [pathlib.Path(path).name]
    if others:
        found = f'{others[0]}, which would be lost when the folder is replaced'
        expected = 'nothing but what run=attention wrote'
        raise UserError(str(folder), found, expected, 'move it, or give another --workdir')


def write_findings(folder: pathlib.Path, found: Findings, shown: Sequence[ShownText], title: str) -> None:
    """Writes the files and the page; the folder is replaced as a whole.

    Args:
      folder: WORKDIR/attention.
      found: the figures.
      shown: texts for the page.
      title: of the page: which model it is.
    """
    of = {'unit': found.unit, 'texts': found.texts, 'positions': found.positions}
    of |= {'cut': found.cut, 'left_out': found.left_out}
    files: dict[str, Any] = {HEADS: {**of, 'heads': head_rows(found.means)}}
    if found.relations:
        best = {'each_by_its_best_head': round(together(found.relations), 6)}
        files[RELATIONS] = {'sentences': found.texts, 'left_out': found.left_out, **best, 'relations': found.relations}
    if found.changes:
        files[CHANGES] = {**of, 'layers': found.changes}
    page = attention_page(title, described(found), shown, found.means, found.relations, found.changes)
    with atomic_directory(folder) as target:
        for name, value in files.items():
            text = json.dumps(value, ensure_ascii=False, indent=1) + '\n'
            pathlib.Path(target, name).write_text(text, encoding='utf-8')
        pathlib.Path(target, PAGE).write_text(page, encoding='utf-8')
        if shown:
            pathlib.Path(target, WEIGHTS).write_bytes(as_file(shown))


def described(found: Findings) -> str:
    """How much was measured, in a sentence."""
    layers, heads = found.means['entropy'].shape
    text = f'{layers} layers of {heads} heads, measured on {found.texts:,} texts'
    text += f' ({found.positions:,} {"words and special tokens" if found.unit == "word" else "pieces"})'
    text += f'; {found.cut:,} lost their end' if found.cut else ''
    return text + (f'; {found.left_out:,} longer ones left out' if found.left_out else '') + '.'
