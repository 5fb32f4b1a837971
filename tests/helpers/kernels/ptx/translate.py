"""An entry of PTX -> C++, one statement an instruction, for on_cpu.h.

Opcodes that compute values are in opcodes.py; here are those that reach memory, other
threads, or another place of the text. One that nobody knows is an error with its line.
"""

import re
from collections.abc import Callable

from tests.helpers.kernels.ptx.opcodes import FORMS, Form
from tests.helpers.kernels.ptx.operands import Known, Operands, members, own_name
from tests.helpers.kernels.ptx.parse import (
    Instruction,
    Label,
    Module,
    Registers,
    Scope,
    Statement,
    Unknown,
    name_of,
)

WHOLE = "16"  # bytes that cp.async.cg writes
SHAPES = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}  # columns of A


def translated(module: Module, name: str) -> str:
    """The C++ text of one entry, with its launch and its lines."""
    entry = module.entries[name]
    parameters = ", ".join(f"{t} {p}" for t, p in entry.parameters)
    known = Known(entry.registers(), frozenset(module.shared))
    rows = [_statement(one, known) for one in entry.body]
    lines = ",\n".join(_quoted(one) for one in entry.instructions())
    return "\n".join(
        [
            '#include "on_cpu.h"',
            f"void {name}({parameters})\n{{",
            *rows,
            f"}}\nLAUNCHABLE({name})",
            f"static const char *const LINES[] = {{\n{lines}}};",
            'extern "C" const char *ptx_line(unsigned number)'
            " { return number < sizeof LINES / sizeof *LINES ? LINES[number] : 0; }\n",
        ]
    )


def _quoted(one: Instruction) -> str:
    text = f"{one.line}: {one.text}".replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _statement(one: Statement, known: Known) -> str:
    if isinstance(one, Label):
        return f"{one.name}:;"
    if isinstance(one, Scope):
        return "{" if one.opens else "}"
    if isinstance(one, Registers):
        return f"{one.type} {', '.join(map(own_name, one.names()))};"
    try:
        said = Translation(one, known).said()
    except (Unknown, ValueError) as error:
        raise Unknown(f"line {one.line}: {one.text} ({error})") from error
    guard = f"if ({_guard(one.guard)}) " if one.guard else ""
    return f"    WATCH_ISSUE({one.number}); {guard}{{ {said} }}"


def _guard(said: str) -> str:
    return f"!{own_name(said[1:])}" if said.startswith("!") else own_name(said)


