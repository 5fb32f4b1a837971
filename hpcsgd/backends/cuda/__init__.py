"""The arithmetic of an exchange on an NVIDIA GPU."""
