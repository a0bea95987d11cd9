"""The number of processes of a TPU run. JAX itself determines it only when it connects the processes."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from absl import logging

from bertjax.parallel.devices import may_have_tpu

_TRIES = 3
_TIMEOUT = 3.0  # seconds; the server is on the same machine and answers within milliseconds


def count_tpu_processes(environment: Mapping[str, str] = os.environ) -> int:
    """Counts the processes of the TPU slices of this run, or returns 1 without any sign of other processes.

    The number is in the environment on GKE, and on Google's metadata server on TPU VMs. The server is queried only if
    JAX has found TPU chips, so that other machines do not wait for it. Without chips, the import of JAX sets
    TPU_SKIP_MDS_QUERY.
    """
    hosts = environment.get('TPU_PROCESS_ADDRESSES', environment.get('TPU_WORKER_HOSTNAMES'))
    slices = environment.get('MEGASCALE_NUM_SLICES')
    if hosts is None and 'TPU_SKIP_MDS_QUERY' not in environment and may_have_tpu():
        try:
            hosts = _read_attribute('worker-network-endpoints', environment)
            if slices is None:
                slices = _parse_value('MEGASCALE_NUM_SLICES', _read_attribute('tpu-env', environment))
        except (OSError, http.client.HTTPException) as error:
            # A single host may be outside Google's cloud. If there are several hosts, `devices.claim_devices` raises.
            logging.warning('cannot query the number of machines of the TPU slice, assuming 1: %s', error)
    return len((hosts or '').split(',')) * int(slices or '1')


def _read_attribute(name: str, environment: Mapping[str, str]) -> str:
    """Reads an attribute of this machine from the metadata server, or '' if it does not exist.

    Raises:
      OSError, HTTPException: The server does not answer.
    """
    server = environment.get('GCE_METADATA_IP', 'metadata.google.internal')  # as in JAX
    address = f'http://{server}/computeMetadata/v1/instance/attributes/{name}'
    request = urllib.request.Request(address, headers={'Metadata-Flavor': 'Google'})
    tries = 0
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                return response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                return ''
            tries += 1
            if tries == _TRIES:
                raise
            time.sleep(0.5)


def _parse_value(key: str, lines: str) -> str | None:
    """Returns the value of a key in lines such as `MEGASCALE_NUM_SLICES: '2'`, or None."""
    pairs = (line.partition(':') for line in lines.splitlines())
    return next((value.strip().strip("'") for name, _, value in pairs if name.strip() == key), None)
