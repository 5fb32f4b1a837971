"""Faults planted in what device.cuh writes in PTX, and how they are seen."""

import re

from hpcsgd.backends.cuda.kernels import build_of
from tests.helpers.kernels.mutants import Mutant
from tests.helpers.kernels.ptx.kernel import PtxKernel
from tests.helpers.kernels.ptx.launches import FEW, module_of, run_by

D, A, B = "{%0,%1,%2,%3}, {%4", "{%4,%5,%6,%7}", "{%8,%9}"
FAULTS = {
    "gram": {
        "A: halves of rows and columns": (A, "{%4,%6,%5,%7}"),
        "A: rows turned": (A, "{%5,%4,%7,%6}"),
        "B turned": (B, "{%9,%8}"),
        "B twice": (B, "{%8,%8}"),
        "D: columns turned": (D, "{%1,%0,%3,%2}, {%4"),
        "D: rows turned": (D, "{%2,%3,%0,%1}, {%4"),
        "C: columns turned": ("{%8,%9}, {%0,%1,%2,%3}", "{%8,%9}, {%1,%0,%3,%2}"),
        "bf16 taken for f16": (
            'mma_bf16, "m16n8k16", "bf16"',
            'mma_bf16, "m16n8k16", "f16"',
        ),
        "f16 taken for bf16": (
            'mma_f16, "m16n8k16", "f16"',
            'mma_f16, "m16n8k16", "bf16"',
        ),
        "e4m3 taken for e5m2": ('k32", "e4m3"', 'k32", "e5m2"'),
        "e5m2 taken for e4m3": (
            'mma_e5m2, "m16n8k32", "e5m2"',
            'mma_e5m2, "m16n8k32", "e4m3"',
        ),
        "matrices turned": ("b16 {%0,%1,%2,%3}", "b16 {%0,%2,%1,%3}"),
        "matrices backwards": ("b16 {%0,%1,%2,%3}", "b16 {%3,%2,%1,%0}"),
        "matrices with .trans": ("m8n8.x4.shared", "m8n8.x4.trans.shared"),
        "a generic address for one of shared memory": (
            "(u32)__cvta_generic_to_shared(at)",
            "(u32)(u64)at",
        ),
        "copies of 16 bytes, always": ("[%0], [%1], 16, %2;", "[%0], [%1], 16;"),
        "copies of a place 16 bytes on": (
            "[%0], [%1], 16, %2;",
            "[%0], [%1+16], 16, %2;",
        ),
        "copies to a place 16 bytes on": (
            "[%0], [%1], 16, %2;",
            "[%0+16], [%1], 16, %2;",
        ),
        "no batches": ('asm volatile("cp.async.commit_group;" ::: "memory");', ""),
        "a wait for one batch less": ('"n"(LEFT)', '"n"(LEFT + 1)'),
        "no wait": (
            'asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");',
            "",
        ),
        "tf32 cut off": ("cvt.rna.tf32.f32 %0, %1;", "mov.b32 %0, %1;"),
        "tf32 of another register": (
            '"=r"(bits) : "f"(__uint_as_float(bits))',
            '"=r"(bits) : "f"(0.0f)',
        ),
    },
    "gram_wgmma": {
        "no fence between units": (
            'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
            "",
        ),
        "no wgmma.fence": (
            'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
            "",
        ),
        "no wgmma-group": (
            'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
            "",
        ),
        "a wait for one group less": (
            'wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT)',
            'wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT + 1)',
        ),
        "no wait for groups": (
            'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory")',
            "",
        ),
        "a fence of all memory but none of units": (
            "fence.proxy.async.shared::cta",
            "fence.acq_rel.gpu",
        ),
        "bf16 taken for f16 by warpgroups": (
            'WGMMA(wgmma_bf16, "bf16")',
            'WGMMA(wgmma_bf16, "f16")',
        ),
        "f16 taken for bf16 by warpgroups": (
            'WGMMA(wgmma_f16, "f16")',
            'WGMMA(wgmma_f16, "bf16")',
        ),
        "A and B turned": ("%128, %129", "%129, %128"),
        "A and B of one tile turned": ("%64, %65", "%65, %64"),
        "A twice": ("%128, %129", "%128, %128"),
        "a sum that begins anew": (
            '"}, %128, %129, 1, 1, 1, 0, 0;"',
            '"}, %128, %129, 0, 1, 1, 0, 0;"',
        ),
        "a difference by warpgroups": (
            '"}, %128, %129, 1, 1, 1, 0, 0;"',
            '"}, %128, %129, 1, -1, 1, 0, 0;"',
        ),
        "B as columns": (
            '"}, %128, %129, 1, 1, 1, 0, 0;"',
            '"}, %128, %129, 1, 1, 1, 0, 1;"',
        ),
        "sums turned": ('"%0,%1,%2,', '"%1,%0,%2,'),
        "sums of the second tile first": (
            ": SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 64)",
            ": SIXTY_FOUR(d, 64), SIXTY_FOUR(d, 0)",
        ),
        "an address that is not of shared memory": (
            "(u32)__cvta_generic_to_shared(at)",
            "(u32)(u64)at",
        ),
    },
    "recurrence": {
        "mapped to the own rank": (
            '"mapa.shared::cluster.u32 %0, %1, %2;"',
            '"mov.u32 %0, %%cluster_ctarank; mapa.shared::cluster.u32 %0, %1, %0;"',
        ),
        "mapped to nobody": (
            '"mapa.shared::cluster.u32 %0, %1, %2;"',
            '"mov.u32 %0, %1;"',
        ),
        "a store to the own block": (
            "st.shared::cluster.f32 [%0]",
            "st.shared.f32 [%0]",
        ),
        "the next float": (
            "st.shared::cluster.f32 [%0]",
            "st.shared::cluster.f32 [%0+4]",
        ),
        "nobody arrives": (
            'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");',
            "",
        ),
        "nobody waits": (
            'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");',
            "",
        ),
        "arrivals that release nothing": ("arrive.release", "arrive.relaxed"),
        "the rank is that of a lane": ("%%cluster_ctarank;", "%%laneid;"),
    },
    "cast": {
        "half: another format": ("cvt.f32.f16 %0", "cvt.f32.bf16 %0"),
        "fp8: small ones are zeros": (
            "mul.rn.f32 %0, %1, 0f",
            "mul.rn.ftz.f32 %0, %1, 0f",
        ),
        "fp8: half of the power": ("0f7B800000", "0f7B000000"),
    },
    "round": {
        "half: not to nearest": ("cvt.rn.f16.f32", "cvt.rz.f16.f32"),
        "half: of another register": (
            '"=h"(bits) : "f"(value)',
            '"=h"(bits) : "f"(1.0f)',
        ),
    },
    "parts": {
        "small sums are zeros": ("add.rn.f32", "add.rn.ftz.f32"),
        "a difference": ("add.rn.f32", "sub.rn.f32"),
        "the left one twice": (
            '"=f"(sum) : "f"(left), "f"(right)',
            '"=f"(sum) : "f"(left), "f"(left)',
        ),
    },
    "direct_steps": {
        "another address is waited for": (
            "ld.acquire.gpu.global.u32 %0, [%1];",
            "ld.acquire.gpu.global.u32 %0, [%1+4];",
        ),
        "not waited for": ("ld.acquire.gpu.global.u32 %0, [%1];", "mov.u32 %0, -1;"),
        "what is acquired is seen by the block": ("ld.acquire.gpu", "ld.acquire.cta"),
        "a relaxed load": ("ld.acquire.gpu", "ld.relaxed.gpu"),
    },
}
MUTANTS = [
    Mutant(kernel, f"PTX: {name}", *change)
    for kernel, changes in FAULTS.items()
    for name, change in changes.items()
]


