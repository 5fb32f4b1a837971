"""CUDA kernels compiled for the CPU, their launches and the faults planted in them."""
