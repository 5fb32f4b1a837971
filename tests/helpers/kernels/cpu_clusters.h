/* Blocks that run side by side and write to each other. */
#pragma once
#include "cpu_fibers.h"

inline unsigned cluster_rank() { return emulated::now->block->rank; }
template <class T> inline void cluster_store(T *at, unsigned rank, T value)
{
    auto *block = emulated::now->block;
    ptrdiff_t offset = (unsigned char *)at - block->shared();
    *(T *)(block->group->blocks[rank]->shared() + offset) = value;
}
inline void cluster_arrive()
{
    auto &barrier = emulated::now->block->group->barrier;
    emulated::now->cluster_turn = barrier.turn;
    HOOK_ARRIVE(OF_CLUSTER);
    emulated::arrive(barrier);
    emulated::yield(); /* others may run ahead before what hides behind the barrier */
}
inline void cluster_wait()
{
    auto &barrier = emulated::now->block->group->barrier;
    while (barrier.turn == emulated::now->cluster_turn)
        emulated::yield();
    HOOK_PASS(OF_CLUSTER);
}
