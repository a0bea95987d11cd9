"""Domain adaptation: continues the training of a BERT-mini from Wikipedia on biomedical text, and evaluates it.

    python benchmarks/adapt.py --data=DIR --out=out/adapt

DIR contains corpus/ with enwiki-*.txt.gz and enwiki-validation.txt, and domain/ with chemprot/ and PubMedQA's labeled
abstracts (pubmedqa_ori_pqal.json). Each run is a command of bertjax, so an interrupted benchmark can be continued:

1. `start`: configs/pretrain_mini.py on Wikipedia.
2. `adapted`: configs/adapt.py from `start`, on 900 abstracts and the sentences of ChemProt's training set.
3. `words`: the same as `adapted`, with the best candidates of `run=vocab` added as pieces.
4. Fine-tuning on ChemProt from each of the three models, with --seeds seeds.

The other 100 abstracts and Wikipedia's validation text are held out. The script prints the tables of docs/data.md.
`words` has another vocabulary, so compare its losses only with step 0 of the same run.
"""

import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

from absl import app, flags

from bertjax.files.atomic import write_atomic

_DATA = flags.DEFINE_string('data', None, 'The folder of the texts.', required=True)
_OUT = flags.DEFINE_string('out', 'out/adapt', 'The folder of the runs.')
_START = flags.DEFINE_integer('start_steps', 3000, 'The number of steps of 16 x 128 on Wikipedia.')
_FROM = flags.DEFINE_string('start', '', 'A workdir or a Hugging Face folder that replaces the first run.')
_STEPS = flags.DEFINE_integer('steps', 1000, 'The number of steps of 16 x 128 on biomedical text.')
_RATE = flags.DEFINE_float('rate', 2e-4, 'The learning rate on biomedical text.')
_WORDS = flags.DEFINE_integer('words', 500, 'The number of added words.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'The number of seeds of ChemProt.')
_EPOCHS = flags.DEFINE_float('epochs', 5.0, 'The number of epochs of ChemProt.')
_TASK_RATE = flags.DEFINE_float('task_rate', 1e-4, 'The learning rate of ChemProt.')
_MODEL = flags.DEFINE_multi_string('set', [], 'A key and value of the first run, such as model.width=64.')

HELD_OUT = 100  # the number of held-out abstracts
SENTENCES = 8  # the number of sentences of ChemProt in a document


def write_texts(data: pathlib.Path, out: pathlib.Path) -> None:
    """Writes bio.txt and bio-heldout.txt."""
    records = json.loads((data / 'domain/pubmedqa_ori_pqal.json').read_text(encoding='utf-8')).values()
    abstracts = ['\n'.join([*record['CONTEXTS'], record['LONG_ANSWER']]) for record in records]
    lines = (data / 'domain/chemprot/train.jsonl').read_text(encoding='utf-8').splitlines()
    # A sentence has a row per pair of entities. Without the marks of the entities, the rows are equal; one is kept.
    plain = (json.loads(line)['text'].translate(str.maketrans('', '', '<>[]')) for line in lines)
    sentences = list(dict.fromkeys(' '.join(text.split()) for text in plain))
    documents = ['\n'.join(sentences[i : i + SENTENCES]) for i in range(0, len(sentences), SENTENCES)]
    write_atomic(out / 'bio.txt', '\n\n'.join([*abstracts[:-HELD_OUT], *documents]) + '\n')
    write_atomic(out / 'bio-heldout.txt', '\n\n'.join(abstracts[-HELD_OUT:]) + '\n')


def run(recipe: str, workdir: pathlib.Path, *keys: str) -> None:
    """Runs or continues a command of bertjax, unless it has finished."""
    done = workdir / 'done.txt'
    if not done.exists():
        command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={workdir}']
        subprocess.run([*command, *(f'--config.{key}' for key in keys)], check=True)
        write_atomic(done, '')


def read_heldout(workdir: pathlib.Path) -> Iterator[tuple[str, str, float, float]]:
    """Yields (name of the text, name of the metric, value at step 0, value at the end)."""
    heldout_texts = json.loads((workdir / 'summary.json').read_text(encoding='utf-8'))['heldout_texts']
    for name, (first, last) in heldout_texts.items():
        for figure in ('mlm_loss', 'mlm_accuracy'):
            yield name, figure, first[figure], last[figure]


def main(argv: list[str]) -> None:
    del argv
    data, out = pathlib.Path(_DATA.value), pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    write_texts(data, out)
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
        for text, figure, first, last in read_heldout(out / name):
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
