"""The verbs of the program, one in each file. config.run names the verb to run."""
