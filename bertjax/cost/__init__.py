"""Estimates the cost of a compiled step from the compiler's text, and searches for a memory plan that fits."""
