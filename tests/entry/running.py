"""Runs the real program as a user does: another process, a recipe, a workdir."""

import dataclasses
import json
import pathlib
import subprocess
import sys

# A model and a corpus so small that starting Python and compiling is what a run costs.
SMALL = (
    '--config.model.width=32',
    '--config.model.mlp_dim=64',
    '--config.model.num_layers=2',
    '--config.vocab.size=400',
    '--config.seq_len=32',
    '--config.max_predictions=5',
    '--config.batch_size=8',
    '--config.pair_plans=2',
    '--config.eval_examples=32',
    '--config.log_every=4',
    '--config.corpus_options.workers=1',
)

# The run that the resume tests interrupt: 24 steps, a checkpoint every 4, an evaluation every 8.
RUN = ('--config.steps=24', '--config.checkpoint_every=4', '--config.eval_every=8', '--config.checkpoint_keep=2')

# A fine-tuning of 72 steps, in which the small model learns RTE as tests/entry/conftest.py has it.
TUNE = (
    '--config.epochs=12',
    '--config.eval_every=24',
    '--config.checkpoint_every=12',
    '--config.seq_len=24',
    '--config.shapes=2',
    '--config.batch_size=16',
    '--config.learning_rate=3e-3',
    '--config.log_every=12',
    '--config.checkpoint_keep=2',
)
GLUE = {'recipe': 'configs/glue.py:rte', 'small': False}


@dataclasses.dataclass(frozen=True)
class Program:
    """`python -m bertjax.main` with a recipe and a corpus of the tests' own."""

    repository: pathlib.Path
    corpus: pathlib.Path
    environment: dict[str, str]

    def command(self, *arguments: str, recipe: str = 'configs/pretrain_tiny.py', small: bool = True) -> list[str]:
        """The command line; later arguments win over the small sizes, which are those of a pre-training."""
        config = [f'--config={recipe}'] if recipe else []
        if recipe.startswith(('configs/pretrain', 'configs/roberta')):
            config.append(f'--config.corpus={self.corpus}')
        return [sys.executable, '-m', 'bertjax.main', *config, *(SMALL if small else ()), *arguments]

    def start(self, *arguments: str, stdin: object = None, **options) -> subprocess.Popen:
        """Starts it and returns at once."""
        return subprocess.Popen(
            self.command(*arguments, **options),
            cwd=self.repository,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        """Runs it to its end, which must have the exit status `status`."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=600)
        assert process.returncode == status, f'exit status {process.returncode}\n{out}\n{err}'
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def error(self, *arguments: str, **options) -> str:
        """The one line of a user's mistake: status 2, no traceback, `error: ` in front."""
        result = self.run(*arguments, status=2, **options)
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith('error: '), result.stderr
        assert 'Traceback' not in result.stderr
        assert ': found ' in last and ', expected ' in last and '; ' in last
        return last


def rows(path: pathlib.Path, split: str | None = None) -> list[dict]:
    """The rows of a JSON lines file, of one split where it is named."""
    found = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    return [row for row in found if split is None or row['split'] == split]
