"""Charts as values, and as SVG that needs nothing else to be seen.

`model` says what a chart is, `drawing` makes it SVG, `table` makes it CSV; hpcsgd.plots
draws the same values with matplotlib.
"""
