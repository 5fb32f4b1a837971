"""Measure a machine, predict what settings would take there, run the best of them."""
