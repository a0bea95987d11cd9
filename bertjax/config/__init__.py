"""Every config key, declared once, and what is made of the declarations: recipes, checks, settings, tables."""
