"""The declarations of the config keys, and the recipes, checks, settings, resume rules and docs derived from them."""