class Translation(Operands):
    """Of one instruction."""

    def said(self) -> str:
        """The statement."""
        if packed := self._packed():
            return packed
        if form := FORMS.get(self.one.opcode):
            return self._computed(form)
        for pattern, method in WAYS.items():
            if found := re.fullmatch(pattern, self.one.opcode):
                return method(self, *found.groups())
        raise Unknown("an unknown opcode")

    # ---- values ----

    def _computed(self, form: Form) -> str:
        to, *of = self.operands(1 + len(form.of))
        values = [self.value(o, t) for o, t in zip(of, form.of, strict=True)]
        return self.put(to, form.to, form.says.format(*values))

    def _packed(self) -> str:
        """mov of several registers to one, or of one to several."""
        if not re.fullmatch(r"mov\.b(32|64)", self.one.opcode):
            return ""
        to, of = self.operands(2)
        if to.startswith("{"):
            half = f"u{int(self.one.opcode[-2:]) // 2}"
            value = self.value(of, f"u{self.one.opcode[-2:]}")
            return f"auto all_ = {value}; " + "; ".join(
                self.put(register, half, f"({half})(all_ >> {i} * 8 * sizeof({half}))")
                for i, register in enumerate(members(to, 2))
                if register != "_"
            )
        if of.startswith("{"):
            whole = f"u{self.one.opcode[-2:]}"
            half = f"u{int(whole[1:]) // 2}"
            low, high = (self.value(r, half) for r in members(of, 2))
            joined = f"({whole}){low} | ({whole}){high} << 8 * sizeof({half})"
            return self.put(to, whole, joined)
        return ""

    # ---- memory ----

    def load_parameter(self, kind: str) -> str:
        """ld.param"""
        to, of = self.operands(2)
        found = re.fullmatch(r"\[(\w+)\]", of)
        if not found:
            raise Unknown("a part of a parameter")
        return self.put(to, kind, f"ptx::as<{kind}>({found[1]})")

    def load(self, space: str | None, count: str | None, kind: str) -> str:
        """ld from global, shared or generic memory, whatever it says of caches."""
        to, of = self.operands(2)
        number, width = self.one.number, int(count or 1)
        registers = [self.register(r) for r in members(to, width)]
        where, reach = _space(space)
        said = f"{number}, {self.place(of, reach)}, {', '.join(registers)}"
        return f"LOAD({where}, READ, {kind}, {width}, {said});"

    def load_acquire(self, kind: str) -> str:
        """ld.acquire.gpu.global"""
        to, of = self.operands(2)
        place = self.place(of, "global_at")
        return f"LOAD_ACQUIRE({kind}, {self.one.number}, {place}, {self.register(to)});"

    def store(self, space: str | None, count: str | None, kind: str) -> str:
        """st to global, shared, generic memory, or another block's shared memory."""
        to, of = self.operands(2)
        width = int(count or 1)
        values = [self.value(r, kind) for r in members(of, width)]
        where, reach = _space(space)
        said = f"{self.one.number}, {self.place(to, reach)}, {', '.join(values)}"
        return f"STORE({where}, {kind}, {width}, {said});"

    def atomic(self, way: str, kind: str) -> str:
        """atom.global"""
        to, at, value = self.operands(3)
        own = {"add": "__atomic_fetch_add", "exch": "__atomic_exchange_n"}[way]
        said = f"{self.one.number}, {self.place(at, 'global_at')}, {self.register(to)}"
        return f"ATOM({own}, {kind}, {said}, {self.value(value, kind)});"

    def copy(self) -> str:
        """cp.async of 16 bytes, of which a last operand may take only the first."""
        to, of, size, *some = self.one.operands
        if size != WHOLE or len(some) > 1:
            raise Unknown("a size that is not 16")
        count = self.value(some[0], "u32") if some else size
        places = f"{self.place(to, 'shared_at')}, {self.place(of, 'global_at')}"
        return f"COPY({self.one.number}, {places}, {count});"

    def copy_wait(self) -> str:
        """cp.async.wait_group"""
        (left,) = self.operands(1)
        return f"emulated::land(*emulated::now, {int(left)});"

    # ---- tensor cores ----

    def load_matrix(self) -> str:
        """ldmatrix"""
        to, of = self.operands(2)
        registers = ", ".join(self.register(r) for r in members(to, 4))
        return (
            f"LDMATRIX({self.one.number}, {self.place(of, 'shared_at')}, {registers});"
        )

    def multiply(self, columns: str, kind: str, other: str) -> str:
        """mma of 16 x 8 sums: groups of registers in the order d, a, b, c."""
        if kind != other or SHAPES[kind] != int(columns):
            raise Unknown("a shape of other numbers")
        d, a, b, c = self.operands(4)
        to = [self.register(r) for r in members(d, 4)]
        of = [self.value(r, "u32") for r in (*members(a, 4), *members(b, 2))]
        of += [self.value(r, "f32") for r in members(c, 4)]
        return f"MMA(mma_{kind}, {', '.join(to)}, {', '.join(of)});"

    def multiply_by_warpgroup(self, columns: str, kind: str, other: str) -> str:
        """wgmma of 64 x `columns` sums, of matrices that both lie as their rows do."""
        d, a, b, *signs = self.operands(8)
        if kind != other or signs != ["1", "1", "1", "0", "0"]:
            raise Unknown("another product than d += a b")
        places = ", ".join(
            f"&{self.register(r)}" for r in members(d, int(columns) // 2)
        )
        matrices = f"{self.value(a, 'u64')}, {self.value(b, 'u64')}"
        return f"WGMMA_ASYNC({kind}, {matrices}, {places});"

    def wait_for_products(self) -> str:
        """wgmma.wait_group"""
        (left,) = self.operands(1)
        return f"wgmma_wait<{int(left)}>();"

    # ---- other threads, other places ----

    def go(self) -> str:
        """bra"""
        (where,) = self.operands(1)
        return f"goto {name_of(where)};"

    def shuffle(self, way: str) -> str:
        """shfl.sync"""
        to, a, b, c, mask = self.operands(5)
        register, _, inside = to.partition("|")
        values = ", ".join(self.value(o, "u32") for o in (a, b, c, mask))
        own = {"up": "UP", "down": "DOWNWARDS", "bfly": "BFLY", "idx": "IDX"}[way]
        said = f"bool in_; u32 got_ = ptx::shuffle(ptx::{own}, {values}, in_);"
        said += f" {self.put(register, 'u32', 'got_')}"
        return f"{said} {self.register(inside)} = in_;" if inside else said

    def barrier(self) -> str:
        """bar.sync of the whole block"""
        if self.operands(1) != ("0",):
            raise Unknown("a barrier of some")
        return "__syncthreads();"

    def warp_barrier(self) -> str:
        """bar.warp.sync"""
        (mask,) = self.operands(1)
        return f"ptx::warp_barrier({self.value(mask, 'u32')});"

    def plain(self) -> str:
        """What has one meaning and no operand that changes it."""
        return PLAIN[self.one.opcode]


PLAIN = {
    "ret": "return;",
    "membar.gl": "__threadfence();",
    "fence.acq_rel.gpu": "__threadfence();",
    "nanosleep.u32": "spin();",
    "prefetch.global.L2": "",
    "cp.async.commit_group": "copy_commit();",
    "fence.proxy.async.shared::cta": "fence_for_units();",
    "wgmma.fence.sync.aligned": "wgmma_begin();",
    "wgmma.commit_group.sync.aligned": "wgmma_commit();",
    "barrier.cluster.arrive.release.aligned": "cluster_arrive();",
    "barrier.cluster.wait.acquire.aligned": "cluster_wait();",
}
TYPE = r"([busf](?:8|16|32|64))"
CACHES = r"(?:\.nc|\.cg|\.ca)?"
WAYS: dict[str, Callable[..., str]] = {
    "|".join(map(re.escape, PLAIN)): Translation.plain,
    r"bra(?:\.uni)?": Translation.go,
    rf"ld\.param\.{TYPE}": Translation.load_parameter,
    rf"ld\.acquire\.gpu\.global\.{TYPE}": Translation.load_acquire,
    rf"ld(?:\.(global|shared))?{CACHES}(?:\.v([24]))?\.{TYPE}": Translation.load,
    rf"st(?:\.(global|shared|shared::cluster))?{CACHES}(?:\.v([24]))?\.{TYPE}": (
        Translation.store
    ),
    r"atom(?:\.relaxed\.gpu)?\.global\.(add|exch)\.(u32|b32)": Translation.atomic,
    r"cp\.async\.cg\.shared\.global": Translation.copy,
    r"cp\.async\.wait_group": Translation.copy_wait,
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16": Translation.load_matrix,
    r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.f32\.(\w+)\.(\w+)\.f32": (
        Translation.multiply
    ),
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.(\w+)": (
        Translation.multiply_by_warpgroup
    ),
    r"wgmma\.wait_group\.sync\.aligned": Translation.wait_for_products,
    r"shfl\.sync\.(up|down|bfly|idx)\.b32": Translation.shuffle,
    r"bar\.sync": Translation.barrier,
    r"bar\.warp\.sync": Translation.warp_barrier,
}


def _space(space: str | None) -> tuple[str, str]:
    """What a watch is told, and how an address is found."""
    return {
        "global": ("GLOBAL", "global_at"),
        "shared": ("SHARED", "shared_at"),
        "shared::cluster": ("CLUSTER", "cluster_at"),
        None: ("ptx::space_of(at_)", "global_at"),
    }[space]
