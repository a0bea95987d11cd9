"""The cost of a compiled step, and a search for a memory plan that fits; from the compiler's text and figures."""
