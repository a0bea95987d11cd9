"""An example, not run: build a corpus with workers of Dask in jobs of Slurm (`pip install dask-jobqueue`).

Change the values to those of your cluster. The program submits jobs, each a node full of workers, and holds the
scheduler: run it where it may run for long and where the nodes reach it, such as in a small job of its own
(`sbatch --wrap='python launch/dask_slurm.py'`). Workers join as the queue lets them, and end with the program. A job
that reaches its walltime is a lost worker; with `worker_extra_args=['--lifetime', '225m', '--lifetime-stagger', '10m']`
workers leave in order before that. `print(cluster.job_script())` shows what is submitted.
"""

import subprocess
import sys

from dask_jobqueue import SLURMCluster

cluster = SLURMCluster(
    cores=32,  # of a job
    processes=32,  # one thread a process
    memory='64GiB',
    queue='cpu',
    account='text',
    walltime='04:00:00',
    interface='ib0',  # the network between the nodes
    log_directory='/shared/text/dask',
)
cluster.scale(jobs=8)
build = [
    *(sys.executable, '-m', 'bertjax.main', '--config=configs/pretrain_base.py', '--workdir=/shared/text'),
    *('--config.run=corpus', '--config.corpus=/shared/texts/*.txt'),
    f'--config.beam=--runner=DaskRunner --dask_client_address={cluster.scheduler_address}',
]
sys.exit(subprocess.call(build))
