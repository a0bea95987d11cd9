"""config.tracker: a training sends its rows to a tracker, and a resumed training uses the same tracker run."""

import json
import pathlib
import shutil
import types
from importlib.machinery import ModuleSpec

import pytest
from running import GLUE, RUN, Program, copy_workdir, rows

from bertjax.errors import UserError
from bertjax.training.record import _trackers
from bertjax.writers import tracker


class Fake:
    """A tracker that records the calls of all instances."""

    calls: list

    def check(self):
        pass

    def start(self, *arguments):
        self.calls.append(arguments)
        return arguments[-1] or 'made'

    def log(self, step, values):
        self.calls.append((step, values))

    def finish(self):
        self.calls.append('finish')


@pytest.mark.slow
def test_a_resumed_training_is_tracked(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch):
    """A run without a tracker gets one when it is resumed, which does not count as a change of the run."""
    monkeypatch.setattr(Fake, 'calls', [], raising=False)
    monkeypatch.setitem(tracker.SERVICES, 'trackio', Fake)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: ModuleSpec(name, None, origin=name))
    workdir = copy_workdir(trained, tmp_path / 'mine')
    shutil.rmtree(workdir / 'checkpoints' / '24')
    tracked = (*RUN, f'--workdir={workdir}', '--config.tracker=trackio', '--config.tracker_project=bert')
    assert 'changed since' not in program.run(*tracked).stdout
    (project, name, folder, config, known), *sent, finish = Fake.calls
    assert (project, name, folder, known, finish) == ('bert', 'mine', str(workdir), '', 'finish')
    assert config == json.loads((workdir / 'config.json').read_text())
    written = [row for row in rows(workdir / 'metrics.jsonl') if row['step'] > 20]
    assert [(step, values[f'{row["split"]}/loss']) for (step, values), row in zip(sent, written, strict=True)] == [
        (row['step'], row['loss']) for row in written
    ]
    assert json.loads((workdir / 'tracker.json').read_text())['run'] == 'made'
    Fake.calls.clear()
    program.run(*tracked)  # the run is finished
    assert not Fake.calls


def test_each_trial_is_a_tracker_run(tmp_path: pathlib.Path):
    names = []
    folders = [tmp_path / 'sweep' / 'trials' / name for name in ('lr=1', 'lr=2')]
    for name in ('', 'rte'):
        settings = types.SimpleNamespace(tracker='trackio', tracker_project='bert', tracker_run=name)
        configs = [{'learning_rate': 1}, {'learning_rate': 2}]
        experiment = types.SimpleNamespace(settings=settings, folders=folders, run_configs=configs)
        trackers = _trackers(experiment)
        names += [writer._name for writer in trackers]
        assert [writer._config for writer in trackers] == configs
    assert names == ['sweep/lr=1', 'sweep/lr=2', 'rte/lr=1', 'rte/lr=2']


def test_a_missing_package_is_an_error_before_anything_is_written(
    program: Program, tmp_path: pathlib.Path, monkeypatch
):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None if name == 'mlflow' else name)
    message = program.error(f'--workdir={tmp_path / "new"}', '--config.tracker=mlflow')
    assert "pip install 'bertjax[mlflow]'" in message and not (tmp_path / 'new').exists()
    assert 'config.tracker' in program.error(f'--workdir={tmp_path}', '--config.tracker=aim')


def test_a_trained_model_is_evaluated_without_its_tracker(
    program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
):
    def refuse():
        raise UserError('config.tracker', 'no login', 'a login', 'log in')

    monkeypatch.setitem(tracker.SERVICES, 'wandb', lambda: types.SimpleNamespace(check=refuse))
    workdir = copy_workdir(tuned, tmp_path / 'own')
    path = workdir / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'tracker': 'wandb'}))
    program.run(f'--workdir={workdir}', '--config.run=evaluate', **GLUE)
