"""A ModernBERT of transformers is tuned to tasks; pairs have no segments, and exports agree with transformers."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from json_tokenizers import write_modernbert
from running import GLUE, ONE_LENGTH, TUNE, Program, rows
from test_distill import write_model
from test_tasks import write_columns, write_squad

import bertjax
from bertjax.tasks.registry import build_task

transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
FEW = (*TUNE, ONE_LENGTH, '--config.steps=6', '--config.epochs=1', '--config.eval_every=6')


def _start(kind: str, corpus: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    write_modernbert(kind, corpus.read_text().split('\n'), folder, size=400)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['modern', 'gemma'])
def test_pairs_of_texts_agree_with_transformers(program: Program, rte: pathlib.Path, tmp_path: pathlib.Path, kind: str):
    import torch

    start, workdir = _start(kind, program.corpus, tmp_path / 'start'), tmp_path / 'run'
    flags = (f'--config.init={start}', f'--config.data={rte}', f'--workdir={workdir}', *FEW)
    out = program.run(*flags, **GLUE).stdout
    assert 'of its ModernBertForMaskedLM loaded; newly initialized: head/bias, head/kernel\n' in out
    exported = workdir / 'export' / 'hf'
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(exported, output_loading_info=True)
    assert type(model).__name__ == 'ModernBertForSequenceClassification' and not any(info.values())
    assert model.config.classifier_pooling == 'mean' and model.config.local_attention == 8
    theirs, before = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (exported, start))
    assert theirs.model_max_length == 24 and theirs.mask_token == before.mask_token
    ids = bertjax.load(start).tokenizer
    assert (model.config.cls_token_id, model.config.eos_token_id) == (ids.cls_id, ids.sep_id)
    assert (model.config.bos_token_id, model.config.sep_token_id) == (ids.cls_id, ids.sep_id)
    assert model.config.pad_token_id == ids.pad_id
    lines = [line.split('\t') for line in (rte / 'dev.tsv').read_text().splitlines()[1:]]
    first, second = [line[1] for line in lines], [line[2] for line in lines]
    first[:4] = [' two  spaces', f'a {theirs.mask_token}', 'naïve 你好\n', '']
    inputs = theirs(first, second, padding=True, return_tensors='pt')
    assert set(inputs) == {'input_ids', 'attention_mask'}
    assert inputs['input_ids'].tolist() == before(first, second, padding=True)['input_ids']
    with torch.no_grad():
        expected = model.eval()(**inputs).logits.log_softmax(-1).numpy()
    answers = bertjax.load(exported).classify(first, second)
    probabilities = [[answer['probabilities'][name] for name in model.config.id2label.values()] for answer in answers]
    np.testing.assert_allclose(np.log(probabilities), expected, atol=1e-5)
    program.run(*flags, '--config.run=predict', **GLUE)
    predictions = rows(workdir / 'predictions' / 'dev.jsonl')
    probabilities = [[row['probabilities'][name] for name in model.config.id2label.values()] for row in predictions]
    np.testing.assert_allclose(np.log(probabilities)[4:], expected[4:], atol=1e-5)


@pytest.mark.parametrize('recipe', ['configs/glue.py:rte', 'configs/adapt.py', 'configs/fill.py', 'configs/extract.py'])
def test_an_unknown_model_type_is_a_one_line_error(
    program: Program, rte: pathlib.Path, tmp_path: pathlib.Path, recipe: str
):
    values = {'model_type': 'deberta-v2', 'architectures': ['DebertaV2ForMaskedLM'], 'hidden_size': 32}
    (tmp_path / 'config.json').write_text(json.dumps(values))
    flags = {
        'glue': f'--config.data={rte}',
        'adap': f'--config.corpus={program.corpus}',
        'fill': '--config.fill.text=a [MASK]',
        'extr': '--config.input=-',
    }
    line = program.error(
        f'--config.init={tmp_path}', f'--workdir={tmp_path / "run"}', flags[recipe[8:12]], recipe=recipe, small=False
    )
    assert "config.json: found model_type 'deberta-v2', expected one of bert, roberta" in line
    assert 'modernbert' in line and 'DebertaV2ForMaskedLM computes another function' in line


def _write_swag(data: pathlib.Path) -> None:
    header = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label'
    for name in ('train', 'val'):
        lines = [
            f'{i},v,{i},,the wind falls.,the bird,gold,sings,runs,falls to the field,is old,{i % 4}' for i in range(12)
        ]
        (data / f'{name}.csv').write_text('\n'.join([header, *lines]) + '\n')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('task_kind', 'options', 'write', 'name', 'kind'),
    [
        ('squad', {'max_query': 16}, lambda data: write_squad(data, '1.1'), 'ModernBertForQuestionAnswering', 'modern'),
        ('multiple_choice', {}, _write_swag, 'ModernBertForMultipleChoice', 'modern'),
        ('tagging', {}, write_columns, 'ModernBertForTokenClassification', 'gemma'),
    ],
)
def test_exports_of_other_tasks_agree_with_transformers(
    program: Program, tmp_path: pathlib.Path, task_kind: str, options: dict, write: Callable, name: str, kind: str
):
    """Only the tagger is trained. The other models have random heads."""
    data, exported = tmp_path / 'data', tmp_path / 'run' / 'export' / 'hf'
    data.mkdir()
    write(data)
    start = _start(kind, program.corpus, tmp_path / 'start')
    if task_kind == 'tagging':
        flags = (f'--config.init={start}', f'--config.data={data}', f'--workdir={tmp_path / "run"}')
        sizes = ('--config.seq_len=48', '--config.batch_size=4', '--config.steps=4', ONE_LENGTH)
        program.run(*flags, *sizes, recipe='configs/ner.py', small=False)
    else:
        write_model(exported, start, build_task(task_kind, data=str(data), seq_len=48, **options))
    model, info = getattr(transformers, name).from_pretrained(exported, output_loading_info=True)
    assert not any(info.values()) and model.config.architectures == [name]
    bert = bertjax.load(exported)
    if name == 'ModernBertForQuestionAnswering':
        answer = bert.answer('where sings the bird', context := 'the  bird sings near the naïve house.')
        assert answer['answer'] == context[answer['start'] : answer['end']] != ''
    elif name == 'ModernBertForTokenClassification':
        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        inputs = tokenizer(' the river sings', return_tensors='pt')  # also the first word needs a space before it
        begins = [
            i for i, piece in enumerate(tokenizer.convert_ids_to_tokens(inputs['input_ids'][0])) if piece[0] in 'Ġ▁'
        ]
        best = model.eval()(**inputs).logits[0, begins].argmax(-1).tolist()
        tagged = bert.tag('the river sings')
        assert tagged['words'] == ('the', 'river', 'sings')
        kinds = [tag.rpartition('-')[2] for tag in tagged['tags']]  # `tag` changes a lone I- to B-
        assert kinds == [model.config.id2label[i].rpartition('-')[2] for i in best]
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        endings, start = ['sings', 'runs over', ''], 'the wind falls. the bird'
        inputs = tokenizer([start] * 3, endings, padding=True, return_tensors='pt')
        logits = model.eval()(**{name: x[None] for name, x in inputs.items()}).logits[0]
        probabilities = bert.choose(start, endings)['probabilities']
        np.testing.assert_allclose(probabilities, logits.softmax(-1).detach().numpy(), atol=1e-5)
