/* Copies to shared memory, and rows of it for tensor cores. */
#pragma once
#include "cpu_threads.h"

/* Copies to shared memory land as late as they may: at the wait that asks for them. */
inline void copy_async_16(void *to, const void *from, int bytes)
{
    emulated::now->copies.push_back({to, from, bytes, 16, emulated::now->batch});
    emulated::began(to, 16);
}
inline void copy_async_16(void *to, const void *from) { copy_async_16(to, from, 16); }
inline void copy_commit() { emulated::now->batch++; }
template <int LEFT> inline void copy_wait() { emulated::land(*emulated::now, LEFT); }

/* Rows of an 8 x 8 matrix that share banks with another row of it. */
namespace emulated {
inline std::atomic<unsigned> conflicts{0};
inline void count_conflicts(Warp *warp)
{
    for (int matrix = 0; matrix < 4; matrix++) {
        unsigned banks = 0;
        for (int row = 0; row < 8; row++) {
            unsigned own = 1u << ((uintptr_t)warp->row[matrix * 8 + row] / 16 % 8);
            conflicts += (banks & own) != 0;
            banks |= own;
        }
    }
}
} // namespace emulated

inline void load_matrix_4(unsigned (&to)[4], const void *row)
{
    auto *self = emulated::now;
    auto *warp = self->warp;
    if ((uintptr_t)row & 15)
        abort(); /* ldmatrix needs rows of 16 bytes, aligned */
    warp->row[self->lane] = row;
    emulated::together([](emulated::Warp *w) {
        emulated::count_conflicts(w);
        for (int lane = 0; lane < 32; lane++)
            for (int q = 0; q < 4; q++)
                memcpy(&w->r[lane][q], (const char *)w->row[q * 8 + lane / 4] + lane % 4 * 4,
                       4);
    });
    memcpy(to, warp->r[self->lane], sizeof to);
}
