"""Operands of one instruction -> C++: registers, numbers, names, addresses."""

import re
from dataclasses import dataclass

from tests.helpers.kernels.ptx.parse import Instruction, Unknown

SPECIAL = {
    **{f"%tid.{axis}": f"threadIdx.{axis}" for axis in "xyz"},
    **{f"%ctaid.{axis}": f"blockIdx.{axis}" for axis in "xyz"},
    **{f"%ntid.{axis}": f"blockDim.{axis}" for axis in "xyz"},
    **{f"%nctaid.{axis}": f"gridDim.{axis}" for axis in "xyz"},
    "%cluster_ctarank": "cluster_rank()",
    "%laneid": "emulated::now->lane",
}


@dataclass(frozen=True)
class Known:
    """Names of an entry, and of the memory that it shares."""

    registers: frozenset[str]
    shared: frozenset[str]


def own_name(register: str) -> str:
    """As C++ may call it, where f32 is a type."""
    return f"_{register}"


def members(said: str, count: int) -> list[str]:
    """Of {a, b, c}, or of a alone; so many."""
    found = [one.strip() for one in said.strip("{}").split(",")]
    if len(found) != count:
        raise Unknown(f"{count} registers wanted")
    return found


class Operands:
    """Of one instruction."""

    def __init__(self, one: Instruction, known: Known) -> None:
        self.one, self.known = one, known

    def operands(self, count: int) -> tuple[str, ...]:
        if len(self.one.operands) != count:
            raise Unknown(f"{count} operands wanted")
        return self.one.operands

    def register(self, said: str) -> str:
        """One of those that are declared, as C++ calls it."""
        if not said.startswith("%") or said[1:] not in self.known.registers:
            raise Unknown(f"{said} is no register")
        return own_name(said[1:])

    def put(self, to: str, kind: str, value: str) -> str:
        """A result into its register."""
        if to == "_":
            return f"(void)({value});"
        return f"ptx::put<{kind}>({self.register(to)}, {value});"

    def value(self, said: str, kind: str) -> str:
        """An operand, as the type that the instruction names."""
        if said in SPECIAL:
            return f"({kind})({SPECIAL[said]})"
        if found := re.fullmatch(r"(!?)%(\w+)", said):
            return f"{found[1]}ptx::as<{kind}>({self.register('%' + found[2])})"
        if found := re.fullmatch(r"0[fd]([0-9A-Fa-f]{8}|[0-9A-Fa-f]{16})", said):
            suffix = "u" if len(found[1]) == 8 else "ull"
            return f"ptx::as<{kind}>(0x{found[1]}{suffix})"
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)", said):
            return f"({kind}){int(said, 0) % 2**64}ull"
        if said in self.known.shared:
            return f"({kind})ptx::start()"
        raise Unknown(f"operand {said}")

    def place(self, said: str, reach: str) -> str:
        """Where [register + offset] is, as the host sees it."""
        found = re.fullmatch(r"\[([%\w$]+)(?:\+(-?\d+))?\]", said)
        if not found:
            raise Unknown(f"address {said}")
        is_register = found[1].startswith("%")
        base = self.register(found[1]) if is_register else self.value(found[1], "u32")
        return f"ptx::{reach}(ptx::address({base}) + {int(found[2] or 0)})"
