"""The one thing that setup.cfg cannot hold: the optional extensions."""

from setuptools import Extension, setup

# optional: without a C compiler the build goes on, and Python does the kernels' work
setup(
    ext_modules=[
        Extension("hpcsgd.backends._rows", ["kernels/cpu/rows.c"], optional=True),
        Extension("hpcsgd.data._scatter", ["kernels/cpu/scatter.c"], optional=True),
        Extension("hpcsgd.data._parse", ["kernels/cpu/parse.c"], optional=True),
    ]
)
