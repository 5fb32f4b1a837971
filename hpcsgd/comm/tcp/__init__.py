"""Ranks without MPI: they meet at a store, and speak through sockets of TCP."""
