"""Figures of one GPU, each measured on its own."""
