"""HTML pages that are one file: Jinja2 templates, one stylesheet, one script, and charts that Plotly draws."""
