"""Who watches kernels: every kind of fault is found, and nothing that is allowed."""

import re

import numpy as np
import pytest

from tests.helpers.kernels.emulator import empty, on_device
from tests.helpers.kernels.ptx.watched import Found, WatchedKernel

THREADS = 64
# One kernel, built once; `which` is the number of a case.
TEXT = """
#include "device.cuh"
#define HERE (blockIdx.x * 64 + threadIdx.x)
INLINE void tell(float *out, float value) { out[HERE] = value; }
INLINE void signal(u32 *flag) { atomicAdd(flag, 1u); }
INLINE void await(u32 *flag) { while (load_acquire(flag) < 1u) spin(); }
INLINE void await_weakly(u32 *flag) { while (atomicAdd(flag, 0u) < 1u) spin(); }

extern "C" __global__ void __launch_bounds__(64)
some(int which, float *out, int n, const float *__restrict__ in, float *mid, u32 *flag,
     u8 *bytes, float *none)
{
    SHARED_MEMORY(memory);
    float *s = (float *)memory;
    u32 t = threadIdx.x, b = blockIdx.x;
    switch (which) {
@CASES@
    }
}
LAUNCHABLE(some)
"""
COPY = "copy_async_16(s + t * 4, in + t * 4, 16); copy_commit(); "
FAR = "cluster_store(s + t, b ^ 1, 1.0f); "
MEET = "cluster_arrive(); cluster_wait(); "
ASK = "__shfl_xor_sync(0xffffffffu, in[t], 1)"
# name -> what it does, what is found ("" for nothing), blocks that run at once
CASES = {
    "a barrier between": ("s[t] = 1; __syncthreads(); tell(out, s[63 - t]);", ""),
    "no barrier": ("s[t] = 1; tell(out, s[63 - t]);", "racecheck: race"),
    "no barrier before a second write": (
        "s[t] = 1; __syncthreads(); tell(out, s[63 - t]); s[t] = 2;",
        "racecheck: race",
    ),
    "one place, two threads": ("s[t / 2] = 1;", "racecheck: race"),
    "bytes of one word": ("memory[t] = 1; bytes[t] = 1;", ""),
    "a warp alone": ("s[t] = 1; __syncwarp(); tell(out, s[t ^ 1]);", ""),
    "a shuffle orders no memory": (
        f"s[t] = {ASK}; float q = {ASK}; tell(out, s[t ^ 1] + q);",
        "racecheck: race",
    ),
    "a warp is not a block": (
        "s[t] = 1; __syncwarp(); tell(out, s[t ^ 32]);",
        "racecheck: race",
    ),
    "two blocks, one place": ("out[t] = 1;", "racecheck: race"),
    "a message": (
        "if (b == 0 && t == 0) { mid[0] = 1; __threadfence(); signal(flag); }"
        "if (b == 1 && t == 0) { await(flag); out[0] = mid[0]; }",
        "",
    ),
    "a message without a fence": (
        "if (b == 0 && t == 0) { mid[0] = 1; signal(flag); }"
        "if (b == 1 && t == 0) { await(flag); out[0] = mid[0]; }",
        "racecheck: race",
    ),
    "read weakly, then a fence": (
        "if (b == 0 && t == 0) { mid[0] = 1; __threadfence(); signal(flag); }"
        "if (b == 1 && t == 0) { await_weakly(flag); __threadfence();"
        " out[0] = mid[0]; }",
        "",
    ),
    "read weakly": (
        "if (b == 0 && t == 0) { mid[0] = 1; __threadfence(); signal(flag); }"
        "if (b == 1 && t == 0) { await_weakly(flag); out[0] = mid[0]; }",
        "racecheck: race",
    ),
    "written behind the fence": (
        "if (b == 0 && t == 0) { __threadfence(); mid[0] = 1; signal(flag); }"
        "if (b == 1 && t == 0) { await(flag); out[0] = mid[0]; }",
        "racecheck: race",
    ),
    "a block's message": (
        "if (b == 0) { mid[t] = 1; __syncthreads();"
        " if (t == 0) { __threadfence(); signal(flag); } }"
        "else { if (t == 0) await(flag); __syncthreads(); out[t] = mid[63 - t]; }",
        "",
    ),
    "fences of all, one signal": (
        "if (b == 0) { mid[t] = 1; __threadfence(); __syncthreads();"
        " if (t == 0) signal(flag); }"
        "else { if (t == 0) await_weakly(flag); __syncthreads(); __threadfence();"
        " out[t] = mid[63 - t]; }",
        "",
    ),
    "a fence of one, for all": (
        "if (b == 0) { mid[t] = 1; if (t == 0) __threadfence(); __syncthreads();"
        " if (t == 0) signal(flag); }"
        "else { if (t == 0) await_weakly(flag); __syncthreads(); __threadfence();"
        " out[t] = mid[63 - t]; }",
        "racecheck: race",
    ),
    "fences of all that wrote, none of those that read": (
        "if (b == 0) { mid[t] = 1; __threadfence(); __syncthreads();"
        " if (t == 0) signal(flag); }"
        "else { if (t == 0) await_weakly(flag); __syncthreads();"
        " out[t] = mid[63 - t]; }",
        "racecheck: race",
    ),
    "a signal before all have written": (
        "if (b == 0) { mid[t] = 1; __threadfence(); if (t == 0) signal(flag); }"
        "else { if (t == 0) await(flag); __syncthreads(); out[t] = mid[63 - t]; }",
        "racecheck: race",
    ),
    "the last one clears": (
        "if (t == 0 && atomicAdd(flag, 1u) == gridDim.x - 1) *flag = 0;",
        "",
    ),
    "anyone clears": (
        "if (t == 0) { atomicAdd(flag, 1u); *flag = 0; }",
        "racecheck: race",
    ),
    "a copy": (f"{COPY} copy_wait<0>(); tell(out, s[t * 4]);", ""),
    "a copy that is not waited for": (
        f"{COPY} tell(out, s[t * 4]); copy_wait<0>();",
        "racecheck: in flight",
    ),
    "a copy for others": (
        f"{COPY} copy_wait<0>(); __syncthreads(); tell(out, s[252 - t * 4]);",
        "",
    ),
    "a copy for others, too early": (
        f"{COPY} __syncthreads(); copy_wait<0>(); tell(out, s[252 - t * 4]);",
        "racecheck: ",
    ),
    "the older of two copies": (
        f"{COPY} copy_async_16(s + 256 + t * 4, in, 16); copy_commit();"
        " copy_wait<1>(); tell(out, s[t * 4]); copy_wait<0>();",
        "",
    ),
    "the younger of two copies": (
        f"{COPY} copy_async_16(s + 256 + t * 4, in, 16); copy_commit();"
        " copy_wait<1>(); tell(out, s[256 + t * 4]); copy_wait<0>();",
        "racecheck: in flight",
    ),
    "written while a copy is under way": (
        f"{COPY} s[t * 4] = 1; copy_wait<0>();",
        "racecheck: in flight",
    ),
    "a copy into what is read": (
        "s[t * 4] = 1; __syncthreads(); tell(out, s[252 - t * 4]);"
        f" {COPY} copy_wait<0>();",
        "racecheck: race",
    ),
    "in a cluster": (f"{MEET} {FAR} {MEET} tell(out, s[t]);", "", 2),
    "a block that may not run yet": (
        f"{FAR} {MEET} tell(out, s[t]);",
        "racecheck: not running",
        2,
    ),
    "read before others have sent": (
        f"s[t] = 0; {MEET} {FAR} tell(out, s[t]); {MEET}",
        "racecheck: race",
        2,
    ),
    "sent behind the arrival": (
        f"{MEET} cluster_arrive(); {FAR} cluster_wait(); tell(out, s[t]); {MEET}",
        "racecheck: race",
        2,
    ),
    "a block that has ended": (f"{MEET} {FAR}", "racecheck: ended", 2),
    "one wait too few": (
        f"{MEET} cluster_arrive(); {MEET}",
        "synccheck: not arrived",
        2,
    ),
    "behind an array": ("if (t == 0) out[n] = 1;", "memcheck: outside"),
    "before an array": ("if (t == 0) mid[0] = in[-1 - (int)b];", "memcheck: outside"),
    "far away": ("if (t == 0) out[n + (1 << 28)] = 1;", "memcheck: outside"),
    "nowhere": ("if (t == 0) none[0] = 1;", "memcheck: outside"),
    "behind shared memory": ("if (t == 0) s[512] = 1;", "memcheck: outside"),
    "half of it behind": (
        "if (t == 0) *(float4 *)(out + n - 2) = make_float4(1, 1, 1, 1);",
        "memcheck: ",
    ),
    "four words, not aligned": (
        "if (t == 0) *(float4 *)(out + 1) = make_float4(1, 1, 1, 1);",
        "memcheck: misaligned",
    ),
    "two words in shared memory, not aligned": (
        "if (t == 0) *(float2 *)(s + 1) = make_float2(1, 1);",
        "memcheck: misaligned",
    ),
    "into an input": ("if (t == 0 && b == 0) ((float *)in)[0] = 1;", "memcheck: into"),
    "the end of an input, and zeros": (
        "if (t == 0) { copy_async_16(s, in + 256, 8); copy_commit(); copy_wait<0>(); }",
        "",
    ),
    "what is behind an input": (
        "if (t == 0) { copy_async_16(s, in + 256, 12); copy_commit();"
        " copy_wait<0>(); }",
        "memcheck: outside",
    ),
    "a copy from an odd place": (
        "if (t == 0) { copy_async_16(s, in + 1, 16); copy_commit(); copy_wait<0>(); }",
        "memcheck: misaligned",
    ),
    "shared memory that nobody wrote": (
        "s[t] = 1; __syncthreads(); tell(out, s[t + 1]);",
        "initcheck: never written",
    ),
    "an output that nobody wrote": (
        "if (t == 0 && b == 0) mid[0] = out[5];",
        "initcheck: never written",
    ),
    "an output that was written": ("tell(out, 1); tell(out, out[b * 64 + t] + 1);", ""),
    "a barrier of some": ("if (t < 32) { __syncthreads(); }", "synccheck: missing"),
    "two barriers for one": (
        "if (t < 32) { s[t] = 1; __syncthreads(); out[t] = 1; }"
        " else { __syncthreads(); s[t] = 2; }",
        "synccheck: elsewhere",
    ),
    "a shuffle of some lanes": (
        "if (t & 1) tell(out, __shfl_xor_sync(0xffffffffu, in[t], 2));",
        "synccheck: missing",
    ),
    "lanes that meet elsewhere": (
        f"if (t & 1) tell(out, {ASK}); else {{ s[t] = 1; __syncwarp(); }}"
        " __syncwarp();",
        "synccheck: ",
    ),
    "lanes that have ended": ("if (t & 1) return; __syncwarp();", "synccheck: missing"),
}
NAMES = tuple(CASES)
ONE_BLOCK = re.compile("two blocks|anyone|message|fence|signal|weakly|last one")