def gram(text):
    """Every kind of number that a tensor core takes."""
    module = module_of("gram")
    for element in ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2"):
        defines = build_of("gram-64", element, "90").defines
        module.agrees(element, 64, defines, module.CASES[2], text, FEW)
    defines = build_of("gram-tf32-64", "fp32", "90").defines
    module.agrees("fp32", 64, defines, module.CASES[2], text, FEW)


def gram_wgmma(text):
    """Tiles and pairs, both kinds of number."""
    module = module_of("gram_wgmma")
    for element in ("bf16", "fp16"):
        for case in module.CASES[1:3]:
            module.agrees(element, case, text, FEW)


def recurrence(text):
    """A cluster, in more than one order of its blocks."""
    module = module_of("recurrence")
    module.agrees(
        "logistic", (33,) * 6, "three", module.SIDES, module.CLUSTER, text=text
    )


def cast(text):
    """All numbers of the formats that PTX converts."""
    for element in ("fp16", "fp8-e4m3"):
        module_of("cast").casts_agree(element, text)


def rounding(text):
    """Every number of half, and what lies between."""
    module_of("round").agrees("fp16", text)


def parts(text):
    """Sums, small ones among them."""
    module_of("parts").check(text)


def direct_steps(text):
    """Blocks that wait for one another."""
    module = module_of("direct_steps")
    walk = module.walk_of(*module.SIZES[2], "bf16")
    module.launches_agree(walk, "bf16", text, seeds=range(8))


CHECKS = {
    **{
        "gram": gram,
        "gram_wgmma": gram_wgmma,
        "recurrence": recurrence,
        "direct_steps": direct_steps,
    },
    **{"narrow": cast, "add_parts": parts, "round_values": rounding},
}


def check(text):
    """What mutants have to fail: the text says which kernel it is."""
    entries = re.findall(r"^LAUNCHABLE\((\w+)\)", text, re.M)
    (own,) = [CHECKS[name] for name in entries if name in CHECKS]
    with run_by(PtxKernel):
        own(text)
