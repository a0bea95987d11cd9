"""Tests pulling models from the Hugging Face hub and pushing models to it, against a local fake of the hub's API.

Each case runs in a separate process, because huggingface_hub reads HF_ENDPOINT when it is imported.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
from hub_stand_in import READ_TOKEN, SHA, TOKEN, Hub, serving

import bertjax
from bertjax.convert.hub import hub_name
from bertjax.errors import UserError
from bertjax.workdir.resolve_path import huggingface_directory

CALLS = """
import json, sys
from bertjax.convert import hub
from bertjax.errors import UserError
for name, arguments in json.loads(sys.argv[1]):
    hub.pull.cache_clear()
    try:
        private = {'private': arguments.pop()} if name == 'push' else {}
        print(json.dumps(getattr(hub, name)(*arguments, **private)))
    except UserError as error:
        print(json.dumps(f'error: {error}'))
"""

# A process that starts with this code cannot write to the cache.
READ_ONLY = """
import errno, huggingface_hub

def refuse(*arguments, real=huggingface_hub.snapshot_download, **options):
    if not options.get('local_files_only'):
        raise OSError(errno.EROFS, 'Read-only file system')
    return real(*arguments, **options)

huggingface_hub.snapshot_download = refuse
"""

# The files of a sentence-transformers model that its modules.json refers to.
MODULES = ('1_Pooling/config.json', '2_Dense/config.json', '2_Dense/model.safetensors')


@pytest.fixture(scope='module')
def hub():
    with serving() as hub:
        files = {'config.json': b'{}', 'vocab.txt': b'[PAD]\n', 'README.md': b'# It', 'onnx/config.json': b'{}'}
        weights = {
            'model.safetensors': b'safe',
            'pytorch_model.bin': b'pickle',
            'tf_model.h5': b'x',
            'model.fp16.safetensors': b'h',
        }
        hub.files['org/model'] = {**files, **weights}
        hub.files['org/old'] = {
            **files,
            'pytorch_model.bin': b'pickle',
            'model.fp16.safetensors': b'h',
            'adapter_model.safetensors': b'a',
        }
        hub.files['org/shards'] = {
            **files,
            'model-00001-of-00001.safetensors': b'1',
            'model.safetensors.index.json': b'{}',
            **dict.fromkeys(['modules.json', *MODULES, '2_Dense/pytorch_model.bin', 'x/config.json'], b'{}'),
        }
        hub.files['org/stopped'] = {**files, 'model-00001-of-00002.safetensors': b'1'}
        hub.files['org/google'] = {'bert_config.json': b'{}', 'vocab.txt': b'x', 'bert_model.ckpt.index': b'x'}
        hub.files['org/other'] = {'config.json': b'{"model_type": "deberta-v2"}', 'model.safetensors': b'x' * 99}
        hub.gated.add('org/gated')
        yield hub


def call(hub: Hub, home: pathlib.Path, *calls: list, token: str = '', **environment: str) -> tuple[list, str]:
    """Returns the results or errors of `calls`, each a [name, arguments] of a hub function, and everything printed."""
    hf = {'HF_ENDPOINT': hub.address, 'HF_HOME': str(home), 'HF_HUB_DISABLE_PROGRESS_BARS': '1', 'HF_TOKEN': token}
    env = {name: value for name, value in {**os.environ, **hf, **environment}.items() if value or name != 'HF_TOKEN'}
    command = [sys.executable, '-c', CALLS, json.dumps(calls)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith('"') or line == 'null'], done.stdout


def read_files(folder: str) -> dict[str, bytes]:
    path = pathlib.Path(folder)
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob('*') if file.is_file()}


def test_hub_names_are_parsed():
    assert hub_name('org/name') == ('org/name', None) and hub_name('org/na-me.2@v1/x') == ('org/na-me.2', 'v1/x')
    for name in ('name', 'a/b/c', '/a/b', 'a b/c', '../a', 'gs://a/b', 'a/b@', ''):
        assert hub_name(name) is None


@pytest.mark.parametrize(
    ('short', 'name'),
    [
        ('bert-base-uncased', 'google-bert/bert-base-uncased'),
        ('bert-large-uncased-whole-word-masking', 'google-bert/bert-large-uncased-whole-word-masking'),
        ('roberta-base', 'FacebookAI/roberta-base'),
        ('xlm-roberta-large', 'FacebookAI/xlm-roberta-large'),
        ('distilbert-base-uncased', 'distilbert/distilbert-base-uncased'),
        ('distilroberta-base', 'distilbert/distilroberta-base'),
        ('all-MiniLM-L6-v2', 'sentence-transformers/all-MiniLM-L6-v2'),
    ],
)
def test_a_well_known_name_without_its_organization_is_completed_in_the_error(short: str, name: str):
    for function in (bertjax.load, huggingface_directory):
        with pytest.raises(UserError, match=rf'found {short}, .*; did you mean {name}\?$'):
            function(short)


def test_an_unknown_name_without_an_organization_gets_no_suggestion(tmp_path, monkeypatch):
    for name in ('bert-mine', 'bert', 'all-texts', 'gpt2'):
        with pytest.raises(UserError, match=f'found {name}, which does not exist, .*; name one of these'):
            huggingface_directory(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'bert-base-uncased').mkdir()  # A folder with this name that is not a model.
    with pytest.raises(UserError, match=r'found bert-base-uncased, which is not a model, .*; name one of these'):
        huggingface_directory('bert-base-uncased')


def test_a_path_inside_a_model_or_a_workdir_is_corrected_in_the_error(tmp_path):
    for name in ('config.json', 'model.safetensors', 'checkpoints/20/seal.json'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{}')
    for name in ('config.json', 'model.safetensors', 'checkpoints', 'checkpoints/20'):
        with pytest.raises(UserError, match=f'which is not a model, .*; did you mean {tmp_path}\\?$'):
            bertjax.load(tmp_path / name)


@pytest.mark.slow
def test_only_needed_files_are_pulled(hub, tmp_path):
    names = ('org/model', 'org/old', 'org/shards', 'org/google', f'org/model@{SHA}')
    folders, printed = call(hub, tmp_path, *(['pull', [name, 'config.init']] for name in names))
    described = {'config.json', 'vocab.txt'}
    expected = [
        described | {'model.safetensors'},
        described | {'pytorch_model.bin'},
        described | {'model-00001-of-00001.safetensors', 'model.safetensors.index.json', 'modules.json', *MODULES},
        {'bert_config.json', 'vocab.txt', 'bert_model.ckpt.index'},
        described | {'model.safetensors'},
    ]
    assert [read_files(folder).keys() for folder in folders] == expected
    assert read_files(folders[0])['model.safetensors'] == b'safe' and folders[4] == folders[0]
    assert f'org/old: pulled from the hub, at revision {SHA}' in printed
    # The cached model is used if the hub cannot be reached.
    offline, printed = call(hub, tmp_path, ['pull', ['org/model', 'config.init']], HF_HUB_OFFLINE='1')
    assert offline == folders[:1] and 'org/model: using the cached model, because HF_HUB_OFFLINE is set' in printed
    gone, printed = call(hub, tmp_path, ['pull', ['org/model', 'config.init']], HF_ENDPOINT='http://127.0.0.1:9')
    assert gone == folders[:1] and 'using the cached model, because the hub cannot be reached' in printed


def test_models_that_cannot_be_pulled_are_errors(hub, tmp_path):
    names = ('org/none', 'org/gated', 'org/model@v7', 'out/my--run', 'org/other', 'org/stopped')
    said, _ = call(hub, tmp_path, *(['pull', [name, 'config.init']] for name in names))
    assert 'config.init: found org/none, which is not a local path; on the hub it is unknown or private' in said[0]
    assert (
        'on the hub it is a gated model that you have no access to' in said[1] and 'accept its terms at http' in said[1]
    )
    assert "on the hub it is a model without the revision 'v7'" in said[2]
    assert (
        'found out/my--run, which is not a local path; on the hub it is not a valid name' in said[3]
        and 'check the path' in said[3]
    )
    assert "on the hub it is a model of the type 'deberta-v2'" in said[4] and 'modernbert' in said[4]
    assert not any('org/other' in request and 'safetensors' in request for request in hub.requests)
    cached = [['pull', [name, 'config.init']] for name in ('org/model', 'org/stopped')]
    offline, _ = call(hub, tmp_path, *cached, HF_HUB_OFFLINE='1')
    assert len(offline) == 2
    for error in offline:
        assert 'which is not a local path; on the hub it is not available: HF_HUB_OFFLINE is set' in error
    with socket.create_server(('127.0.0.1', 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            address = f'http://127.0.0.1:{port}'
            gone, _ = call(hub, tmp_path, cached[0], HF_ENDPOINT=address, HF_HUB_ETAG_TIMEOUT='1')
            assert 'not available: the hub cannot be reached (' in gone[0] and len(gone[0].splitlines()) == 1


def test_a_cache_that_cannot_be_written_to_is_an_error_unless_it_has_the_model(hub, tmp_path):
    pull = ['pull', ['org/model', 'config.init']]
    error, _ = call(hub, pathlib.Path('/sys/hub'), pull)
    assert 'error: /sys/hub' in error[0] and 'set HF_HOME to another folder' in error[0]
    (tmp_path / 'sitecustomize.py').write_text(READ_ONLY)
    (folder,), _ = call(hub, tmp_path / 'home', pull)
    found, out = call(hub, tmp_path / 'home', pull, PYTHONPATH=f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}')
    assert found == [folder] and 'using the cached model, because the cache cannot be written to ([Errno 30] ' in out


def test_a_push_replaces_the_model_and_needs_a_valid_token(hub, tmp_path):
    (tmp_path / 'hf').mkdir()
    for name, text in (('config.json', '{}'), ('README.md', '---\nlicense: mit\n---\n# It\n')):
        (tmp_path / 'hf' / name).write_text(text)
    (tmp_path / 'hf' / 'model.safetensors').write_bytes(bytes(1000))
    old = {
        'pytorch_model.bin': b'old',
        'model-00001-of-00002.safetensors': b'old',
        'task.json': b'{}',
        'logo.png': b'p',
    }
    hub.files['us/new'] = dict(old)
    calls = [['check_push', ['us/new']], ['push', [str(tmp_path / 'hf'), 'us/new', True]], ['check_push', ['them/new']]]
    said, _ = call(hub, tmp_path, *calls, token=TOKEN)
    assert said[:2] == [None, f'{hub.address}/us/new']
    assert hub.files['us/new'] == {**read_files(str(tmp_path / 'hf')), 'logo.png': b'p'} and hub.private['us/new']
    assert 'config.push_to: found them/new, and the token of me, expected a repository of me, us' in said[2]
    none, _ = call(hub, tmp_path, ['check_push', ['us/new']])
    assert 'config.push_to: found us/new, and no hub token' in none[0] and 'hf auth login' in none[0]
    wrong, _ = call(hub, tmp_path, ['check_push', ['us/new']], token='hf_other')
    assert 'and a token that the hub rejects' in wrong[0]
    reads, _ = call(hub, tmp_path, ['check_push', ['us/new']], token=READ_TOKEN)
    assert 'and a token that can only read, expected a token with write access' in reads[0]
    calls = [['check_push', ['us/new']], ['push', [str(tmp_path / 'hf'), 'us/new', False]]]
    gone, _ = call(hub, tmp_path, *calls, token=TOKEN, HF_ENDPOINT='http://127.0.0.1:9')
    assert 'and the hub cannot be reached (' in gone[0] and f'the export is complete in {tmp_path / "hf"}' in gone[1]
