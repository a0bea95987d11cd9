"""The declarations of the config keys, and what derives from them: recipes, checks, settings, resuming, docs."""
