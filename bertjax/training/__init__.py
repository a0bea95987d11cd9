"""The trainer, the loop and the step of all trainings."""
