"""How many processes compute together on TPUs, as JAX will count them when it makes them one run; asked before that."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from absl import logging

from bertjax.parallel.devices import may_have_tpu

_TRIES = 3
_TIMEOUT = 3.0  # seconds: the server is on the machine that it is asked from, and answers in milliseconds


def count_tpu_processes(environment: Mapping[str, str] = os.environ) -> int:
    """Of the slice that this machine is part of, or of several slices; 1 where nothing speaks of others.

    GKE says it in the environment, TPU VMs by Google's metadata server. That is asked only where JAX has seen chips, so
    that other machines do not wait for it: without any it has set TPU_SKIP_MDS_QUERY when it was imported.
    """
    hosts = environment.get('TPU_PROCESS_ADDRESSES', environment.get('TPU_WORKER_HOSTNAMES'))
    slices = environment.get('MEGASCALE_NUM_SLICES')
    if hosts is None and 'TPU_SKIP_MDS_QUERY' not in environment and may_have_tpu():
        try:
            hosts = _attribute('worker-network-endpoints', environment)
            if slices is None:
                slices = _value('MEGASCALE_NUM_SLICES', _attribute('tpu-env', environment))
        except (OSError, http.client.HTTPException) as error:
            # A single host need not be in Google's cloud. One of several is found out by `devices.claim_devices`.
            logging.warning('cannot ask how many machines the TPU slice has, taken for one alone: %s', error)
    return len((hosts or '').split(',')) * int(slices or '1')


def _attribute(name: str, environment: Mapping[str, str]) -> str:
    """Of this machine, as the metadata server has it; '' where it has none of this name. Raises OSError."""
    server = environment.get('GCE_METADATA_IP', 'metadata.google.internal')  # as JAX finds it
    address = f'http://{server}/computeMetadata/v1/instance/attributes/{name}'
    request = urllib.request.Request(address, headers={'Metadata-Flavor': 'Google'})
    tries = 0
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                return answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                return ''
            tries += 1
            if tries == _TRIES:
                raise
            time.sleep(0.5)


def _value(key: str, lines: str) -> str | None:
    """Of a line such as `MEGASCALE_NUM_SLICES: '2'`."""
    pairs = (line.partition(':') for line in lines.splitlines())
    return next((value.strip().strip("'") for name, _, value in pairs if name.strip() == key), None)
