"""What a person can do, a file each: `--config.run=NAME` calls `run(config, workdir)` of runs/NAME.py."""
