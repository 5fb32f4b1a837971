"""Charts as values, as tables and as pictures.

`model` describes a chart, `scales` its axes and numbers, `table` makes CSV of it, and
`drawing` has matplotlib draw it as PNG or as SVG, which `svg` completes.
"""
