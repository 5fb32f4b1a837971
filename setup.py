"""The one thing that setup.cfg cannot hold: the optional extension."""

from setuptools import Extension, setup

# optional: without a C compiler the build goes on, and NumPy does the kernels' work
setup(
    ext_modules=[
        Extension("hpcsgd.backends._rows", ["kernels/cpu/rows.c"], optional=True)
    ]
)
