"""Pulls models from the Hugging Face hub, and pushes models to it."""

import collections
import errno
import functools
import os
import re
from collections.abc import Collection

from bertjax.convert.huggingface.families import FAMILIES
from bertjax.convert.huggingface.read import FURTHER_FILES
from bertjax.errors import UserError, first_line
from bertjax.files.disk import annotate_write_errors, explain_os_error

_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# {pattern of a short model name: the organization that the model moved to}.
_MOVED = {
    r'bert-(base|large)-(un)?cased(-whole-word-masking)?(-finetuned-(squad|mrpc))?': 'google-bert',
    r'bert-base-(chinese|german-cased|multilingual-(un)?cased)': 'google-bert',
    r'roberta-(base|large)(-mnli)?|xlm-roberta-(base|large)(-finetuned-conll0[23]-[a-z]+)?': 'FacebookAI',
    r'distil(bert|roberta)-base[\w-]*': 'distilbert',
    r'(all|multi-qa|paraphrase)-[\w.-]*(MiniLM|distilroberta)[\w.-]*': 'sentence-transformers',
}
# The suffixes of the files that describe a model and its tokenizer.
_DESCRIPTION_SUFFIXES = ('.json', '.txt', '.model', 'artifact.metadata')
# The file names of each format of weights. From each folder, only the first available format is downloaded.
_WEIGHTS = (
    r'model\.safetensors',
    r'model-\d+-of-\d+\.safetensors',
    r'pytorch_model(-\d+-of-\d+)?\.bin',
    r'.*\.ckpt.*|checkpoint',
)
_MODULE = r'\d+_\w+/[^/]+'  # A file of a sentence-transformers module, such as 1_Pooling/config.json.
# A push removes these files of an earlier model from the repository, unless the new model replaces them. Otherwise,
# readers would mix the files of the two models.
_STALE = ['model.safetensors', 'model.safetensors.index.json', 'model-?????-of-?????.safetensors']
_STALE += ['pytorch_model.bin', 'pytorch_model.bin.index.json', 'pytorch_model-?????-of-?????.bin']
_STALE += ['tf_model.h5', 'flax_model.msgpack', 'task.json', 'generation_config.json', *FURTHER_FILES]
_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"
_LATER = 'try again when the network is available'
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)  # of the hub's cache


def hub_name(name: str) -> tuple[str, str | None] | None:
    """Splits 'org/name' or 'org/name@revision' into (repository, revision or None). Returns None for other strings."""
    match = _NAME.fullmatch(name)
    return (match.group(1), match.group(2)) if match and '..' not in name else None


def moved_name(name: str) -> str:
    """Returns the new name of a moved model ('google-bert/bert-base-cased' for 'bert-base-cased'), or ''."""
    owner = next((owner for pattern, owner in _MOVED.items() if re.fullmatch(pattern, name)), '')
    return f'{owner}/{name}' if owner else ''


