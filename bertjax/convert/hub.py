"""Models of the Hugging Face hub: pulled by name, and pushed."""

import functools
import os
import re
from collections.abc import Collection

from bertjax.errors import UserError

_NAME = re.compile(r'([\w.-]+/[\w.-]+)(?:@([\w./-]+))?')
# Models that moved to the names of organisations: their short names, and what stands before them now.
_MOVED = {
    r'bert-(base|large)-[\w-]+': 'google-bert',
    r'(xlm-)?roberta-(base|large)[\w-]*': 'FacebookAI',
    r'distil(bert|roberta)-base[\w-]*': 'distilbert',
    r'(all|multi-qa|paraphrase)-[\w.-]*(MiniLM|distilroberta)[\w.-]*': 'sentence-transformers',
}
_DESCRIBED = ('.json', '.txt', '.model')  # how files end that describe a model, and its tokenizer
# The forms of weights, the first of which a repository has is pulled.
_WEIGHTS = (
    r'model\.safetensors',
    r'model-\d+-of-\d+\.safetensors',
    r'pytorch_model(-\d+-of-\d+)?\.bin',
    r'.*\.ckpt.*|checkpoint',
)
_MODULE = r'\d+_\w+/[^/]+'  # of sentence-transformers: 1_Pooling/config.json
# What a push takes away where it writes no file of that name: transformers and we would read parts of an earlier model.
_STALE = ['model.safetensors', 'model.safetensors.index.json', 'model-?????-of-?????.safetensors']
_STALE += ['pytorch_model.bin', 'pytorch_model.bin.index.json', 'pytorch_model-?????-of-?????.bin']
_STALE += ['tf_model.h5', 'flax_model.msgpack', 'task.json', 'generation_config.json', 'tokenizer.json']
_STALE += ['tokenizer_config.json', 'tokenizer.model', 'vocab.txt', 'vocab.json', 'merges.txt', 'spiece.model']
_STALE += ['special_tokens_map.json', 'added_tokens.json', 'modules.json', 'config_sentence_transformers.json']
_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"
_LATER = 'try again when the network is there'


def hub_name(name: str) -> tuple[str, str | None] | None:
    """Repository and revision of 'org/name' or 'org/name@revision'; None of what is no such name."""
    match = _NAME.fullmatch(name)
    return (match.group(1), match.group(2)) if match and '..' not in name else None


def moved_name(name: str) -> str:
    """'google-bert/bert-base-uncased' of 'bert-base-uncased', as transformers still takes it; '' of other names."""
    owner = next((owner for pattern, owner in _MOVED.items() if re.fullmatch(pattern, name)), '')
    return f'{owner}/{name}' if owner else ''


