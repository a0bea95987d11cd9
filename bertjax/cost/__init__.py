"""The cost of a compiled step, from the compiler's text and figures, and a search for a memory plan that fits."""