@functools.cache  # A run pulls its model several times.
def pull(name: str, where: str) -> str:
    """Returns the local folder of a model on the hub, after downloading the files that are not cached.

    Only the description, the tokenizer and one format of the weights are downloaded. If the hub cannot be reached or
    the cache cannot be written to, a cached model is returned. `name` is 'org/name' or 'org/name@revision'. `where` is
    the config key or function, for messages. Raises a UserError if the model does not exist or is not accessible, or
    if it cannot be downloaded and is not cached.
    """
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    repository, revision = hub_name(name)
    names = [family.name for family in FAMILIES]
    expected = 'an existing path, or the name of a model on the hub'

    def make_error(found: str, fix: str) -> UserError:
        return UserError(where, f'{name}, which is not a local path; on the hub it is {found}', expected, fix)

    try:
        facts = HfApi().model_info(repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        kind = (facts.config or {}).get('model_type')
        if kind and kind not in names:
            raise make_error(f'a model of the type {kind!r}', f'give a model of a type in {", ".join(names)}')
        files = [file.rfilename for file in facts.siblings or ()]
        with annotate_write_errors(constants.HF_HUB_CACHE, 0):
            folder = snapshot_download(repository, revision=revision, allow_patterns=_files_to_pull(files))
    except UserError:
        raise
    except errors.HFValidationError:
        raise make_error('not a valid name', 'check the path') from None
    except errors.GatedRepoError:
        fix = f'accept its terms at {constants.ENDPOINT}/{repository}, and {_LOG_IN}'
        raise make_error('a gated model that you have no access to', fix) from None
    except errors.RevisionNotFoundError:
        raise make_error(f'a model without the revision {revision!r}', 'give a branch, a tag or a commit') from None
    except errors.RepositoryNotFoundError:
        raise make_error('unknown or private', f'check the path or the name; for a private model, {_LOG_IN}') from None
    except Exception as error:
        # A failed write, or a network error, whose class depends on huggingface_hub's HTTP library.
        is_write_error = getattr(error, 'errno', None) in _WRITE_ERRORS
        cached = _cached(repository, revision)
        if cached is None and is_write_error:
            disk_error = explain_os_error(error, constants.HF_HUB_CACHE)
            fix = 'make room or change the permissions there, or set HF_HOME to another folder'
            raise UserError(disk_error.where, disk_error.found, disk_error.expected, fix) from None
        reason = f'the cache cannot be written to ({first_line(error)})' if is_write_error else _reason(error)
        if cached is None:
            raise make_error(f'not available: {reason}', _LATER) from None
        print(f'{name}: using the cached model, because {reason}')
        return cached
    print(f'{name}: pulled from the hub, at revision {os.path.basename(folder)}')
    return folder


def check_push(name: str) -> None:
    """Raises a UserError if a push to a repository would fail.

    This is the case if the hub token is missing, rejected or read-only, if the hub is not available, or if neither the
    user nor an organization of the user owns the repository.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        user = HfApi().whoami()
    except LocalTokenNotFoundError:
        raise _push_error(name, 'no hub token', 'a token with write access', _LOG_IN) from None
    except Exception as error:  # For example a network error, see `pull`.
        if getattr(getattr(error, 'response', None), 'status_code', None) in (401, 403):
            raise _push_error(name, 'a token that the hub rejects', 'a token with write access', _LOG_IN) from None
        raise _push_error(name, _reason(error), 'a connection to the hub', _LATER) from None
    if user.get('auth', {}).get('accessToken', {}).get('role') == 'read':
        raise _push_error(name, 'a token that can only read', 'a token with write access', _LOG_IN)
    namespaces = [user['name'], *(org['name'] for org in user.get('orgs', ()))]
    if name.partition('/')[0] not in namespaces:
        fix = 'name a repository of one of these owners, or use the token of its owner'
        raise _push_error(name, f'the token of {user["name"]}', f'a repository of {", ".join(namespaces)}', fix)


def push(folder: str | os.PathLike, name: str, *, private: bool) -> str:
    """Uploads a complete Hugging Face directory to the repository 'org/name', and returns its address on the hub.

    The upload replaces earlier weights and tokenizer files. A new repository is private if `private` is True. Raises a
    UserError if the upload fails.
    """
    from huggingface_hub import HfApi, constants

    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        options = {'commit_message': 'Trained with bertjax', 'delete_patterns': _STALE}
        api.upload_folder(repo_id=name, folder_path=os.fspath(folder), **options)
    except Exception as error:  # For example a network error, see `pull`.
        fix = f'the export is complete in {folder}: repeat a sweep, or a single run with --config.run=export'
        raise _push_error(name, f'a failed upload ({first_line(error)})', 'a complete upload', fix) from None
    return f'{constants.ENDPOINT}/{name}'


def _files_to_pull(files: Collection[str]) -> list[str]:
    """Returns the descriptions and one format of weights, of the model and of each sentence-transformers module."""
    folders = collections.defaultdict(list)
    for file in files:
        folder = os.path.dirname(file)
        if not folder or ('modules.json' in files and re.fullmatch(_MODULE, file)):
            folders[folder].append(file)
    selected = []
    for names in folders.values():
        selected += [file for file in names if file.endswith(_DESCRIPTION_SUFFIXES)] + _weights(names)
    return selected


def _weights(files: Collection[str]) -> list[str]:
    """Returns the files of the first available format of weights."""
    formats = ([file for file in files if re.fullmatch(form, os.path.basename(file))] for form in _WEIGHTS)
    return next(filter(None, formats), [])


def _cached(repository: str, revision: str | None) -> str | None:
    """Returns the local folder of a cached model; None if the weights or some of their shards are not cached."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, local_files_only=True)
    except Exception as error:  # also raised for a snapshot that lacks only files that `pull` skips
        folder = getattr(error, 'snapshot_path', None)
    weights = _weights(os.listdir(folder) if folder else [])
    shards = re.findall(r'-of-(\d+)\.', ' '.join(weights))
    return folder if weights and all(int(count) == len(shards) for count in shards) else None


def _push_error(name: str, found: str, expected: str, fix: str) -> UserError:
    return UserError('config.push_to', f'{name}, and {found}', expected, fix)


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return 'HF_HUB_OFFLINE is set'
    return f'the hub cannot be reached ({first_line(error)})'
