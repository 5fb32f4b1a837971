"""Entries of a few lines, for tests of single instructions."""


def text_of(body, threads=1024, cluster=1):
    """Three inputs and an output; thread i has their i-th 64 bits at %rd10 to %rd13."""
    head = "".join(
        f"ld.param.u64 %rd{i}, [one_param_{i}]; add.s64 %rd{10 + i}, %rd{i}, %rd5;\n"
        for i in range(4)
    )
    parameters = ",".join(f".param .u64 one_param_{i}" for i in range(4))
    many = (
        f".explicitcluster\n.reqnctapercluster {cluster}, 1, 1" if cluster > 1 else ""
    )
    return f"""
.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 128 .b8 memory[];
.visible .entry one({parameters})
.maxntid {threads}, 1, 1
{many}
{{
.reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<99>; .reg .b64 %rd<99>;
.reg .f32 %f<99>; .reg .f64 %fd<9>;
mov.u32 %r90, %tid.x;
mul.wide.u32 %rd5, %r90, 8;
{head}
{body}
ret;
}}"""
