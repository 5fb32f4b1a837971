# Not built by us: no Spack runs where hpcsgd is developed. The packages and versions
# below were found in the list of packages of Spack of July 2026.
#
# Copy this file to packages/py_hpcsgd/package.py of your package repository. There is
# no archive to download, so Spack builds a checkout:
#     spack add py-hpcsgd
#     spack develop --path CHECKOUT py-hpcsgd@=0.1.0
#     spack install
# Declare the MPI of the cluster as an external package of Spack, so that py-mpi4py and
# py-h5py are built against it.

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcsgd(PythonPackage):
    """Communication-avoiding SGD for generalized linear models, on CPUs and GPUs."""

    license("Apache-2.0", checked_by="hpcsgd")

    version("0.1.0")

    variant("sklearn", default=True, description="Estimators of scikit-learn")
    variant("plot", default=False, description="Figures of compare, study and report")
    variant("cuda", default=False, description="NVIDIA GPUs, by CuPy")

    depends_on("c", type="build")
    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-wheel", type="build")

    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-ml-dtypes@0.4:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))

    depends_on("py-scikit-learn@1.6:", type=("build", "run"), when="+sklearn")
    depends_on("py-matplotlib", type=("build", "run"), when="+plot")
    depends_on("py-cupy@14:", type=("build", "run"), when="+cuda")

    import_modules = ["hpcsgd"]
