"""Data: readers and conversion of rows, their shards on ranks, and sampling."""
