"""Each kind of task, from its files to its metrics, predictions and export."""

import csv
import json
import pathlib
import shutil
from collections.abc import Sequence

import pytest
from golden_runs import COLORS, PLACES
from huggingface_hub import ModelCard
from running import Program, results, rows

# Six steps, which are enough to test a complete run but not to learn much.
SHORT = (
    '--config.seq_len=32',
    '--config.max_padded_lengths=2',
    '--config.batch_size=8',
    '--config.steps=6',
    '--config.learning_rate=1e-3',
    '--config.log_every=2',
)


def finetune(program: Program, recipe: str, trained: pathlib.Path, data: pathlib.Path, *changes: str) -> pathlib.Path:
    workdir = data.parent / 'run'
    flags = (f'--workdir={workdir}', f'--config.init={trained}', f'--config.data={data}', *SHORT)
    result = program.run(*flags, *changes, recipe=recipe, small=False)
    (workdir / 'stdout.txt').write_text(result.stdout, encoding='utf-8')
    (workdir / 'stderr.txt').write_text(result.stderr, encoding='utf-8')
    return workdir


def folder(path: pathlib.Path) -> pathlib.Path:
    data = path / 'data'
    data.mkdir()
    return data


def official_output(workdir: pathlib.Path, name: str):
    return json.loads((workdir / 'predictions' / 'dev' / name).read_text(encoding='utf-8'))


def load_complete(workdir: pathlib.Path, name: str):
    """Loads the export as this class of transformers; no tensor may be missing or unused."""
    transformers = pytest.importorskip('transformers', reason='loads the export')
    path = workdir / 'export' / 'hf'
    model, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    assert json.loads((path / 'config.json').read_text(encoding='utf-8'))['architectures'] == [name]
    return model


def questions(count: int, *, some_without: bool) -> dict:
    """Returns data of SQuAD with questions about the place of a bird of some color."""
    paragraphs = []
    for p in range(count):
        order = [(COLORS[(p + i) % 5], PLACES[(p * 2 + i) % 5]) for i in range(5)]
        context = ' '.join(f'the {color} bird sings near the {place}.' for color, place in order)
        color, place = order[p % 5]
        items = [{'id': f'{p}-a', 'question': f'where sings the {color} bird', 'is_impossible': False}]
        items[0]['answers'] = [{'text': place, 'answer_start': context.index(f'{place}.', context.index(color))}]
        if some_without:
            items.append({'id': f'{p}-b', 'question': 'where runs it', 'is_impossible': True, 'answers': []})
        paragraphs.append({'context': context, 'qas': items})
    return {'version': '', 'data': [{'title': 'birds', 'paragraphs': paragraphs}]}


def write_squad(data: pathlib.Path, version: str) -> dict:
    for split, count in (('train', 16), ('dev', 6)):
        text = json.dumps(questions(count, some_without=version == '2.0'))
        (data / f'{split}-v{version}.json').write_text(text, encoding='utf-8')
    dev = json.loads(text)['data'][0]['paragraphs']
    return {qa['id']: (paragraph['context'], qa['answers']) for paragraph in dev for qa in paragraph['qas']}


