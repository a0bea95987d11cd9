"""Pulls models from the Hugging Face hub, and pushes models to it."""

import functools
import os
import re
from collections.abc import Collection

from bertjax.errors import UserError

_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# The models that moved to organisations: {pattern of the short name: organisation}.
_MOVED = {
    r'bert-(base|large)-[\w-]+': 'google-bert',
    r'(xlm-)?roberta-(base|large)[\w-]*': 'FacebookAI',
    r'distil(bert|roberta)-base[\w-]*': 'distilbert',
    r'(all|multi-qa|paraphrase)-[\w.-]*(MiniLM|distilroberta)[\w.-]*': 'sentence-transformers',
}
_DESCRIPTION_SUFFIXES = ('.json', '.txt', '.model')  # of the files that describe a model and its tokenizer
# The formats of weights; the first one that a repository has is pulled.
_WEIGHTS = (
    r'model\.safetensors',
    r'model-\d+-of-\d+\.safetensors',
    r'pytorch_model(-\d+-of-\d+)?\.bin',
    r'.*\.ckpt.*|checkpoint',
)
_MODULE = r'\d+_\w+/[^/]+'  # a module of sentence-transformers, such as 1_Pooling/config.json
# The files of an earlier model that a push removes unless it overwrites them, so that readers do not mix two models.
_STALE = ['model.safetensors', 'model.safetensors.index.json', 'model-?????-of-?????.safetensors']
_STALE += ['pytorch_model.bin', 'pytorch_model.bin.index.json', 'pytorch_model-?????-of-?????.bin']
_STALE += ['tf_model.h5', 'flax_model.msgpack', 'task.json', 'generation_config.json', 'tokenizer.json']
_STALE += ['tokenizer_config.json', 'tokenizer.model', 'vocab.txt', 'vocab.json', 'merges.txt', 'spiece.model']
_STALE += ['special_tokens_map.json', 'added_tokens.json', 'modules.json', 'config_sentence_transformers.json']
_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"
_LATER = 'try again when the network is available'


def hub_name(name: str) -> tuple[str, str | None] | None:
    """Parses 'org/name' or 'org/name@revision' into repository and revision; None if it is not such a name."""
    match = _NAME.fullmatch(name)
    return (match.group(1), match.group(2)) if match and '..' not in name else None


def moved_name(name: str) -> str:
    """Returns 'google-bert/bert-base-uncased' for 'bert-base-uncased', as transformers does; '' for other names."""
    owner = next((owner for pattern, owner in _MOVED.items() if re.fullmatch(pattern, name)), '')
    return f'{owner}/{name}' if owner else ''


