"""What NVRTC is asked to compile, and which warnings count."""

from hpcsgd.backends.cuda.kernels import ELEMENTS, FAMILIES, all_builds

# Plain steps differ between families by the few lines of families.cuh, which every arch
# compiles for the recurrence: all of them for one arch and one format, and one of them
# for every arch and format.
STEPS = ("direct_steps", "gather_steps")
FULL = "90"


def worthy(arch):
    """Families that say something new."""
    one, bf16 = f"FAMILY={FAMILIES['logistic']}", f"ELEMENT={ELEMENTS['bf16']}"
    for build in all_builds(arch):
        is_family = arch == FULL and bf16 in build.defines
        if build.source not in STEPS or one in build.defines or is_family:
            yield build


def faults_in(log):
    """Warnings, and values that found no register: these are slow without a word."""
    lines = [line for line in log.splitlines() if "deprecated" not in line]
    slow = ("warning", "Potential Performance Loss")  # as of wgmma that is serialized
    wrong = [line for line in lines if any(word in line for word in slow)]
    frames = [line for line in lines if "bytes stack frame" in line]
    clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    return wrong + [line for line in frames if line.split(".")[-1].strip() != clean]
