"""Opcodes that compute a value from values: their types, and what they are in C++."""

from dataclasses import dataclass

SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
BITS = ("b16", "b32", "b64")
BYTES = ("s8", "u8", *INTEGERS)
WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


@dataclass(frozen=True)
class Form:
    """A result, operands, and an expression of them: {0}, {1} ..."""

    to: str
    of: tuple[str, ...]
    says: str


def _call(name: str, to: str, *of: str) -> Form:
    places = ", ".join(f"{{{i}}}" for i in range(len(of)))
    return Form(to, of, f"ptx::{name}({places})")


def _integers() -> dict[str, Form]:
    found = {}
    for t in INTEGERS:
        for name in ("add", "sub"):
            found[f"{name}.{t}"] = _call(f"{name}<{t}>", t, t, t)
        found[f"mul.lo.{t}"] = _call(f"mul<{t}>", t, t, t)
        found[f"mad.lo.{t}"] = _call(f"mad<{t}>", t, t, t, t)
        for name, own in (("min", "least"), ("max", "greatest")):
            found[f"{name}.{t}"] = _call(f"{own}<{t}>", t, t, t)
        for name, own in (("div", "quotient"), ("rem", "rest")):
            found[f"{name}.{t}"] = _call(f"{own}<{t}>", t, t, t)
        found[f"shr.{t}"] = _call(f"shr<{t}>", t, t, "u32")
    for t, w in WIDER.items():
        found[f"mul.wide.{t}"] = _call(f"mul_wide<{w}, {t}>", w, t, t)
        found[f"mad.wide.{t}"] = _call(f"mad_wide<{w}, {t}>", w, t, t, w)
    for t in SIGNED:
        found[f"neg.{t}"] = _call(f"negative<{t}>", t, t)
        found[f"abs.{t}"] = _call(f"absolute<{t}>", t, t)
    for t in ("u32", "s32", "u64"):
        found[f"mul.hi.{t}"] = _call("mul_hi", t, t, t)
    return found


def _bits() -> dict[str, Form]:
    found = {}
    for t in BITS:
        for name, sign in (("and", "&"), ("or", "|"), ("xor", "^")):
            found[f"{name}.{t}"] = Form(t, (t, t), f"({t})({{0}} {sign} {{1}})")
        found[f"not.{t}"] = Form(t, (t,), f"({t})~{{0}}")
        found[f"shl.{t}"] = _call(f"shl<{t}>", t, t, "u32")
        found[f"shr.{t}"] = _call(f"shr<{t}>", t, t, "u32")
    for name, sign in (("and", "&&"), ("or", "||"), ("xor", "!=")):
        found[f"{name}.pred"] = Form("pred", ("pred", "pred"), f"({{0}} {sign} {{1}})")
    found["not.pred"] = Form("pred", ("pred",), "!{0}")
    for t in ("b32", "b64"):
        found[f"bfi.{t}"] = _call(f"bfi<{t}>", t, t, t, "u32", "u32")
    found["prmt.b32"] = _call("prmt", "b32", "b32", "b32", "b32")
    return found


def _floats() -> dict[str, Form]:
    """Of f32 those with .ftz are the plain ones: a thread of the emulation flushes."""
    found = {}
    for name, own in (("add", "add"), ("sub", "sub"), ("mul", "mul")):
        for rounding in ("", ".rn"):
            found[f"{name}{rounding}.ftz.f32"] = _call(f"{own}<f32>", "f32", *TWO)
            found[f"{name}{rounding}.f64"] = _call(f"{own}<f64>", "f64", "f64", "f64")
            if name != "sub":
                found[f"{name}{rounding}.f32"] = _call(f"kept_{own}", "f32", *TWO)
    found["fma.rn.ftz.f32"] = _call("fma", "f32", *TWO, "f32")
    found["fma.rm.ftz.f32"] = _call("fma_down", "f32", *TWO, "f32")
    found["fma.rn.f64"] = _call("fma", "f64", "f64", "f64", "f64")
    found["div.rn.ftz.f32"] = Form("f32", TWO, "({0} / {1})")
    found["div.rn.f32"] = _call("kept_quotient", "f32", *TWO)
    found["sqrt.rn.f32"] = _call("kept_root", "f32", "f32")
    found["div.rn.f64"] = Form("f64", ("f64", "f64"), "({0} / {1})")
    found["ex2.approx.ftz.f32"] = _call("ex2", "f32", "f32")
    flushed = "ptx::flushed({0})"
    for name, own in (("neg", "negative"), ("abs", "absolute")):
        found[f"{name}.ftz.f32"] = Form("f32", ("f32",), f"ptx::{own}({flushed})")
        found[f"{name}.f64"] = _call(own, "f64", "f64")
    for name, own in (("min", "least"), ("max", "greatest")):
        both = f"ptx::{own}({flushed}, ptx::flushed({{1}}))"
        found[f"{name}.ftz.f32"] = Form("f32", TWO, both)
        found[f"{name}.f64"] = _call(own, "f64", "f64", "f64")
    return found


TWO = ("f32", "f32")


def _choices() -> dict[str, Form]:
    found = {}
    for t in (*INTEGERS, *BITS):
        for name in COMPARISONS:
            found[f"setp.{name}.{t}"] = _call(f"{name}<{t}>", "pred", t, t)
    for name in COMPARISONS + UNORDERED:
        found[f"setp.{name}.ftz.f32"] = _call(f"{name}<f32>", "pred", *TWO)
        found[f"setp.{name}.f64"] = _call(f"{name}<f64>", "pred", "f64", "f64")
    for t in (*INTEGERS, *BITS, "f32", "f64"):
        found[f"selp.{t}"] = Form(t, (t, t, "pred"), "({2} ? {0} : {1})")
        found[f"mov.{t}"] = Form(t, (t,), "{0}")
    found["mov.pred"] = Form("pred", ("pred",), "{0}")
    return found


def _conversions() -> dict[str, Form]:
    found = {}
    for d in BYTES:
        for s in BYTES:
            found[f"cvt.{d}.{s}"] = _call(f"convert<{d}, {s}>", d, s)
    found["cvt.ftz.f64.f32"] = _call("convert<f64, f32>", "f64", "f32")
    found["cvt.rn.ftz.f32.f64"] = _call("convert<f32, f64>", "f32", "f64")
    found["cvt.ftz.sat.f32.f32"] = _call("saturated", "f32", "f32")
    found["cvt.rzi.ftz.s32.f32"] = _call("truncated", "s32", "f32")
    found["cvt.f32.f16"] = _call("of_f16", "f32", "u16")
    found["cvt.rn.f16.f32"] = _call("to_f16", "u16", "f32")
    found["cvt.rna.tf32.f32"] = _call("to_tf32", "b32", "f32")
    return found


def _addresses() -> dict[str, Form]:
    return {
        "cvta.to.global.u64": Form("u64", ("u64",), "{0}"),
        "cvta.global.u64": Form("u64", ("u64",), "{0}"),
        "cvta.shared.u64": _call("from_shared", "u64", "u64"),
        "cvta.to.shared.u64": _call("to_shared", "u64", "u64"),
        "mapa.shared::cluster.u32": _call("map_to", "u32", "u32", "u32"),
    }


FORMS: dict[str, Form] = {
    **_integers(),
    **_bits(),
    **_floats(),
    **_choices(),
    **_conversions(),
    **_addresses(),
}