@functools.cache  # a run asks for its model several times
def pull(name: str, where: str) -> str:
    """The folder of a model of the hub, pulled into huggingface_hub's cache where it is not there yet.

    Only its description, its tokenizer and one form of its weights are pulled. Without the network, a model that was
    pulled before is taken.

    Args:
      name: 'org/name' or 'org/name@revision', a name that no path here has.
      where: the config key, for messages.

    Raises:
      UserError: no such model, none that we may see, or no network; says which.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = hub_name(name)
    expected = 'a path that is there, or the name of a model on the hub'

    def refuse(found: str, fix: str) -> UserError:
        return UserError(where, f'{name}, which is no path here, and on the hub {found}', expected, fix)

    try:
        facts = HfApi().model_info(repository, revision=revision)
        files = [file.rfilename for file in facts.siblings or ()]
        folder = snapshot_download(repository, revision=revision, allow_patterns=_wanted(files))
    except HFValidationError:
        raise refuse('nothing, for no name there is written so', 'check the path') from None
    except GatedRepoError:
        fix = f'accept its terms at {_endpoint()}/{repository}, and {_LOG_IN}'
        raise refuse('a gated model that you have no access to', fix) from None
    except RevisionNotFoundError:
        raise refuse(f'no revision {revision!r}', 'give a branch, a tag or a commit of it') from None
    except RepositoryNotFoundError:
        fix = f'check the path or the name; of a private model, {_LOG_IN}'
        raise refuse('no such model, or a private one', fix) from None
    except Exception as error:  # of the network: the classes depend on huggingface_hub's HTTP library
        cached = _cached(repository, revision)
        if cached is None:
            raise refuse(f'cannot be looked for: {_why(error)}', _LATER) from None
        print(f'{name}: what was pulled before, for {_why(error)}')
        return cached
    print(f'{name}: pulled from the hub, at revision {os.path.basename(folder)}')
    return folder


def check_push(name: str) -> None:
    """Refuses a push that cannot succeed; asks the hub who we are, and writes nothing.

    Args:
      name: config.push_to.

    Raises:
      UserError: no token, no network, or a namespace that is not ours.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        we = HfApi().whoami()
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        status = getattr(getattr(error, 'response', None), 'status_code', None)
        if status is not None and status not in (401, 403):
            raise _no_push(name, f'the hub says {status}', 'an answer', _LATER) from None
        found = 'no token of the hub' if status is None else 'a token that the hub refuses'
        raise _no_push(name, found, 'one that may write', _LOG_IN) from None
    except Exception as error:  # see `pull`
        raise _no_push(name, _why(error), 'the network', _LATER) from None
    ours = [we['name'], *(org['name'] for org in we.get('orgs', ()))]
    if name.partition('/')[0] not in ours:
        fix = 'give one of these, or the token of somebody who may write there'
        raise _no_push(name, f'the token of {we["name"]}', f'one of the names {", ".join(ours)}', fix)


def push(folder: str | os.PathLike, name: str, *, private: bool) -> str:
    """Uploads a Hugging Face directory, and returns its address. Weights and tokenizer that were there before go.

    Args:
      folder: whole, with its model card.
      name: 'org/name', made where it is not there.
      private: whether to make it private.

    Raises:
      UserError: the hub does not take it. The folder stays.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        what = {'commit_message': 'Trained with bertjax', 'delete_patterns': _STALE}
        api.upload_folder(repo_id=name, folder_path=os.fspath(folder), **what)
    except Exception as error:  # see `pull`
        fix = f'the export is whole in {folder}: run the same command with --config.run=export when the hub is there'
        raise _no_push(name, f'a hub that does not take it ({_line(error)})', 'an upload', fix) from None
    return f'{_endpoint()}/{name}'


def _wanted(files: Collection[str]) -> list[str]:
    """The files that are pulled: those of the model, and of sentence-transformers' modules, a folder each."""
    wanted = _wanted_of([file for file in files if '/' not in file])
    folders = {file.rpartition('/')[0] for file in files if 'modules.json' in files and re.fullmatch(_MODULE, file)}
    for folder in sorted(folders):
        names = [file.rpartition('/')[2] for file in files if file.rpartition('/')[0] == folder]
        wanted += [f'{folder}/{name}' for name in _wanted_of(names)]
    return wanted


def _wanted_of(top: Collection[str]) -> list[str]:
    """Those of the files of one folder."""
    described = [file for file in top if file.endswith(_DESCRIBED)]
    for form in _WEIGHTS:
        weights = [file for file in top if re.fullmatch(form, file)]
        if weights:
            return [*described, *weights]
    return described


def _is_weights(file: str) -> bool:
    return any(re.fullmatch(form, file) for form in _WEIGHTS)


def _cached(repository: str, revision: str | None) -> str | None:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, local_files_only=True)
    except Exception as error:  # nothing, or not all that the repository has, of which we only take a part
        folder = getattr(error, 'snapshot_path', None)
    return folder if folder and any(map(_is_weights, os.listdir(folder))) else None


def _no_push(name: str, found: str, expected: str, fix: str) -> UserError:
    return UserError('config.push_to', f'{name}, and {found}', expected, fix)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _why(error: Exception) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return 'HF_HUB_OFFLINE is set'
    return f'the hub cannot be reached ({_line(error)})'


def _line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), '')
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
