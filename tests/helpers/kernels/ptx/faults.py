"""Faults that need words: those of two changes, and those that nobody reports."""

# What takes more than one change, or another.
OTHERS = {
    "direct_steps": {
        "neither an acquire nor a fence behind it": (
            ("load_acquire(came)", "atomicAdd(came, 0u)"),
            ("            spin();\n        __threadfence();", "            spin();"),
        ),
        "one room for the parts of all steps": (
            ("(s64)(j & 1) * tall", "(s64)0 * tall"),
        ),
        "counters that are set, not exchanged, before the last": (
            ("if (atomicAdd(counters + 1, 1u) == gridDim.x - 1) {", "{"),
            ("atomicExch(counters, 0u)", "counters[0] = 0"),
        ),
    },
    "gram": {
        "a stage that is still read": (("step + STAGES - 1;", "step + STAGES;"),),
        "tickets that anyone clears": (
            ("if (splits == 1 || !is_last", "if (splits > 1 && threadIdx.x == 0)"
             " tickets[number] = 0;\n    if (splits == 1 || !is_last"),
        ),
        "one place for all parts": (
            ("workspace + split * apart + at)", "workspace + at)"),
        ),
    },
    "recurrence": {
        "two buffers for three": (("#define BUFFERS 3", "#define BUFFERS 2"),),
        "no barrier at the beginning": (
            ("    arrive(); /* every", "    /* every"),
            ("intercept */\n    wait();", "intercept */"),
        ),
        "no barrier of a step": (
            ("after);\n        arrive();\n", "after);\n"),
            ("own_rows);\n        wait();", "own_rows);"),
        ),
        "told behind the arrival": (
            ("            tell(next + place_in(row, first), part, r);\n", ""),
            ("        arrive();\n        if (j)", "        arrive();\n"
             "        for (int i = low + (threadIdx.x >> 3); i < end; i += GROUPS)\n"
             "            tell(next + place_in(row_of(i, rank), first), part, 1.0f);\n"
             "        if (j)"),
        ),
    },
    "gram_wgmma": {
        "a stage whose product is not done": (
            ("load(step + STAGES - 2);", "load(step + STAGES - 1);"),
        ),
        "loaded before the barrier": (
            ("__syncthreads();\n        wgmma_begin();", "wgmma_begin();"),
            ("  wgmma_wait<1>();\n", "  wgmma_wait<1>(); __syncthreads();\n"),
        ),
        "two groups under way": (
            ("        wgmma_wait<1>();", "        wgmma_wait<2>();"),
        ),
    },
    "csr": {
        "sums of all warps in one place": (
            ("parts + (threadIdx.x >> 5) * words", "parts"),
        ),
    },
}  # fmt: skip
# What nobody reports, and why that is right.
_ROUND = "a round more, with nothing in it"
_PADDING = "places behind the last column may be read; float64 sees their NaN"
UNSEEN = {
    "cast: chunk[i] = i <= left ? chunk[i] : 0.0f;": _PADDING,
    "columns: to[i] = k + i <= cols ? to[i] : 0.0f;": _PADDING,
    "columns: for (int base = 0; base <= cols; base += TILE) {": _ROUND,
    "columns: for (int base = 0; base <= count; base += ROWS) {": _ROUND,
    "columns: float sum = c <= many ? sum_of_warp(sums[t][c]) : 0.0f;": (
        "a sum more, which nobody writes"
    ),
    "columns: for (int row = split; split <= splits && row < ROWS; row += splits) {": (
        "sums of a warp that has no part of the rows: nobody adds them"
    ),
    "csr: for (int some = threadIdx.x & ~31; some <= count; some += blockDim.x) {": (
        _ROUND
    ),
    "csr: u32 some = votes_of_warp(from <= to);": "a row more, which has no entry here",
    "direct_steps: without __threadfence() (2)": (
        "the acquire before it orders the same: one of the two is enough"
    ),
    "direct_steps: while (atomicAdd((u32 *)came, 0u) < wanted)": (
        "the fence behind it orders the same: one of the two is enough"
    ),
    "direct_steps: for (int base = 0; base <= slice.count; base += AT_ONCE) {": _ROUND,
    "direct_steps: for (int base = 0; base <= count; base += AT_ONCE) {": _ROUND,
    "direct_steps: for (int base = slice.first; base <= slice.last; base += WIDE) {": (
        _ROUND
    ),
    "direct_steps: if (place <= kept.room)": (
        "a chunk where `parts` will lie, which are written before they are read"
    ),
    "direct_steps: for (int col = slice.first + (threadIdx.x & 7) * IN_CHUNK;"
    " col <= slice.last;": "a prefetch is no access, wherever it goes",
    **{
        f"{kernel}: {name}": reason
        for kernel in ("margin", "gram", "gram_wgmma", "gather_steps")
        for name, reason in {
            "without __syncwarp()": "it parts what the compiler loads, not threads",
            "for (int base = first; base - first <= whole;"
            " base += AT_A_TIME * apart) {": _ROUND,
        }.items()
    },
    "gram: } else if (k <= end) {": "a stage more, of zeros: nobody reads it",
    **dict.fromkeys(
        ("gram_wgmma: without wgmma_commit()", "gram_wgmma: without wgmma_wait<0>()"),
        "sums that no wait has given back are no numbers: float64 sees them",
    ),
    **dict.fromkeys(
        (
            "gram_wgmma: if (part.first <= part.last && part.sides == 2)",
            "gram_wgmma: else if (part.first <= part.last)",
        ),
        "an empty part of a pair, which is stored where nobody reads",
    ),
    "gram_wgmma: if (step <= steps)": "a stage more, which no product reads",
    "gram_wgmma: for (int step = 0; step <= steps; step++) {": (
        "a stage once more, or what was there before: float64 sees the sums"
    ),
    "recurrence: for (int i = 0; i <= left; i++) {": "a sum of rows: float64 sees it",
    "recurrence: for (int i = 0; i <= ahead.TILES; i++) {": (
        "a place more of what lies in registers, which nobody looks up"
    ),
    "recurrence: if (is_whole || (own + i * APART >= low"
    " && own + i * APART <= high))": "entries of a tile that nobody adds up",
    **dict.fromkeys(
        (
            "recurrence: for (bool is_there = true; low <= high && base < high;"
            " base += AT_ONCE * GROUPS) {",
            "recurrence: for (bool is_there = true; low < high && base <= high;"
            " base += AT_ONCE * GROUPS) {",
        ),
        "a round more, in which no thread has a row of its own",
    ),
    **dict.fromkeys(
        (
            "recurrence: if (is_there && left <= last)",
            "recurrence: for (int col = is_there ? left + 32 : left; col <= last;"
            " col += 32) {",
        ),
        "four columns more, none of which belongs to the batch: nothing is added",
    ),
    "recurrence: bool is_there = own <= base_of<1>(low) + GROUPS;": (
        "a batch of more rows than are under way: test_recurrence.py has such batches,"
        " and float64 sees it"
    ),
    "recurrence: if (following <= further)": "a row's targets, which nobody uses",
    "update: for (int row = first; row <= end; row += DEEP * DOWN) {": _ROUND,
    "update: if (row + t * DOWN <= end) { (2)": (
        "a product of what registers held before: float64 sees it"
    ),
    "gram_wgmma: without __syncwarp()": "where the compiler asks for loads, no more",
    **dict.fromkeys(
        (
            "gram_wgmma: without wgmma_commit()",
            "gram_wgmma: without wgmma_wait<0>()",
        ),
        "sums that are no numbers, or too many: float64 sees it",
    ),
    "gram_wgmma: for (int base = first; base - first <= whole;"
    " base += AT_A_TIME * apart) {": _ROUND,
}
