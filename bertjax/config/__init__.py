"""The config keys, each declared once, and their uses: recipes, checks, settings, rules of resuming, docs tables."""
