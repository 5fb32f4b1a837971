"""Charts as values, as tables and as pictures.

`charts` describes a chart, its axes and its numbers, and makes CSV of it; `svg` has
matplotlib draw it as PNG or as SVG.
"""
