"""Defines the tiny runs whose results golden.py records, and writes the data that they read."""

import csv
import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Sequence

Command = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """The commands that run in one workdir.

    Attributes:
      commands: Arguments of `python -m bertjax.main` without --workdir, for each process.
      status: The exit status of the last command; the others exit with 0.
      source: The name of the run whose workdir is copied first; '' means an empty workdir.
      change: A function that changes this copy.
      kill_at: A path in the workdir; the only command is killed when it appears, and nothing is compared.
    """

    commands: tuple[Command, ...]
    status: int = 0
    source: str = ''
    change: Callable[[pathlib.Path], None] | None = None
    kill_at: str = ''


def _keys(**values: object) -> Command:
    """Returns --config.KEY=VALUE for each; two underscores mean a dot in KEY."""
    return tuple(f'--config.{key.replace("__", ".")}={value}' for key, value in values.items())


# The model and the corpus are so small that a run takes little longer than starting Python and compiling.
SMALL = {
    'corpus': 'data/corpus.txt', 'corpus_options__workers': 1, 'vocab__size': 400,
    'model__width': 32, 'model__mlp_dim': 64, 'model__num_layers': 2, 'model__num_heads': 2,
    'seq_len': 32, 'max_predictions': 5, 'batch_size': 8, 'pair_plans': 2, 'steps': 12, 'warmup_fraction': 0.1,
    'learning_rate': 1e-3, 'log_every': 3, 'eval_every': 4, 'eval_examples': 32, 'checkpoint_every': 4,
    'checkpoint_keep': 4,
}  # fmt: skip
SHORT = {
    'init': 'data/encoder', 'seq_len': 32, 'max_padded_lengths': 2, 'batch_size': 8, 'steps': 6, 'learning_rate': 1e-3,
    'log_every': 2, 'eval_every': 3, 'checkpoint_every': 3, 'checkpoint_keep': 2,
}  # fmt: skip


def _pretrain(recipe: str = 'pretrain_tiny.py:adam', **changes: object) -> Command:
    return (f'--config=configs/{recipe}', *_keys(**{**SMALL, **changes}))


def _finetune(recipe: str, data: str, **changes: object) -> Command:
    return (f'--config=configs/{recipe}', *_keys(data=f'data/{data}', **{**SHORT, **changes}))


def _use(recipe: str, split: str, own_file: str, *, export: bool = True) -> tuple[Command, ...]:
    """Returns commands that evaluate on dev, predict a split and the file `own_file`, and export."""
    verbs = [{'run': 'evaluate'}, {'run': 'predict', 'split': split}, {'run': 'predict', 'input': f'data/{own_file}'}]
    verbs += [{'run': 'export'}] if export else []
    return tuple((f'--config=configs/{recipe}', *_keys(**verb)) for verb in verbs)


FIRST = 'nsp'  # the first run, whose export is data/encoder
PHASES = (
    *_pretrain('pretrain_base.py'), '--config.phases[0].steps=67%', '--config.phases[0].seq_len=32',
    '--config.phases[0].max_predictions=5', '--config.phases[1].steps=33%', '--config.phases[1].seq_len=48',
    '--config.phases[1].max_predictions=7', '--config.phases[1].reset_optimizer=True',
)  # fmt: skip
RTE = _finetune('glue.py:rte', 'RTE')
RTE_USES = _use('glue.py:rte', 'test', 'pairs.txt')
LONG = _finetune('classify.py:long=windows', 'classes', task__text_a='body', task__label='kind', task__metric='f1')
LONG_USES = _use('classify.py', 'dev', 'texts.txt')
FEATURES = _finetune('ner.py:features=sum_all,units=8', 'columns')
FEATURES_USES = _use('ner.py', 'test', 'words.txt', export=False)
SQUAD = _finetune('squad.py:v2', 'squad', task__max_query=12)
SQUAD_USES = _use('squad.py:v2', 'dev', 'squad/dev-v2.0.json')
CHOICE = _finetune('swag.py:jsonl', 'choice')
CHOICE_USES = _use('swag.py:jsonl', 'test', 'choice/dev.jsonl', export=False)
OPTIONS = {
    'trainable': 'last_1',
    'layer_decay': 0.9,
    'grad_accum_steps': 2,
    'use_checkpoint': 'best',
    'task__bilstm_units': 8,
}
OPTIONS |= {'export': False}
SWEEP = {'sweep__learning_rate': '(3e-3,1e-5)', 'sweep__seeds': '(0,1)'}
TOGETHER = _finetune('glue.py:rte', 'RTE', **SWEEP, sweep__together=4)
STORE = _pretrain(run='corpus', corpus='data/large.txt', tokenizer='data/encoder/export/hf')


