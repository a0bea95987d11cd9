"""What continuing on biomedical text gives, and costs: a BERT-mini of Wikipedia, adapted, on both and on ChemProt.

    python benchmarks/adapt.py --data=DIR --out=out/adapt

DIR holds corpus/ with enwiki-*.txt.gz and enwiki-validation.txt, and domain/ with chemprot/ and PubMedQA's labelled
abstracts (pubmedqa_ori_pqal.json). Runs, each the program's own command, so that a stopped benchmark continues:

1. `start`: configs/pretrain_mini.py on Wikipedia.
2. `adapted`: configs/adapt.py from it on 900 abstracts and the sentences of ChemProt's training set.
3. `words`: the same with the best candidates of `run=vocab` as pieces of their own.
4. ChemProt from each of the three, as many seeds as asked for.

The other 100 abstracts and Wikipedia's validation text are held out. Prints the tables of docs/data.md. The losses
of `words` are of other pieces: compare them with its own step 0 alone.
"""

import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

from absl import app, flags

from bertjax.files.atomic import write_atomic

_DATA = flags.DEFINE_string('data', None, 'Folder of the texts.', required=True)
_OUT = flags.DEFINE_string('out', 'out/adapt', 'Folder of the runs.')
_START = flags.DEFINE_integer('start_steps', 3000, 'Steps of 16 x 128 on Wikipedia.')
_FROM = flags.DEFINE_string('start', '', 'A workdir or a Hugging Face folder in place of the first run.')
_STEPS = flags.DEFINE_integer('steps', 1000, 'Steps of 16 x 128 on biomedical text.')
_RATE = flags.DEFINE_float('rate', 2e-4, 'Learning rate of these.')
_WORDS = flags.DEFINE_integer('words', 500, 'Words that are added.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Of ChemProt.')
_EPOCHS = flags.DEFINE_float('epochs', 5.0, 'Of ChemProt.')
_TASK_RATE = flags.DEFINE_float('task_rate', 1e-4, 'Learning rate of ChemProt.')
_MODEL = flags.DEFINE_multi_string('set', [], 'A key of the first run, such as model.width=64.')

HELD_OUT = 100  # abstracts
TOGETHER = 8  # sentences of ChemProt in a document


def texts(data: pathlib.Path, out: pathlib.Path) -> None:
    """Writes bio.txt, bio-heldout.txt and chemprot/."""
    records = json.loads((data / 'domain/pubmedqa_ori_pqal.json').read_text(encoding='utf-8')).values()
    abstracts = ['\n'.join([*record['CONTEXTS'], record['LONG_ANSWER']]) for record in records]
    lines = (data / 'domain/chemprot/train.jsonl').read_text(encoding='utf-8').splitlines()
    # One sentence has as many rows as pairs of entities, whose marks are no text.
    plain = (json.loads(line)['text'].translate(str.maketrans('', '', '<>[]')) for line in lines)
    sentences = list(dict.fromkeys(' '.join(text.split()) for text in plain))
    documents = ['\n'.join(sentences[i : i + TOGETHER]) for i in range(0, len(sentences), TOGETHER)]
    write_atomic(out / 'bio.txt', '\n\n'.join([*abstracts[:-HELD_OUT], *documents]) + '\n')
    write_atomic(out / 'bio-heldout.txt', '\n\n'.join(abstracts[-HELD_OUT:]) + '\n')


def run(recipe: str, workdir: pathlib.Path, *keys: str) -> None:
    """Runs the program; it goes on where it was stopped, and is not started where it has ended."""
    done = workdir / 'done.txt'
    if not done.exists():
        command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={workdir}']
        subprocess.run([*command, *(f'--config.{key}' for key in keys)], check=True)
        write_atomic(done, '')


def heldout(workdir: pathlib.Path) -> Iterator[tuple[str, str, float, float]]:
    """(name of the text, figure, at step 0, at the end)."""
    found = json.loads((workdir / 'summary.json').read_text(encoding='utf-8'))['heldout_texts']
    for name, (first, last) in found.items():
        for figure in ('mlm_loss', 'mlm_accuracy'):
            yield name, figure, first[figure], last[figure]


def main(argv: list[str]) -> None:
    """Runs all, prints the tables."""
    del argv
    data, out = pathlib.Path(_DATA.value), pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    texts(data, out)
    wiki = f'{data}/corpus/enwiki-0*.txt.gz'
    measured = f'heldout_texts=bio={out}/bio-heldout.txt,wiki={data}/corpus/enwiki-validation.txt'
    start, trained = pathlib.Path(_FROM.value or out / 'start'), ['adapted', 'words']
    if not _FROM.value:
        trained = ['start', *trained]
        run('configs/pretrain_mini.py', start, f'corpus={wiki}', f'steps={_START.value}', measured, *_MODEL.value)
    shared = (f'init={start}', f'corpus={out}/bio.txt')
    listed = (f'vocab.candidates={_WORDS.value}', 'run=vocab')
    run('configs/adapt.py', out / 'listed', *shared, *listed)
    training = (f'steps={_STEPS.value}', f'learning_rate={_RATE.value}', 'batch_size=16', measured)
    run('configs/adapt.py', out / 'adapted', *shared, *training)
    run('configs/adapt.py', out / 'words', *shared, *training, f'vocab.add={out}/listed/candidates.txt')
    print('\n| run | text | figure | step 0 | end |\n|---|---|---|---|---|')
    for name in trained:
        for text, figure, first, last in heldout(out / name):
            print(f'| {name} | {text} | {figure} | {first:.3f} | {last:.3f} |')
    print('\n| start of ChemProt | accuracy on test | macro F1 | seeds |\n|---|---|---|---|')
    for name in ('start', 'adapted', 'words'):
        figures = []
        for seed in range(_SEEDS.value):
            workdir = out / f'chemprot-{name}-{seed}'
            tuning = (f'epochs={_EPOCHS.value}', f'learning_rate={_TASK_RATE.value}', f'seed={seed}')
            init = start if name == 'start' else out / name
            run('configs/classify.py', workdir, f'init={init}', f'data={data}/domain/chemprot', *tuning)
            figures.append(json.loads((workdir / 'results.json').read_text(encoding='utf-8'))['splits']['test'])
        means = (statistics.fmean(one[figure] for one in figures) for figure in ('accuracy', 'macro_f1'))
        each = ', '.join(f'{one["accuracy"]:.3f}' for one in figures)
        print(f'| {name} | {" | ".join(f"{mean:.3f}" for mean in means)} | {each} |')


if __name__ == '__main__':
    app.run(main)
