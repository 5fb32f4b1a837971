/* Counts what a launch asks of a GPU, for one thread of the host (workers = 1).

   Lanes of a warp that execute an instruction for the k-th time do it together: their
   accesses are one request. Of each instruction are counted: warps and threads that came
   by, requests, bytes, sectors of 32 bytes, passes over the banks of shared memory. A
   block sees its own earlier sectors in L1, if an instruction reads through it: no cache
   is that good, so what goes to L2 is the least. */
#pragma once
#include "cuda_on_cpu.h"

namespace counted { /* see count.cpp */

enum { TO_GLOBAL, TO_SHARED, TO_CLUSTER };

void issue(unsigned number);
void access(unsigned space, unsigned kind, const void *at, unsigned bytes, unsigned number,
            unsigned side = 0);
void copy(const void *to, const void *from, unsigned bytes, unsigned whole,
          unsigned number);

} // namespace counted

#define WATCH(space, kind, address, bytes, number)                                     \
    counted::access(space, kind, (const void *)(address), (unsigned)(bytes), number)
#define WATCH_COPY(to, from, bytes, whole, number)                                     \
    counted::copy((const void *)(to), (const void *)(from), (unsigned)(bytes),         \
                  (unsigned)(whole), number)
#define WATCH_ISSUE(number) counted::issue(number)
