"""Processes on simulated hosts of a TPU slice find each other without flags."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator

import pytest
from forking import Template
from metadata_server import serve
from running import Program, assert_one_line, reserve_port, wait_for_exit

# Startup code that makes JAX find TPU chips on the PCI bus, although it computes on the CPU.
CHIPS = """
import glob

real = glob.glob
glob.glob = lambda pattern, **more: [{vendor!r}] if 'pci/devices' in pattern else real(pattern, **more)
"""


SHORT = ('--config.steps=4', '--config.eval_every=0', '--config.checkpoint_every=0', '--config.export=False')


@pytest.fixture(scope='module')
def host(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program, whose processes are forks of a template that has found the chips when it imported JAX."""
    pytest.importorskip('libtpu', reason='JAX finds no TPU chips without libtpu')
    folder = tmp_path_factory.mktemp('chip')
    (folder / 'vendor').write_text('0x1ae0\n')
    (folder / 'device').write_text('0x005e\n')  # v4
    (folder / 'sitecustomize.py').write_text(CHIPS.format(vendor=str(folder / 'vendor')))
    environment = program.environment | {'PYTHONPATH': f'{folder}{os.pathsep}{program.environment["PYTHONPATH"]}'}
    environment.pop('TPU_SKIP_MDS_QUERY', None)  # JAX sets this variable where it finds no TPU
    template = Template(environment, program.repository)
    yield dataclasses.replace(program, environment=environment, template=template)
    template.close()


@pytest.mark.slow
def test_the_hosts_of_a_slice_find_each_other(host: Program, tmp_path: pathlib.Path):
    port = str(reserve_port())
    slice_ = {'worker-network-endpoints': 'unknown:unknown:127.0.0.1,unknown:unknown:127.0.0.1', 'tpu-env': ''}
    with serve(slice_ | {'agent-worker-number': '0'}) as one, serve(slice_ | {'agent-worker-number': '1'}) as other:
        hosts = [
            host.with_environment({'GCE_METADATA_IP': server.address, 'JAX_COORDINATOR_PORT': port})
            for server in (one, other)
        ]
        work = f'--workdir={tmp_path / "run"}'
        processes = [each.start(work, *SHORT, '--verbosity=0') for each in hosts]
        first, second = map(wait_for_exit, processes)
        assert 'mesh data=2 x' in first.stderr
        assert 'mesh' not in second.stdout + second.stderr
        refused = hosts[1].spawn(work, '--config.run=corpus', status=2)
        assert 'found several processes' in assert_one_line(refused)
        assert 'TPU_SKIP_MDS_QUERY' in refused.stderr
        single = hosts[1].with_environment({'TPU_SKIP_MDS_QUERY': '1'})
        single.spawn(work, '--config.run=corpus')


@pytest.mark.slow
def test_a_single_host_trains_alone(host: Program, tmp_path: pathlib.Path):
    with serve({'worker-network-endpoints': '10.0.0.2', 'agent-worker-number': '0', 'tpu-env': ''}) as server:
        single = host.with_environment({'GCE_METADATA_IP': server.address})
        run = single.spawn(f'--workdir={tmp_path / "run"}', *SHORT, '--verbosity=0')
        assert 'mesh data=1 x' in run.stderr
        assert server.requests
