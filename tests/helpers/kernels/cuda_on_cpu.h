/* Runs kernels of CUDA on a processor, thread for thread.

   Every thread of a block is a fiber; barriers and operations of a warp switch fibers.
   Blocks of a cluster run side by side. What a race would read is made likely to be
   wrong: warps take turns in an order drawn from a seed, shared memory begins as
   numbers that are none, copies that are under way land when they are waited for and
   not before. A launch that gets nowhere says so.

   ldmatrix and mma have the lane layouts of the hardware; their sums are in float32, in
   ascending order. Not shown here: the memory model, speed, how tensor cores round. */
#pragma once
#define CUDA_ON_CPU 1

#include "cpu_launch.h"
#include "cpu_threads.h"
#include "cpu_copies.h"
#include "cpu_mma.h"
#include "cpu_clusters.h"
#include "wgmma_on_cpu.h"
