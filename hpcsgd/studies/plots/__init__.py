"""Charts as values, as CSV tables and as pictures.

`charts` describes a chart, its axes and its numbers, and writes its table; `svg` draws
it with matplotlib, as SVG or PNG.
"""
