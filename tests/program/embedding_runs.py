"""Short runs of configs/embed.py on made sentences."""

import json
import pathlib

import numpy as np
from running import Program

SHORT = (
    '--config.seq_len=24', '--config.max_padded_lengths=1', '--config.batch_size=8', '--config.packing=off',
    '--config.steps=6', '--config.learning_rate=1e-3', '--config.log_every=2', '--config.export_formats=hf',
)  # fmt: skip
WORDS = 'river stone bird light house field wind old green red slow near over under sings runs falls'


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [f'the {" ".join(draw.choice(WORDS.split(), draw.integers(3, 7)))}.' for _ in range(count)]


def write_rows(path: pathlib.Path, records: list[dict]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(record) + '\n' for record in records), encoding='utf-8')
    return path


def pairs(count: int, seed: int) -> list[dict]:
    """Returns pairs whose positive has the words of the anchor in another order; some have negatives."""
    draw, texts = np.random.default_rng(seed), sentences(count, seed)
    records = [{'anchor': text, 'positive': ' '.join(draw.permutation(text[:-1].split())) + '.'} for text in texts]
    for i in range(0, count, 3):
        records[i]['negative'] = sentences(1 + i % 2, seed + i) if i % 2 else texts[i - 1]
    return records


def embed(program: Program, trained: pathlib.Path, data: pathlib.Path, *changes: str, recipe='configs/embed.py'):
    workdir = data.parent / 'run'
    flags = (f'--workdir={workdir}', f'--config.init={trained}', f'--config.data={data}', *SHORT)
    return workdir, program.run(*flags, *changes, recipe=recipe, small=False).stdout


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