@functools.cache  # a run pulls its model several times
def pull(name: str, where: str) -> str:
    """Returns the local folder of a model of the hub, and downloads the model if it is not in huggingface_hub's cache.

    Only the description, the tokenizer and one format of the weights are downloaded. Without the network, a cached
    model is used.

    Args:
      name: 'org/name' or 'org/name@revision', which is not a local path.
      where: The config key, for messages.

    Raises:
      UserError: The model does not exist, is not accessible, or the network is not available.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = hub_name(name)
    expected = 'an existing path, or the name of a model on the hub'

    def make_error(found: str, fix: str) -> UserError:
        return UserError(where, f'{name}, which is not a local path, and on the hub {found}', expected, fix)

    try:
        facts = HfApi().model_info(repository, revision=revision)
        files = [file.rfilename for file in facts.siblings or ()]
        folder = snapshot_download(repository, revision=revision, allow_patterns=_files_to_pull(files))
    except HFValidationError:
        raise make_error('nothing, because the name is not valid there', 'check the path') from None
    except GatedRepoError:
        fix = f'accept its terms at {_endpoint()}/{repository}, and {_LOG_IN}'
        raise make_error('a gated model that you have no access to', fix) from None
    except RevisionNotFoundError:
        raise make_error(f'no revision {revision!r}', 'give a branch, a tag or a commit of it') from None
    except RepositoryNotFoundError:
        fix = f'check the path or the name; for a private model, {_LOG_IN}'
        raise make_error('no such model, or a private one', fix) from None
    except Exception as error:  # a network error, whose class depends on huggingface_hub's HTTP library
        cached = _cached(repository, revision)
        if cached is None:
            raise make_error(f'cannot be looked up: {_reason(error)}', _LATER) from None
        print(f'{name}: using the cached model, because {_reason(error)}')
        return cached
    print(f'{name}: pulled from the hub, at revision {os.path.basename(folder)}')
    return folder


def check_push(name: str) -> None:
    """Checks that a push can succeed, by asking the hub for the user of the token.

    Args:
      name: The value of config.push_to.

    Raises:
      UserError: The token is missing or refused, the network is not available, or the namespace is not the user's.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        user = HfApi().whoami()
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        status = getattr(getattr(error, 'response', None), 'status_code', None)
        if status is not None and status not in (401, 403):
            raise _push_error(name, f'the hub answers {status}', 'success', _LATER) from None
        found = 'no token of the hub' if status is None else 'a token that the hub refuses'
        raise _push_error(name, found, 'a token with write access', _LOG_IN) from None
    except Exception as error:  # see `pull`
        raise _push_error(name, _reason(error), 'the network', _LATER) from None
    namespaces = [user['name'], *(org['name'] for org in user.get('orgs', ()))]
    if name.partition('/')[0] not in namespaces:
        fix = 'give one of these, or the token of a user who may write there'
        raise _push_error(name, f'the token of {user["name"]}', f'one of the names {", ".join(namespaces)}', fix)


def push(folder: str | os.PathLike, name: str, *, private: bool) -> str:
    """Uploads a Hugging Face directory, replaces earlier weights and tokenizer files, and returns the address.

    Args:
      folder: The complete directory, including its model card.
      name: 'org/name', which is created if it does not exist.
      private: Whether to create it as private.

    Raises:
      UserError: The upload failed. The folder stays.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        options = {'commit_message': 'Trained with bertjax', 'delete_patterns': _STALE}
        api.upload_folder(repo_id=name, folder_path=os.fspath(folder), **options)
    except Exception as error:  # see `pull`
        fix = f'the export is complete in {folder}: run the same command with --config.run=export later'
        raise _push_error(name, f'a failed upload ({_line(error)})', 'an upload', fix) from None
    return f'{_endpoint()}/{name}'


def _files_to_pull(files: Collection[str]) -> list[str]:
    """Returns the files to download: those of the model, and the folders of sentence-transformers' modules."""
    selected = _files_of_folder([file for file in files if '/' not in file])
    folders = {file.rpartition('/')[0] for file in files if 'modules.json' in files and re.fullmatch(_MODULE, file)}
    for folder in sorted(folders):
        names = [file.rpartition('/')[2] for file in files if file.rpartition('/')[0] == folder]
        selected += [f'{folder}/{name}' for name in _files_of_folder(names)]
    return selected


def _files_of_folder(names: Collection[str]) -> list[str]:
    """Returns the files to download of one folder: the descriptions and the first available format of weights."""
    descriptions = [file for file in names if file.endswith(_DESCRIPTION_SUFFIXES)]
    for form in _WEIGHTS:
        weights = [file for file in names if re.fullmatch(form, file)]
        if weights:
            return [*descriptions, *weights]
    return descriptions


def _is_weights(file: str) -> bool:
    return any(re.fullmatch(form, file) for form in _WEIGHTS)


def _cached(repository: str, revision: str | None) -> str | None:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, local_files_only=True)
    except Exception as error:  # nothing is cached, or only the part of the repository that we download
        folder = getattr(error, 'snapshot_path', None)
    return folder if folder and any(map(_is_weights, os.listdir(folder))) else None


def _push_error(name: str, found: str, expected: str, fix: str) -> UserError:
    return UserError('config.push_to', f'{name}, and {found}', expected, fix)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return 'HF_HUB_OFFLINE is set'
    return f'the hub cannot be reached ({_line(error)})'


def _line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), '')
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
