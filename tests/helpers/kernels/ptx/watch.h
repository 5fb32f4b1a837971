/* What a kernel on a processor says before everything that it does: who watches is told.

   Included before cuda_on_cpu.h it fills the hooks that are empty there, and the macros
   that a translation of PTX puts before its accesses. `where` is the number of an
   instruction, from 1 on. */
#pragma once
#include <cstddef>
#include <cstdint>

namespace watching {
enum Space { GLOBAL, SHARED, CLUSTER };
enum Kind { READ, WRITE, ATOMIC, ACQUIRE };
enum Meet { OF_BLOCK, OF_WARP, OF_CLUSTER, OF_LANES };
} // namespace watching

extern "C" {
/* Where the thread that runs is; set before a hook that has no `where` of its own. */
extern uint32_t watch_issued;

void watch_access(int space, int kind, const void *at, unsigned bytes, uint32_t where);
void watch_copy(const void *to, const void *from, int bytes, int whole, uint32_t where);
/* A unit that is no thread reads for this one, from its request to the end of it. */
void watch_unit(const void *at, unsigned bytes);
void watch_land(const void *to, const void *from, int bytes, int whole);
void watch_fence(void);
void watch_arrive(int meet);
void watch_pass(int meet);
void watch_exit(void);
/* Asked once a round: whether the launch is to end here. */
int watch_stopped(void);

/* A block of `threads` is set up: its number, its rank in a cluster of so many. */
void watch_block(unsigned number, unsigned rank, unsigned cluster, unsigned threads,
                 const void *shared, size_t bytes);
/* A thread takes its turn, the how many-th of its cluster. */
void watch_run(unsigned index);
void watch_idle(void);
/* A launch; `yield` lets other threads run. */
void watch_launch(void (*yield)());
}

#define WATCH(space, kind, at, bytes, number)                                          \
    watch_access(space, kind, (const void *)(at), bytes, (uint32_t)(number) + 1)
#define WATCH_COPY(to, from, bytes, whole, number)                                     \
    watch_copy((const void *)(to), (const void *)(from), (int)(bytes), (int)(whole),   \
               (uint32_t)(number) + 1)
#define WATCH_ISSUE(number) (watch_issued = (uint32_t)(number) + 1)

#define HOOK_LAND(copy) watch_land((copy).to, (copy).from, (copy).bytes, (copy).whole)
#define HOOK_UNIT(at, bytes) watch_unit(at, bytes)
#define HOOK_FENCE() watch_fence()
#define HOOK_ARRIVE(meet) watch_arrive(watching::meet)
#define HOOK_PASS(meet) watch_pass(watching::meet)
#define HOOK_EXIT() watch_exit()
#define HOOK_STOPPED() watch_stopped()
#define HOOK_LAUNCH(launch) watch_launch(emulated::yield)
#define HOOK_BLOCK(block, number, launch, threads)                                     \
    watch_block(number, (block).rank, (launch).cluster, threads, (block).shared(),     \
                (launch).shared)
#define HOOK_RUN(index) watch_run(index)
#define HOOK_IDLE() watch_idle()
