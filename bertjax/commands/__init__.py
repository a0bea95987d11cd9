"""The verbs of the program, one in each file. `config.verb.Verb` describes the arguments of their `run`."""
