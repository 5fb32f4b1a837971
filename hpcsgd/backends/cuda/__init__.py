"""The arithmetic of an exchange on a GPU of NVIDIA."""