def text_of(cases):
    """The kernel with all cases in it."""
    said = [
        f"case {i}: {{ {case[0]} }} break;" for i, case in enumerate(cases.values())
    ]
    return TEXT.replace("@CASES@", "\n".join(said))


def launched(name, kernel, seed=0):
    """One case; what is found is raised."""
    blocks = CASES[name][2] if len(CASES[name]) > 2 else 1
    blocks = 2 if ONE_BLOCK.search(name) else blocks
    out, mid = empty(128), empty(128)
    given = on_device(np.ones(258), np.float32)
    flag, some = on_device([0], np.uint32), on_device(np.zeros(64), np.uint8)
    arguments = (NAMES.index(name), out, 128, given, mid, flag, some, None)
    kernel(blocks, THREADS, arguments, shared=2048, cluster=blocks, seed=seed)


@pytest.fixture(scope="module")
def kernel():
    return WatchedKernel("watch", text=text_of(CASES), entry="some")


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NAMES)
def test_faults_are_found_and_nothing_else(kernel, name):
    """Whatever the order of warps was."""
    for seed in (0, 1, 2):
        try:
            launched(name, kernel, seed)
            said = ""
        except Found as found:
            said = str(found)
        wanted = CASES[name][1]
        assert said if wanted else not said, said
        assert wanted in said
