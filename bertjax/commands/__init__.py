"""What a person can do, a verb a file: `config.run` names one."""