def rewind(workdir: pathlib.Path, *, step: int) -> None:
    """Makes a finished workdir look as if the run was killed after the checkpoint of `step`; later rows remain."""
    for path in (workdir / 'checkpoints').iterdir():
        if path.name.isdigit() and int(path.name) > step:
            shutil.rmtree(path)
    _remove(workdir, 'export', 'predictions', 'results.json', 'summary.json')


def _remove(workdir: pathlib.Path, *names: str) -> None:
    for name in names:
        if (workdir / name).is_dir():
            shutil.rmtree(workdir / name)
        else:
            (workdir / name).unlink(missing_ok=True)


def _remove_outputs(workdir: pathlib.Path) -> None:
    """Removes the files that evaluate, predict and export write."""
    _remove(workdir, 'export', 'predictions', 'results.json')


RUNS = {
    FIRST: Run((_pretrain(),)),
    'two_phases': Run((PHASES,)),
    'sop': Run((_pretrain(pairs__mode='sop'),)),
    'full_sentences': Run((_pretrain('roberta_base.py', optimizer__clip_norm=1.0),)),
    'doc_sentences': Run((_pretrain('pretrain_base.py:ltr', phases='()'),)),
    'words': Run((_pretrain(masking__unit='word', pairs__balanced=True),)),
    'static': Run((_pretrain(masking__static=True),)),
    'grad_accum_steps': Run((_pretrain(grad_accum_steps=2),)),
    'dropout': Run((_pretrain(model__dropout=0.1, model__attention_dropout=0.1),)),
    'mixture': Run(
        (_pretrain(corpus='data/corpus.txt=0.7,data/other.txt=0.3', pairs__mode='sop', masking__unit='span'),)
    ),
    'sentencepiece': Run((_pretrain(vocab__family='sentencepiece', vocab__size=100),)),
    'lamb': Run((_pretrain(optimizer__name='lamb', schedule__name='polynomial', schedule__power=0.5),)),
    'muon': Run((_pretrain('pretrain_tiny.py'),)),
    'from_init': Run((_pretrain(init='data/encoder/export/hf', seeds__data=7),)),
    'longer': Run((_pretrain(steps=6), _pretrain(steps=10), _pretrain(run='export'))),
    'text': Run((_pretrain(run='vocab', vocab__size=300), _pretrain(run='corpus', vocab__size=300))),
    'store_killed': Run((STORE,), kill_at='store/partial/00000.json'),
    'rte': Run((RTE, *RTE_USES)),
    'rte_options': Run((_finetune('glue.py:rte', 'RTE', **OPTIONS),)),
    'stsb': Run((_finetune('glue.py:stsb', 'STS-B'), *_use('glue.py:stsb', 'test', 'pairs.txt', export=False))),
    'classification': Run((LONG, *LONG_USES)),
    'tagging': Run((_finetune('ner.py:context', 'columns'), *_use('ner.py', 'test', 'words.txt', export=False))),
    'tagging_features': Run((FEATURES, *FEATURES_USES)),
    'squad': Run((SQUAD, *SQUAD_USES)),
    'choice': Run((CHOICE, *CHOICE_USES)),
    'sweep_together': Run((TOGETHER,)),
    'sweep_alone': Run((_finetune('glue.py:rte', 'RTE', **SWEEP, sweep__together=1),)),
    # Runs that continue, read or refuse workdirs of earlier code.
    'again': Run((_pretrain(),), source=FIRST),
    'killed': Run((_pretrain(),), source=FIRST, change=functools.partial(rewind, step=8)),
    'killed_before_phase_1': Run((PHASES,), source='two_phases', change=functools.partial(rewind, step=8)),
    'more_steps': Run((_pretrain(steps=15),), source=FIRST),
    'more_and_other': Run((_pretrain(steps=15, batch_size=16, learning_rate=1e-4),), source='longer'),
    'other_width': Run((_pretrain(steps=15, model__width=64),), status=2, source=FIRST),
    'other_store': Run((_pretrain(corpus_options__heldout=0.3),), status=2, source=FIRST),
    'store_continued': Run((STORE,), source='store_killed'),
    'rte_again': Run((RTE,), source='rte'),
    'rte_killed': Run((RTE, *RTE_USES), source='rte', change=functools.partial(rewind, step=3)),
    'rte_other_rate': Run((_finetune('glue.py:rte', 'RTE', learning_rate=1e-4),), status=2, source='rte'),
    'classification_asked': Run(LONG_USES, source='classification', change=_remove_outputs),
    'tagging_features_asked': Run(FEATURES_USES, source='tagging_features', change=_remove_outputs),
    'squad_asked': Run(SQUAD_USES, source='squad', change=_remove_outputs),
    'choice_asked': Run(CHOICE_USES, source='choice', change=_remove_outputs),
    'sweep_again': Run((TOGETHER,), source='sweep_together'),
    'sweep_continued': Run(
        (TOGETHER,),
        source='sweep_together',
        change=lambda workdir: shutil.rmtree(next(workdir.glob('trials/*lr=0.003,seed=1'))),
    ),
    'sweep_other': Run(
        (_finetune('glue.py:rte', 'RTE', **SWEEP, warmup_fraction=0.2),), status=2, source='sweep_together'
    ),
}


