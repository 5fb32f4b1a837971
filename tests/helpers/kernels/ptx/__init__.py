"""What NVRTC makes of the kernels, run on a processor: PTX, one by one in C++."""
