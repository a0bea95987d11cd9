"""Corpora of hostile text."""

import bz2
import gzip
import json
import lzma
import pathlib
import random
import shutil

from bertjax.corpus.store import open_store
from bertjax.errors import UserError
from breaking.world import Outcome, World

GOOD = 'The river runs under the old stone house. A bird sings near the field.\nThe wind falls slow.\n\n'
STRANGE = '\0\x1b[31m\u202e\ufeff\u2028\x85\x0b\r\u00ad\U0001f600\u0301\ud7ff\U0010ffffａ　'
WORDS = GOOD.split()


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Runs `run=corpus` on good and hostile text. It must write a valid store, or refuse in one line."""
    rng = random.Random(f'{seed} corpora {number}')
    root = world.make_folder(f'corpus-{number}')
    folder = root / 'text'
    folder.mkdir()
    made = [write_file(folder, rng, k) for k in range(rng.randint(1, 4))]
    spec = rng.choice((str(folder), f'{folder}/*', f'{folder}/**/*', ','.join(map(str, sorted(folder.rglob('*'))))))
    options = {
        'format': rng.choice(('auto', 'auto', 'auto', 'text', 'files', 'jsonl', 'wikiextractor')),
        'strict': rng.choice((False, False, True)),
        'drop_duplicates': rng.choice((False, True)),
        'heldout': rng.choice((0.0, 0.02, 0.5)),
        'workers': 1,
    }
    what = f'{", ".join(made)} as {options["format"]}'
    encoder = world.reference('nsp')[0] / 'export' / 'hf'
    ended = world.call(
        f'--config={world.repository}/configs/pretrain_tiny.py', '--config.run=corpus', f'--workdir={root / "run"}',
        f'--config.corpus={spec}', f'--config.tokenizer={encoder}',
        *(f'--config.corpus_options.{key}={value}' for key, value in options.items()),
    )  # fmt: skip
    if ended.wrong:
        return Outcome(False, f'{what}: {ended.wrong}')
    if any(ord(letter) < 32 and letter not in '\n\r\t' for letter in ended.out + ended.err):
        return Outcome(False, f'{what}: control characters reach the terminal')
    if ended.status == 0:
        try:
            open_store(root / 'run' / 'store')
        except UserError as error:
            return Outcome(False, f'{what}: status 0, but {error}')
    shutil.rmtree(root, ignore_errors=True)
    return Outcome(True, what)


def write_file(folder: pathlib.Path, rng: random.Random, number: int) -> str:
    """Writes a hostile file; returns a description of it."""
    name, content = rng.choice(_KINDS)(rng)
    wrapped = rng.choice(('', '', '', '.gz', '.bz2', '.xz'))
    if wrapped:
        content = {'.gz': gzip, '.bz2': bz2, '.xz': lzma}[wrapped].compress(content)
        if rng.random() < 0.3:
            content = content[: rng.randrange(len(content) + 1)]
    if rng.random() < 0.1:
        wrapped = rng.choice(('.gz', '.bz2', '.xz', '.zst'))  # a wrong suffix
    below = folder / rng.choice(('', '', 'deeper', 'a b', 'ä'))
    below.mkdir(exist_ok=True)
    (below / f'{number}-{name}{wrapped}').write_bytes(content)
    if rng.random() < 0.05:
        (below / f'{number}-link').symlink_to(rng.choice(('.', '..', 'nothing', f'{number}-link')))
    return f'{name}{wrapped}'


def _noise(rng: random.Random) -> tuple[str, bytes]:
    return 'noise.txt', rng.randbytes(rng.choice((0, 1, 7, 5000)))


def _damaged(rng: random.Random) -> tuple[str, bytes]:
    data = bytearray(GOOD.encode() * rng.randint(1, 30))
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(1, 4))
    return 'damaged.txt', bytes(data)


def _odd_letters(rng: random.Random) -> tuple[str, bytes]:
    text = ''.join(rng.choice((*WORDS, *STRANGE, ' ', ' ', '\n', '\n\n')) + rng.choice((' ', '')) for _ in range(400))
    encoding = rng.choice(('utf-8', 'utf-8', 'utf-16', 'utf-32', 'utf-8-sig', 'latin-1'))
    return f'odd-{encoding}.txt', text.encode(encoding, 'replace')


def _too_much(rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(('line', 'word', 'blank', 'sentences', 'names'))
    text = {
        'line': ' '.join(rng.choices(WORDS, k=50_000)),
        'word': 'x' * 300_000,
        'blank': '\n' * 100_000 + GOOD,
        'sentences': 'A. ' * 30_000,
        'names': '\n\n'.join(f'Name {k}.' for k in range(3000)),
    }[kind]
    return f'much-{kind}.txt', text.encode()


def _json_lines(rng: random.Random) -> tuple[str, bytes]:
    values = (GOOD, '', 7, None, True, [], {}, ['a'], 1e400, '\ud800', '\0', '\x1b[2J', 'x' * 10_000)
    lines = []
    for _ in range(rng.randint(1, 40)):
        row = {rng.choice(('text', 'text', 'text', 'body', '\ud83d', '\x1b[31m')): rng.choice(values)}
        line = json.dumps(rng.choice((row, row, row, rng.choice(values))))
        lines.append(line if rng.random() < 0.9 else line[: rng.randrange(len(line) + 1)])
    if rng.random() < 0.2:
        lines.append('[' * 100_000)
    if rng.random() < 0.2:
        lines.insert(0, '{"text": ' * 20_000)
    return 'rows.jsonl', '\n'.join(lines).encode('utf-8', 'surrogatepass')


def _wiki(rng: random.Random) -> tuple[str, bytes]:
    parts = ['<doc id="1" url="" title="A">\n', 'A\n\n', GOOD, '</doc>\n', '<doc', '>', '</doc>', '\0', GOOD]
    return 'wiki_00', ''.join(rng.choices(parts, k=rng.randint(2, 30))).encode()


_KINDS = (_noise, _damaged, _damaged, _odd_letters, _too_much, _json_lines, _json_lines, _wiki)
