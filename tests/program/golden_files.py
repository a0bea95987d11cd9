"""Reads the contents of a workdir as values to compare, and lists the differences of two records."""

import fnmatch
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors.numpy

# {run: {step: {file: {key: value}}}}; a step lists the files that it changed and has None for files that it removed.
Record = dict[str, dict[str, dict[str, dict[str, Any] | None]]]

# Keys of measured times and memory.
MEASURED = ('sequences_per_s', 'tokens_per_s', 'seconds_per_step', 'mfu', 'data_wait', 'host_memory', 'device_memory')
# Files with dates, times and inodes.
STAMPED = ('inputs.json', 'saved.json', 'time.jsonl')
# Files that may get new keys: settings with default values, and measurements.
MAY_GROW = ('config.json', 'task.json', 'export/hf/task.json', 'export/orbax/model.json')
# Files that are the same on every machine.
EVERYWHERE = ('ledger.jsonl', 'config.json', 'task.json', 'tokenizer/*', 'store/*', 'features/*', 'export/*.json')
EVERYWHERE += ('export/hf/vocab.txt', 'checkpoints/*/config', 'checkpoints/*/position')


def observe(workdir: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns {file: {key: value}} of a workdir; files that are not parsed have only a checksum."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(workdir.rglob('*')):
        name = path.relative_to(workdir).as_posix()
        unread = name.startswith(('checkpoints/', 'export/orbax/params/')) or 'tensorboard/' in name
        unread = unread or path.name in STAMPED
        if path.is_file() and not unread:
            found[name] = _facts(path, name)
    steps = [int(path.name) for path in workdir.glob('checkpoints/*') if path.name.isdigit()]
    if steps:
        found['checkpoints'] = {'steps': sorted(steps)}
        newest = workdir / 'checkpoints' / str(max(steps))
        found[f'checkpoints/{max(steps)}'] = _arrays(newest / 'state')
        for item in ('position', 'config'):
            found[f'checkpoints/{max(steps)}/{item}'] = _flat(json.loads((newest / item / 'metadata').read_text()))
        for step in steps:
            seal = json.loads((workdir / 'checkpoints' / str(step) / 'seal.json').read_text())
            found['checkpoints'][f'cost of {step}'] = seal['cost']
    if (workdir / 'export/orbax/params').exists():
        found['export/orbax/params'] = _arrays(workdir / 'export/orbax/params')
    return found


def _facts(path: pathlib.Path, name: str) -> dict[str, Any]:
    data = path.read_bytes()
    if name.endswith('metrics.jsonl'):
        rows = [json.loads(line) for line in data.decode().splitlines()]
        return _flat([{key: value for key, value in row.items() if key not in MEASURED} for row in rows])
    if name == 'summary.json':
        data = without_times(data)
    if name.endswith('.npz'):
        with np.load(path) as arrays:
            return _hashed(arrays)
    checksum = {} if name in MAY_GROW else {'sha256': hashlib.sha256(data).hexdigest()}
    if name.endswith('.safetensors'):
        return checksum | _hashed(safetensors.numpy.load(data))
    parsed = name.endswith('.json') and not name.startswith(('tokenizer/', 'export/hf/token', 'predictions/'))
    return checksum | _flat(json.loads(data)) if parsed else checksum


def without_times(summary: bytes) -> bytes:
    """Returns the contents of a summary.json without its measured times."""
    facts = json.loads(summary)
    facts.pop('goodput', None)
    return (json.dumps(facts, indent=2, ensure_ascii=False) + '\n').encode()


def _arrays(directory: pathlib.Path) -> dict[str, str]:
    """Returns {path in the tree: description} of the arrays in an Orbax directory."""
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(directory.resolve())
    return _hashed({jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)})


def _hashed(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Returns {name: 'dtype[shape] checksum'}."""
    descriptions = {}
    for name, array in arrays.items():
        array = np.asarray(array)
        shape = ','.join(map(str, array.shape))
        descriptions[name] = f'{array.dtype}[{shape}] {hashlib.sha256(array.tobytes()).hexdigest()[:16]}'
    return descriptions


def _flat(value: Any, prefix: str = '') -> dict[str, Any]:
    """Returns parsed JSON as {'model.width': 32, '0.loss': 6.1, …}."""
    if not isinstance(value, dict | list) or not value:
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= _flat(item, f'{prefix}.{key}' if prefix else str(key))
    return flat


def portable(found: Record) -> Record:
    """Returns the part of a record that is the same on every machine: all but floats and their checksums."""

    def portable_value(file: str, key: str, value: Any) -> Any:
        if file.endswith('checksum.json'):  # also covers trained numbers
            return None
        if any(fnmatch.fnmatch(file, pattern) for pattern in EVERYWHERE):
            return value
        if isinstance(value, str) and '] ' in value and ('safetensors' in file or 'params' in file or 'check' in file):
            return value.rpartition(' ')[0]  # without the checksum
        return value if key.rpartition('.')[2] in ('step', 'split', 'phase', 'examples', 'steps', 'next') else None

    return {
        name: {
            step: {
                file: facts and {key: portable_value(file, key, facts[key]) for key in facts}
                for file, facts in files.items()
            }
            for step, files in steps.items()
        }
        for name, steps in found.items()
    }


def differences(recorded: Record, found: Record) -> Iterator[str]:
    """Yields a line for each difference; new keys in files that may grow and reworded errors begin with `note: `."""
    for name, steps in recorded.items():
        if isinstance(found[name], str):
            yield found[name]
            continue
        for step in steps:
            old, new = steps[step], found[name][step]
            for file in sorted(old.keys() | new.keys()):
                where, before, after = f'{name}/{step}: {file}', old.get(file), new.get(file)
                if before is None or after is None:
                    if before is not after or (file in old) != (file in new):
                        yield f'{where}: {_state(file, old)} in the record, {_state(file, new)} now'
                    continue
                grows = file in MAY_GROW or file.endswith(('/config', 'metrics.jsonl'))
                for key in sorted(before.keys() | after.keys()):
                    if file == 'the error' and before != after:
                        yield f'note: {where}: {before[key]} -> {after[key]}'
                    elif key not in before and grows:
                        yield f'note: {where}: {key} is new: {after[key]!r}'
                    elif key not in before or key not in after or before[key] != after[key]:
                        yield f'{where}: {key}: {before.get(key, "absent")!r} -> {after.get(key, "absent")!r}'


def _state(file: str, files: Mapping[str, Any]) -> str:
    return 'unchanged' if file not in files else 'removed' if files[file] is None else 'written'
