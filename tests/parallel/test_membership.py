"""Tests the detection of multi-process runs from the environment and from the metadata server of TPU VMs."""

import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from metadata_server import serve

from bertjax.parallel import process_flags
from bertjax.parallel.process_flags import ProcessFlags


@pytest.fixture
def tpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_flags, 'may_have_tpu', lambda: True)


@pytest.mark.parametrize(
    ('environment', 'several'),
    [
        ({}, False),
        ({'TPU_WORKER_HOSTNAMES': 'localhost'}, False),
        ({'TPU_WORKER_HOSTNAMES': 'pod-0.svc,pod-1.svc'}, True),
        ({'TPU_PROCESS_ADDRESSES': 'local', 'TPU_WORKER_HOSTNAMES': 'a,b'}, False),
        ({'TPU_PROCESS_ADDRESSES': '10.0.0.2:8476,10.0.0.3:8476'}, True),
        ({'TPU_WORKER_HOSTNAMES': 'pod-0.svc', 'MEGASCALE_NUM_SLICES': '2'}, True),
        ({'TPU_WORKER_HOSTNAMES': 'pod-0.svc', 'MEGASCALE_NUM_SLICES': ''}, False),
        ({'SLURM_PROCID': '0', 'SLURM_STEP_NUM_TASKS': '2'}, True),
        ({'SLURM_PROCID': '0', 'SLURM_STEP_NUM_TASKS': '1'}, False),
        ({'SLURM_PROCID': '0', 'SLURM_STEP_NUM_TASKS': ''}, False),
    ],
)
def test_several_processes_are_detected_from_the_environment(environment: dict[str, str], several: bool):
    assert ProcessFlags().is_one_of_several(environment | {'TPU_SKIP_MDS_QUERY': '1'}) == several


@pytest.mark.parametrize(
    ('attributes', 'several'),
    [
        ({'worker-network-endpoints': '10.0.0.2,10.0.0.3'}, True),
        ({'worker-network-endpoints': 'unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3'}, True),
        ({'worker-network-endpoints': 'unknown:unknown:10.0.0.2', 'tpu-env': "TYPE: 'V5E'\nWORKER_ID: '0'\n"}, False),
        ({'worker-network-endpoints': '10.0.0.2', 'tpu-env': "TYPE: 'V5E'\nMEGASCALE_NUM_SLICES: '2'\n"}, True),
        ({}, False),  # A machine in Google's cloud without a TPU.
    ],
)
def test_several_processes_are_detected_from_the_metadata_server(
    tpu_here: None, attributes: dict[str, str], several: bool
):
    with serve(attributes) as server:
        assert ProcessFlags().is_one_of_several({'GCE_METADATA_IP': server.address}) == several
        assert server.requests == ['worker-network-endpoints', 'tpu-env']


def test_a_busy_server_is_queried_again(tpu_here: None):
    with serve({'worker-network-endpoints': '10.0.0.2,10.0.0.3'}, failures=2) as server:
        assert ProcessFlags().is_one_of_several({'GCE_METADATA_IP': server.address})


def test_only_a_machine_with_a_tpu_queries_the_server(monkeypatch: pytest.MonkeyPatch):
    with serve({'worker-network-endpoints': '10.0.0.2,10.0.0.3'}) as server:
        environment = {'GCE_METADATA_IP': server.address}
        monkeypatch.setattr(process_flags, 'may_have_tpu', lambda: True)
        assert not ProcessFlags().is_one_of_several(environment | {'TPU_SKIP_MDS_QUERY': '1'})
        # On GKE, the environment contains all facts.
        assert not ProcessFlags().is_one_of_several(environment | {'TPU_WORKER_HOSTNAMES': 'localhost'})
        monkeypatch.setattr(process_flags, 'may_have_tpu', lambda: False)
        assert not ProcessFlags().is_one_of_several(environment)
        assert not server.requests


def test_without_a_server_the_process_is_single(tpu_here: None, caplog: pytest.LogCaptureFixture):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))  # Nothing listens on this port.
        start = time.monotonic()
        assert not ProcessFlags().is_one_of_several({'GCE_METADATA_IP': f'127.0.0.1:{taken.getsockname()[1]}'})
    assert time.monotonic() - start < 5
    assert 'assuming 1' in caplog.text


@pytest.mark.slow
def test_sigterm_ends_a_process_that_has_joined_but_does_not_train_yet():
    """Preparing a corpus may take hours."""
    with socket.socket() as free:
        free.bind(('localhost', 0))
        address = f'localhost:{free.getsockname()[1]}'
    code = f"""
        import time
        from bertjax.parallel import distributed
        from bertjax.parallel.process_flags import ProcessFlags

        distributed.join(ProcessFlags({address!r}, 1, 0))
        print('joined', flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == 'joined\n'
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
