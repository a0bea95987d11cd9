"""Made data for docs/data.md: patients whose codes follow a hidden illness, and films with words beside pictures.

    python benchmarks/made_sequences.py --out=out/made

Writes, the same every time:
  patients.jsonl   {"codes": [[...], ...], "segments": [...]}: for each visit its diagnoses (segment type 0), then its
                   medications (1), as G-BERT has them (arXiv 1906.00346)
  codes.txt        the codes, one a line
  ancestors.npy    [codes, 128] float32: for each code the mean of random vectors of itself and its ancestors in the
                   tree of codes, so that codes of one chapter are alike
  films.jsonl      {"tokens": [[...], ...], "segments": [...]}: ids of words (type 0), then of pictures (1), as
                   VideoBERT has them (arXiv 1904.01766)
  films.txt        words, then pictures, one a line, in the order of the ids
"""

import json
import pathlib
import random

import numpy as np
from absl import app, flags

from bertjax.files.atomic import write_atomic
from bertjax.text.special import SPECIAL_TOKENS

_OUT = flags.DEFINE_string('out', 'out/made', 'Folder.')
_PATIENTS = flags.DEFINE_integer('patients', 3000, 'How many.')
_FILMS = flags.DEFINE_integer('films', 1000, 'How many.')
_WIDTH = flags.DEFINE_integer('width', 128, 'Of ancestors.npy.')

CHAPTERS, CATEGORIES, CODES = 8, 4, 6  # a tree: D3.2.5 is diagnosis 5 of category 2 of chapter 3
SCENES, WORDS, PICTURES = 12, 20, 15


def tree(letter: str) -> list[str]:
    """The leaves of a tree of codes."""
    counts = (range(CHAPTERS), range(CATEGORIES), range(CODES))
    return [f'{letter}{a}.{b}.{c}' for a in counts[0] for b in counts[1] for c in counts[2]]


def patient(draw: random.Random) -> dict:
    """An illness is a category of diagnoses; its treatment the category of the same number, now and then another."""
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


def film(draw: random.Random, first: int) -> dict:
    """Scenes, each with words and pictures of its own; ids from `first` on."""
    tokens, segments = [], []
    for _ in range(draw.randint(2, 5)):
        scene = draw.randrange(SCENES)
        words = [first + scene * WORDS + draw.randrange(WORDS) for _ in range(draw.randint(4, 9))]
        seen = first + SCENES * WORDS + scene * PICTURES
        tokens += [words, [seen + draw.randrange(PICTURES) for _ in range(draw.randint(3, 6))]]
        segments += [0, 1]
    return {'tokens': tokens, 'segments': segments}


def ancestors(codes: list[str], width: int) -> np.ndarray:
    """float32 [codes, width]: the mean of a vector each of 'D', 'D3', 'D3.2' and 'D3.2.5', scaled as embeddings are."""
    rng = np.random.default_rng(0)
    vectors: dict[str, np.ndarray] = {}
    rows = []
    for code in codes:
        above = ['.'.join(code.split('.')[: i + 1]) for i in range(3)]
        line = [vectors.setdefault(name, rng.normal(0, 0.02, width)) for name in (code[0], *above)]
        rows.append(np.mean(line, axis=0) * 2)  # of four independent ones: the same spread again
    return np.asarray(rows, np.float32)


def main(argv: list[str]) -> None:
    """Writes the files."""
    del argv
    out, draw = pathlib.Path(_OUT.value), random.Random(0)
    out.mkdir(parents=True, exist_ok=True)
    codes = [*tree('D'), *tree('M')]
    patients = (json.dumps(patient(draw)) for _ in range(_PATIENTS.value))
    write_atomic(out / 'patients.jsonl', '\n'.join(patients) + '\n')
    write_atomic(out / 'codes.txt', '\n'.join(codes) + '\n')
    np.save(out / 'ancestors.npy', ancestors(codes, _WIDTH.value))
    words = [f'word{scene}.{i}' for scene in range(SCENES) for i in range(WORDS)]
    pictures = [f'picture{scene}.{i}' for scene in range(SCENES) for i in range(PICTURES)]
    films = (json.dumps(film(draw, len(SPECIAL_TOKENS))) for _ in range(_FILMS.value))
    write_atomic(out / 'films.jsonl', '\n'.join(films) + '\n')
    write_atomic(out / 'films.txt', '\n'.join([*SPECIAL_TOKENS, *words, *pictures]) + '\n')
    print(f'{_PATIENTS.value:,} patients, {len(codes)} codes, {_FILMS.value:,} films in {out}')


if __name__ == '__main__':
    app.run(main)
