"""Synthetic data for docs/data.md: patients whose codes follow a hidden illness, and films with words and pictures.

    python benchmarks/made_sequences.py --out=out/made

The script is deterministic. It writes
  patients.jsonl   {"codes": [[...], ...], "segments": [...]}: for each visit the diagnoses (segment type 0), then the
                   medications (1), like the data of G-BERT (arXiv 1906.00346)
  codes.txt        the codes, one per line
  ancestors.npy    [codes, 128] float32: for each code, the mean of the random vectors of the code and its ancestors in
                   the tree of codes, so that codes of the same chapter are similar
  films.jsonl      {"tokens": [[...], ...], "segments": [...]}: ids of words (type 0), then of pictures (1), like the
                   data of VideoBERT (arXiv 1904.01766)
  films.txt        the words, then the pictures, one per line, in the order of the ids
"""

import json
import pathlib
import random

import numpy as np
from absl import app, flags

from bertjax.files.atomic import write_atomic
from bertjax.text.special import SPECIAL_TOKENS

_OUT = flags.DEFINE_string('out', 'out/made', 'The folder of the files.')
_PATIENTS = flags.DEFINE_integer('patients', 3000, 'The number of patients.')
_FILMS = flags.DEFINE_integer('films', 1000, 'The number of films.')
_WIDTH = flags.DEFINE_integer('width', 128, 'The width of ancestors.npy.')

CHAPTERS, CATEGORIES, CODES = 8, 4, 6  # a tree: D3.2.5 is diagnosis 5 of category 2 of chapter 3
SCENES, WORDS, PICTURES = 12, 20, 15


def make_tree(letter: str) -> list[str]:
    """Returns the leaves of a tree of codes."""
    counts = (range(CHAPTERS), range(CATEGORIES), range(CODES))
    return [f'{letter}{a}.{b}.{c}' for a in counts[0] for b in counts[1] for c in counts[2]]


def make_patient(draw: random.Random) -> dict:
    """Returns a patient. The illness is a category, and most diagnoses and medications are codes of this category."""
    chapter, category = draw.randrange(CHAPTERS), draw.randrange(CATEGORIES)
    codes, segments = [], []
    for _ in range(draw.randint(1, 4)):
        for segment, letter in enumerate('DM'):
            visit = []
            for _ in range(draw.randint(2, 5)):
                a, b = (chapter, category) if draw.random() < 0.85 else (draw.randrange(CHAPTERS), 0)
                visit.append(f'{letter}{a}.{b}.{draw.randrange(CODES)}')
            codes.append(list(dict.fromkeys(visit)))
            segments.append(segment)
    return {'codes': codes, 'segments': segments}


def make_film(draw: random.Random, first: int) -> dict:
    """Returns a film of several scenes with different words and pictures. The ids begin at `first`."""
    tokens, segments = [], []
    for _ in range(draw.randint(2, 5)):
        scene = draw.randrange(SCENES)
        words = [first + scene * WORDS + draw.randrange(WORDS) for _ in range(draw.randint(4, 9))]
        seen = first + SCENES * WORDS + scene * PICTURES
        tokens += [words, [seen + draw.randrange(PICTURES) for _ in range(draw.randint(3, 6))]]
        segments += [0, 1]
    return {'tokens': tokens, 'segments': segments}


def average_ancestors(codes: list[str], width: int) -> np.ndarray:
    """Returns float32 [codes, width]: for D3.2.5 the scaled mean of the vectors of 'D', 'D3', 'D3.2' and 'D3.2.5'."""
    rng = np.random.default_rng(0)
    vectors: dict[str, np.ndarray] = {}
    rows = []
    for code in codes:
        above = ['.'.join(code.split('.')[: i + 1]) for i in range(3)]
        line = [vectors.setdefault(name, rng.normal(0, 0.02, width)) for name in (code[0], *above)]
        rows.append(np.mean(line, axis=0) * 2)  # restores the standard deviation of one vector
    return np.asarray(rows, np.float32)


def main(argv: list[str]) -> None:
    del argv
    out, draw = pathlib.Path(_OUT.value), random.Random(0)
    out.mkdir(parents=True, exist_ok=True)
    codes = [*make_tree('D'), *make_tree('M')]
    patients = (json.dumps(make_patient(draw)) for _ in range(_PATIENTS.value))
    write_atomic(out / 'patients.jsonl', '\n'.join(patients) + '\n')
    write_atomic(out / 'codes.txt', '\n'.join(codes) + '\n')
    np.save(out / 'ancestors.npy', average_ancestors(codes, _WIDTH.value))
    words = [f'word{scene}.{i}' for scene in range(SCENES) for i in range(WORDS)]
    pictures = [f'picture{scene}.{i}' for scene in range(SCENES) for i in range(PICTURES)]
    films = (json.dumps(make_film(draw, len(SPECIAL_TOKENS))) for _ in range(_FILMS.value))
    write_atomic(out / 'films.jsonl', '\n'.join(films) + '\n')
    write_atomic(out / 'films.txt', '\n'.join([*SPECIAL_TOKENS, *words, *pictures]) + '\n')
    print(f'{_PATIENTS.value:,} patients, {len(codes)} codes, {_FILMS.value:,} films in {out}')


if __name__ == '__main__':
    app.run(main)