@pytest.mark.slow
def test_squad_1_1_writes_answers_and_metrics(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = folder(tmp_path)
    dev = write_squad(data, '1.1')
    workdir = finetune(
        program, 'configs/squad.py:v1', trained, data, '--config.task.max_query=12', '--config.task.stride=8'
    )
    found, answers = results(workdir), official_output(workdir, 'predictions.json')
    assert found['score'] == 'f1' and set(found['splits']['dev']) == {'exact', 'f1'}
    assert answers.keys() == dev.keys()
    assert all(text and text in dev[name][0] for name, text in answers.items())  # a span of the context
    right = [answers[name] == dev[name][1][0]['text'] for name in dev]
    assert found['splits']['dev']['exact'] >= sum(right) / len(
        right
    )  # the official metric ignores articles and punctuation
    nbest = official_output(workdir, 'nbest_predictions.json')
    for name, best in nbest.items():
        assert best[0]['text'] == answers[name] and 1 < len(best) <= 20
        assert sum(answer['probability'] for answer in best) == pytest.approx(1)
    for row in rows(workdir / 'predictions' / 'dev.jsonl'):
        assert dev[row['id']][0][row['start'] : row['end']] == row['answer'] == answers[row['id']]
    assert not (workdir / 'predictions' / 'dev' / 'null_odds.json').exists()
    assert '16 questions on 5 texts' in (workdir / 'stdout.txt').read_text(encoding='utf-8')
    load_complete(workdir, 'BertForQuestionAnswering')


def test_squad_2_0_writes_answers_and_a_threshold(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = folder(tmp_path)
    dev = write_squad(data, '2.0')
    card = '--config.card.datasets=squad_v2'
    workdir = finetune(program, 'configs/squad.py:v2', trained, data, '--config.task.max_query=12', card)
    found, answers = results(workdir), official_output(workdir, 'predictions.json')
    dev_metrics = found['splits']['dev']
    assert found['score'] == 'best_f1' and dev_metrics['best_f1'] >= dev_metrics['f1']
    assert {'HasAns_exact', 'HasAns_f1', 'NoAns_exact', 'NoAns_f1', 'best_exact', 'best_f1_thresh'} <= set(dev_metrics)
    odds, nbest = official_output(workdir, 'null_odds.json'), official_output(workdir, 'nbest_predictions.json')
    assert answers.keys() == odds.keys() == dev.keys() and len(dev) == 12
    for name, text in answers.items():
        assert (text == '') == (odds[name] > dev_metrics['null_threshold'])
        assert '' in [answer['text'] for answer in nbest[name]] or len(nbest[name]) == 20
    learned = json.loads((workdir / 'task.json').read_text(encoding='utf-8'))['learned']
    assert learned == {'null_threshold': dev_metrics['null_threshold']}
    measured = {one.metric_type for one in ModelCard.load(workdir / 'export' / 'hf' / 'README.md').data.eval_results}
    assert measured == dev_metrics.keys() - {
        'null_threshold',
        'best_exact_thresh',
        'best_f1_thresh',
    }  # the metrics for the hub
    load_complete(workdir, 'BertForQuestionAnswering')


def write_columns(data: pathlib.Path) -> list[str]:
    """Writes three columns with IOB1 tags and -DOCSTART- lines; each color and the place after it are one PLACE."""
    for split, count in (('train', 24), ('dev', 9), ('test', 9)):
        lines = ['# train'] if split == 'train' else []
        for i in range(count):
            lines += ['-DOCSTART- X O', ''] if i % 3 == 0 else []
            color, place = COLORS[i % 5], PLACES[i * 3 % 5]
            words = [('the', 'O'), (color, 'I-PLACE'), (place, 'I-PLACE'), ('runs', 'O'), ('.', 'O')]
            lines += [f'{word} X {tag}' for word, tag in words] + ['']
        (data / f'{split}.txt').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return lines


def assert_columns(workdir: pathlib.Path, data: pathlib.Path) -> None:
    """Checks that the written file has an additional column of tags."""
    expected = (data / 'dev.txt').read_text(encoding='utf-8').splitlines()
    written = (workdir / 'predictions' / 'dev' / 'dev.txt').read_text(encoding='utf-8').splitlines()
    words = [line.split() for line in expected if line]
    tagged = [line.split() for line in written if line]
    assert [line[:3] for line in tagged] == words and {len(line) for line in tagged} == {4}
    assert {line[3] for line in tagged} <= {'O', 'I-PLACE', 'B-PLACE'}


@pytest.mark.slow
def test_tagging_writes_columns_and_entities(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = folder(tmp_path)
    write_columns(data)
    workdir = finetune(program, 'configs/ner.py:context', trained, data)
    splits = results(workdir)['splits']
    assert list(splits) == ['dev', 'test'] and set(splits['dev']) == {'f1', 'precision', 'recall', 'accuracy'}
    assert_columns(workdir, data)
    for row in rows(workdir / 'predictions' / 'dev.jsonl'):
        assert len(row['words']) == len(row['tags']) == len(row['probabilities']) == len(row['true'])
        for entity in row['entities']:
            assert entity['text'] == ' '.join(row['words'][entity['start'] : entity['end']])
    out = (workdir / 'stdout.txt').read_text(encoding='utf-8')
    comments = 'train.txt: 1 lines that precede sentences and begin with # are read as'
    assert 'PLACE 24' in out and out.count(comments) == 1
    model = load_complete(workdir, 'BertForTokenClassification')
    assert model.config.id2label == {0: 'O', 1: 'B-PLACE', 2: 'I-PLACE'}
    (tmp_path / 'own.txt').write_text('the old-river runs, slow.\n')  # raw text
    arguments = (f'--workdir={workdir}', '--config.run=predict', f'--config.input={tmp_path}/own.txt')
    program.run(*arguments, recipe='configs/ner.py:context', small=False)
    (row,) = rows(workdir / 'predictions' / 'input' / 'own.jsonl')
    assert row['words'] == ['the', 'old', '-', 'river', 'runs', ',', 'slow', '.'] and row['offsets'][3] == [8, 13]


@pytest.mark.slow
def test_a_bilstm_tags_with_frozen_features(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """A BiLSTM learns from the layers of the frozen encoder; there is no export, so verbs use the checkpoint."""
    data = folder(tmp_path)
    write_columns(data)
    recipe = 'configs/ner.py:features=sum_all,units=8'
    workdir = finetune(program, recipe, trained, data, '--verbosity=1')
    assert 'trainable=head' in (workdir / 'stdout.txt').read_text(encoding='utf-8')
    log = (workdir / 'stderr.txt').read_text(encoding='utf-8')
    assert 'forward_1/recurrent' in log and 'mix/weights' in log
    assert [path.name for path in (workdir / 'export').iterdir()] == ['orbax']
    assert_columns(workdir, data)
    before = results(workdir)['splits']
    (workdir / 'results.json').unlink()
    arguments = ('--config.run=evaluate', '--config.split=dev,test')
    out = program.run(f'--workdir={workdir}', *arguments, recipe='configs/ner.py', small=False).stdout
    assert out.index('dev\n') < out.index('test\n')  # a heading for the report of each split
    assert results(workdir)['splits'] == before


def test_bad_options_of_features_are_refused_before_compute(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    data = folder(tmp_path)
    write_columns(data)
    flags = (f'--workdir={tmp_path / "run"}', f'--config.init={trained}', f'--config.data={data}', *SHORT)
    recipe = 'configs/ner.py:features=sum_all,units=5'
    line = program.error(*flags, '--config.export_formats=hf', recipe=recipe, small=False)
    assert '--config.export_formats=orbax' in line
    line = program.error(*flags, '--config.mesh.preset=fsdp', recipe=recipe, small=False, devices=4)
    assert 'config.mesh.fsdp: found 4, expected a divisor of 2 x config.task.bilstm_units = 10, ' in line
    assert not (tmp_path / 'run' / 'checkpoints').exists()


@pytest.mark.slow
def test_multiple_choice_writes_predictions_and_metrics(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    data = folder(tmp_path)
    names = ['', 'video-id', 'fold-ind', 'startphrase', 'sent1', 'sent2', 'gold-source']
    names += [f'ending{i}' for i in range(4)] + ['label']
    for split, count in (('train', 20), ('val', 10), ('test', 10)):
        header = names if split != 'test' else names[:-1]
        with (data / f'{split}.csv').open('w', encoding='utf-8', newline='') as file:
            table = csv.writer(file)
            table.writerow(header)
            for i in range(count):
                endings = [f'runs to the {PLACES[(i + j) % 5]}' for j in range(4)]
                row = [i, 'v', i, '', f'the wind falls on the {PLACES[i % 5]}.', 'the bird', 'gold', *endings, i % 4]
                table.writerow(row[: len(header)])
    workdir = finetune(program, 'configs/swag.py', trained, data)
    found = results(workdir)
    assert found['score'] == 'accuracy' and list(found['splits']) == ['dev']  # the test file has no labels
    predictions = rows(workdir / 'predictions' / 'dev.jsonl')
    assert [row['prediction'] for row in predictions] == [_best(row['probabilities']) for row in predictions] and len(
        predictions
    ) == 10
    right = [row['prediction'] == i % 4 for i, row in enumerate(predictions)]
    assert found['splits']['dev']['accuracy'] == sum(right) / 10
    lines = (workdir / 'predictions' / 'dev' / 'dev_predictions.csv').read_text(encoding='utf-8').splitlines()
    assert lines == [',pred', *(f'{i},{row["prediction"]}' for i, row in enumerate(predictions))]
    load_complete(workdir, 'BertForMultipleChoice')


def _best(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


@pytest.mark.slow
def test_long_texts_are_classified_by_windows(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The CSV file has its own column names, there is no dev file, and texts have several windows."""
    data = folder(tmp_path)
    with (data / 'train.csv').open('w', encoding='utf-8', newline='') as file:
        table = csv.writer(file)
        table.writerow(['kind', 'body'])
        for i in range(60):
            kind = ('rare', 'often', 'often')[i % 3]
            words = [COLORS[(i + j * j) % 5] for j in range(10 + i)] + [PLACES[i % 5], str(i)]
            table.writerow([kind, ' '.join(words) + (', "green",\nbird' if kind == 'rare' else '')])
    columns = ('--config.task.text_a=body', '--config.task.label=kind', '--config.task.dev_fraction=0.3')
    recipe = 'configs/classify.py:long=windows'
    workdir = finetune(program, recipe, trained, data, *columns, '--config.task.metric=f1')
    found, predictions = results(workdir), rows(workdir / 'predictions' / 'dev.jsonl')
    assert found['score'] == 'f1' and {'accuracy', 'macro_f1', 'matthews', 'f1'} == set(found['splits']['dev'])
    right = [row['label'] == row['true'] for row in predictions]
    assert found['splits']['dev']['accuracy'] == sum(right) / len(right) and 5 < len(predictions) < 40
    out = (workdir / 'stdout.txt').read_text(encoding='utf-8')
    records = 60 - len(predictions)
    head, _, rest = next(line for line in out.splitlines() if 'training records in' in line).partition(' in ')
    assert (
        head == f'data: {records} training records' and int(rest.split()[0]) > 1.5 * records
    )  # several windows per record
    assert 'true label (row)' in out  # the confusion matrix
    model = load_complete(workdir, 'BertForSequenceClassification')
    assert model.config.id2label == {0: 'often', 1: 'rare'}
    exported = workdir / 'export' / 'hf'  # only the model's positions limit the texts
    assert json.loads((exported / 'tokenizer_config.json').read_text())['model_max_length'] == 512
    assert 'more than 512 tokens must be truncated' in (exported / 'README.md').read_text()
    # The same command evaluates the same records; all records of another file are dev.
    shutil.copy(data / 'train.csv', tmp_path / 'new.csv')
    (tmp_path / 'new.csv').open('a').write('rare,green\n')
    for file, is_other in ((data, False), (data / 'train.csv', False), (tmp_path / 'new.csv', True)):
        flags = (f'--workdir={workdir}', '--config.run=evaluate', f'--config.data={file}')
        out = program.run(*flags, recipe=recipe, small=False).stdout
        assert ('dev is all records of' in out) == is_other and results(workdir)['splits'] == found['splits']
    others = [str(data / 'train.csv'), f'{tmp_path}/new.csv task.dev=new.csv']
    assert list(results(workdir)['other_data']) == others
    predicted = rows(workdir / 'predictions' / 'other_data' / 'dev.jsonl')
    assert len(predicted) == 61 and [row['true'] for row in predicted] == [row['kind'] for row in predicted]


@pytest.mark.slow
def test_relations_are_classified(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Rows of TACRED; the head uses the states of the entity markers, and only Orbax exports it."""
    data = folder(tmp_path)
    for split, count in (('train', 24), ('dev', 8)):
        lines = []
        for i in range(count):
            token = ['the', 'bird', ('sings', 'runs')[i % 2], 'near', 'the', 'house']
            row = {'token': token, 'subj_start': 1, 'subj_end': 1, 'obj_start': 5, 'obj_end': 5, 'subj_type': 'PERSON'}
            lines.append({**row, 'obj_type': 'CITY', 'relation': ('no_relation', 'per:city')[i % 2]})
        (data / f'{split}.json').write_text(json.dumps(lines), encoding='utf-8')
    workdir = finetune(program, 'configs/relation.py:starts', trained, data)
    dev_metrics = results(workdir)['splits']['dev']
    assert list(dev_metrics) == ['micro_f1', 'precision', 'recall', 'macro_f1', 'accuracy']
    written = (workdir / 'predictions' / 'dev' / 'dev.txt').read_text().splitlines()
    row = rows(workdir / 'predictions' / 'dev.jsonl')[0]
    assert len(written) == 8 and written[0] == row['label'] and (row['subject'], row['object']) == ('bird', 'house')
    assert [path.name for path in (workdir / 'export').iterdir()] == ['orbax']
    result = program.run(
        f'--workdir={workdir}', '--config.run=evaluate', recipe='configs/relation.py:starts', small=False
    )
    assert results(workdir)['splits']['dev'] == dev_metrics and 'per:city' in result.stdout
    export = (f'--workdir={workdir}', '--config.run=export', '--config.export_formats=hf')
    line = program.error(*export, recipe='configs/relation.py:starts', small=False)
    assert 'no class for the head BertForRelation' in line
