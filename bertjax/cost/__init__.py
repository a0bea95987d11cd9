"""What a compiled step costs: pure functions of the text that the compiler gives (`compiled.as_text()`)."""
