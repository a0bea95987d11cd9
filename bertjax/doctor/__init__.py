"""What run=doctor looks at: the machine, what a config asks for, and what became of a run; a line each."""
