"""Hostile text through the whole program: a vocabulary, a store, two steps of a tiny model, an export."""

import random
import shutil

from golden_runs import SMALL, _keys

from breaking.corpora import GOOD, write_file
from breaking.world import Outcome, World, check_trained


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Pre-trains on hostile text. The run must refuse in one line, or export a model with finite figures."""
    rng = random.Random(f'{seed} end_to_end {number}')
    root = world.make_folder(f'end_to_end-{number}')
    folder = root / 'text'
    folder.mkdir()
    made = [write_file(folder, rng, k) for k in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        (folder / 'good.txt').write_text(GOOD * rng.choice((1, 40, 400)))
    changed = {
        'pairs__mode': rng.choice(('nsp', 'nsp', 'sop', 'full_sentences')),
        'masking__unit': rng.choice(('token', 'word', 'span')),
        'corpus_options__heldout': rng.choice((0.0, 0.1, 0.5)),
        'corpus_options__drop_duplicates': rng.choice((False, True)),
        'vocab__family': rng.choice(('wordpiece', 'sentencepiece', 'bpe')),
        'vocab__size': rng.choice((100, 400)),
    }
    if rng.random() < 0.7:
        changed['tokenizer'] = world.reference('nsp')[0] / 'export' / 'hf'
    settings = SMALL | {'corpus': folder, 'steps': 2, 'eval_every': 0, 'checkpoint_every': 0} | changed
    recipe = f'--config={world.repository}/configs/pretrain_tiny.py:adam'
    ended = world.call(recipe, f'--workdir={root / "run"}', *_keys(**settings))
    wrong = ended.wrong
    if not wrong and ended.status == 0:
        wrong = check_trained(root / 'run')
    what = f'{", ".join(made)}; {", ".join(f"{key}={value!s:.20}" for key, value in changed.items())}'
    if wrong:
        return Outcome(False, f'{what}: {wrong}')
    shutil.rmtree(root)
    return Outcome(True, f'{what}: {ended.err.strip().splitlines()[-1] if ended.status else "trained"}')
