"""Solvers: what is minimised, and how."""
