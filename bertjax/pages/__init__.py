"""Self-contained HTML pages: Jinja2 templates, a stylesheet, a script, and charts by Plotly."""