WORDS = ('the', 'a', 'river', 'stone', 'bird', 'light', 'old', 'green', 'runs', 'sings', 'falls', 'under', 'over')
WORDS += ('near', 'house', 'field', 'wind', 'slow', 'red')
COLORS = ('red', 'green', 'old', 'light', 'slow')
PLACES = ('river', 'field', 'house', 'stone', 'wind')


def _documents(count: int, state: int) -> str:
    """Returns documents of six lines, with blank lines between documents."""
    documents = []
    for _ in range(count):
        sentences = []
        for _ in range(6):
            words = []
            for _ in range(7):
                state = (state * 1103515245 + 12345) % 2**31
                words.append(WORDS[state // 65536 % len(WORDS)])
            sentences.append(' '.join(words) + '.')
        documents.append('\n'.join(sentences))
    return '\n\n'.join(documents) + '\n\n'


def _table(path: pathlib.Path, rows: Sequence[Sequence[object]], *, delimiter: str = '\t') -> None:
    with path.open('w', encoding='utf-8', newline='') as file:
        csv.writer(file, delimiter=delimiter, lineterminator='\n').writerows(rows)


def _pair(i: int) -> tuple[str, str]:
    side = COLORS if i % 3 else PLACES
    return ' '.join(side[(i * 3 + j * j) % 5] for j in range(3 + i % 9)), f'the {WORDS[i % len(WORDS)]} light'


def _questions(count: int) -> dict[str, object]:
    """Returns data of SQuAD 2.0: where each colored bird sings, and a question without an answer."""
    paragraphs = []
    for p in range(count):
        order = [(COLORS[(p + i) % 5], PLACES[(p * 2 + i) % 5]) for i in range(5)]
        context = ' '.join(f'the {color} bird sings near the {place}.' for color, place in order)
        color, place = order[p % 5]
        answer = {'text': place, 'answer_start': context.index(f'{place}.', context.index(color))}
        questions = [
            {'id': f'{p}-a', 'question': f'where sings the {color} bird', 'is_impossible': False, 'answers': [answer]},
            {'id': f'{p}-b', 'question': 'where runs it', 'is_impossible': True, 'answers': []},
        ]
        paragraphs.append({'context': context, 'qas': questions})
    return {'version': 'v2.0', 'data': [{'title': 'birds', 'paragraphs': paragraphs}]}


def _columns(count: int) -> str:
    """Returns CoNLL columns with IOB1 tags: each color and the place after it are one PLACE."""
    lines = []
    for i in range(count):
        lines += ['-DOCSTART- X O', ''] if i % 3 == 0 else []
        lines += ['the X O', f'{COLORS[i % 5]} X I-PLACE', f'{PLACES[i * 3 % 5]} X I-PLACE', 'runs X O', '. X O', '']
    return '\n'.join(lines) + '\n'


def _choice(i: int, *, labeled: bool) -> dict[str, object]:
    endings = [f'runs to the {PLACES[(i + j) % 5]}' for j in range(3)]
    question = {'prompt': f'the wind falls on the {PLACES[i % 5]}.', 'start': 'the bird', 'endings': endings}
    return question | ({'label': i % 3} if labeled else {})


def write_data(folder: pathlib.Path) -> None:
    """Writes every file that the runs read, except the encoder; the bytes are always the same."""
    for name in ('RTE', 'STS-B', 'classes', 'columns', 'squad', 'choice'):
        (folder / name).mkdir(parents=True)
    (folder / 'corpus.txt').write_text(_documents(120, 12345))
    (folder / 'other.txt').write_text(_documents(60, 54321))
    # More than one unit of 4 MiB, so that a build can be killed between two units.
    (folder / 'large.txt').write_text(_documents(400, 1) * 95)
    for split, count in (('train', 48), ('dev', 17), ('test', 9)):
        pairs = [_pair(i) for i in range(count)]
        names = ('entailment', 'not_entailment')
        labels = [[] if split == 'test' else [names[i % 3 == 0]] for i in range(count)]
        rows = [['index', 'sentence1', 'sentence2', *([] if split == 'test' else ['label'])]]
        _table(folder / 'RTE' / f'{split}.tsv', rows + [[i, *pairs[i], *labels[i]] for i in range(count)])
        scores = [[] if split == 'test' else [i * 7 % 11 / 2.2] for i in range(count)]
        rows = [['index', 'sentence1', 'sentence2', *([] if split == 'test' else ['score'])]]
        _table(folder / 'STS-B' / f'{split}.tsv', rows + [[i, *pairs[i], *scores[i]] for i in range(count)])
        (folder / 'columns' / f'{split}.txt').write_text(_columns(count))
        questions = [json.dumps(_choice(i, labeled=split != 'test')) for i in range(count)]
        (folder / 'choice' / f'{split}.jsonl').write_text('\n'.join(questions) + '\n')
    texts = [' '.join([*(COLORS[(i + j * j) % 5] for j in range(10 + i)), PLACES[i % 5], str(i)]) for i in range(60)]
    kinds = [('rare', 'often', 'often')[i % 3] for i in range(60)]
    _table(folder / 'classes' / 'train.csv', [('kind', 'body'), *zip(kinds, texts, strict=True)], delimiter=',')
    (folder / 'texts.txt').write_text('\n'.join(texts[:7]) + '\n')
    (folder / 'pairs.txt').write_text(''.join('\t'.join(_pair(i)) + '\n' for i in range(7)))
    (folder / 'words.txt').write_text('the red river runs .\nthe old house\n')
    for split, count in (('train', 16), ('dev', 6)):
        (folder / 'squad' / f'{split}-v2.0.json').write_text(json.dumps(_questions(count)))
