"""An untested example: build a corpus with Dask workers in Slurm jobs (`pip install dask-jobqueue`).

Change the values to those of your cluster. The program runs the Dask scheduler, and submits jobs. Each job fills a node
with workers. Run the program on a machine that allows long processes and is reachable from the nodes, for example in a
small job (`sbatch --wrap='python launch/dask_slurm.py'`). Workers join when their job starts, and end with the program.
The workers of a job that reaches its walltime are lost. With
`worker_extra_args=['--lifetime', '225m', '--lifetime-stagger', '10m']` they shut down gracefully before the walltime.
`print(cluster.job_script())` shows the submitted script.
"""

import subprocess
import sys

from dask_jobqueue import SLURMCluster

cluster = SLURMCluster(
    cores=32,  # per job
    processes=32,  # per job, with one thread each
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
