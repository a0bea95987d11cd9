"""Checks the command line flags for several processes, and counts the processes of a run."""

import dataclasses
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from absl import logging

from bertjax.errors import UserError
from bertjax.parallel.devices import may_have_tpu

_SLICES = re.compile(r"^MEGASCALE_NUM_SLICES: *'?(\d+)", re.MULTILINE)  # in the attribute 'tpu-env'
_TRIES = 3  # the maximum number of requests to the metadata server for one attribute
_TIMEOUT = 3.0  # seconds; the server is on the same machine and answers within milliseconds


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """The flags that connect several processes. All are None for one process, or if the environment has the values."""

    coordinator_address: str | None = None  # HOST:PORT of the first process
    num_processes: int | None = None
    process_id: int | None = None  # from 0

    def check(self) -> None:
        """Raises UserError unless all three flags are set to valid values, or none is set."""
        flags = {f'--{name}': value for name, value in dataclasses.asdict(self).items()}
        missing = [name for name, value in flags.items() if value is None]
        if len(missing) == len(flags):
            return
        if missing:
            given, found = next(name for name in flags if name not in missing), f'no {" and no ".join(missing)}'
            fix = f'also give {" and ".join(missing)} (docs/scaling.md)'
            raise UserError(given, found, 'all three flags or none of them', fix)
        if self.num_processes < 1:
            raise UserError('--num_processes', str(self.num_processes), 'at least 1', 'give the number of processes')
        if not 0 <= self.process_id < self.num_processes:
            expected = f'a number below --num_processes={self.num_processes}'
            raise UserError('--process_id', str(self.process_id), expected, 'number the processes from 0')
        if not re.fullmatch(r'.+:\d+', self.coordinator_address):
            expected, fix = 'HOST:PORT of the first process', 'for example --coordinator_address=10.0.0.2:8476'
            raise UserError('--coordinator_address', self.coordinator_address, expected, fix)

    def is_one_of_several(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Returns whether the flags or the environment (srun, TPU hosts, a GKE JobSet) configure several processes."""
        slurm = 'SLURM_PROCID' in environment and int(environment.get('SLURM_STEP_NUM_TASKS') or '1') > 1
        return self.coordinator_address is not None or slurm or _count_tpu_processes(environment) > 1


def _count_tpu_processes(environment: Mapping[str, str]) -> int:
    """Counts the processes of the TPU slices of this run before JAX connects them; 1 without any sign of others.

    On GKE, the number is in the environment; on TPU VMs, it is on Google's metadata server. The server is queried only
    if JAX has found TPU chips, so that other machines do not wait for it. Without chips, the import of JAX sets
    TPU_SKIP_MDS_QUERY.
    """
    hosts = environment.get('TPU_PROCESS_ADDRESSES', environment.get('TPU_WORKER_HOSTNAMES'))
    slices = environment.get('MEGASCALE_NUM_SLICES')
    if hosts is None and 'TPU_SKIP_MDS_QUERY' not in environment and may_have_tpu():
        try:
            hosts = _read_attribute('worker-network-endpoints', environment)
            if slices is None:
                match = _SLICES.search(_read_attribute('tpu-env', environment))
                slices = match and match[1]
        except (OSError, http.client.HTTPException) as error:
            # For a single host outside Google's cloud, 1 is correct. For several hosts, `claim_devices` raises later.
            logging.warning('cannot query the number of machines of the TPU slice, assuming 1: %s', error)
    return len((hosts or '').split(',')) * int(slices or '1')


def _read_attribute(name: str, environment: Mapping[str, str]) -> str:
    """Returns an attribute of this machine from the metadata server, or '' if the attribute does not exist.

    Raises:
      OSError, HTTPException: The server does not answer, or answers with an error other than 404.
    """
    server = environment.get('GCE_METADATA_IP', 'metadata.google.internal')  # as in JAX
    address = f'http://{server}/computeMetadata/v1/instance/attributes/{name}'
    request = urllib.request.Request(address, headers={'Metadata-Flavor': 'Google'})
    for tries_left in reversed(range(_TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                return response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                return ''
            if not tries_left:
                raise
        time.sleep(0.5)
